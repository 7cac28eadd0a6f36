"""A value with its 90 % interval, and products of such."""

import math
from typing import NamedTuple


class Interval(NamedTuple):
    """A value and the ends of its 90 % interval."""

    value: float
    low: float
    high: float

    def times(self, factor: float) -> "Interval":
        """Return it times an exact factor."""
        return Interval(*(factor * end for end in self))

    def within(self, width: float) -> "Interval":
        """Return it wider by an independent error: half a 90 % interval, in log."""
        return self.product(Interval(1.0, math.exp(-width), math.exp(width)))

    def product(self, other: "Interval") -> "Interval":
        """Return the product with a value of independent error; what is zero at an end is zero there."""
        value = self.value * other.value
        low, high = (math.hypot(*(_log_ratio(one.value, one[end]) for one in (self, other))) for end in (1, 2))
        return Interval(value, value * math.exp(-low), value * math.exp(high))

    @property
    def inverse(self) -> "Interval":
        """One over it."""
        return Interval(1 / self.value, 1 / self.high, 1 / self.low)


def _log_ratio(value: float, end: float) -> float:
    """Return the size of the logarithm of an end over its value; infinite where the end is zero."""
    return abs(math.log(end / value)) if end > 0 and value > 0 else (math.inf if value > 0 else 0.0)


UNKNOWN = Interval(math.nan, math.nan, math.nan)
