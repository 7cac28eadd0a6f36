"""Clocks of recordings: whether hosts agree, and whether telemetry and traces are of one time."""

from collections.abc import Mapping, Sequence

import numpy as np

from triplepoint.errors import UserError
from triplepoint.importers.times import show_span, show_time
from triplepoint.recording import Part
from triplepoint.units import NS_PER_S

_STEP_S = 1.0
"""Grid on which the power of hosts is compared. Unit: s."""
_FARTHEST_S = 1800.0
"""Largest lag that is looked for. Unit: s."""
_LEAST_LAG_S = 5.0
"""Smallest lag that is reported: sampling every second or two does not tell less. Our choice. Unit: s."""
_ALIKE, _BETTER = 0.8, 0.1
"""Correlation at the best lag, and what it has to gain over no lag, to be believed. Our choice."""
_QUARTER_NS = 900 * NS_PER_S
_MOST_HOURS = 14
_POWER = ("gpu_power_w", "gpu_power_average_w", "gpu_utilisation")

Span = tuple[int, int]
"""First and last time. Unit: ns."""


def span_of(parts: Sequence[Part]) -> Span:
    """Return the first and the last time of samples."""
    return min(int(part.t_ns[0]) for part in parts), max(int(part.t_ns[-1]) for part in parts)


def check_hosts(parts: Mapping[str, Sequence[Part]], told: Mapping[str, float]) -> None:
    """Refuse hosts whose clocks are apart.

    Args:
        parts: Samples by host.
        told: Hosts whose offset the user gave.

    Raises:
        UserError: If one has no time in common with the first, or its power rises and falls as the first's does,
            but later.
    """
    names = [name for name in parts if parts[name]]
    if "" in told or len(names) < 2:
        return
    first = names[0]
    for other in names[1:]:
        if other in told:
            continue
        ours, theirs = span_of(parts[first]), span_of(parts[other])
        apart = max(theirs[0] - ours[1], ours[0] - theirs[1])
        if apart > 0:
            later = theirs[0] - ours[0]
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
    """Return how much later one host's power rises and falls than the other's, None where they agree or nothing tells.

    Unit: s.
    """
    ours, theirs = span_of(first), span_of(other)
    # What lies farther from the time in common than clocks are looked for is compared with nothing: a damaged time.
    reach_ns = round(_FARTHEST_S * NS_PER_S)
    start = max(min(ours[0], theirs[0]), max(ours[0], theirs[0]) - reach_ns)
    end = min(max(ours[1], theirs[1]), min(ours[1], theirs[1]) + reach_ns)
    grid_ns = start + np.arange(0, end - start, round(_STEP_S * NS_PER_S))
    if len(grid_ns) < 30:
        return None
    a, b = _level(first, grid_ns), _level(other, grid_ns)
    if a is None or b is None:
        return None
    num = len(grid_ns)
    size = 1 << (2 * num - 1).bit_length()
    # Hosts that are not recorded count as at their mean, which adds nothing.
    products = np.fft.irfft(np.conj(np.fft.rfft(a, size)) * np.fft.rfft(b, size), size)
    likeness = products / (np.sqrt((a @ a) * (b @ b)) or 1.0)
    reach = min(num - 1, round(_FARTHEST_S / _STEP_S))
    lags = np.concatenate([np.arange(reach + 1), np.arange(-reach, 0)])
    best = int(lags[np.argmax(likeness[lags])])
    if abs(best) * _STEP_S < _LEAST_LAG_S or likeness[best] < _ALIKE or likeness[best] - likeness[0] < _BETTER:
        return None
    return best * _STEP_S


def _level(parts: Sequence[Part], grid_ns: np.ndarray) -> np.ndarray | None:
    """Return the mean power of a host's GPUs on a grid, less its mean; 0 where it was not recorded."""
    found = []
    for part in parts:
        place = next((list(part.columns).index(name) for name in _POWER if name in part.columns), None)
        if place is None or part.device == "host":
            continue
        known = np.isfinite(part.values[:, place])
        if known.sum() < 2:
            continue
        values = np.interp(grid_ns, part.t_ns[known], part.values[known, place])
        inside = (grid_ns >= part.t_ns[known][0]) & (grid_ns <= part.t_ns[known][-1])
        found.append(np.where(inside, values - values[inside].mean() if inside.any() else 0.0, 0.0))
    level = np.mean(found, axis=0) if found else np.zeros(1)
    return level if np.ptp(level) > 0 else None


def find_shift(telemetry: Span, work: Span) -> list[int]:
    """Return by how many ns local times of telemetry may be ahead of UTC, so that the work falls into them.

    Args:
        telemetry: Of local times taken as UTC.
        work: Of traces or steps, in UTC.
    """
    quarters = np.arange(-_MOST_HOURS * 4, _MOST_HOURS * 4 + 1) * _QUARTER_NS
    fits = (telemetry[0] - quarters <= work[1]) & (telemetry[1] - quarters >= work[0])
    whole = fits & (telemetry[0] - quarters <= work[0]) & (telemetry[1] - quarters >= work[1])
    return [int(shift) for shift in quarters[whole if whole.any() else fits]]


def check_work(telemetry: Span, work: Span, what: str) -> None:
    """Refuse telemetry that has no time in common with the work it is to show.

    Args:
        telemetry: First and last time of the samples.
        work: Of traces or steps.
        what: What it is, for the message.

    Raises:
        UserError: Saying by how much they are apart.
    """
    apart = max(work[0] - telemetry[1], telemetry[0] - work[1])
    if apart > 0:
        raise UserError(
            f"telemetry is from {show_time(telemetry[0])} to {show_time(telemetry[1])}, {what} from "
            f"{show_time(work[0])} to {show_time(work[1])}: {show_span(apart / NS_PER_S)} apart; give --timezone for "
            "local times, --offset for a clock that is wrong, or import recordings of one job"
        )
