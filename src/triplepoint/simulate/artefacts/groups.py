"""Process groups of a simulated job as traces tell of them."""

import json
from collections.abc import Iterable
from dataclasses import replace
from typing import NamedTuple

from triplepoint.simulate.job import Job
from triplepoint.simulate.operations import Message, Operation, StageWork
from triplepoint.simulate.work.groups import group_of

_ROLES = {"dp_cp": "dp", "etp": "tp"}
"""What traces call a group, where it has another name here."""


class ProcessGroup(NamedTuple):
    """A process group of one rank."""

    role: str
    name: str
    ranks: tuple[int, ...]

    @property
    def arguments(self) -> str:
        """Members of a communication event's arguments, with a comma at the end."""
        return (
            f'"Process Group Name":"{self.name}","Process Group Description":"mesh_{self.role}",'
            f'"Process Group Ranks":"{json.dumps(self.ranks)}","Group size":{len(self.ranks)},'
        )


def groups_used(stages: Iterable[StageWork], job: Job) -> list[str]:
    """Return the names of the groups that messages of a job are between."""
    names = {"pp"} if job.layout.pp > 1 else set()
    for stage in dict.fromkeys(stages):
        names |= _between(*_passes(stage), stage.gradient_sync, stage.optimizer)
    return sorted(names)


class Sync(NamedTuple):
    """Messages of a step outside its passes.

    Attributes:
        gathers: Of a chunk's parameters, beside the first passes.
        reductions: Of a chunk's gradients, beside the last passes.
        after: The rest, after them.
    """

    gathers: list[Message]
    reductions: list[Message]
    after: list[Message]


def split_sync(stage: StageWork) -> Sync:
    """Return the messages of a stage's step: of every chunk the same share of what runs beside passes."""
    messages = [operation for operation in stage.gradient_sync if isinstance(operation, Message)]
    share = [one for one in messages if one.is_overlapped]
    if len(stage.chunks) > 1:
        share = [replace(one, num_bytes=one.num_bytes / len(stage.chunks)) for one in share]
    return Sync(
        [one for one in share if one.kind == "all_gather"],
        [one for one in share if one.kind != "all_gather"],
        [one for one in messages if not one.is_overlapped],
    )


def lockstep(stages: Iterable[StageWork], job: Job) -> int:
    """Return how many neighbouring ranks exchange messages within passes, and so go at the pace of their slowest.

    Those that share tensors or a sequence do; replicas too where experts or parameters are spread over them.
    """
    names = set().union(*(_between(*_passes(stage)) for stage in dict.fromkeys(stages)))
    return max((group.size * group.stride for name in names if (group := group_of(job, name)).size > 1), default=1)


def _passes(stage: StageWork) -> list[tuple[Operation, ...]]:
    return [part for chunk in stage.chunks for part in (chunk.forward, chunk.backward_input, chunk.backward_weight)]


def _between(*parts: tuple[Operation, ...]) -> set[str]:
    return {operation.group for part in parts for operation in part if isinstance(operation, Message)}


def groups_of(job: Job, rank: int, names: Iterable[str]) -> dict[str, ProcessGroup]:
    """Return the process groups of a rank, by name."""
    found = {}
    for name in names:
        ranks = tuple(group_of(job, name).ranks(rank))
        found[name] = ProcessGroup(_ROLES.get(name, name), f"{name} {ranks[0]}", ranks)
    return found
