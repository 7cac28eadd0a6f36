"""Models of power sensors: update times, response to a known load, and energy from readings and counters.

Pure functions on arrays of times and readings. A sensor publishes, at times `t = phase + n * period`, the mean of the
true power over `[t - lag - window, t - lag]`. A load is a set of busy intervals; its true power is modelled as one
level while busy and another while idle. The energy counter is the reference. It is updated in steps, so energies are
differences between update times, not between sample times.

Source: Yang et al., SC'24 (arXiv:2312.02741), for the model; arXiv:2604.06056 for energy-counter differences.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

AVERAGE_S = 1.0
"""Window of the average power of NVML's drivers. Source: nvml.h, nvmlDeviceGetPowerUsage. Unit: s."""
_FEWEST_UPDATES = 8
"""Fewest changes of a reading from which an update period is determined."""
_WINDOWS, _LAGS = 40, 160
"""Size of the first search grid of `fit_response`."""
_ROUNDS = 6
"""Refinements of an iterative search."""
_FASTEST = 0.45
"""Highest update rate that can be determined, in updates per read."""
_IN_PHASE = 0.85
"""Least alignment of the changes at a period: length of their mean phase vector, 0 to 1."""
_FEWEST_MOVES = 8
"""Fewest updates of a counter for which a grid is fitted."""
_MOVES_PER_GRID = 300
"""Most updates of a counter on one grid: over longer times the clocks of counter and host drift apart."""
_LONGEST_PERIOD_S = 0.1
"""Longest update period of an energy counter: that of H100, measured by Zeus's authors (ml.energy blog). Those of AMD
are far shorter."""
_TOLERANCE = 0.02
"""How far the grid may put an update outside the two reads around it, as a share of the counter's period."""
_LEAST_CONSISTENT = 0.98
"""Least share of updates that must be within that tolerance for the grid to be used."""
_PERIODS_TRIED, _GRID_ROUNDS = 31, 2
"""Periods per round, and rounds, of the search in `on_grid`."""


class EnergyCounter:
    """An energy counter with the times of its updates.

    The counter is updated at regular times. Each update is known to lie between two reads, so fitting a regular grid
    determines the times to milliseconds, although the reads are much further apart. If the read period is a multiple of
    the update period, reads keep the same phase, and the times are only known to the read period; `slack_s` is then
    large.
    """

    def __init__(self, times_s: np.ndarray, counter_j: np.ndarray) -> None:
        """Determine the times of the updates.

        Args:
            times_s: Times of the reads. Shape (num_reads,). Unit: s.
            counter_j: Values read. Shape (num_reads,). Unit: J.
        """
        before, after, self.values_j = changes(times_s, counter_j)
        self.moved_s, self.slack_s = _update_times(before, after)
        """Times of the updates, shape (num_moves,), and their common uncertainty. Unit: s."""

    def at(self, at_s: np.ndarray) -> np.ndarray:
        """Return the counter at given times, interpolated between its updates. Unit: J.

        Raises:
            ValueError: If it has no update before the first and after the last time.
        """
        if len(self.moved_s) < 2 or at_s.min() < self.moved_s[0] or at_s.max() > self.moved_s[-1]:
            raise ValueError(
                "the energy counter did not move around the window; sample for longer or take a later window"
            )
        return np.asarray(np.interp(at_s, self.moved_s, self.values_j))


