"""What step times alone show: ranks against each other, drift over steps, and steps that are far longer than usual."""

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from triplepoint.effects.samples import paired, unpaired
from triplepoint.manifest import SLOW
from triplepoint.metrics import robust_sigma
from triplepoint.units import counted, show_seconds
from triplepoint.why.operations import Operations

_LEAST_STEPS = 3
"""Measured steps from which the spread of a difference is known. Our choice."""
_LEAST_DRIFT_STEPS = 12
"""Steps whose first and last third are compared: four each. Our choice."""
_LEAST_CHANGE = 0.01
"""Share of the step from which a difference of ranks, or a drift, is said to be one. Our choice."""
_LONG, _LONG_SIGMA = 1.25, 5.0
"""A step counts as far longer than usual from so many medians on that are also so many robust standard deviations: of
normal times one in 3.5 million is. One of `SLOW` medians is in any case, as launches name it. Our choice."""
_MOST_NAMED = 4


@dataclass(frozen=True)
class Difference:
    """A difference of times with its 90 % interval over steps; both ends None where the steps are too few. Unit: s."""

    value_s: float
    low_s: float | None
    high_s: float | None
    is_clear: bool


@dataclass(frozen=True)
class StepTimes:
    """Measured steps of a job.

    Attributes:
        num_steps: How many.
        kind: measured or profiled.
        median_s: Median over steps of the time of the job's step. Unit: s.
        slowest_rank: Rank whose steps take longest in the mean, and `fastest_rank`; equal of a single rank.
        ranks: How much longer its steps take than those of the fastest; None where one rank alone marked steps.
        drift: Mean of the last third of the steps, less that of the first; None of fewer than twelve.
        long_steps: Numbers of steps far longer than the median, the longest first.
        long_ranks: Rank that took longest in each of them.
        long_s: What they take beyond the median, all together. Unit: s.
        total_s: All steps together. Unit: s.
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
        """Return all of it as plain data."""
        return asdict(self)

    def sentences(self) -> Iterator[str]:
        """Yield what is to be said, a sentence each."""
        yield f"{counted(self.num_steps, self.kind + ' step')}: {show_seconds(self.median_s)} in the median"
        if self.num_steps < _LEAST_STEPS:
            yield f"too few to say how ranks and steps differ: {_LEAST_STEPS} at least are needed"
            return
        yield self._about_ranks()
        if self.drift is not None:
            within = "" if self.drift.is_clear else ", within its spread"
            word = "longer" if self.drift.value_s > 0 else "shorter"
            yield f"drift: steps of the last third are {word} than those of the first, {self._size(self.drift)}{within}"
        if not self.long_steps:
            yield f"no step stands out: none takes {_LONG:g} times the median beyond the usual spread"
            return
        yield self.about_long_steps()

    def about_long_steps(self) -> str:
        """Return what steps far longer than the others cost, and which they are."""
        named = ", ".join(
            f"step {step}{f' (rank {rank})' if self.ranks else ''}"
            for step, rank in zip(self.long_steps[:_MOST_NAMED], self.long_ranks, strict=False)
        )
        more = len(self.long_steps) - _MOST_NAMED
        return (
            f"{counted(len(self.long_steps), 'step')} far longer than the others cost {show_seconds(self.long_s)}, "
            f"{self.long_s / self.total_s:.1%} of the time: {named}{f' and {more} more' if more > 0 else ''}"
        )

    def _about_ranks(self) -> str:
        if self.ranks is None:
            return "ranks: steps of one rank alone were marked, so ranks cannot be compared by them"
        if not self.ranks.is_clear:
            return f"ranks: none is slower beyond the spread; rank {self.slowest_rank} by {self._size(self.ranks)}"
        return (
            f"ranks: steps of rank {self.slowest_rank} take {self._size(self.ranks)} against rank {self.fastest_rank}"
        )

    def _size(self, one: Difference) -> str:
        ends = ""
        if one.low_s is not None and one.high_s is not None:
            ends = f" [{one.low_s / self.median_s:+.1%}, {one.high_s / self.median_s:+.1%}]"
        return f"{one.value_s / self.median_s:+.1%}{ends} of the median step"


def study_steps(operations: Operations, kind: str = "measured") -> StepTimes:
    """Return what steps show.

    Args:
        operations: One operation for each rank and step, in the order of its workers.
        kind: What the steps are: measured or profiled.
    """
    times_s, steps = operations.duration_s, operations.steps
    job_s = times_s.max(axis=0)
    means_s = times_s.mean(axis=1)
    slow, fast = int(means_s.argmax()), int(means_s.argmin())
    median_s = float(np.median(job_s))
    is_long = (job_s >= _LONG * median_s) & (job_s - median_s >= _LONG_SIGMA * robust_sigma(job_s))
    is_long |= job_s > SLOW * median_s
    longest = np.flatnonzero(is_long)[np.argsort(-job_s[is_long])] if len(job_s) >= _LEAST_STEPS else np.array([], int)
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
        long_ranks=tuple(ranks[int(times_s[:, at].argmax())] for at in longest),
        long_s=float((job_s[longest] - median_s).sum()),
        total_s=float(job_s.sum()),
    )


def _difference(first: np.ndarray, other: np.ndarray, median_s: float) -> Difference:
    effect = paired(first.tolist(), other.tolist(), "steps")
    if len(first) < _LEAST_STEPS:
        return Difference(effect.value, None, None, False)
    is_clear = not effect.is_tie and abs(effect.value) >= _LEAST_CHANGE * median_s
    return Difference(effect.value, effect.low, effect.high, is_clear)


def _drift(job_s: np.ndarray, median_s: float) -> Difference | None:
    if len(job_s) < _LEAST_DRIFT_STEPS:
        return None
    third = len(job_s) // 3
    effect = unpaired(job_s[:third].tolist(), job_s[-third:].tolist(), "steps")
    is_clear = not effect.is_tie and abs(effect.value) >= _LEAST_CHANGE * median_s
    return Difference(effect.value, effect.low, effect.high, is_clear)
