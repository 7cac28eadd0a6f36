"""One simulated run of inference: a step is one batch, with prefill and decode; it leaves no traces."""

from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import numpy as np
import pyarrow as pa

from triplepoint.config.cluster import ClusterConfig
from triplepoint.config.plan import PlannedRun
from triplepoint.config.point import Point
from triplepoint.manifest import Manifest
from triplepoint.simulate.artefacts.course import Course, course_of, spread_line
from triplepoint.simulate.artefacts.kineto import EPOCH_NS
from triplepoint.simulate.artefacts.recordings import write_recordings
from triplepoint.simulate.artefacts.simulated import Heated, heated_of
from triplepoint.simulate.artefacts.write import nodes_of, write_failure, write_manifest_of
from triplepoint.simulate.heat.nodes import is_known
from triplepoint.simulate.inference import Batch, batch_of, memory_by_stage, serving_of, warm_batch
from triplepoint.simulate.inference_calibration import ServingCalibration, ServingIntervals
from triplepoint.simulate.job import Job
from triplepoint.status import Status
from triplepoint.tables import STEPS


@dataclass(frozen=True, eq=False)
class Served:
    """Simulation of an inference run.

    Attributes:
        batch: The batch with its times.
        intervals: 90 % intervals of the times.
        memory_bytes: Memory of a rank, by pipeline stage. Unit: byte.
        heated: Power, heat and clocks of a batch in steady state; None if unknown for the GPU type.
    """

    batch: Batch
    intervals: ServingIntervals
    memory_bytes: tuple[int, ...]
    heated: Heated | None = None

    after_s = 0.3
    """Time that is still sampled after the last batch, three update periods of an energy counter. Unit: s."""

    @property
    def job(self) -> Job:
        """The job."""
        return self.batch.job

    @property
    def length_s(self) -> float:
        """Time of a batch. Unit: s."""
        return self.batch.length_s


def simulate_serving(
    planned: PlannedRun, job: Job, cluster: ClusterConfig, out: Path, config: Path, started: datetime
) -> Manifest:
    """Simulate a run of inference and write its raw artefacts.

    Args:
        planned: The planned run.
        job: Its model, layout and machines.
        cluster: Its cluster.
        out: Folder to write into.
        config: Folder of the configuration.
        started: Time at which the simulation started.
    """
    serving, warm = serving_of(planned.point), None
    batch = batch_of(job, serving, config)
    if batch.step.memory.is_out_of_memory:
        return write_failure(out, planned, job.stack, Status.OOM, batch.step.memory.explain(), started)
    if is_known(job.gpu, config):
        warm = warm_batch(batch, cluster, config)
        batch = warm.load
    intervals = ServingCalibration.load(config).intervals_of(job, serving, batch.step)
    memory_bytes = tuple(round(use.total) for use in memory_by_stage(job, serving))
    heated = heated_of(warm, intervals.whole_s, cluster, config) if warm else None
    return _write(out, planned, Served(batch, intervals, memory_bytes, heated), started)


def _write(out: Path, planned: PlannedRun, served: Served, started: datetime) -> Manifest:
    step = served.batch.step
    (low_s, high_s), (first_low_s, first_high_s) = served.intervals.whole_s, served.intervals.first_token_s
    each_low_s, each_high_s = served.intervals.per_token_s
    _write_steps(out / "steps.parquet", planned.point, served, course_of(planned, served))
    write_recordings(out / "telemetry", planned, served, None)
    facts: dict[str, int | float | str | bool | None] = {
        "stack": served.job.stack,
        "memory_undecided": step.memory.undecided,
        "step_time_s": step.whole_s,
        "step_time_lo_s": low_s,
        "step_time_hi_s": high_s,
        "time_to_first_token_s": step.prefill_s,
        "time_to_first_token_lo_s": first_low_s,
        "time_to_first_token_hi_s": first_high_s,
        "time_per_output_token_s": step.time_per_output_token_s,
        "time_per_output_token_lo_s": each_low_s,
        "time_per_output_token_hi_s": each_high_s,
        "spread": spread_line(served),
        **(served.heated.facts() if served.heated else {}),
    }
    return write_manifest_of(out, planned, Status.OK, None, nodes_of(planned, served), facts, started)


def _write_steps(path: Path, point: Point, served: Served, course: Course) -> None:
    step = served.batch.step
    kinds, ranks = point.steps.kinds, np.arange(point.num_gpus)
    length = np.tile(course.lengths_ns, len(ranks))
    first = np.rint(length * (step.prefill_s / step.whole_s)).astype(np.int64)
    start = np.tile(EPOCH_NS + course.starts_ns[:-1], len(ranks))
    num_rows = len(ranks) * len(kinds)
    stage = np.repeat([served.batch.place(rank)[0] for rank in ranks.tolist()], len(kinds))
    columns = {
        "rank": np.repeat(ranks, len(kinds)),
        "step": np.tile(np.arange(len(kinds)), len(ranks)),
        "kind": pa.array(kinds * len(ranks), pa.string()),
        "t_start_ns": start,
        "t_end_ns": start + length,
        "loss": pa.nulls(num_rows, pa.float64()),
        "num_tokens": np.full(num_rows, point.num_tokens),
        "peak_memory_bytes": np.array(served.memory_bytes)[stage],
        # Only ranks of the last stage see the first token.
        "t_first_token_ns": pa.array(start + first, mask=stage < point.layout.pp - 1),
    }
    STEPS.write(path, pa.table(columns))
