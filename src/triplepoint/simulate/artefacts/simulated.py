"""A simulated job with everything its artefacts are made of, in whole nanoseconds as traces have it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from triplepoint.simulate.artefacts.groups import lockstep
from triplepoint.simulate.heat.clocks import Reason
from triplepoint.simulate.heat.loop import Trace
from triplepoint.simulate.heat.machine import Machine
from triplepoint.simulate.job import Job
from triplepoint.simulate.operations import StageWork
from triplepoint.simulate.power.node import node_power_w, rack_power_w
from triplepoint.simulate.power.parameters import NodePowerConfig
from triplepoint.simulate.predict.power import PowerPrediction
from triplepoint.simulate.timeline.durations import Durations, Float, Pass
from triplepoint.simulate.timeline.expand import TimeOf
from triplepoint.simulate.timeline.schedule import Int64, make_order
from triplepoint.simulate.timeline.tasks import Timeline, run
from triplepoint.units import NS_PER_S

_HELD = int(Reason.POWER_CAP | Reason.SW_THERMAL | Reason.HW_THERMAL | Reason.POWER_BRAKE)


@dataclass(frozen=True, eq=False)
class Simulated:
    """What is simulated of a job that runs.

    Attributes:
        job: The job.
        stages: Work of every pipeline stage.
        time_of: Time of one run of an operation. Unit: s.
        durations: Times of passes; they may exceed those of their operations, by contention say.
        class_of_replica: Class of every data parallel replica; shape (dp,).
        peak_memory_bytes: Highest memory of a rank, by stage; None where not known.
        slow: Factor on the time of computation, of every rank that is not as the others.
        interval_s: Lower and upper end of what the step's time is known to, 90 %; None where not known. Unit: s.
        heated: The job with its power, heat and clocks; None where those of the GPU type are not known.
    """

    job: Job
    stages: Sequence[StageWork]
    time_of: TimeOf
    durations: Durations
    class_of_replica: Int64
    peak_memory_bytes: tuple[int, ...] | None = None
    slow: Mapping[int, float] = field(default_factory=dict)
    interval_s: tuple[float, float] | None = None
    heated: "Heated | None" = None

    @cached_property
    def timeline(self) -> Timeline:
        """The step, of durations in whole nanoseconds: all its times are, to the precision of a float."""
        layout, job = self.job.layout, self.job
        order = make_order(layout.schedule, layout.pp, job.num_microbatches, layout.vp)
        return run(in_whole_ns(self.durations), order)

    def place(self, rank: int) -> tuple[int, int]:
        """Return stage and class of a rank."""
        place = self.job.mesh.place(rank)
        return place.pp, int(self.class_of_replica[place.dp])

    def pace(self, rank: int) -> float:
        """Return the time a rank computes over that of the slowest it works with: 1 for the slowest themselves."""
        if not self.slow:
            return 1.0
        size = lockstep(self.stages, self.job)
        first = rank // size * size
        slowest = max(self.slow.get(other, 1.0) for other in range(first, first + size))
        return self.slow.get(rank, 1.0) / slowest


@dataclass(frozen=True, eq=False)
class Heated:
    """A simulated job, warm.

    Attributes:
        simulated: The job, with what clocks did to it.
        machine: The nodes.
        node: What they draw in addition to their GPUs.
        num_nics: Network adapters of a node.
        nodes_per_rack: Nodes that share a rack; None where that is not known.
        trace: A step of it, which repeats.
        factor: Of every rank, time of its computation over that of the slowest sound GPU under usual conditions, or 1.
        is_steady: Whether the step before took the same power.
        known: What power is known to, and its peaks, where GPUs and nodes are sound.
    """

    simulated: Simulated
    machine: Machine
    node: NodePowerConfig
    num_nics: int
    nodes_per_rack: int | None
    trace: Trace
    factor: dict[int, float]
    is_steady: bool
    known: PowerPrediction

    def facts(self) -> dict[str, int | float | str | bool | None]:
        """Return what the manifest says of it."""
        trace = self.trace
        nodes_w = node_power_w(self.node, trace.power_w, trace.temp_c.max(axis=2), self.num_nics)
        return {
            **gpu_facts(trace, self.machine, self.known, self.simulated.job.num_gpus),
            "node_power_w": float(nodes_w.mean()),
            **self._rack_facts(nodes_w),
            "num_slowed_ranks": len(self.factor),
            "heat": "from thermal steady state: every step has the same power, heat and clocks",
            "is_steady": self.is_steady,
        }

    def _rack_facts(self, nodes_w: Float) -> dict[str, float]:
        """Return mean and highest power of the rack that takes most; nodes of shape (num_bins, num_nodes)."""
        if (size := self.nodes_per_rack) is None:
            return {}
        numbers = range(nodes_w.shape[1])
        racks_w = rack_power_w(nodes_w, [numbers[low : low + size] for low in numbers[::size]])
        return {"rack_power_w": float(racks_w.mean(axis=0).max()), "rack_power_peak_w": float(racks_w.max())}


def gpu_facts(
    trace: Trace, machine: Machine, known: PowerPrediction, num_gpus: int
) -> dict[str, int | float | str | bool | None]:
    """Return what the manifest says of power, heat and clocks of the GPUs that have a rank.

    Args:
        trace: A step, which repeats.
        machine: The nodes.
        known: What power is known to, and its peaks, where GPUs and nodes are sound.
        num_gpus: Ranks.
    """

    def of_ranks(values: np.ndarray) -> np.ndarray:
        return values.reshape(len(values), -1)[:, :num_gpus]

    limit_w, power_w = machine.power.power_limit.value, of_ranks(trace.power_w)
    mean_w = float(power_w.mean())
    # The highest that a sensor shows: of single kernels and of passes that begin, where clocks are free; of periods.
    is_free = not machine.brake.any(axis=1).all()
    peaks_w = [float(power_w.max()), *([known.gpu_power_peak_w] if is_free else [])]
    return {
        "gpu_power_w": mean_w,
        "gpu_power_lo_w": mean_w * known.gpu_power_lo_w / known.gpu_power_w,
        # As far up as down: what is known ends at the limit as seen from its own mean. A run's mean is above the limit
        # only where the lowest clock takes more than that.
        "gpu_power_hi_w": max(mean_w, min(mean_w * (2.0 - known.gpu_power_lo_w / known.gpu_power_w), limit_w)),
        "gpu_power_peak_w": max(peaks_w),
        "gpu_temp_max_c": float(of_ranks(trace.temp_c).max()),
        "throttle_fraction": float(((of_ranks(trace.reasons) & _HELD) != 0).mean()),
    }


def in_whole_ns(durations: Durations) -> Durations:
    """Return durations rounded to whole nanoseconds."""
    return replace(
        durations,
        forward=_rounded_pass(durations.forward),
        backward_input=_rounded_pass(durations.backward_input),
        backward_weight=_rounded_pass(durations.backward_weight),
        optimizer=_rounded_pass(durations.optimizer),
        send=_rounded(durations.send),
        sync_overlapped=_rounded(durations.sync_overlapped),
        sync_exposed=_rounded(durations.sync_exposed),
        gather_overlapped=_rounded(durations.gather_overlapped),
    )


def ns(seconds: Float) -> Int64:
    """Return times in whole nanoseconds."""
    return np.rint(seconds * NS_PER_S).astype(np.int64)


def one_ns(seconds: float) -> int:
    """Return a time in whole nanoseconds."""
    return round(seconds * NS_PER_S)


def _rounded_pass(time: Pass) -> Pass:
    return Pass(_rounded(time.compute), _rounded(time.comm))


def _rounded(seconds: Float) -> Float:
    return np.asarray(np.rint(seconds * NS_PER_S) / NS_PER_S)
