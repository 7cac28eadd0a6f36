"""Course of a simulated run: the start of every step, and its place in the trace of power and heat.

Steps of a warm job repeat one trace. From idle nodes they are simulated over time instead: dies are cooler, clocks
higher, and steps differ until temperatures have settled. Steps also differ by the jitter of their software; a longer
step does the same work with the same energy. Profiled steps have no jitter: a trace shows the step as simulated.
"""

import zlib
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from triplepoint.config.plan import PlannedRun
from triplepoint.simulate.artefacts.simulated import Recorded, one_ns
from triplepoint.simulate.heat.loop import Trace
from triplepoint.simulate.timeline.durations import Float
from triplepoint.simulate.timeline.schedule import Int64
from triplepoint.text import percent
from triplepoint.units import NS_PER_S


@dataclass(frozen=True, eq=False)
class Course:
    """Times of the steps of a run.

    Attributes:
        starts_ns: Start of every step from the start of the run, and the end of the last; shape (num_steps + 1,).
            Unit: ns.
        in_trace_s: The same times in the trace. Unit: s.
        trace: Power, heat and clocks; None if unknown for the GPU type.
        nodes_w: Power of every node at the plug in the periods of the trace; shape (num_periods, num_nodes). Unit: W.
    """

    starts_ns: Int64
    in_trace_s: Float
    trace: Trace | None
    nodes_w: Float | None

    @property
    def length_ns(self) -> int:
        """Time of all steps. Unit: ns."""
        return int(self.starts_ns[-1])

    @property
    def lengths_ns(self) -> Int64:
        """Time of every step; shape (num_steps,). Unit: ns."""
        return np.diff(self.starts_ns)

    def inside(self, t_ns: Int64) -> tuple[Int64, Float]:
        """Return the step that each time falls into, and the elapsed share of that step.

        The end of the last step falls into one step more.
        """
        step = np.searchsorted(self.starts_ns, t_ns, side="right") - 1
        share = (t_ns - self.starts_ns[step]) / np.append(self.lengths_ns, self.lengths_ns[-1])[step]
        return step, np.asarray(share)

    def trace_s(self, t_ns: Int64) -> Float:
        """Return the times of the trace for times from the start of the run. Unit: s."""
        after_s = np.maximum(t_ns - self.starts_ns[-1], 0) / NS_PER_S
        return np.asarray(np.interp(t_ns, self.starts_ns, self.in_trace_s) + after_s)


def course_of(planned: PlannedRun, simulated: Recorded) -> Course:
    """Return the course of a run."""
    point = planned.point
    return _course(tuple(point.steps.kinds), (point.seed, point.repeat, zlib.crc32(planned.run.encode())), simulated)


@lru_cache(maxsize=1)
def _course(step_kinds: tuple[str, ...], seed: tuple[int, ...], simulated: Recorded) -> Course:
    kinds, number = np.array(step_kinds), len(step_kinds)
    heated = simulated.heated
    trace = heated.trace if heated else None
    in_trace_s: Float = np.asarray(np.arange(number + 1) * simulated.length_s, dtype=float)
    if heated is not None and heated.from_rest is not None:
        trace, in_trace_s = heated.from_rest.follow(number, simulated.length_s)
    lengths_s = np.diff(in_trace_s)
    jitter = simulated.job.software.step_jitter
    if jitter is not None:
        deviates = np.random.default_rng(seed).standard_normal(number)
        lengths_s = lengths_s * (1.0 + jitter.value * deviates)
    is_profiled = kinds == "profiled"
    lengths_ns = np.where(is_profiled, one_ns(simulated.length_s), np.rint(lengths_s * NS_PER_S).astype(np.int64))
    nodes_w = heated.nodes_power_w(trace) if heated and trace else None
    return Course(np.append(0, np.cumsum(lengths_ns)), in_trace_s, trace, nodes_w)


def spread_line(simulated: Recorded) -> str:
    """Return the manifest's line on how steps differ."""
    jitter = simulated.job.software.step_jitter
    if jitter is None:
        return "none: the jitter of steps is not known of this software"
    return f"steps differ by {percent(jitter.value, 2)} (standard deviation): {jitter.source}"
