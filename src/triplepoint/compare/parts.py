"""The difference of two steps by part: exposed computation, each communication, copies, idle time, and the rest."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from triplepoint.compare.sides import Side
from triplepoint.compare.traced import Part, Traced
from triplepoint.effects import Effect
from triplepoint.effects.samples import paired, unpaired

UNPROFILED = Part("unprofiled", "all")
"""What the measured step takes beyond the mean rank's profiled one: slower ranks, and what profiling changes."""


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
