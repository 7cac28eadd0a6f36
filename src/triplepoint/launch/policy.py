"""Retry policy: whether a launch without a result is submitted again, on other nodes, or with more time."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from triplepoint.config.plan import PlannedRun
from triplepoint.config.site import Gang
from triplepoint.files import write_json
from triplepoint.manifest import Manifest
from triplepoint.slow_nodes import note_slow_node
from triplepoint.status import Retry, Status

MORE_TIME = 2.0
"""Factor on the time limit of the one further try after a time limit."""
_LOST_TWICE = 2


@dataclass(frozen=True)
class Again:
    """How a launch is submitted again."""

    exclude: frozenset[str]
    """Nodes not to use."""
    time_factor: float
    """Factor on the planned time limit."""


def again(tried: Sequence[Manifest], options: Gang) -> Again | None:
    """Return how to submit a launch again after the attempts so far, or None if it is not to be.

    Out of memory is a result and does not come here; a job that someone cancelled stays cancelled.

    Args:
        tried: Manifests of the attempts of this launch, all without a result; the last one just ended.
        options: How often which failure is worth another try.
    """
    retries = [manifest.status.retry for manifest in tried]
    allowed = {Retry.REQUEUE: options.requeues, Retry.RETRY: options.retries, Retry.MORE_TIME: 1}
    last = retries[-1]
    if last not in allowed or retries.count(last) > allowed[last]:
        return None
    return Again(_suspects(tried), MORE_TIME ** retries.count(Retry.MORE_TIME))


def may_requeue(tried: Sequence[Manifest], options: Gang) -> bool:
    """Return whether a launch would be submitted again if it now ended by no fault of its own."""
    return sum(manifest.status.retry is Retry.REQUEUE for manifest in tried) < options.requeues


def with_more_time(planned: PlannedRun, factor: float) -> PlannedRun:
    """Return the run with its time limit times `factor`; limits are no part of what is measured."""
    limits = planned.limits.model_copy(update={"time_limit_s": planned.limits.time_limit_s * factor})
    return planned.model_copy(update={"limits": limits})


def with_less_time(planned: PlannedRun, wall_s: float | None) -> PlannedRun:
    """Return the run with its time limit lowered to what it is expected to need, where that is known and less."""
    if wall_s is None or wall_s >= planned.limits.time_limit_s:
        return planned
    return with_more_time(planned, wall_s / planned.limits.time_limit_s)


def note_bad_node(results: Path, manifest: Manifest) -> Path | None:
    """Write down a node whose device is broken, for all launches to come; return the file, or None if none is named.

    One whose device is only slow is written down too, for launches that can do without it.
    """
    evidence = manifest.evidence
    if manifest.status != Status.BAD_NODE or evidence is None or not evidence.host:
        return None
    note = {"run": manifest.run, "seen_at": manifest.ended_at, "message": evidence.message}
    found = [suspect for suspect in manifest.suspects if suspect.host == evidence.host]
    if found and not any(suspect.is_broken for suspect in found):
        return note_slow_node(results, evidence.host, note)
    path = results / "bad_nodes" / f"{evidence.host}.json"
    write_json(path, note)
    return path


def bad_nodes(results: Path) -> frozenset[str]:
    """Return the nodes earlier launches found broken; whoever mended one removes its file."""
    return frozenset(path.stem for path in (results / "bad_nodes").glob("*.json"))


def _suspects(tried: Sequence[Manifest]) -> frozenset[str]:
    """Return nodes to do without: broken ones, and those lost twice. One lost once may only have been restarted."""
    lost = [m.evidence.host for m in tried if m.status == Status.LOST and m.evidence is not None]
    broken = [m.evidence.host for m in tried if m.status == Status.BAD_NODE and m.evidence is not None]
    return frozenset({*broken, *(host for host in lost if lost.count(host) >= _LOST_TWICE)} - {""})
