"""Models of power sensors: energy counters, updates, response to a known load, and energy from their readings.

Pure functions on arrays of times and readings. A sensor publishes at `phase + n * period` the mean of the true power
over `[t - lag - window, t - lag]`. A load is a set of busy intervals; the true power is taken as one level when busy
and another when not. The energy counter is the reference: it moves in steps, so energy is read between the instants at
which it moved, not between samples.

Source: Yang et al., SC'24 (arXiv:2312.02741), for the model; arXiv:2604.06056 for energy-counter differences.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

_FEWEST_UPDATES = 8
_WINDOWS = 40
_LAGS = 160
_ROUNDS = 6
_FASTEST = 0.45
"""Updates per read that can still be told apart."""
_IN_PHASE = 0.85
"""Of 1, how nearly the changes must share a phase."""
_FEWEST_MOVES = 8
_MOVES_AT_ONCE = 300
"""Moves of a counter put on one grid: over longer times the two clocks drift apart."""
_LONGEST_PERIOD_S = 0.1
"""Between updates of an energy counter: H100, as Zeus's authors measured (ml.energy blog); AMD's is far shorter."""
_SLACK = 0.02
"""How far off the reads around it a move may be put, as a share of the counter's period."""
_MOSTLY = 0.98
_PERIODS, _LOOKS = 31, 2


class EnergyCounter:
    """An energy counter between the instants at which it moved.

    It publishes at regular times, which are found to milliseconds although it is read much less often: its moves lie on
    a grid, and each was seen to lie between two reads. Where it is read at a whole multiple of its own rate, that never
    moves against the grid, so it says no more than the time between two reads; hence the slack.
    """

    def __init__(self, times_s: np.ndarray, counter_j: np.ndarray) -> None:
        """Find its moves.

        Args:
            times_s: When it was read. Shape (num_reads,). Unit: s.
            counter_j: What it said. Shape (num_reads,). Unit: J.
        """
        before, after, self.values_j = changes(times_s, counter_j)
        self.moved_s, self.slack_s = _move_times(before, after)
        """Times of its moves, shape (num_moves,), and by how much all of them may be off together. Unit: s."""

    def at(self, at_s: np.ndarray) -> np.ndarray:
        """Return the counter at given times, interpolated between its moves. Unit: J.

        Raises:
            ValueError: If it did not move before the first and after the last.
        """
        if len(self.moved_s) < 2 or at_s.min() < self.moved_s[0] or at_s.max() > self.moved_s[-1]:
            raise ValueError(
                "the energy counter did not move around the window; sample for longer or take a later window"
            )
        return np.asarray(np.interp(at_s, self.moved_s, self.values_j))


def _move_times(before: np.ndarray, after: np.ndarray) -> tuple[np.ndarray, float]:
    if len(after) < _FEWEST_MOVES:
        return (before + after) / 2, float(np.median(after - before)) / 2 if len(after) else 0.0
    period_s = float(np.median(np.diff(after)))
    # After a gap in the samples: what is read was published within the last period, however long the gap.
    is_gap = (after - before > period_s)[1:]
    # Read less often than it is published, a value is no older than it can be either.
    before = np.maximum(before, after - min(period_s, _LONGEST_PERIOD_S))
    numbers = np.concatenate([[0.0], np.cumsum(np.where(is_gap, np.rint(np.diff(after) / period_s), 1.0))])
    starts = range(0, max(1, len(after) - len(after) % _MOVES_AT_ONCE), _MOVES_AT_ONCE)
    parts = [slice(at, at + _MOVES_AT_ONCE if at != starts[-1] else None) for at in starts]
    grids = [
        on_grid(numbers[part] - numbers[at], before[part], after[part]) for at, part in zip(starts, parts, strict=True)
    ]
    moved_s = np.concatenate([grid.times_s for grid in grids])
    # A grid that contradicts what was seen is none.
    late_s = _SLACK * period_s
    is_seen = (moved_s > before - late_s) & (moved_s < after + late_s)
    if is_seen.mean() <= _MOSTLY:
        return (before + after) / 2, float(np.median(after - before)) / 2
    return moved_s, float(np.median([grid.slack_s for grid in grids]))


