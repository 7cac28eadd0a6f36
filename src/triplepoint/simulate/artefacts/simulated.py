"""A simulated job with everything its artefacts are made of, in whole nanoseconds as traces have it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from triplepoint.config.cluster import ClusterConfig
from triplepoint.simulate.artefacts.groups import lockstep
from triplepoint.simulate.heat.from_rest import FromRest
from triplepoint.simulate.heat.loop import Trace
from triplepoint.simulate.heat.machine import Machine
from triplepoint.simulate.heat.nodes import node_power_of
from triplepoint.simulate.heat.warm import Warm
from triplepoint.simulate.job import Job
from triplepoint.simulate.operations import StageWork
from triplepoint.simulate.power.node import rack_power_w
from triplepoint.simulate.power.parameters import NodePowerConfig
from triplepoint.simulate.power.work import Workload
from triplepoint.simulate.predict.power import PowerPrediction, nodes_power_w, predict_power
from triplepoint.simulate.timeline.durations import Durations, Float, Pass
from triplepoint.simulate.timeline.expand import TimeOf
from triplepoint.simulate.timeline.schedule import Int64, make_order
from triplepoint.simulate.timeline.tasks import Timeline, run
from triplepoint.units import NS_PER_S

_STEADY = "from thermal steady state: every step has the same power, heat and clocks"
_FROM_REST = "from nodes at rest: steps differ until heat has settled; facts here are of the settled job"


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
        interval_s: Lower and upper end of the 90 % interval of the step's time; None where not known. Unit: s.
        heated: The job with its power, heat and clocks; None where those of the GPU type are not known.
        memory_undecided: What to say where it needs about as much memory as there is; None otherwise.
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
    memory_undecided: str | None = None

    after_s = 0.0
    """What is sampled after the last step. Unit: s."""

    @property
    def length_s(self) -> float:
        """Time of the step. Unit: s."""
        return self.timeline.step_time_s

    @cached_property
    def timeline(self) -> Timeline:
        """The step, of durations in whole nanoseconds: all its times are, to the precision of a float."""
        layout, job = self.job.layout, self.job
        order = make_order(layout.schedule, layout.pp, job.num_microbatches, layout.vp)
        return run(in_whole_ns(self.durations), order)

    @cached_property
    def workload(self) -> Workload:
        """Work of the job's operations."""
        return Workload(self.job, self.time_of)

    @cached_property
    def _lockstep(self) -> int:
        return lockstep(self.stages, self.job)

    def place(self, rank: int) -> tuple[int, int]:
        """Return stage and class of a rank."""
        place = self.job.mesh.place(rank)
        return place.pp, int(self.class_of_replica[place.dp])

    def pace(self, rank: int) -> float:
        """Return the time a rank computes over that of the slowest it works with: 1 for the slowest themselves."""
        if not self.slow:
            return 1.0
        first = rank // self._lockstep * self._lockstep
        slowest = max(self.slow.get(other, 1.0) for other in range(first, first + self._lockstep))
        return self.slow.get(rank, 1.0) / slowest


class Recorded(Protocol):
    """What recordings are made of: a simulated training step, or a batch of inference."""

    after_s: float

    def __hash__(self) -> int:
        """It is itself only."""

    @property
    def job(self) -> Job:
        """The job."""

    @property
    def length_s(self) -> float:
        """Time of a step. Unit: s."""

    @property
    def heated(self) -> "Heated | None":
        """Its power, heat and clocks; None where those of the GPU type are not known."""


