"""Numbers with the interval they are known to, and the verdict on two of them."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Literal


class Verdict(StrEnum):
    """What results say of a claim."""

    AGREES = "agrees"
    DIFFERS = "differs"
    CANNOT_TELL = "cannot tell"
    FINDING = "finding"
    """Of what a study says against itself: no result of ours is asked."""


Direction = Literal["rises", "falls"]


@dataclass(frozen=True)
class Number:
    """A value and the ends of the interval it is known to; both ends are the value where nothing is known of it."""

    value: float
    low: float
    high: float

    @classmethod
    def within(cls, value: float, accuracy: float) -> "Number":
        """Return a value known to `accuracy` on either side, in its unit."""
        return cls(value, value - accuracy, value + accuracy)

    @property
    def half_width(self) -> float:
        """Half of the interval, in the unit of the value."""
        return (self.high - self.low) / 2

    @property
    def sign(self) -> Direction:
        """Which way it goes from zero."""
        return "rises" if self.value > 0 else "falls"

    def __truediv__(self, divisor: float) -> "Number":
        return Number(self.value / divisor, self.low / divisor, self.high / divisor)

    def __sub__(self, other: "Number") -> "Number":
        """Return the difference; errors of the two are taken as independent."""
        return Number.within(self.value - other.value, math.hypot(self.half_width, other.half_width))


def overlap(one: Number, other: Number) -> bool:
    """Return whether two intervals have a value in common."""
    return one.low <= other.high and other.low <= one.high


def judge_values(published: Number, ours: Number) -> tuple[Verdict, str]:
    """Return the verdict on two values of one quantity, and why."""
    if overlap(published, ours):
        return Verdict.AGREES, ""
    gap = max(published.low - ours.high, ours.low - published.high)
    return Verdict.DIFFERS, f"the intervals are {_text(gap)} apart"


def judge_sign(expected: Direction, change: Number, least: float) -> tuple[Verdict, str]:
    """Return the verdict on a change that is said to rise or to fall, and why.

    Args:
        expected: What is said of it.
        change: The change of ours, with its spread.
        least: Smallest change that counts, in its unit: half an interval of what is published.
    """
    threshold = math.hypot(least, change.half_width)
    if abs(change.value) <= threshold:
        return Verdict.CANNOT_TELL, f"the change is below {_text(threshold)}, the uncertainty of both"
    if (change.value > 0) == (expected == "rises"):
        return Verdict.AGREES, ""
    return Verdict.DIFFERS, "the change has the other sign"


def mean_of(numbers: Sequence[Number]) -> Number:
    """Return the mean of some numbers, from the lowest to the highest end of any."""
    value = math.fsum(number.value for number in numbers) / len(numbers)
    return Number(value, min(number.low for number in numbers), max(number.high for number in numbers))


def _text(value: float) -> str:
    return f"{value:.4g}"
