"""Offset and drift of a node's clock from what round trips allow, with all that it can be off."""

from collections.abc import Sequence

import numpy as np

from triplepoint.launch.clock import Bounds
from triplepoint.manifest import Clock
from triplepoint.units import NS_PER_S, NS_PER_US

_MOST_DRIFT_PPM = 1000.0
"""Two clocks that NTP slews, each by at most 500 ppm (adjtimex(2)), in opposite directions."""
_ROUNDS = 100
_SLOPES = 801


def fit_clock(bursts: Sequence[Bounds]) -> Clock:
    """Return the clock in the middle of all that fit.

    A question that came at `came` says that the first node's clock was no further than that when it was sent; an answer
    that left at `left`, no less when it came. Every straight line below all the former and above all the latter may be
    the difference of the clocks: the middle of them at both ends of the run is taken, half their width is the
    uncertainty. Trips that were held up allow anything and so do not count, whichever way they were held up.

    Args:
        bursts: What round trips said, at least one burst.

    Returns:
        Offset, drift and uncertainty. Where no straight line fits, because a clock was slewed meanwhile, the bounds are
        widened until one does, and that is added to the uncertainty.

    Source:
        Minimum-delay filter: RFC 5905 section 10; lines between bounds: Duda et al., ICDCS 1987.
    """
    reference_ns = bursts[0].asked_ns
    base_ns = bursts[0].at_least_ns
    above = np.array([(b.asked_ns - reference_ns, b.at_most_ns - base_ns) for b in bursts], float)
    below = np.array([(b.answered_ns - reference_ns, b.at_least_ns - base_ns) for b in bursts], float)
    limits = _Limits(above[:, 0] / NS_PER_S, above[:, 1] / NS_PER_US, below[:, 0] / NS_PER_S, below[:, 1] / NS_PER_US)
    best_ppm = _roomiest(limits)
    slack_us = max(0.0, -limits.room_us(best_ppm) / 2)
    limits = limits.widened(slack_us)
    slopes_ppm = np.linspace(
        _edge(limits, best_ppm, -_MOST_DRIFT_PPM), _edge(limits, best_ppm, _MOST_DRIFT_PPM), _SLOPES
    )
    end_s = float(below[-1, 0] / NS_PER_S)
    (low, high), (low_end, high_end) = limits.reach_us(slopes_ppm, 0.0), limits.reach_us(slopes_ppm, end_s)
    first_us, last_us = (low + high) / 2, (low_end + high_end) / 2
    return Clock(
        reference_ns=reference_ns,
        offset_ns=base_ns + round(first_us * NS_PER_US),
        drift_ppm=(last_us - first_us) / end_s if end_s > 0 else best_ppm,
        uncertainty_ns=round((max(high - low, high_end - low_end) / 2 + slack_us) * NS_PER_US),
        least_delay_ns=min(burst.delay_ns for burst in bursts),
        num_bursts=len(bursts),
        num_round_trips=sum(burst.num_trips for burst in bursts),
        duration_s=end_s,
    )


class _Limits:
    """Bounds of a line `offset + slope * t` from above and below. Units: s, microsecond, ppm."""

    def __init__(self, above_s: np.ndarray, above_us: np.ndarray, below_s: np.ndarray, below_us: np.ndarray) -> None:
        self._above_s, self._above_us, self._below_s, self._below_us = above_s, above_us, below_s, below_us

    def widened(self, by_us: float) -> "_Limits":
        return _Limits(self._above_s, self._above_us + by_us, self._below_s, self._below_us - by_us)

    def offsets_us(self, slopes_ppm: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return lowest and highest offset for each slope; the lowest is the higher one where there is none."""
        slopes = slopes_ppm[:, None]
        return (self._below_us - slopes * self._below_s).max(axis=1), (self._above_us - slopes * self._above_s).min(
            axis=1
        )

    def room_us(self, slope_ppm: float) -> float:
        low, high = self.offsets_us(np.array([slope_ppm]))
        return float(high[0] - low[0])

    def reach_us(self, slopes_ppm: np.ndarray, at_s: float) -> tuple[float, float]:
        """Return the lowest and the highest difference at a time, over slopes that fit."""
        low, high = self.offsets_us(slopes_ppm)
        return float((low + slopes_ppm * at_s).min()), float((high + slopes_ppm * at_s).max())


def _roomiest(limits: _Limits) -> float:
    """Return the slope with the most room, which is a concave function of it, by ternary search. Unit: ppm."""
    low, high = -_MOST_DRIFT_PPM, _MOST_DRIFT_PPM
    for _ in range(_ROUNDS):
        left, right = low + (high - low) / 3, high - (high - low) / 3
        if limits.room_us(left) < limits.room_us(right):
            low = left
        else:
            high = right
    return (low + high) / 2


def _edge(limits: _Limits, inside_ppm: float, outside_ppm: float) -> float:
    """Return the last slope with room on the way from one that has it. Unit: ppm."""
    if limits.room_us(outside_ppm) >= 0:
        return outside_ppm
    for _ in range(_ROUNDS):
        middle = (inside_ppm + outside_ppm) / 2
        if limits.room_us(middle) >= 0:
            inside_ppm = middle
        else:
            outside_ppm = middle
    return inside_ppm


def bursts_from(rows: Sequence[dict[str, int]]) -> list[Bounds]:
    """Return bursts as an agent's report holds them."""
    return [Bounds(**row) for row in rows]