def integral_j(times_s: np.ndarray, power_w: np.ndarray, start_s: float, end_s: float) -> float:
    """Return the integral of sampled power over a window, by trapezes, ends interpolated. Unit: J.

    Args:
        times_s: Times of samples, ascending. Shape (num_samples,). Unit: s.
        power_w: Power of each. Shape (num_samples,). Unit: W.
        start_s: Start. Unit: s.
        end_s: End. Unit: s.
    """
    inside = (times_s > start_s) & (times_s < end_s)
    at = np.concatenate([[start_s], times_s[inside], [end_s]])
    return float(np.trapezoid(np.interp(at, times_s, power_w), at))


def changes(times_s: np.ndarray, readings: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return, for every reading that differs from the one before, the time before it, its own time, and its value."""
    at = np.flatnonzero(np.diff(readings) != 0) + 1
    return times_s[at - 1], times_s[at], readings[at]


class Grid(NamedTuple):
    """Regular times that fit what was seen.

    Attributes:
        period_s: Time between two. Unit: s.
        times_s: The times. Unit: s.
        slack_s: All of them could be this much earlier or later and still fit. Unit: s.
    """

    period_s: float
    times_s: np.ndarray
    slack_s: float


def on_grid(numbers: np.ndarray, before: np.ndarray, after: np.ndarray) -> Grid:
    """Return the grid of numbered changes that were seen between two reads each.

    Args:
        numbers: How many periods after the first each change came. Shape (num_changes,).
        before: Times of the reads before the changes. Shape (num_changes,). Unit: s.
        after: Times of the reads after them. Shape (num_changes,). Unit: s.
    """
    period_s = float(np.polyfit(numbers, (before + after) / 2, 1)[0])
    reach_s = float(np.median(after - before)) / max(numbers[-1], 1)
    phase_s = slack_s = 0.0
    # The room for all of them is concave in the period: around the best of a few lies the best of all.
    for _ in range(_LOOKS):
        tried_s = period_s + np.linspace(-reach_s, reach_s, _PERIODS)
        latest_start = (before[:, None] - numbers[:, None] * tried_s).max(axis=0)
        earliest_end = (after[:, None] - numbers[:, None] * tried_s).min(axis=0)
        best = int(np.argmax(earliest_end - latest_start))
        period_s, phase_s = float(tried_s[best]), float(latest_start[best] + earliest_end[best]) / 2
        slack_s = max(0.0, float(earliest_end[best] - latest_start[best]) / 2)
        reach_s *= 2 / (_PERIODS - 1)
    return Grid(period_s, phase_s + period_s * numbers, slack_s)


@dataclass(frozen=True)
class Updates:
    """When a sensor published."""

    period_s: float
    """Time between updates. Unit: s."""
    times_s: np.ndarray
    """Times of the updates that were seen, on the fitted grid. Shape (num_updates,). Unit: s."""
    values: np.ndarray
    """What was published at each. Shape (num_updates,)."""


@dataclass(frozen=True)
class Response:
    """What a sensor makes of the true power."""

    window_s: float
    """Length of the mean it publishes. Unit: s."""
    lag_s: float
    """From the end of that window to the update. Unit: s."""
    idle_w: float
    """Fitted power of the load's idle level. Unit: W."""
    busy_w: float
    """Fitted power of its busy level. Unit: W."""


def find_updates(times_s: np.ndarray, readings: np.ndarray) -> Updates:
    """Return period and times of a sensor's updates.

    Changes of the reading lie on a grid; its period is the longest for which they all have nearly the same phase. Read
    at a rate that is no multiple of the sensor's: otherwise the phase is uncertain by half the time between reads.

    Args:
        times_s: When it was read, at least twice as often as it publishes. Shape (num_reads,). Unit: s.
        readings: What it said. Shape (num_reads,).

    Raises:
        ValueError: If it changed too seldom to tell, or not on a grid.
    """
    before, after, values = changes(times_s, readings)
    if len(after) < _FEWEST_UPDATES:
        raise ValueError(f"the reading changed {len(after)} times; at least {_FEWEST_UPDATES} are needed")
    middle, width = (before + after) / 2, float(np.median(after - before))
    seen_s = middle[-1] - middle[0]
    frequencies = np.arange(3 / seen_s, _FASTEST / width, 0.1 / seen_s)
    phases = np.array([np.abs(np.exp(2j * np.pi * f * middle).mean()) for f in frequencies])
    # A change happened anywhere between two reads, which blurs the phases of a fast sensor by a known amount.
    good = np.flatnonzero(phases >= _IN_PHASE * np.sinc(frequencies * width))
    if not good.size:
        raise ValueError(
            "the reading changes at no regular times; it is not a sensor with a period, or is read too seldom"
        )
    last = good[0]
    while last + 1 < len(phases) and phases[last + 1] >= phases[last]:
        last += 1
    period = 1 / float(frequencies[last])
    numbers = np.zeros(len(middle))
    for _ in range(_ROUNDS):
        # Numbered from one change to the next, so that a small error of the period does not add up.
        numbers = np.concatenate([[0], np.cumsum(np.rint(np.diff(middle) / period))])
        period = float(np.polyfit(numbers, middle, 1)[0])
    grid = on_grid(numbers, before, after)
    return Updates(grid.period_s, grid.times_s, values)


def busy_time(at_s: np.ndarray, starts_s: np.ndarray, ends_s: np.ndarray) -> np.ndarray:
    """Return the time a load was busy up to each instant. Unit: s.

    Args:
        at_s: Instants, any shape. Unit: s.
        starts_s: Starts of its busy intervals, ascending. Shape (num_intervals,). Unit: s.
        ends_s: Ends, each before the next start. Shape (num_intervals,). Unit: s.
    """
    corners = np.column_stack([starts_s, ends_s]).ravel()
    total = np.cumsum(np.column_stack([np.zeros_like(starts_s), ends_s - starts_s]).ravel())
    return np.asarray(np.interp(at_s, corners, total))


def share_seen(
    update_s: np.ndarray, window_s: float, lag_s: float, starts_s: np.ndarray, ends_s: np.ndarray
) -> np.ndarray:
    """Return the share of a sensor's window in which a load was busy, at each update."""
    end = update_s - lag_s
    busy = busy_time(end, starts_s, ends_s) - busy_time(end - window_s, starts_s, ends_s)
    return np.asarray(busy / window_s)


def mean_before(ends_s: np.ndarray, power_w: np.ndarray, at_s: np.ndarray, window_s: float) -> np.ndarray:
    """Return the running mean that a sensor shows of power that changes in steps. Unit: W.

    Args:
        ends_s: Ends of the steps, ascending; the first begins at 0, its power held before too. Shape (num_steps,).
            Unit: s.
        power_w: Power of each. Shape (num_steps,). Unit: W.
        at_s: Ends of the window. Unit: s.
        window_s: Its length. Unit: s.
    """
    lasts_s = np.diff(ends_s, prepend=0.0)
    corners_s = np.concatenate([[-window_s, 0.0], ends_s])
    energy_j = np.concatenate([[-window_s * power_w[0], 0.0], np.cumsum(lasts_s * power_w)])
    gone = np.interp(at_s, corners_s, energy_j) - np.interp(at_s - window_s, corners_s, energy_j)
    return np.asarray(gone / window_s)


def fit_response(updates: Updates, starts_s: np.ndarray, ends_s: np.ndarray, longest_window_s: float = 2.0) -> Response:
    """Return window and lag that explain the readings best, by a search on a grid that narrows.

    Args:
        updates: The sensor's updates.
        starts_s: Starts of the load's busy intervals, which vary in length. Shape (num_intervals,). Unit: s.
        ends_s: Their ends. Shape (num_intervals,). Unit: s.
        longest_window_s: Longest window looked for. Unit: s.

    Raises:
        ValueError: If the load, as any window sees it, does not vary.
    """
    windows = np.geomspace(0.002, longest_window_s, _WINDOWS)
    lags = np.linspace(-updates.period_s, max(3 * updates.period_s, 0.3), _LAGS)
    best, response = np.inf, None
    for _ in range(_ROUNDS):
        for window in windows:
            for lag in lags:
                share = share_seen(updates.times_s, window, lag, starts_s, ends_s)
                idle, slope, residual = straight_line(share, updates.values)
                if residual < best:
                    best = residual
                    response = Response(float(window), float(lag), idle, idle + slope)
        if response is None:
            raise ValueError("the load does not vary: use busy intervals of several lengths")
        ratio = (windows[-1] / windows[0]) ** (2 / (len(windows) - 1))
        step = 2 * (lags[1] - lags[0])
        windows = np.geomspace(response.window_s / ratio, response.window_s * ratio, 9)
        lags = np.linspace(response.lag_s - step, response.lag_s + step, 9)
    assert response is not None
    return response


def straight_line(x: np.ndarray, y: np.ndarray) -> tuple[float, float, float]:
    """Return intercept, slope and root-mean-square residual of a straight line; infinite if x does not vary."""
    spread = x - x.mean()
    variance = float(spread @ spread)
    if variance < 1e-9 * len(x):
        return float(y.mean()), 0.0, np.inf
    slope = float(spread @ (y - y.mean())) / variance
    intercept = float(y.mean()) - slope * float(x.mean())
    return intercept, slope, float(np.sqrt(np.mean((y - intercept - slope * x) ** 2)))


def resolution(readings: np.ndarray, unit: float = 1e-3) -> float:
    """Return the greatest step of which all readings are multiples, relative to the first.

    Args:
        readings: What the sensor said. Shape (num_reads,).
        unit: Finest step looked for, the driver's unit.
    """
    steps = np.unique(np.rint((readings - readings[0]) / unit).astype(int))
    return float(np.gcd.reduce(steps)) * unit


def settling_time_s(times_s: np.ndarray, power_w: np.ndarray, start_s: float, tolerance: float = 0.02) -> float:
    """Return the time from the start of a load to when its power stays within a tolerance of its last fifth.

    Args:
        times_s: Times of samples under the load, ascending. Shape (num_samples,). Unit: s.
        power_w: Power of each. Shape (num_samples,). Unit: W.
        start_s: Start of the load. Unit: s.
        tolerance: Share of the steady power.
    """
    steady = float(np.mean(power_w[-max(1, len(power_w) // 5) :]))
    outside = np.flatnonzero(np.abs(power_w - steady) > tolerance * steady)
    if not outside.size:
        return 0.0
    return float(times_s[min(outside[-1] + 1, len(times_s) - 1)] - start_s)


def counter_energy_j(times_s: np.ndarray, counter_j: np.ndarray, start_s: float, end_s: float) -> float:
    """Return the energy between two instants, interpolated between the moves of a counter. Unit: J.

    Args:
        times_s: When the counter was read. Shape (num_reads,). Unit: s.
        counter_j: What it said. Shape (num_reads,). Unit: J.
        start_s: Start. Unit: s.
        end_s: End. Unit: s.

    Raises:
        ValueError: If the counter did not move before the start and after the end.
    """
    counter = EnergyCounter(times_s, counter_j)
    first, last = counter.at(np.array([start_s, end_s]))
    return float(last - first)


def undo_average(
    times_s: np.ndarray, readings_w: np.ndarray, updates: Updates, window_s: float
) -> tuple[np.ndarray, np.ndarray]:
    """Return the mean power of each update period from a running mean over a longer window.

    What enters the window in one period is what the mean rose by plus what left it, one window before. The first window
    is taken as constant.

    Args:
        times_s: When the averaging sensor was read. Shape (num_reads,). Unit: s.
        readings_w: What it said. Shape (num_reads,). Unit: W.
        updates: Its updates.
        window_s: Its window. Unit: s.

    Returns:
        Ends of the periods in s and mean power of each in W, both of shape (num_periods,).

    Raises:
        ValueError: If the window is no longer than a period: then nothing is to be undone.
    """
    num = round(window_s / updates.period_s)
    if num < 2:
        raise ValueError(f"window {window_s} s is not longer than the update period {updates.period_s} s")
    phase_s = (updates.times_s[0] - times_s[0]) % updates.period_s
    ends_s = np.arange(times_s[0] + phase_s, times_s[-1] - updates.period_s / 2, updates.period_s)
    # Half a period after an update its value stands without doubt.
    mean_w = readings_w[np.searchsorted(times_s, ends_s + updates.period_s / 2, side="right") - 1]
    power_w = np.full(len(ends_s), mean_w[0])
    for n in range(1, len(ends_s)):
        left_w = power_w[n - num] if n >= num else mean_w[0]
        power_w[n] = num * (mean_w[n] - mean_w[n - 1]) + left_w
    return ends_s, power_w
