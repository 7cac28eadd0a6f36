"""Analysis of step times: differences between ranks, drift over steps, and steps far longer than the median."""

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from triplepoint.effects import Effect
from triplepoint.effects.samples import paired, unpaired
from triplepoint.manifest import SLOW
from triplepoint.metrics import robust_sigma
from triplepoint.text import LEAST_SHOWN, percent, signed_percent
from triplepoint.units import counted, show_seconds
from triplepoint.why.operations import Operations

_LEAST_STEPS = 3
"""Number of measured steps from which a difference has an interval. Our choice."""
_LEAST_DRIFT_STEPS = 12
"""Number of steps from which their first and last third are compared: four steps each. Our choice."""
_LEAST_CHANGE = 0.01
"""Smallest difference of ranks, or drift, that is reported as clear, as a share of the step. Our choice."""
_LONG, _LONG_SIGMA = 1.25, 5.0
"""A step is long if it takes this many medians and is this many robust standard deviations above the median: one in 3.5
million normal times is. A step of more than `SLOW` medians is always long, as in the evidence of launches. Our
choice."""
_MAX_NAMED = 4
"""Number of long steps that a sentence names."""


@dataclass(frozen=True)
class Difference:
    """A difference of times with its 90 % interval over steps.

    Attributes:
        value_s: Difference of the means. Unit: s.
        low_s: Lower end of the interval; None if there are too few steps. Unit: s.
        high_s: Upper end of the interval; None if there are too few steps. Unit: s.
        is_clear: Whether the difference is beyond its spread and large enough to report.
    """

    value_s: float
    low_s: float | None
    high_s: float | None
    is_clear: bool


@dataclass(frozen=True)
class StepTimes:
    """Statistics of the step times of a job.

    Attributes:
        num_steps: Number of steps.
        kind: measured, profiled or simulated.
        median_s: Median step time of the job, whose step ends with its slowest rank. Unit: s.
        slowest_rank: Rank with the longest mean step time.
        fastest_rank: Rank with the shortest mean step time; equal to `slowest_rank` if there is one rank.
        ranks: Step time of the slowest rank less that of the fastest; None if one rank alone marked its steps.
        drift: Mean step time of the last third of the steps less that of the first; None with fewer than 12 steps.
        long_steps: Numbers of steps far longer than the median, the longest first.
        long_ranks: Slowest rank in each long step.
        long_s: Time of all long steps beyond the median. Unit: s.
        total_s: Time of all steps. Unit: s.
    """

    num_steps: int
    kind: str
    median_s: float
    slowest_rank: int
    fastest_rank: int
    ranks: Difference | None
    drift: Difference | None
    long_steps: tuple[int, ...]
    long_ranks: tuple[int, ...]
    long_s: float
    total_s: float

    def content(self) -> dict[str, Any]:
        """Return all fields as plain data."""
        return asdict(self)

    def sentences(self) -> Iterator[str]:
        """Yield one sentence each on the step time, ranks, drift and long steps."""
        yield f"{counted(self.num_steps, self.kind + ' step')}: {show_seconds(self.median_s)} in the median"
        if self.num_steps < _LEAST_STEPS:
            yield f"too few to say how ranks and steps differ: {_LEAST_STEPS} at least are needed"
            return
        yield self._about_ranks()
        if self.drift is not None:
            yield self._about_drift(self.drift)
        if not self.long_steps:
            yield f"no step stands out: none takes {_LONG:g} times the median beyond the usual spread"
            return
        yield self.about_long_steps()

    def about_long_steps(self) -> str:
        """Return a sentence on the cost of the long steps, with their numbers."""
        named = ", ".join(
            f"step {step}{f' (rank {rank})' if self.ranks else ''}"
            for step, rank in zip(self.long_steps[:_MAX_NAMED], self.long_ranks, strict=False)
        )
        more = len(self.long_steps) - _MAX_NAMED
        return (
            f"{counted(len(self.long_steps), 'step')} far longer than the others cost {show_seconds(self.long_s)}, "
            f"{percent(self.long_s / self.total_s)} of the time: {named}{f' and {more} more' if more > 0 else ''}"
        )

    def _about_ranks(self) -> str:
        """Return a sentence on the difference between the slowest and the fastest rank."""
        if self.ranks is None:
            return "ranks: steps of one rank alone were marked, so ranks cannot be compared by them"
        if not self.ranks.is_clear:
            return f"ranks: none is slower beyond the spread; rank {self.slowest_rank} by {self._size(self.ranks)}"
        return (
            f"ranks: steps of rank {self.slowest_rank} take {self._size(self.ranks)} against rank {self.fastest_rank}"
        )

    def _about_drift(self, drift: Difference) -> str:
        """Return a sentence on the difference between the first and the last third of the steps."""
        if abs(drift.value_s) < LEAST_SHOWN * self.median_s:
            return "drift: none, steps of the last third take as long as those of the first"
        word, within = "longer" if drift.value_s > 0 else "shorter", "" if drift.is_clear else ", within its spread"
        return f"drift: steps of the last third are {word} than those of the first, {self._size(drift)}{within}"

    def _size(self, difference: Difference) -> str:
        """Return a difference and its interval as percentages of the median step."""
        ends = ""
        if difference.low_s is not None and difference.high_s is not None:
            low, high = (signed_percent(end_s / self.median_s) for end_s in (difference.low_s, difference.high_s))
            ends = f" [{low.removesuffix(' %')}, {high.removesuffix(' %')}]"
        return f"{signed_percent(difference.value_s / self.median_s)}{ends} of the median step"


