"""Energy of a time window from samples, each way with its limits: pure functions on arrays.

The energy counter is the reference: it moves in steps, so energy is read between the instants at which it moved, not
between samples. Power is averaged by its sensor over a window, which hides what happens between windows.
"""

import numpy as np

from triplepoint.recording.counter import EnergyCounter
from triplepoint.telemetry.response import Response, Updates, busy_time, share_seen, straight_line

_LEAST_SPREAD = 0.02
"""Spread of the shares a sensor saw, below which two levels of power cannot be told apart."""
_SHIFT = 0.2
"""How far updates may lie from where they were seen, as a share of the sensor's window."""
_MOST_BIAS = 0.005
"""Difference between the share seen and the true one that is left uncorrected."""


class AliasedError(ValueError):
    """The sensor saw the same part of every cycle of the load, so its readings do not hold the mean."""


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


def mean_power_w(updates: Updates, card: Response, starts_s: np.ndarray, ends_s: np.ndarray) -> float:
    """Return the mean power of a load whose busy intervals are known, free of what the sensor did not see. Unit: W.

    How much the reading rises with the share of the window that was busy gives the busy level; the idle level is the
    card's. A shift of the updates, known to half the time between reads only, would move both, so it is fitted too.

    Args:
        updates: The sensor's updates during the load.
        card: Window, lag and idle power of the sensor.
        starts_s: Starts of the busy intervals. Shape (num_intervals,). Unit: s.
        ends_s: Their ends. Shape (num_intervals,). Unit: s.

    Raises:
        AliasedError: If the sensor saw the same part of every cycle.
    """
    first, last = updates.times_s[0] - card.lag_s - card.window_s, updates.times_s[-1] - card.lag_s
    busy = busy_time(np.array([first, last]), starts_s, ends_s)
    duty = float(busy[1] - busy[0]) / (last - first)
    shifts = np.linspace(-_SHIFT, _SHIFT, 81) * card.window_s
    shares = [share_seen(updates.times_s + shift, card.window_s, card.lag_s, starts_s, ends_s) for shift in shifts]
    spread = max(float(share.std()) for share in shares)
    if spread < _LEAST_SPREAD:
        seen = float(np.mean(shares[len(shares) // 2]))
        if abs(seen - duty) < _MOST_BIAS:
            return float(updates.values.mean())
        raise AliasedError(
            f"the sensor saw the load busy for {seen:.1%} of the time, it was for {duty:.1%}, and always the same part "
            "of its cycle; use the energy counter, or a period that is no multiple of the sensor's"
        )
    fits = [straight_line(share, updates.values) for share in shares]
    slope = min(fits, key=lambda fit: fit[2])[1]
    return float(card.idle_w + slope * duty)
