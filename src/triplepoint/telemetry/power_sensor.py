"""Models of power sensors: their updates, their response to a known load, and energy from their readings.

Pure functions on arrays of times and readings. A sensor publishes at `phase + n * period` the mean of the true power
over `[t - lag - window, t - lag]`. A load is a set of busy intervals; the true power is taken as one level when busy
and another when not. The energy counter is the reference: it moves in steps, so energy is read between the instants at
which it moved, not between samples.

Source: Yang et al., SC'24 (arXiv:2312.02741), for the model; arXiv:2604.06056 for energy-counter differences.
"""

from dataclasses import dataclass

import numpy as np

from triplepoint.energy_counter import EnergyCounter, changes, on_grid

_FEWEST_UPDATES = 8
_WINDOWS = 40
_LAGS = 160
_ROUNDS = 6
_FASTEST = 0.45
"""Updates per read that can still be told apart."""
_IN_PHASE = 0.85
"""Of 1, how nearly the changes must share a phase."""


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
    residual_w: float
    """Root mean square of what the fit leaves. Unit: W."""


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
                    response = Response(float(window), float(lag), idle, idle + slope, residual)
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
