"""Values with 90 % intervals, and their products."""

import math
from typing import NamedTuple


class Interval(NamedTuple):
    """A value and the ends of its 90 % interval."""

    value: float
    low: float
    high: float

    def times(self, factor: float) -> "Interval":
        """Return the product with an exact factor."""
        return Interval(*(factor * end for end in self))

    def within(self, width: float) -> "Interval":
        """Return a wider interval.

        Args:
            width: Half-width of the 90 % interval of an independent relative error, in log.
        """
        return self.product(Interval(1.0, math.exp(-width), math.exp(width)))

    def product(self, other: "Interval") -> "Interval":
        """Return the product with a value of independent error; an end that is 0 stays 0."""
        value = self.value * other.value
        low, high = (math.hypot(*(_log_ratio(each.value, each[end]) for each in (self, other))) for end in (1, 2))
        return Interval(value, value * math.exp(-low), value * math.exp(high))

    @property
    def inverse(self) -> "Interval":
        """The reciprocal."""
        return Interval(1 / self.value, 1 / self.high, 1 / self.low)


def _log_ratio(value: float, end: float) -> float:
    """Return the absolute log ratio of an end and its value; infinite if the end is 0."""
    return abs(math.log(end / value)) if end > 0 and value > 0 else (math.inf if value > 0 else 0.0)


UNKNOWN = Interval(math.nan, math.nan, math.nan)