def _update_times(before: np.ndarray, after: np.ndarray) -> tuple[np.ndarray, float]:
    """Return the times of a counter's updates and their common uncertainty.

    Args:
        before: Times of the last reads before the updates. Shape (num_moves,). Unit: s.
        after: Times of the first reads after them. Shape (num_moves,). Unit: s.
    """
    if len(after) < _FEWEST_MOVES:
        return (before + after) / 2, float(np.median(after - before)) / 2 if len(after) else 0.0
    period_s = float(np.median(np.diff(after)))
    # The first value read after a gap in the samples was published within the last period, however long the gap.
    is_gap = (after - before > period_s)[1:]
    # The same holds for a counter that is read less often than it is updated.
    before = np.maximum(before, after - min(period_s, _LONGEST_PERIOD_S))
    numbers = np.concatenate([[0.0], np.cumsum(np.where(is_gap, np.rint(np.diff(after) / period_s), 1.0))])
    starts = range(0, max(1, len(after) - len(after) % _MOVES_PER_GRID), _MOVES_PER_GRID)
    parts = [slice(start, start + _MOVES_PER_GRID if start != starts[-1] else None) for start in starts]
    grids = [
        on_grid(numbers[part] - numbers[start], before[part], after[part])
        for start, part in zip(starts, parts, strict=True)
    ]
    times_s = np.concatenate([grid.times_s for grid in grids])
    # If the grid contradicts too many reads, the updates are not regular.
    tolerance_s = _TOLERANCE * period_s
    is_consistent = (times_s > before - tolerance_s) & (times_s < after + tolerance_s)
    if is_consistent.mean() <= _LEAST_CONSISTENT:
        return (before + after) / 2, float(np.median(after - before)) / 2
    return times_s, float(np.median([grid.slack_s for grid in grids]))


def integral_j(times_s: np.ndarray, power_w: np.ndarray, start_s: float, end_s: float) -> float:
    """Return the integral of sampled power over a window by the trapezoidal rule, with interpolated ends. Unit: J.

    Args:
        times_s: Times of samples, ascending. Shape (num_samples,). Unit: s.
        power_w: Power of the samples. Shape (num_samples,). Unit: W.
        start_s: Start of the window. Unit: s.
        end_s: End of the window. Unit: s.
    """
    inside = (times_s > start_s) & (times_s < end_s)
    at_s = np.concatenate([[start_s], times_s[inside], [end_s]])
    return float(np.trapezoid(np.interp(at_s, times_s, power_w), at_s))


