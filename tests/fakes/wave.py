"""Step functions of time in Python: the ground truth, computed independently of the C code in native/."""

import math
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Wave:
    """A step function of time. Before time 0 it has the first value.

    Attributes:
        starts_s: Start of each value, ascending; the first is 0. Unit: s.
        values: Values.
        period_s: Period with which the function repeats. If 0, it keeps the last value. Unit: s.
    """

    starts_s: tuple[float, ...]
    values: tuple[float, ...]
    period_s: float = 0.0

    def __post_init__(self) -> None:
        assert len(self.starts_s) == len(self.values) > 0 and self.starts_s[0] == 0
        assert list(self.starts_s) == sorted(self.starts_s)
        assert self.period_s == 0 or self.period_s > self.starts_s[-1]

    def map(self, function: Callable[[float], float]) -> "Wave":
        """Return the wave with `function` applied to each value."""
        return Wave(self.starts_s, tuple(function(value) for value in self.values), self.period_s)

    def value(self, t_s: float) -> float:
        """Return the value at a time."""
        if t_s < 0:
            return self.values[0]
        _, rest_s = self._split(t_s)
        return self.values[bisect_right(self.starts_s, rest_s) - 1]

    def integral(self, t_s: float) -> float:
        """Return the integral from 0 to `t_s`, backwards if `t_s` is negative. Unit: that of the value times s."""
        if t_s < 0:
            return self.values[0] * t_s
        periods, rest_s = self._split(t_s)
        whole = sum(v * (b - a) for a, b, v in self._steps(self.period_s)) if periods else 0.0
        return periods * whole + sum(v * (b - a) for a, b, v in self._steps(rest_s))

    def mean(self, from_s: float, to_s: float) -> float:
        """Return the mean over a window."""
        return (self.integral(to_s) - self.integral(from_s)) / (to_s - from_s)

    def response(self, t_s: float, tau_s: float) -> float:
        """Return the value behind a first-order low pass, which is in equilibrium with the first value at time 0."""
        state, (periods, rest_s) = self.values[0], self._split(max(0.0, t_s))
        if periods:
            decay = math.exp(-self.period_s / tau_s)
            steady = self._low_pass(0.0, self.period_s, tau_s) / (1 - decay)
            state = steady + (state - steady) * decay**periods
        return self._low_pass(state, rest_s, tau_s)

    def _low_pass(self, state: float, until_s: float, tau_s: float) -> float:
        for start_s, end_s, value in self._steps(until_s):
            state = value + (state - value) * math.exp(-(end_s - start_s) / tau_s)
        return state

    def _split(self, t_s: float) -> tuple[int, float]:
        """Return the number of whole periods until a time, and the time within the last one."""
        if self.period_s == 0:
            return 0, t_s
        periods = math.floor(t_s / self.period_s)
        return periods, t_s - periods * self.period_s

    def _steps(self, until_s: float) -> list[tuple[float, float, float]]:
        """Return start, end and value of each step of one period, up to `until_s`."""
        ends_s = (*self.starts_s[1:], math.inf)
        steps = zip(self.starts_s, ends_s, self.values, strict=True)
        return [(a, min(b, until_s), v) for a, b, v in steps if a < until_s]


def constant(value: float) -> Wave:
    """Return a constant wave."""
    return Wave((0.0,), (value,))


def square(period_s: float, duty: float, high: float = 1.0, low: float = 0.0) -> Wave:
    """Return a wave that is `high` for the first share `duty` of each period, and `low` for the rest."""
    return Wave((0.0, duty * period_s), (high, low), period_s)


def steps(*pairs: tuple[float, float]) -> Wave:
    """Return a wave from pairs of start in s and value."""
    return Wave(tuple(float(t) for t, _ in pairs), tuple(float(v) for _, v in pairs))


def trace(starts_s: Sequence[float], values: Sequence[float], period_s: float = 0.0) -> Wave:
    """Return a wave from a recorded load, whose first sample becomes time 0."""
    return Wave(tuple(t - starts_s[0] for t in starts_s), tuple(values), period_s)
