"""Numbers with uncertainty intervals, and verdicts on published against own numbers."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Literal


class Verdict(StrEnum):
    """Verdict of the results on a claim."""

    AGREES = "agrees"
    DIFFERS = "differs"
    CANNOT_TELL = "cannot tell"
    FINDING = "finding"
    """A contradiction within a study, which needs no results."""


Direction = Literal["rises", "falls"]


@dataclass(frozen=True)
class Number:
    """A value with its uncertainty interval.

    Attributes:
        value: The value.
        low: Lower end of the interval; the value itself where the uncertainty is not known.
        high: Upper end of the interval; the value itself where the uncertainty is not known.
    """

    value: float
    low: float
    high: float

    @classmethod
    def within(cls, value: float, accuracy: float) -> "Number":
        """Return a value with an uncertainty of `accuracy` on either side, in its unit."""
        return cls(value, value - accuracy, value + accuracy)

    @property
    def half_width(self) -> float:
        """Half the width of the interval, in the unit of the value."""
        return (self.high - self.low) / 2

    @property
    def sign(self) -> Direction:
        """Direction of the value as a change: `rises` above zero."""
        return "rises" if self.value > 0 else "falls"

    def __truediv__(self, divisor: float) -> "Number":
        return Number(self.value / divisor, self.low / divisor, self.high / divisor)

    def __sub__(self, other: "Number") -> "Number":
        """Return the difference, with the errors of the two taken as independent."""
        return Number.within(self.value - other.value, math.hypot(self.half_width, other.half_width))


def overlap(one: Number, other: Number) -> bool:
    """Return whether two intervals have a value in common."""
    return one.low <= other.high and other.low <= one.high


def judge_values(published: Number, ours: Number) -> tuple[Verdict, str]:
    """Return the verdict on two values of one quantity, and the reason."""
    if overlap(published, ours):
        return Verdict.AGREES, ""
    gap = max(published.low - ours.high, ours.low - published.high)
    return Verdict.DIFFERS, f"the intervals are {_text(gap)} apart"


def judge_sign(expected: Direction, change: Number, least: float) -> tuple[Verdict, str]:
    """Return the verdict on a published direction, and the reason.

    Args:
        expected: Published direction.
        change: Change in our results, with its uncertainty.
        least: Smallest change that counts, in its unit: the half width of the published interval.
    """
    threshold = math.hypot(least, change.half_width)
    if abs(change.value) <= threshold:
        return Verdict.CANNOT_TELL, f"the change is below {_text(threshold)}, the uncertainty of both"
    if (change.value > 0) == (expected == "rises"):
        return Verdict.AGREES, ""
    return Verdict.DIFFERS, "the change has the other sign"


def mean_of(numbers: Sequence[Number]) -> Number:
    """Return the mean of numbers, with an interval from their lowest to their highest end."""
    value = math.fsum(number.value for number in numbers) / len(numbers)
    return Number(value, min(number.low for number in numbers), max(number.high for number in numbers))


def _text(value: float) -> str:
    return f"{value:.4g}"
