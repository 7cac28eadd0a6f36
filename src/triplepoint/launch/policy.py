"""Retry policy: whether a launch without a result is submitted again, with more time, without bad or slow nodes."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from triplepoint.config.plan import PlannedRun
from triplepoint.config.site import Gang
from triplepoint.files import write_json
from triplepoint.manifest import Manifest, read_manifest
from triplepoint.status import Retry, Status
from triplepoint.tables.traces import RANKS

LEAST_EXCESS = 0.25
"""Computation beyond its peers' median, as a share of it: 0.8 of their clock would do it. Our choice."""
_FOLDER = "slow_nodes"
MORE_TIME = 2.0
"""Factor on the time limit of the one further try after a time limit."""
_LOST_TWICE = 2


def note_slow_gpus(run: Path) -> list[str]:
    """Write down the nodes of a run with a GPU that delayed the others, and return a line for each such GPU.

    A note stays until somebody removes it. Processors are left out: their ranks share caches and clocks.

    Args:
        run: `results/runs/<run>`, its traces joined.

    Raises:
        UserError: If the manifest or the table is missing or damaged.
    """
    manifest = read_manifest(run / "raw" / "manifest.json")
    devices = {device.rank: (node.host, device) for node in manifest.nodes for device in node.devices}
    told = []
    for row in RANKS.read(run / "ranks.parquet").to_pylist():
        host, device = devices.get(row["rank"], ("", None))
        is_slow = row["is_straggler"] and row["compute_excess"] >= LEAST_EXCESS
        if not is_slow or device is None or device.device == "cpu" or manifest.origin != "measured":
            continue
        line = f"{device.device} of {host} computes {row['compute_excess']:.0%} longer than its peers and holds them up"
        note_slow_node(run.parents[1], host, {"run": manifest.run, "seen_at": manifest.ended_at, "message": line})
        told.append(line)
    return told


def note_slow_node(results: Path, host: str, note: dict[str, str]) -> Path:
    """Write down a node and what is known of it, and return the file."""
    path = results / _FOLDER / f"{host}.json"
    write_json(path, note)
    return path


def slow_nodes(results: Path) -> frozenset[str]:
    """Return the nodes that were written down."""
    return frozenset(path.stem for path in (results / _FOLDER).glob("*.json"))


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
    """Return whether a launch would be submitted again if it now ended by no fault of its own.

    Args:
        tried: Manifests of its attempts before this one.
        options: How often that is worth another try.
    """
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
