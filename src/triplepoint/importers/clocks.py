"""Check clocks of recordings: whether hosts agree, and whether telemetry and traces have the same time."""

from collections.abc import Mapping, Sequence

import numpy as np

from triplepoint.errors import UserError
from triplepoint.importers.times import show_span, show_time
from triplepoint.recording import Part
from triplepoint.units import NS_PER_S

_STEP_S = 1.0
"""Grid on which the power of hosts is compared. Unit: s."""
_FARTHEST_S = 1800.0
"""Largest lag that is searched. Unit: s."""
_LEAST_LAG_S = 5.0
"""Smallest lag that is reported; sampling every one or two seconds does not resolve less. Our choice. Unit: s."""
_LEAST_CORRELATION, _LEAST_GAIN = 0.8, 0.1
"""Smallest correlation at the best lag, and smallest gain over the correlation without a lag. Our choice."""
_QUARTER_NS = 900 * NS_PER_S
"""Quarter of an hour, in which zones differ. Unit: ns."""
_MOST_HOURS = 14
"""Largest offset of a zone from UTC. Unit: h."""
_POWER = ("gpu_power_w", "gpu_power_average_w", "gpu_utilisation")
"""Columns that show the load of a GPU, best first."""

Span = tuple[int, int]
"""First and last time. Unit: ns."""


def span_of(parts: Sequence[Part]) -> Span:
    """Return the first and the last time of samples."""
    return min(int(part.t_ns[0]) for part in parts), max(int(part.t_ns[-1]) for part in parts)


def check_hosts(parts: Mapping[str, Sequence[Part]], offsets: Mapping[str, float]) -> None:
    """Check that the clocks of hosts agree.

    Args:
        parts: Samples by host.
        offsets: Offsets that the user gave, by host; these hosts are not checked.

    Raises:
        UserError: If a host has no time in common with the first one, or its power has the same course with a lag.
    """
    names = [name for name in parts if parts[name]]
    if "" in offsets or len(names) < 2:
        return
    first = names[0]
    for other in names[1:]:
        if other in offsets:
            continue
        first_span, other_span = span_of(parts[first]), span_of(parts[other])
        if max(other_span[0] - first_span[1], first_span[0] - other_span[1]) > 0:
            later = other_span[0] - first_span[0]
            raise UserError(
                f"{other} was recorded {show_span(later / NS_PER_S)} {'after' if later > 0 else 'before'} {first}, "
                f"with no time in common; if its clock is wrong give --offset {other}={-later / NS_PER_S:.0f}, else "
                "import the job alone"
            )
        lag_s = find_lag(parts[first], parts[other])
        if lag_s is not None:
            raise UserError(
                f"the clock of {other} is {show_span(lag_s)} {'ahead of' if lag_s > 0 else 'behind'} {first}'s: the "
                f"power of their GPUs rises and falls alike, that much apart; give --offset {other}={-lag_s:.0f}, or "
                f"{other}=0 if it is right"
            )


def find_lag(first: Sequence[Part], other: Sequence[Part]) -> float | None:
    """Return the lag of one host's power behind the other's, by cross-correlation; None if there is no clear lag.

    Unit: s.
    """
    first_span, other_span = span_of(first), span_of(other)
    # Samples farther from the common time than the largest lag match nothing; they have damaged times.
    reach_ns = round(_FARTHEST_S * NS_PER_S)
    start = max(min(first_span[0], other_span[0]), max(first_span[0], other_span[0]) - reach_ns)
    end = min(max(first_span[1], other_span[1]), min(first_span[1], other_span[1]) + reach_ns)
    grid_ns = start + np.arange(0, end - start, round(_STEP_S * NS_PER_S))
    if len(grid_ns) < 30:
        return None
    first_power, other_power = _power_on_grid(first, grid_ns), _power_on_grid(other, grid_ns)
    if first_power is None or other_power is None:
        return None
    num = len(grid_ns)
    size = 1 << (2 * num - 1).bit_length()
    products = np.fft.irfft(np.conj(np.fft.rfft(first_power, size)) * np.fft.rfft(other_power, size), size)
    correlation = products / (np.sqrt((first_power @ first_power) * (other_power @ other_power)) or 1.0)
    reach = min(num - 1, round(_FARTHEST_S / _STEP_S))
    lags = np.concatenate([np.arange(reach + 1), np.arange(-reach, 0)])
    best = int(lags[np.argmax(correlation[lags])])
    is_clear = correlation[best] >= _LEAST_CORRELATION and correlation[best] - correlation[0] >= _LEAST_GAIN
    return best * _STEP_S if abs(best) * _STEP_S >= _LEAST_LAG_S and is_clear else None


def _power_on_grid(parts: Sequence[Part], grid_ns: np.ndarray) -> np.ndarray | None:
    """Return the mean power of a host's GPUs at the times of a grid; None if it is constant or not known.

    The mean over time of each GPU is subtracted. Times without samples are 0, so they add nothing to a correlation.
    """
    powers = []
    for part in parts:
        column = next((list(part.columns).index(name) for name in _POWER if name in part.columns), None)
        if column is None or part.device == "host":
            continue
        known = np.isfinite(part.values[:, column])
        if known.sum() < 2:
            continue
        values = np.interp(grid_ns, part.t_ns[known], part.values[known, column])
        inside = (grid_ns >= part.t_ns[known][0]) & (grid_ns <= part.t_ns[known][-1])
        powers.append(np.where(inside, values - values[inside].mean() if inside.any() else 0.0, 0.0))
    mean = np.mean(powers, axis=0) if powers else np.zeros(1)
    return mean if np.ptp(mean) > 0 else None


def find_shift(telemetry: Span, work: Span) -> list[int]:
    """Return the shifts from UTC with which the work is within the telemetry, else overlaps with it. Unit: ns.

    Args:
        telemetry: First and last local time of the samples, taken as UTC.
        work: First and last time of traces or steps, in UTC.
    """
    shifts = np.arange(-_MOST_HOURS * 4, _MOST_HOURS * 4 + 1) * _QUARTER_NS
    overlaps = (telemetry[0] - shifts <= work[1]) & (telemetry[1] - shifts >= work[0])
    contains = overlaps & (telemetry[0] - shifts <= work[0]) & (telemetry[1] - shifts >= work[1])
    return [int(shift) for shift in shifts[contains if contains.any() else overlaps]]


def check_work(telemetry: Span, work: Span, name: str) -> None:
    """Check that telemetry has some time in common with the work.

    Args:
        telemetry: First and last time of the samples.
        work: First and last time of traces or steps.
        name: Name of the work in the message.

    Raises:
        UserError: If they have no time in common.
    """
    apart = max(work[0] - telemetry[1], telemetry[0] - work[1])
    if apart > 0:
        raise UserError(
            f"telemetry is from {show_time(telemetry[0])} to {show_time(telemetry[1])}, {name} from "
            f"{show_time(work[0])} to {show_time(work[1])}: {show_span(apart / NS_PER_S)} apart; give --timezone for "
            "local times, --offset for a clock that is wrong, or import recordings of one job"
        )