@dataclass(frozen=True, eq=False)
class Heated:
    """Power, heat and clocks of a simulated job, warm.

    Attributes:
        warm: The job.
        node: What its nodes draw in addition to their GPUs.
        nodes_w: Power of every node at the plug; shape (num_periods, num_nodes). Unit: W.
        nodes_per_rack: Nodes that share a rack; None where that is not known.
        known: Its power and heat with their uncertainty.
        from_rest: What its first steps are followed with, where runs begin on nodes at rest.
    """

    warm: Warm[Any]
    node: NodePowerConfig
    nodes_w: Float
    nodes_per_rack: int | None
    known: PowerPrediction
    from_rest: FromRest | None = None

    @property
    def trace(self) -> Trace:
        """A step, which repeats."""
        return self.warm.trace

    @property
    def machine(self) -> Machine:
        """The nodes."""
        return self.warm.machine

    def nodes_power_w(self, trace: Trace) -> Float:
        """Return the power of every node at the plug in every period of a trace; shape (num_periods, num_nodes)."""
        if trace is self.trace:
            return self.nodes_w
        return nodes_power_w(replace(self.warm, trace=trace), self.node)

    def facts(self) -> dict[str, int | float | str | bool | None]:
        """Return what the manifest says of it."""
        known = self.known
        return {
            "gpu_power_w": known.gpu_power_w,
            "gpu_power_lo_w": known.gpu_power_lo_w,
            "gpu_power_hi_w": known.gpu_power_hi_w,
            "gpu_power_peak_w": known.gpu_power_peak_w,
            "gpu_power_peak_lo_w": known.gpu_power_peak_lo_w,
            "gpu_power_peak_hi_w": known.gpu_power_peak_hi_w,
            "gpu_temp_max_c": known.gpu_temp_max_c,
            "gpu_temp_max_lo_c": known.gpu_temp_max_lo_c,
            "gpu_temp_max_hi_c": known.gpu_temp_max_hi_c,
            "gpu_temp_c": known.gpu_temp_c,
            "gpu_temp_lo_c": known.gpu_temp_lo_c,
            "gpu_temp_hi_c": known.gpu_temp_hi_c,
            "sm_clock_lo_mhz": known.sm_clock_lo_mhz,
            "sm_clock_hi_mhz": known.sm_clock_hi_mhz,
            "sm_clock_busy_mhz": known.sm_clock_busy_mhz,
            "throttle_fraction": known.throttle_fraction,
            "lost_to_power_limit_fraction": known.lost_to_power_limit_fraction,
            "lost_to_heat_fraction": known.lost_to_heat_fraction,
            "lost_to_brake_fraction": known.lost_to_brake_fraction,
            "node_power_w": known.node_power_w,
            **self._rack_facts(),
            "num_slowed_ranks": len(self.warm.slower_ranks),
            "heat": _FROM_REST if self.from_rest else _STEADY,
            "is_steady": self.warm.is_steady,
        }

    def _rack_facts(self) -> dict[str, float]:
        """Return mean and highest power of the rack that draws most."""
        if (size := self.nodes_per_rack) is None:
            return {}
        node_at = self.warm.load.job.nodes or range(self.nodes_w.shape[1])
        numbers = sorted(range(self.nodes_w.shape[1]), key=node_at.__getitem__)
        racks_w = rack_power_w(self.nodes_w, [numbers[low : low + size] for low in numbers[::size]])
        return {"rack_power_w": float(racks_w.mean(axis=0).max()), "rack_power_peak_w": float(racks_w.max())}


def heated_of(warm: Warm[Any], interval_s: tuple[float, float], cluster: ClusterConfig, config: Path) -> Heated:
    """Return power, heat and clocks of a warm job on a cluster.

    Args:
        warm: The job.
        interval_s: 90 % interval of the time of its step. Unit: s.
        cluster: Where it runs.
        config: Folder of the configuration.
    """
    known = predict_power(warm, interval_s, config)
    node = node_power_of(warm.load.job.gpu, config)
    nodes_w = nodes_power_w(warm, node)
    from_rest = warm.from_rest if cluster.conditions.starts_at_rest else None
    return Heated(warm, node, nodes_w, cluster.nodes_per_rack, known, from_rest)


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
        pause_s=one_ns(durations.pause_s) / NS_PER_S,
    )


def ns(seconds: Float) -> Int64:
    """Return times in whole nanoseconds."""
    return np.rint(seconds * NS_PER_S).astype(np.int64)


def one_ns(seconds: float) -> int:
    """Return a time in whole nanoseconds."""
    return round(seconds * NS_PER_S)


def _rounded_pass(time: Pass) -> Pass:
    return Pass(_rounded(time.compute), _rounded(time.comm), time.host_share)


def _rounded(seconds: Float) -> Float:
    return np.asarray(np.rint(seconds * NS_PER_S) / NS_PER_S)
