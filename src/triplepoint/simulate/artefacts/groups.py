"""Process groups of a simulated job as traces name them, and collectives outside of passes."""

import json
from collections.abc import Iterable
from dataclasses import replace
from typing import NamedTuple

from triplepoint.simulate.job import Job
from triplepoint.simulate.operations import Communication, Operation, StageWork, distinct

_ROLES = {"dp_cp": "dp", "etp": "tp"}
"""Names of groups in traces, if they differ from those here."""


class ProcessGroup(NamedTuple):
    """A process group of one rank.

    Attributes:
        role: Role in the mesh, such as tp.
        name: Unique name.
        ranks: Ranks of the group.
    """

    role: str
    name: str
    ranks: tuple[int, ...]

    @property
    def arguments(self) -> str:
        """Arguments of a communication event as JSON members, with a comma at the end."""
        return (
            f'"Process Group Name":"{self.name}","Process Group Description":"mesh_{self.role}",'
            f'"Process Group Ranks":"{json.dumps(self.ranks)}","Group size":{len(self.ranks)},'
        )


def groups_used(stages: Iterable[StageWork], job: Job) -> list[str]:
    """Return the names of the groups that communicate in a job."""
    names = {"pp"} if job.layout.pp > 1 else set()
    for stage in distinct(stages):
        names |= _communicating_groups(*_passes(stage), stage.gradient_sync, stage.optimizer)
    return sorted(names)


class Sync(NamedTuple):
    """Collectives of a step outside its passes.

    Attributes:
        gathers: Gathers of a chunk's parameters, overlapped with the first passes.
        reductions: Reductions of a chunk's gradients, overlapped with the last passes.
        after: The other collectives, after the passes.
    """

    gathers: list[Communication]
    reductions: list[Communication]
    after: list[Communication]


def split_sync(stage: StageWork) -> Sync:
    """Return the collectives of a stage outside its passes; every chunk has an equal share of the overlapped ones."""
    collectives = [operation for operation in stage.gradient_sync if isinstance(operation, Communication)]
    overlapped = [collective for collective in collectives if collective.is_overlapped]
    if len(stage.chunks) > 1:
        overlapped = [replace(whole, num_bytes=whole.num_bytes / len(stage.chunks)) for whole in overlapped]
    return Sync(
        [collective for collective in overlapped if collective.kind == "all_gather"],
        [collective for collective in overlapped if collective.kind != "all_gather"],
        [collective for collective in collectives if not collective.is_overlapped],
    )


def lockstep(stages: Iterable[StageWork], job: Job) -> int:
    """Return the number of neighbouring ranks that communicate within passes, and so run at the pace of their slowest.

    Ranks that share tensors or a sequence do; replicas too if experts or parameters are spread over them.
    """
    names = set().union(*(_communicating_groups(*_passes(stage)) for stage in distinct(stages)))
    return max((group.size * group.stride for name in names if (group := job.mesh.group(name)).size > 1), default=1)


def _passes(stage: StageWork) -> list[tuple[Operation, ...]]:
    return [part for chunk in distinct(stage.chunks) for part in chunk.passes]


def _communicating_groups(*parts: tuple[Operation, ...]) -> set[str]:
    return {operation.group for part in parts for operation in part if isinstance(operation, Communication)}


def groups_of(job: Job, rank: int, names: Iterable[str]) -> dict[str, ProcessGroup]:
    """Return the process groups of a rank, by name."""
    by_name = {}
    for name in names:
        ranks = tuple(job.mesh.group(name).ranks(rank))
        by_name[name] = ProcessGroup(_ROLES.get(name, name), f"{name} {ranks[0]}", ranks)
    return by_name
