"""One simulated run of inference: a step is a batch, its prompts read and its tokens made; it leaves no traces."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path

import numpy as np
import pyarrow as pa

from triplepoint.config.cluster import ClusterConfig
from triplepoint.config.conditions import USUAL
from triplepoint.config.plan import PlannedRun
from triplepoint.config.point import Point
from triplepoint.manifest import Manifest
from triplepoint.recording import Part, Recorder
from triplepoint.simulate.artefacts.kineto import EPOCH_NS
from triplepoint.simulate.artefacts.simulated import gpu_facts
from triplepoint.simulate.artefacts.write import describe_nodes, write_failure, write_manifest_of
from triplepoint.simulate.calibration import KnownTo, ServingCalibration
from triplepoint.simulate.costs import Costs
from triplepoint.simulate.heat.job import at_highest_clocks, is_known, machine_of, one_step, stretched, warm_up
from triplepoint.simulate.heat.loop import Trace
from triplepoint.simulate.heat.machine import Machine, Profile
from triplepoint.simulate.heat.parameters import SHOWN
from triplepoint.simulate.heat.sensor import Sensors, show
from triplepoint.simulate.inference import (
    REPLAYED,
    InferenceStep,
    Serving,
    groups_of,
    memory_by_stage,
    passes_of,
    predict_inference,
    serving_of,
)
from triplepoint.simulate.job import Job
from triplepoint.simulate.operations import Kernel, Operation
from triplepoint.simulate.power.gpu import Float
from triplepoint.simulate.power.work import UNITS, Workload, activity_of
from triplepoint.simulate.predict.phases import Phases
from triplepoint.simulate.predict.power import Repeated, power_in_balance
from triplepoint.simulate.step import costs_of
from triplepoint.simulate.timeline.expand import TimeOf
from triplepoint.status import Status
from triplepoint.tables import STEPS
from triplepoint.tables.telemetry import METRICS
from triplepoint.units import NS_PER_S

_NOT_SENSED = ("gpu_power_limit_w", "gpu_temp_margin_c")
_MOST_SAMPLES = 200
"""Of one device in a run; energy is a counter, so that nothing between them is lost."""
_AFTER_S = 0.3
"""Sampled on after the last batch, three times what an energy counter takes to move. Unit: s."""
_ABSENT = "simulated inference has power, heat and clocks of GPUs only"


@dataclass(frozen=True)
class Served:
    """What is simulated of a run.

    Attributes:
        step: Times and memory.
        known_to: What the times are known to.
        memory_bytes: Of a rank, by pipeline stage.
        trace: Power, heat and clocks of a batch once warm; None where those of the GPU type are not known.
        sensors: Of the GPUs, likewise.
        facts: Of them, for the manifest.
    """

    step: InferenceStep
    known_to: KnownTo
    memory_bytes: tuple[int, ...]
    trace: Trace | None = None
    sensors: Sensors | None = None
    facts: Mapping[str, int | float | str | bool | None] = field(default_factory=dict)


def simulate_serving(
    planned: PlannedRun, job: Job, cluster: ClusterConfig, out: Path, config: Path, started: datetime
) -> Manifest:
    """Simulate a run of inference and write its raw artefacts.

    Args:
        planned: What to simulate.
        job: Its model, layout and machines.
        cluster: Where it runs.
        out: Folder to write into.
        config: Folder of the configuration.
        started: When.
    """
    serving = serving_of(planned.point)
    step = predict_inference(job, serving, config)
    if not step.memory.fits:
        return write_failure(out, planned, Status.OOM, step.memory.explain(), started)
    shape = planned.point.num_nodes, planned.point.cluster.gpus_per_node
    known_to = ServingCalibration.load(config).known_to(job, serving, step)
    memory_bytes = tuple(round(use.total) for use in memory_by_stage(job, serving))
    served = Served(step, known_to, memory_bytes)
    if is_known(job.gpu, config):
        workload = Workload(job, _time_of(costs_of(job, REPLAYED, config)))
        phases = _phases(job, serving, step, workload)
        machine, trace, is_steady = _warm(_profile(job, phases, shape), job, cluster, shape, config)
        batch = Repeated(step.whole_s, planned.point.num_tokens, phases)
        known = power_in_balance(batch, workload, known_to.whole_s, config, cluster.conditions)
        facts = gpu_facts(trace, machine, known, job.num_gpus) | {"is_steady": is_steady}
        sensors = Sensors(machine.heat.sensors, machine.airflow.packages)
        served = replace(served, trace=trace, sensors=sensors, facts=facts)
    return _write(out, planned, job, served, started)


def _time_of(costs: Costs) -> TimeOf:
    def time_of(operation: Operation) -> float:
        time = costs.kernel_s(operation) if isinstance(operation, Kernel) else costs.message_s(operation)
        return float(time / operation.count)

    return time_of


def _phases(job: Job, serving: Serving, step: InferenceStep, workload: Workload) -> Phases:
    """Return what the GPUs of every stage do in a batch: prefill, then decode, each as in its mean."""
    rows = [
        (duration_s, [workload.of(one.operations) * count for one in stages], [one.operations for one in stages])
        for duration_s, stages, count in zip(
            (step.prefill_s, step.decode_s), passes_of(job, serving), _counts(job, serving), strict=True
        )
        if duration_s > 0.0
    ]
    seconds = np.tile([duration_s for duration_s, _, _ in rows], (job.layout.pp, 1))
    work = np.array([works for _, works, _ in rows]).swapaxes(0, 1)
    operations = [tuple(each) for each in zip(*(found for _, _, found in rows), strict=True)]
    return Phases(seconds, seconds, work, operations, seconds, work)


def _profile(job: Job, phases: Phases, shape: tuple[int, int]) -> Profile:
    """Return what every device does in a batch."""
    num_phases = phases.seconds.shape[1]
    of_device = np.zeros((num_phases, shape[0] * shape[1], len(UNITS)))
    of_device[:, : job.num_gpus] = np.repeat(phases.work.swapaxes(0, 1), job.num_gpus // job.layout.pp, axis=1)
    seconds = phases.seconds[0]
    return Profile(seconds, activity_of(of_device.reshape(-1, *shape, len(UNITS)), seconds[:, None, None]))


def _counts(job: Job, serving: Serving) -> tuple[int, int]:
    """Return how often a stage makes the pass of prefill and that of decode in a batch."""
    groups = groups_of(job, serving)
    return groups.num_prompt_groups, groups.num_groups * (serving.output_tokens - 1)


def _warm(
    profile: Profile, job: Job, cluster: ClusterConfig, shape: tuple[int, int], config: Path
) -> tuple[Machine, Trace, bool]:
    usual = machine_of(USUAL, job.gpu, shape, cluster.name, config)
    high = at_highest_clocks(profile, usual)
    longer = profile.step_s / warm_up(usual, high).step_s
    machine = machine_of(cluster.conditions, job.gpu, shape, cluster.name, config)
    high = stretched(high, longer)
    return machine, *one_step(machine, high, warm_up(machine, high), profile.step_s)


def _write(out: Path, planned: PlannedRun, job: Job, served: Served, started: datetime) -> Manifest:
    point, step = planned.point, served.step
    (low_s, high_s), (first_low_s, first_high_s) = served.known_to.whole_s, served.known_to.first_token_s
    each_low_s, each_high_s = served.known_to.per_token_s
    _write_steps(out / "steps.parquet", point, served)
    # The energy counter has to move once more after the last batch.
    t_s = np.linspace(
        0.0, step.whole_s * len(point.steps.kinds) * (1 + 2 / _MOST_SAMPLES) + _AFTER_S, _MOST_SAMPLES + 1
    )
    columns: tuple[str, ...] = ()
    if served.sensors is not None:
        shows = set(served.sensors.config.shows) - set(_NOT_SENSED)
        columns = tuple(name for name in SHOWN if name in shows)
    absent = {name: _ABSENT for name in METRICS if name not in columns}
    for node in range(point.num_nodes):
        recorder = Recorder(out / "telemetry" / f"node{node}.arrow", float(t_s[1]), absent, columns)
        t_ns = np.rint(t_s * NS_PER_S).astype(np.int64)
        values = _sensed(served, job, node, t_s, columns)
        ranks = min(point.cluster.gpus_per_node, point.num_gpus - node * point.cluster.gpus_per_node)
        parts = [Part("host", EPOCH_NS + t_ns, np.zeros_like(t_ns), (), np.empty((len(t_ns), 0)))]
        for number in range(ranks):
            parts.append(Part(f"gpu{number}", EPOCH_NS + t_ns, np.zeros_like(t_ns), columns, values[number]))
        recorder.write(parts)
        recorder.close()
    nodes = describe_nodes(point, job.gpu.product, float(t_s[1]), len(t_s), columns, absent)
    facts: dict[str, int | float | str | bool | None] = {
        "step_time_s": step.whole_s,
        "step_time_lo_s": low_s,
        "step_time_hi_s": high_s,
        "time_to_first_token_s": step.prefill_s,
        "time_to_first_token_lo_s": first_low_s,
        "time_to_first_token_hi_s": first_high_s,
        "time_per_output_token_s": step.time_per_output_token_s,
        "time_per_output_token_lo_s": each_low_s,
        "time_per_output_token_hi_s": each_high_s,
        **served.facts,
        "spread": "none: simulated batches are all alike",
    }
    return write_manifest_of(out, planned, Status.OK, None, nodes, facts, started)


def _sensed(served: Served, job: Job, node: int, t_s: Float, columns: tuple[str, ...]) -> Float:
    """Return what the GPUs of a node show; shape (num_devices, num_samples, num_columns)."""
    if served.trace is None or served.sensors is None:
        return np.empty((job.fabric.gpus_per_node, len(t_s), 0))
    found = show(served.trace, node, served.sensors, t_s, seed=0)
    return np.stack([found[name] for name in columns], axis=-1).transpose(1, 0, 2)


def _write_steps(path: Path, point: Point, served: Served) -> None:
    step = served.step
    kinds, ranks = point.steps.kinds, np.arange(point.num_gpus)
    length, first = (round(time * NS_PER_S) for time in (step.whole_s, step.prefill_s))
    start = np.tile(EPOCH_NS + length * np.arange(len(kinds)), len(ranks))
    num_rows = len(ranks) * len(kinds)
    stage = np.repeat(ranks, len(kinds)) // (point.num_gpus // point.layout.pp)
    columns = {
        "rank": np.repeat(ranks, len(kinds)),
        "step": np.tile(np.arange(len(kinds)), len(ranks)),
        "kind": pa.array(kinds * len(ranks), pa.string()),
        "t_start_ns": start,
        "t_end_ns": start + length,
        "loss": pa.nulls(num_rows, pa.float64()),
        "num_tokens": np.full(num_rows, point.num_tokens),
        "peak_memory_bytes": np.array(served.memory_bytes)[stage],
        # Ranks of other stages than the last do not see it.
        "t_first_token_ns": pa.array(start + first, mask=stage < point.layout.pp - 1),
    }
    STEPS.write(path, pa.table(columns))