def analyse_step_times(operations: Operations, kind: str = "measured") -> StepTimes:
    """Return the statistics of step times.

    Args:
        operations: Whole steps: one operation for each rank and step, in the order of the workers.
        kind: Kind of the steps: measured, profiled or simulated.
    """
    times_s, steps = operations.duration_s, operations.steps
    job_s = times_s.max(axis=0)
    means_s = times_s.mean(axis=1)
    slow, fast = int(means_s.argmax()), int(means_s.argmin())
    median_s = float(np.median(job_s))
    is_long = (job_s >= _LONG * median_s) & (job_s - median_s >= _LONG_SIGMA * robust_sigma(job_s))
    is_long |= job_s > SLOW * median_s
    is_long &= len(job_s) >= _LEAST_STEPS
    longest = np.flatnonzero(is_long)[np.argsort(-job_s[is_long])]
    ranks = [worker.rank for worker in operations.workers]
    return StepTimes(
        num_steps=len(job_s),
        kind=kind,
        median_s=median_s,
        slowest_rank=ranks[slow],
        fastest_rank=ranks[fast],
        ranks=_difference(times_s[fast], times_s[slow], median_s) if len(ranks) > 1 else None,
        drift=_drift(np.delete(job_s, longest), median_s),
        long_steps=tuple(steps[longest].tolist()),
        long_ranks=tuple(ranks[int(times_s[:, index].argmax())] for index in longest),
        long_s=float((job_s[longest] - median_s).sum()),
        total_s=float(job_s.sum()),
    )


def _difference(fastest_s: np.ndarray, slowest_s: np.ndarray, median_s: float) -> Difference:
    """Return the difference of two ranks, step by step; the times have shape (num_steps,)."""
    effect = paired(fastest_s.tolist(), slowest_s.tolist(), "steps")
    if len(fastest_s) < _LEAST_STEPS:
        return Difference(effect.value, None, None, False)
    return _with_interval(effect, median_s)


def _drift(job_s: np.ndarray, median_s: float) -> Difference | None:
    """Return the difference of the last third of the steps from the first; None with too few steps."""
    if len(job_s) < _LEAST_DRIFT_STEPS:
        return None
    third = len(job_s) // 3
    return _with_interval(unpaired(job_s[:third].tolist(), job_s[-third:].tolist(), "steps"), median_s)


def _with_interval(effect: Effect, median_s: float) -> Difference:
    """Return an effect over steps, with whether it is clear."""
    is_clear = not effect.is_tie and abs(effect.value) >= _LEAST_CHANGE * median_s
    return Difference(effect.value, effect.low, effect.high, is_clear)
