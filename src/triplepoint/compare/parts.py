"""Difference of two steps by part: exposed computation, each kind of communication, copies, idle time, and the rest.

Parts are means over ranks, or those of one rank if its own work changed more than that of the others.
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
"""Measured step less the mean rank's profiled step: slower ranks, and the overhead of profiling."""
_LEAST_SHARE = 0.05
"""Smallest change of a rank beyond that of the others, as a share of the first step. Our choice."""
_LEAST_SIGMAS, _LEAST_SIGMA = 3.5, 0.002
"""Robust standard deviations beyond the median from which a rank is an outlier, and the smallest standard deviation as
a share of the step: ranks with the same work differ by as much.
Source of the first: Iglewicz and Hoaglin 1993, How to Detect and Handle Outliers, chapter 3."""
_LEAST_PAIR_SHARE = 0.1
"""The same as `_LEAST_SHARE` for a job of two ranks, where no others show the usual change. Our choice."""


@dataclass(frozen=True)
class Contribution:
    """Contribution of one part to the difference of the step.

    Attributes:
        part: The part.
        first_s: Its time in a step of the first side. Unit: s.
        other_s: Its time in a step of the other side, scaled to the first side's tokens per GPU. Unit: s.
        effect: The difference, other less first. Unit: s.
    """

    part: Part
    first_s: float
    other_s: float
    effect: Effect


@dataclass(frozen=True)
class StepDifference:
    """Difference of two steps and its parts.

    Attributes:
        first_s: Step time of the first side: measured if both sides have measured steps, else profiled. Unit: s.
        other_s: Step time of the other side, scaled. Unit: s.
        scale: Factor on all times of the other side: tokens per GPU of the first side over those of the other.
        is_profiled: Whether the step times come from traces.
        parts: Parts, largest contribution first; they add up to the difference. Empty if a side has no traces.
    """

    first_s: float
    other_s: float
    scale: float
    is_profiled: bool
    parts: Sequence[Contribution]

    @property
    def difference_s(self) -> float:
        """Step time of the other side less that of the first. Unit: s."""
        return self.other_s - self.first_s


@dataclass(frozen=True)
class RankChange:
    """The rank that changed most.

    Attributes:
        rank: Global rank.
        change_s: Change of its own work, the other side less the first. Unit: s.
        others_s: Median change of the other ranks. Unit: s.
    """

    rank: int
    change_s: float
    others_s: float


def scale_of(first: Side, other: Side) -> float:
    """Return the factor that scales times of the other side to the first side's tokens per GPU; 1 if not known."""
    first_tokens, other_tokens = first.tokens_per_gpu, other.tokens_per_gpu
    return first_tokens / other_tokens if first_tokens and other_tokens else 1.0


def step_difference(first: Side, other: Side) -> StepDifference | None:
    """Return the difference of two steps by part; None if one side has only measured and the other only traced steps.

    Args:
        first: First side, runs or traces.
        other: Other side.
    """
    scale = scale_of(first, other)
    traced = (first.traced, other.traced) if first.traced and other.traced else None
    if first.step_s is not None and other.step_s is not None:
        first_s, other_s, is_profiled = first.step_s, other.step_s, False
    elif traced:
        first_s, other_s, is_profiled = traced[0].step_s, traced[1].step_s, True
    else:
        return None
    parts = _parts(*traced, scale, first.origin == other.origin == "measured") if traced else []
    if traced and not is_profiled:
        rest_s = (first_s - traced[0].step_s, scale * (other_s - traced[1].step_s))
        parts.append(Contribution(UNPROFILED, *rest_s, unpaired([rest_s[0]], [rest_s[1]], "none")))
    parts.sort(key=lambda contribution: -abs(contribution.effect.value))
    return StepDifference(first_s, other_s * scale, scale, is_profiled, parts)


def _parts(first: Traced, other: Traced, scale: float, is_measured: bool) -> list[Contribution]:
    """Return the contributions of all parts of two profiled steps."""
    names = dict.fromkeys(part for traced in (first, other) for step in traced.steps for part in step)
    return [
        Contribution(
            part, first.mean_s(part), other.mean_s(part) * scale, _effect(part, first, other, scale, is_measured)
        )
        for part in names
    ]


def _effect(part: Part, first: Traced, other: Traced, scale: float, is_measured: bool) -> Effect:
    """Return the difference of a part: paired over repeats if both sides have several, else unpaired over steps.

    Simulated steps are all equal, so their difference has no interval.
    """
    by_repeat = [_by_repeat(part, traced) for traced in (first, other)]
    repeats = sorted(by_repeat[0])
    if is_measured and len(repeats) > 1 and repeats == sorted(by_repeat[1]):
        means_s = [[float(np.mean(times_s[repeat])) for repeat in repeats] for times_s in by_repeat]
        return paired(means_s[0], [mean_s * scale for mean_s in means_s[1]], "repeats")
    first_s, other_s = ([time_s for times_s in side.values() for time_s in times_s] for side in by_repeat)
    scaled_s = [time_s * scale for time_s in other_s]
    if is_measured:
        return unpaired(first_s, scaled_s, "steps")
    return unpaired([float(np.mean(first_s))], [float(np.mean(scaled_s))], "none")


def _by_repeat(part: Part, traced: Traced) -> Mapping[int, list[float]]:
    """Return the times of a part in the steps of each repeat. Unit: s."""
    times_s: dict[int, list[float]] = {}
    for repeat, step in zip(traced.repeats, traced.steps, strict=True):
        times_s.setdefault(repeat, []).append(step.get(part, 0.0))
    return times_s


def find_changed_rank(first: Side, other: Side) -> RankChange | None:
    """Return the rank whose own work changed more than that of the others; None if there is none.

    Own work is the time in which a rank does not wait in communication; the other ranks wait for what one rank takes
    longer. In means over ranks a late rank would appear as two parts: its lateness, and the wait of the others. Sides
    with several runs, or with different ranks or layouts, are not compared rank by rank.
    """
    if first.traced is None or other.traced is None or len(first.runs) > 1 or len(other.runs) > 1:
        return None
    points = [side.runs[0].planned.point for side in (first, other) if side.runs]
    first_s, other_s = first.traced.own_s, other.traced.own_s
    if len(first_s) < 2 or set(first_s) != set(other_s) or (len(points) == 2 and points[0].layout != points[1].layout):
        return None
    ranks = sorted(first_s)
    changes_s = np.array([other_s[rank] - first_s[rank] for rank in ranks])
    beyond_others_s = [abs(changes_s[index] - np.median(np.delete(changes_s, index))) for index in range(len(ranks))]
    # Two ranks are equally far from each other: the one with the larger change is meant.
    most = max(range(len(ranks)), key=lambda index: (round(beyond_others_s[index], 9), abs(changes_s[index])))
    step_s = first.traced.step_s
    least = _LEAST_PAIR_SHARE if len(ranks) == 2 else _LEAST_SHARE
    if beyond_others_s[most] < least * step_s:
        return None
    sigma_s = max(robust_sigma(changes_s), _LEAST_SIGMA * step_s)
    if len(ranks) > 2 and abs(changes_s[most] - np.median(changes_s)) <= _LEAST_SIGMAS * sigma_s:
        return None
    return RankChange(ranks[most], float(changes_s[most]), float(np.median(np.delete(changes_s, most))))
