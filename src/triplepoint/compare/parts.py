"""The difference of two steps by part: exposed computation, each communication, copies, idle time, and the rest.

Parts are means over ranks, or those of one rank where its own work changed more than that of the others.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from triplepoint.compare.sides import Side
from triplepoint.compare.traced import Part, Traced
from triplepoint.effects import Effect
from triplepoint.effects.samples import paired, unpaired
from triplepoint.metrics import robust_sigma

UNPROFILED = Part("unprofiled", "all")
"""What the measured step takes beyond the mean rank's profiled one: slower ranks, and what profiling changes."""
_LEAST_SHARE = 0.05
"""Share of the first step by which a rank must have changed more than the others. Our choice."""
_LEAST_SIGMAS, _LEAST_SIGMA = 3.5, 0.002
"""Robust standard deviations beyond the median from which a rank stands out, and the least standard deviation as a
share of the step: ranks that do the same differ by as much.
Source of the first: Iglewicz and Hoaglin 1993, How to Detect and Handle Outliers, chapter 3."""
_LEAST_PAIR_SHARE = 0.1
"""The same of two ranks, where no others say how much is usual. Our choice."""


@dataclass(frozen=True)
class Contribution:
    """What one part contributes to the difference of the step.

    Attributes:
        part: The part.
        first_s: Its time in a step of the first side. Unit: s.
        other_s: The same of the other side, scaled to the first one's tokens per GPU. Unit: s.
        effect: The difference, other less first. Unit: s.
    """

    part: Part
    first_s: float
    other_s: float
    effect: Effect


@dataclass(frozen=True)
class StepDifference:
    """The difference of two steps and what it consists of.

    Attributes:
        first_s: Step of the first side: measured where both sides are runs, else profiled. Unit: s.
        other_s: Step of the other, scaled. Unit: s.
        scale: Factor on all times of the other side: tokens per GPU of the first over those of the other.
        is_profiled: Whether the steps are those of the traces.
        parts: Largest contribution first; they add up to the difference. None known: empty.
    """

    first_s: float
    other_s: float
    scale: float
    is_profiled: bool
    parts: Sequence[Contribution]

    @property
    def difference_s(self) -> float:
        """Return the other step less the first. Unit: s."""
        return self.other_s - self.first_s


@dataclass(frozen=True)
class RankChange:
    """The rank that changed most.

    Attributes:
        rank: Global rank.
        change_s: Change of its own work, the other side less the first. Unit: s.
        others_s: The same of the other ranks, median. Unit: s.
    """

    rank: int
    change_s: float
    others_s: float


def scale_of(first: Side, other: Side) -> float:
    """Return what makes times of the other side those of the first one's tokens per GPU; 1 where not known."""
    one, two = first.tokens_per_gpu, other.tokens_per_gpu
    return one / two if one and two else 1.0


def step_difference(first: Side, other: Side) -> StepDifference | None:
    """Return the difference of two steps by part; None where the two sides have no times of one kind.

    Args:
        first: One side, runs or traces.
        other: The other.
    """
    scale, one, two = scale_of(first, other), first.traced, other.traced
    measured = (first.step_s, other.step_s)
    if measured[0] is not None and measured[1] is not None:
        steps_s, is_profiled = (measured[0], measured[1]), False
    elif one and two:
        steps_s, is_profiled = (one.step_s, two.step_s), True
    else:
        return None
    parts = _parts(one, two, scale, first.origin == other.origin == "measured") if one and two else []
    if one and two and not is_profiled:
        rest = (steps_s[0] - one.step_s, scale * (steps_s[1] - two.step_s))
        parts.append(Contribution(UNPROFILED, rest[0], rest[1], unpaired([rest[0]], [rest[1]], "none")))
    parts.sort(key=lambda contribution: -abs(contribution.effect.value))
    return StepDifference(steps_s[0], steps_s[1] * scale, scale, is_profiled, parts)


def _parts(one: Traced, two: Traced, scale: float, is_sampled: bool) -> list[Contribution]:
    names = dict.fromkeys(part for traced in (one, two) for step in traced.steps for part in step)
    return [
        Contribution(part, one.mean_s(part), two.mean_s(part) * scale, _effect(part, one, two, scale, is_sampled))
        for part in names
    ]


def _effect(part: Part, one: Traced, two: Traced, scale: float, is_sampled: bool) -> Effect:
    """Return the difference of a part: paired over repeats, else over steps; of simulated steps, all alike, alone."""
    first, other = (_by_repeat(part, traced) for traced in (one, two))
    shared = sorted(set(first) & set(other))
    if is_sampled and len(shared) > 1 and set(first) == set(other):
        means = [[float(np.mean(values[repeat])) for repeat in shared] for values in (first, other)]
        return paired(means[0], [value * scale for value in means[1]], "repeats")
    samples = [[value for values in found.values() for value in values] for found in (first, other)]
    scaled = [value * scale for value in samples[1]]
    if is_sampled:
        return unpaired(samples[0], scaled, "steps")
    return unpaired([float(np.mean(samples[0]))], [float(np.mean(scaled))], "none")


def _by_repeat(part: Part, traced: Traced) -> Mapping[int, list[float]]:
    found: dict[int, list[float]] = {}
    for repeat, step in zip(traced.repeats, traced.steps, strict=True):
        found.setdefault(repeat, []).append(step.get(part, 0.0))
    return found


def find_changed_rank(first: Side, other: Side) -> RankChange | None:
    """Return the rank that changed more than the others; None where none did, or ranks of both do other work.

    Own work is the time in which a rank does not wait in communication: what one rank takes longer, others wait for. In
    means over ranks, one late rank would appear as two lines: its lateness, and the wait of the others.
    """
    if first.traced is None or other.traced is None or len(first.runs) > 1 or len(other.runs) > 1:
        return None
    points = [side.runs[0].planned.point for side in (first, other) if side.runs]
    one, two = first.traced.own_s, other.traced.own_s
    if len(one) < 2 or set(one) != set(two) or (len(points) == 2 and points[0].layout != points[1].layout):
        return None
    ranks = sorted(one)
    changes = np.array([two[rank] - one[rank] for rank in ranks])
    apart = [abs(changes[at] - np.median(np.delete(changes, at))) for at in range(len(ranks))]
    # Of two ranks both are as far from the other: the one that changed is meant.
    most = max(range(len(ranks)), key=lambda at: (round(apart[at], 9), abs(changes[at])))
    step_s = first.traced.step_s
    least = _LEAST_PAIR_SHARE if len(ranks) == 2 else _LEAST_SHARE
    if apart[most] < least * step_s:
        return None
    sigma_s = max(robust_sigma(changes), _LEAST_SIGMA * step_s)
    if len(ranks) > 2 and abs(changes[most] - np.median(changes)) <= _LEAST_SIGMAS * sigma_s:
        return None
    return RankChange(ranks[most], float(changes[most]), float(np.median(np.delete(changes, most))))
