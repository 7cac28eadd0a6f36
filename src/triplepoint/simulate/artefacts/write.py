"""Raw artefacts of a simulated run, the same as a launch leaves: manifest, steps, traces, recordings."""

from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pyarrow as pa
from isal import igzip

from triplepoint import __version__
from triplepoint.config.plan import PlannedRun
from triplepoint.files import atomic_file, write_json
from triplepoint.manifest import Device, Evidence, Manifest, Node, Telemetry, write_manifest
from triplepoint.provenance import git_state
from triplepoint.simulate.artefacts.course import Course, course_of, spread_line
from triplepoint.simulate.artefacts.groups import ProcessGroup, groups_of, groups_used
from triplepoint.simulate.artefacts.kineto import EPOCH_NS, document
from triplepoint.simulate.artefacts.rank_trace import RankTrace
from triplepoint.simulate.artefacts.recordings import (
    absent_columns,
    count_bytes,
    recorded_columns,
    sample_period_ns,
    sample_times,
    write_recordings,
)
from triplepoint.simulate.artefacts.simulated import Recorded, Simulated
from triplepoint.simulate.timeline.schedule import Int64
from triplepoint.simulate.truth.write import write_truth
from triplepoint.status import Status
from triplepoint.tables import STEPS
from triplepoint.units import NS_PER_S

HOST = "simulated"
"""Name of every host of a simulated run."""

_LEVEL = 1
"""Compression level of gzip: a trace is read once or twice, and higher levels take longer than the simulation."""


def write_run(raw: Path, planned: PlannedRun, simulated: Simulated, started: datetime) -> Manifest:
    """Write the artefacts of a job that runs.

    Steps differ by the known jitter of their software, and if the run starts on idle nodes.

    Args:
        raw: Folder to write into: `results/runs/<run>/raw`, or a temporary one that becomes it.
        planned: The planned run.
        simulated: The simulated step.
        started: Time at which the simulation started.
    """
    point = planned.point
    course = course_of(planned, simulated)
    write_steps(raw / "steps.parquet", planned, simulated, course)
    profiled = [step for step, kind in enumerate(point.steps.kinds) if kind == "profiled"]
    write_traces(raw / "traces", simulated, point.traced_ranks, profiled, course.starts_ns)
    times = sample_times(planned, simulated)
    counters = count_bytes(planned, simulated, times)
    step_bytes = counters[:, int(np.searchsorted(times, course.starts_ns[1]))]
    write_truth(raw / "truth", simulated, point.cluster.gpus_per_node, step_bytes)
    write_recordings(raw / "telemetry", planned, simulated, counters)
    low, high = simulated.interval_s or (None, None)
    factors = np.array(list(simulated.slow.values()))
    facts: dict[str, int | float | str | bool | None] = {
        "stack": simulated.job.stack,
        "step_time_s": simulated.timeline.step_time_s,
        "step_time_lo_s": low,
        "step_time_hi_s": high,
        "interval": "90 % interval of the model, from the calibration; not a spread of steps or repeats",
        "contention_s": simulated.timeline.contention_s,
        "bubble_fraction": simulated.timeline.bubble_fraction,
        "critical_stage": simulated.timeline.critical_stage,
        "num_slow_ranks": int((factors > factors.min(initial=np.inf)).sum()),
        "memory_undecided": simulated.memory_undecided,
        "spread": spread_line(simulated),
    }
    if simulated.heated:
        facts |= simulated.heated.facts()
    return write_manifest_of(raw, planned, Status.OK, None, nodes_of(planned, simulated), facts, started)


def write_failure(
    raw: Path, planned: PlannedRun, stack: str, status: Status, reason: str, started: datetime
) -> Manifest:
    """Write the artefacts of a job that cannot run: a manifest with the reason.

    Args:
        raw: Folder to write into.
        planned: The planned run.
        stack: Software of the job.
        status: oom or invalid.
        reason: The reason in one line.
        started: Time at which the simulation started.
    """
    evidence = Evidence(rank=None, host=HOST, message=reason, log_tail=())
    return write_manifest_of(raw, planned, status, evidence, (), {"stack": stack}, started)


