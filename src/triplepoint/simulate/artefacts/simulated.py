"""A simulated job with all data for its artefacts, in whole nanoseconds as in traces."""

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
    """A simulated step of a job.

    Attributes:
        job: The job.
        stages: Work of every pipeline stage.
        time_of: Function that returns the time of one run of an operation. Unit: s.
        durations: Times of passes; they may exceed those of their operations, for example because of contention.
        class_of_replica: Class of every data parallel replica; shape (dp,).
        peak_memory_bytes: Peak memory of a rank, by stage; None if unknown.
        slow: Factor on the compute time of every rank that differs from the others.
        interval_s: Lower and upper end of the 90 % interval of the step time; None if unknown. Unit: s.
        heated: The job with its power, heat and clocks; None if unknown for the GPU type.
        memory_undecided: A line if the memory may or may not suffice; None otherwise.
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
    """Time that is still sampled after the last step. Unit: s."""

    @property
    def length_s(self) -> float:
        """Time of the step. Unit: s."""
        return self.timeline.step_time_s

    @cached_property
    def timeline(self) -> Timeline:
        """Timeline of the step, from durations in whole nanoseconds, so that all its times are whole too."""
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
        """Return the compute time of a rank over that of the slowest rank it works with; 1 for the slowest."""
        return self._factor(rank) / max(self._factors(rank))

    def waits_in_passes(self, rank: int) -> bool:
        """Return whether a rank, or one it works with, waits for a slower one in collectives inside of passes."""
        factors = self._factors(rank)
        return min(factors) < max(factors)

    def _factor(self, rank: int) -> float:
        return self.slow.get(rank, 1.0)

    def _factors(self, rank: int) -> list[float]:
        """Return the factors on the compute time of the ranks that a rank works with inside of passes."""
        if not self.slow:
            return [1.0]
        first = rank // self._lockstep * self._lockstep
        return [self._factor(other) for other in range(first, first + self._lockstep)]


class Recorded(Protocol):
    """Source of recordings: a simulated training step, or a batch of inference."""

    after_s: float

    def __hash__(self) -> int:
        """Return a hash of the object's identity."""

    @property
    def job(self) -> Job:
        """The job."""

    @property
    def length_s(self) -> float:
        """Time of a step. Unit: s."""

    @property
    def heated(self) -> "Heated | None":
        """Power, heat and clocks; None if unknown for the GPU type."""


@dataclass(frozen=True, eq=False)
class Heated:
    """Power, heat and clocks of a simulated job in thermal steady state.

    Attributes:
        warm: The job.
        node: Power parameters of its nodes without their GPUs.
        nodes_w: Power of every node at the plug; shape (num_periods, num_nodes). Unit: W.
        nodes_per_rack: Nodes of a rack; None if unknown.
        known: Power and heat with their uncertainty.
        from_rest: Simulation of the first steps, if runs start on idle nodes.
    """

    warm: Warm[Any]
    node: NodePowerConfig
    nodes_w: Float
    nodes_per_rack: int | None
    known: PowerPrediction
    from_rest: FromRest | None = None

    @property
    def trace(self) -> Trace:
        """Trace of a step, which repeats."""
        return self.warm.trace

    @property
    def machine(self) -> Machine:
        """The nodes."""
        return self.warm.machine

    def nodes_power_w(self, trace: Trace) -> Float:
        """Return the power of every node at the plug in every period of a trace; shape (num_periods, num_nodes).

        Unit: W.
        """
        if trace is self.trace:
            return self.nodes_w
        return nodes_power_w(replace(self.warm, trace=trace), self.node)

    def facts(self) -> dict[str, int | float | str | bool | None]:
        """Return the facts of power and heat for the manifest."""
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
    """Return power, heat and clocks of a job in thermal steady state.

    Args:
        warm: The job.
        interval_s: 90 % interval of its step time. Unit: s.
        cluster: Its cluster.
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
    """Return a single time in whole nanoseconds."""
    return round(seconds * NS_PER_S)


def _rounded_pass(time: Pass) -> Pass:
    return Pass(_rounded(time.compute), _rounded(time.comm), time.host_share)


def _rounded(seconds: Float) -> Float:
    return np.asarray(np.rint(seconds * NS_PER_S) / NS_PER_S)