def changes(times_s: np.ndarray, readings: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return for every changed reading the time of the read before it, the time of its own read, and its value."""
    indices = np.flatnonzero(np.diff(readings) != 0) + 1
    return times_s[indices - 1], times_s[indices], readings[indices]


class Grid(NamedTuple):
    """Regular times fitted to the reads around updates.

    Attributes:
        period_s: Period of the times. Unit: s.
        times_s: The times. Unit: s.
        slack_s: Shift, earlier or later, of all times that still fits the reads. Unit: s.
    """

    period_s: float
    times_s: np.ndarray
    slack_s: float


def on_grid(numbers: np.ndarray, before: np.ndarray, after: np.ndarray) -> Grid:
    """Fit a regular grid to changes that lie between two reads each.

    Args:
        numbers: Number of periods from the first change to each. Shape (num_changes,).
        before: Times of the last reads before the changes. Shape (num_changes,). Unit: s.
        after: Times of the first reads after them. Shape (num_changes,). Unit: s.
    """
    period_s = float(np.polyfit(numbers, (before + after) / 2, 1)[0])
    reach_s = float(np.median(after - before)) / max(numbers[-1], 1)
    phase_s = slack_s = 0.0
    # The range of phases that fit all reads is concave in the period, so the optimum is next to the best period tried.
    for _ in range(_GRID_ROUNDS):
        periods_s = period_s + np.linspace(-reach_s, reach_s, _PERIODS_TRIED)
        earliest_phase = (before[:, None] - numbers[:, None] * periods_s).max(axis=0)
        latest_phase = (after[:, None] - numbers[:, None] * periods_s).min(axis=0)
        best = int(np.argmax(latest_phase - earliest_phase))
        period_s, phase_s = float(periods_s[best]), float(earliest_phase[best] + latest_phase[best]) / 2
        slack_s = max(0.0, float(latest_phase[best] - earliest_phase[best]) / 2)
        reach_s *= 2 / (_PERIODS_TRIED - 1)
    return Grid(period_s, phase_s + period_s * numbers, slack_s)


@dataclass(frozen=True)
class Updates:
    """Update times of a sensor."""

    period_s: float
    """Time between updates. Unit: s."""
    times_s: np.ndarray
    """Times of the updates with a changed value, on the fitted grid. Shape (num_updates,). Unit: s."""
    values: np.ndarray
    """Published values. Shape (num_updates,)."""


@dataclass(frozen=True)
class Response:
    """Response of a sensor to the true power."""

    window_s: float
    """Length of the averaging window. Unit: s."""
    lag_s: float
    """Time from the end of that window to the update. Unit: s."""
    idle_w: float
    """Fitted power of the idle level of the load. Unit: W."""
    busy_w: float
    """Fitted power of the busy level of the load. Unit: W."""


def find_updates(times_s: np.ndarray, readings: np.ndarray) -> Updates:
    """Return period and times of a sensor's updates.

    The period is the longest at which all changes of the reading have nearly the same phase. The read rate should not
    be a multiple of the update rate; otherwise the phase is uncertain by half the read period.

    Args:
        times_s: Times of the reads, at least two per update. Shape (num_reads,). Unit: s.
        readings: Values read. Shape (num_reads,).

    Raises:
        ValueError: If there are too few changes, or they are not regular.
    """
    before, after, values = changes(times_s, readings)
    if len(after) < _FEWEST_UPDATES:
        raise ValueError(f"the reading changed {len(after)} times; at least {_FEWEST_UPDATES} are needed")
    middle, width = (before + after) / 2, float(np.median(after - before))
    duration_s = middle[-1] - middle[0]
    frequencies = np.arange(3 / duration_s, _FASTEST / width, 0.1 / duration_s)
    alignment = np.array([np.abs(np.exp(2j * np.pi * frequency * middle).mean()) for frequency in frequencies])
    # A change is anywhere between two reads, which reduces the alignment of a fast sensor by a known factor.
    aligned = np.flatnonzero(alignment >= _IN_PHASE * np.sinc(frequencies * width))
    if not aligned.size:
        raise ValueError(
            "the reading changes at no regular times; it is not a sensor with a period, or is read too seldom"
        )
    peak = aligned[0]
    while peak + 1 < len(alignment) and alignment[peak + 1] >= alignment[peak]:
        peak += 1
    period = 1 / float(frequencies[peak])
    numbers = np.zeros(len(middle))
    for _ in range(_ROUNDS):
        # Counting from one change to the next keeps a small error of the period from adding up.
        numbers = np.concatenate([[0], np.cumsum(np.rint(np.diff(middle) / period))])
        period = float(np.polyfit(numbers, middle, 1)[0])
    grid = on_grid(numbers, before, after)
    return Updates(grid.period_s, grid.times_s, values)


def busy_time(at_s: np.ndarray, starts_s: np.ndarray, ends_s: np.ndarray) -> np.ndarray:
    """Return the cumulative busy time of a load at given times. Unit: s.

    Args:
        at_s: Times, any shape. Unit: s.
        starts_s: Starts of the busy intervals, ascending. Shape (num_intervals,). Unit: s.
        ends_s: Ends of the intervals, each before the next start. Shape (num_intervals,). Unit: s.
    """
    corners = np.column_stack([starts_s, ends_s]).ravel()
    total = np.cumsum(np.column_stack([np.zeros_like(starts_s), ends_s - starts_s]).ravel())
    return np.asarray(np.interp(at_s, corners, total))


def share_seen(
    update_s: np.ndarray, window_s: float, lag_s: float, starts_s: np.ndarray, ends_s: np.ndarray
) -> np.ndarray:
    """Return the busy share of a sensor's averaging window, at each update."""
    end = update_s - lag_s
    busy = busy_time(end, starts_s, ends_s) - busy_time(end - window_s, starts_s, ends_s)
    return np.asarray(busy / window_s)


def mean_before(ends_s: np.ndarray, power_w: np.ndarray, at_s: np.ndarray, window_s: float) -> np.ndarray:
    """Return the running mean of piecewise constant power over a sensor's window. Unit: W.

    Args:
        ends_s: Ends of the constant pieces, ascending. The first starts at 0, and its power also holds before. Shape
            (num_pieces,). Unit: s.
        power_w: Power of the pieces. Shape (num_pieces,). Unit: W.
        at_s: Ends of the window. Unit: s.
        window_s: Length of the window. Unit: s.
    """
    durations_s = np.diff(ends_s, prepend=0.0)
    corners_s = np.concatenate([[-window_s, 0.0], ends_s])
    energy_j = np.concatenate([[-window_s * power_w[0], 0.0], np.cumsum(durations_s * power_w)])
    window_j = np.interp(at_s, corners_s, energy_j) - np.interp(at_s - window_s, corners_s, energy_j)
    return np.asarray(window_j / window_s)


def fit_response(updates: Updates, starts_s: np.ndarray, ends_s: np.ndarray, longest_window_s: float = 2.0) -> Response:
    """Fit window, lag and power levels to a sensor's readings, by a grid search with successive refinement.

    Args:
        updates: Updates of the sensor.
        starts_s: Starts of the load's busy intervals, which differ in length. Shape (num_intervals,). Unit: s.
        ends_s: Ends of the intervals. Shape (num_intervals,). Unit: s.
        longest_window_s: Longest window to try. Unit: s.

    Raises:
        ValueError: If the busy share does not vary for any window.
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
    """Return the resolution of a sensor: the greatest common divisor of the differences of its readings.

    Args:
        readings: Values read. Shape (num_reads,).
        unit: Finest possible resolution, the unit of the driver.
    """
    steps = np.unique(np.rint((readings - readings[0]) / unit).astype(int))
    return float(np.gcd.reduce(steps)) * unit


def settling_time_s(times_s: np.ndarray, power_w: np.ndarray, start_s: float, tolerance: float = 0.02) -> float:
    """Return the settling time of power: until it stays within a tolerance of the mean of its last fifth. Unit: s.

    Args:
        times_s: Times of samples under the load, ascending. Shape (num_samples,). Unit: s.
        power_w: Power of the samples. Shape (num_samples,). Unit: W.
        start_s: Start of the load. Unit: s.
        tolerance: Share of the steady power.
    """
    steady = float(np.mean(power_w[-max(1, len(power_w) // 5) :]))
    outside = np.flatnonzero(np.abs(power_w - steady) > tolerance * steady)
    if not outside.size:
        return 0.0
    return float(times_s[min(outside[-1] + 1, len(times_s) - 1)] - start_s)


def counter_energy_j(times_s: np.ndarray, counter_j: np.ndarray, start_s: float, end_s: float) -> float:
    """Return the energy between two times, interpolated between the updates of a counter. Unit: J.

    Args:
        times_s: Times of the reads. Shape (num_reads,). Unit: s.
        counter_j: Values read. Shape (num_reads,). Unit: J.
        start_s: Start. Unit: s.
        end_s: End. Unit: s.

    Raises:
        ValueError: If the counter has no update before the start and after the end.
    """
    counter = EnergyCounter(times_s, counter_j)
    first, last = counter.at(np.array([start_s, end_s]))
    return float(last - first)


def undo_average(
    times_s: np.ndarray, readings_w: np.ndarray, updates: Updates, window_s: float
) -> tuple[np.ndarray, np.ndarray]:
    """Recover the mean power of each update period from a running mean over a longer window.

    The power of a period follows from the rise of the running mean and the power that left the window, one window
    before. Power is assumed constant over the first window.

    Args:
        times_s: Times of the reads of the averaging sensor. Shape (num_reads,). Unit: s.
        readings_w: Values read. Shape (num_reads,). Unit: W.
        updates: Updates of the sensor.
        window_s: Length of its averaging window. Unit: s.

    Returns:
        Ends of the periods in s and mean power of each in W, both of shape (num_periods,).

    Raises:
        ValueError: If the window is not longer than an update period.
    """
    num = round(window_s / updates.period_s)
    if num < 2:
        raise ValueError(f"window {window_s} s is not longer than the update period {updates.period_s} s")
    phase_s = (updates.times_s[0] - times_s[0]) % updates.period_s
    ends_s = np.arange(times_s[0] + phase_s, times_s[-1] - updates.period_s / 2, updates.period_s)
    # Half a period after an update the reading certainly has its value.
    mean_w = readings_w[np.searchsorted(times_s, ends_s + updates.period_s / 2, side="right") - 1]
    power_w = np.full(len(ends_s), mean_w[0])
    for n in range(1, len(ends_s)):
        leaving_w = power_w[n - num] if n >= num else mean_w[0]
        power_w[n] = num * (mean_w[n] - mean_w[n - 1]) + leaving_w
    return ends_s, power_w