def write_steps(path: Path, planned: PlannedRun, simulated: Simulated, course: Course) -> None:
    """Write `steps.parquet`: every step of every rank."""
    point, timeline = planned.point, simulated.timeline
    kinds, ranks = np.array(point.steps.kinds), np.arange(point.num_gpus)
    stage, which = np.array([simulated.place(rank) for rank in ranks.tolist()]).T
    end_s = (timeline.optimizer_start + timeline.durations.optimizer.total)[stage, which] + timeline.durations.pause_s
    start = EPOCH_NS + course.starts_ns[:-1]
    end_ns = np.rint(end_s[:, None] / timeline.step_time_s * course.lengths_ns).astype(np.int64)
    memory = simulated.peak_memory_bytes
    peak = pa.nulls(len(ranks) * len(kinds), pa.int64())
    if memory is not None:
        peak = pa.array(np.repeat(np.array(memory)[stage], len(kinds)))
    table = pa.table(
        {
            "rank": np.repeat(ranks, len(kinds)),
            "step": np.tile(np.arange(len(kinds)), len(ranks)),
            "kind": pa.array(np.tile(kinds, len(ranks)).tolist(), pa.string()),
            "t_start_ns": np.tile(start, len(ranks)),
            "t_end_ns": (start + end_ns).reshape(-1),
            "loss": pa.nulls(len(ranks) * len(kinds), pa.float64()),
            "num_tokens": np.full(len(ranks) * len(kinds), point.global_batch_size * point.sequence_length),
            "peak_memory_bytes": peak,
        }
    )
    STEPS.write(path, table)


def write_traces(
    folder: Path, simulated: Simulated, ranks: Iterable[int], steps: Iterable[int], starts_ns: Int64 | None = None
) -> None:
    """Write the traces of some ranks.

    Args:
        folder: Folder of traces.
        simulated: The simulated step.
        ranks: The ranks.
        steps: Numbers of the steps in the traces.
        starts_ns: Start of every step of the run; None: one after the other from 0. Unit: ns.
    """
    names, steps = groups_used(simulated.stages, simulated.job), list(steps)
    for rank in ranks:
        groups = groups_of(simulated.job, rank, names)
        _write_trace(folder, simulated, rank, groups, RankTrace(simulated, rank, groups).events(steps, starts_ns))


def _write_trace(
    folder: Path, simulated: Simulated, rank: int, groups: dict[str, ProcessGroup], events: list[bytes | memoryview]
) -> None:
    config = [
        {"pg_name": group.name, "pg_desc": f"mesh_{group.role}", "pg_size": len(group.ranks), "ranks": group.ranks}
        for group in groups.values()
    ]
    job = simulated.job
    metadata = {
        "simulated": True,
        "deviceProperties": [
            {"id": 0, "name": job.gpu.product, "totalGlobalMem": int(job.gpu.memory_capacity.value), "simulated": True}
        ],
        "distributedInfo": {
            "backend": "nccl",
            "rank": rank,
            "world_size": job.num_gpus,
            "pg_count": len(groups),
            "pg_config": config,
        },
    }
    listed = [{"role": group.role, "name": group.name, "ranks": group.ranks} for group in groups.values()]
    write_json(folder / f"rank{rank}.groups.json", {"groups": listed, "collectives": []})
    with atomic_file(folder / f"rank{rank}.json.gz") as scratch:
        scratch.write_bytes(igzip.compress(document(metadata, events), compresslevel=_LEVEL))


def nodes_of(planned: PlannedRun, simulated: Recorded) -> tuple[Node, ...]:
    """Return the nodes of a simulated run for its manifest."""
    point, has_links = planned.point, isinstance(simulated, Simulated)
    num_samples, product = len(sample_times(planned, simulated)), simulated.job.gpu.product
    period_s = sample_period_ns(planned, simulated) / NS_PER_S
    measured, absent = recorded_columns(simulated, has_links), absent_columns(simulated, has_links)
    per_node = point.cluster.gpus_per_node
    nodes = [range(low, min(low + per_node, point.num_gpus)) for low in range(0, point.num_gpus, per_node)]
    return tuple(
        Node(
            node=node,
            host=point.hosts[node] if point.hosts else HOST,
            monotonic_ns=EPOCH_NS,
            wall_ns=EPOCH_NS,
            num_cores=0,
            memory_bytes=0,
            devices=tuple(Device(rank=rank, device=f"gpu{rank % per_node}", product=product) for rank in ranks),
            telemetry=Telemetry(
                period_s=period_s, num_samples=num_samples * (len(ranks) + 1), measured=measured, absent=absent
            ),
        )
        for node, ranks in enumerate(nodes)
    )


def write_manifest_of(
    raw: Path,
    planned: PlannedRun,
    status: Status,
    evidence: Evidence | None,
    nodes: tuple[Node, ...],
    facts: dict[str, int | float | str | bool | None],
    started: datetime,
) -> Manifest:
    """Write the manifest of a simulated run and return it."""
    commit, is_dirty = git_state(Path(__file__).parent)
    ended = datetime.now(UTC)
    manifest = Manifest(
        run=planned.run,
        digest=planned.digest,
        status=status,
        evidence=evidence,
        origin="simulated",
        engine=planned.point.engine,
        versions={"triplepoint": __version__, "numpy": np.__version__},
        git_commit=commit,
        git_dirty=is_dirty,
        seed=planned.point.seed,
        started_at=started.isoformat(),
        ended_at=ended.isoformat(),
        duration_s=(ended - started).total_seconds(),
        nodes=nodes,
        facts=facts,
    )
    write_manifest(raw / "manifest.json", manifest)
    return manifest
