"""Energy of one GPU in the measured steps: from its energy counter, or else from power samples.

Power samples need care, because a sensor may average over a window or see only a part of the time. Sensor cards
describe that; they and measurements of the sampling overhead are read from `results/sensors/*.json`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from triplepoint.errors import UserError
from triplepoint.files import load_json
from triplepoint.power_sensor import AVERAGE_S, EnergyCounter, Updates, undo_average
from triplepoint.text import percent
from triplepoint.units import NS_PER_S

COUNTER = "energy counter"
_LEAST_UPDATES_PER_WINDOW = 2
"""Fewest updates in a sensor's averaging window for which the average can be undone."""
_MOST_UNSEEN = 0.2
"""Largest share of the step that the sensor's windows may miss in every step; above it the mean would be biased."""
_BINS = 50
"""Parts of a step in the test for that share."""
_MOST_READ_PERIOD = 1.5
"""Longest time between reads, in periods of the sensor, at which all its updates are read."""


@dataclass(frozen=True)
class DeviceEnergy:
    """Power of one GPU in the measured steps."""

    power_w: np.ndarray
    """Mean power of each step, NaN without samples. Shape (num_measured,). Unit: W."""
    mean_w: float
    """Mean power over all measured steps. Unit: W."""
    source: str
    """Sensor, and how the power was computed from it."""
    counter: EnergyCounter | None = None
    """The energy counter on the first node's clock; None unless it covers all measured steps."""


class NotMeasuredError(ValueError):
    """Power samples from which the energy of the steps cannot be computed, with the reason."""


def measure_energy(
    samples: Mapping[str, np.ndarray], windows_ns: np.ndarray, card: Mapping[str, Any] | None
) -> DeviceEnergy | None:
    """Return the power of a GPU in the measured steps; None without samples.

    Args:
        samples: Columns of table `telemetry`, rows of one GPU by time.
        windows_ns: Start and end of each measured step on the clock of the samples. Shape (num_measured, 2). Unit: ns.
        card: Sensor card of the GPU, if there is one.

    Raises:
        NotMeasuredError: If, according to the card, the sensor sees the same part of every step.
    """
    windows_s = windows_ns / NS_PER_S
    counter = EnergyCounter(*_finite(samples, "gpu_energy_j"))
    try:
        energy_j = np.diff(counter.at(windows_s), axis=1)[:, 0]
    except ValueError:
        return _from_power(samples, windows_s, card)
    if not (energy_j > 0).all():  # the counter was frozen within a step
        return _from_power(samples, windows_s, card)
    length_s = np.diff(windows_s, axis=1)[:, 0]
    return DeviceEnergy(energy_j / length_s, float(energy_j.sum() / length_s.sum()), COUNTER, counter)


def _finite(samples: Mapping[str, np.ndarray], column: str) -> tuple[np.ndarray, np.ndarray]:
    """Return times in s and values of the samples that have a value in a column."""
    values = samples[column].astype(float)
    has_value = np.isfinite(values)
    return samples["t_ns"][has_value] / NS_PER_S, values[has_value]


def _from_power(
    samples: Mapping[str, np.ndarray], windows_s: np.ndarray, card: Mapping[str, Any] | None
) -> DeviceEnergy | None:
    """Return the power in the steps from samples of `gpu_power_w`, or else of the driver's average."""
    times_s, power_w = _finite(samples, "gpu_power_w")
    if not np.any(_in_steps(times_s, windows_s)):
        return _from_average(samples, windows_s, card)
    sensor = (card or {}).get("sensors", {}).get("gpu_power_w", {})
    source = "mean of power samples; the sensor is not characterised"
    if "window_s" in sensor:
        period_s, window_s, lag_s = sensor["period_s"], sensor["window_s"], sensor["lag_s"]
        seen = f"{window_s * 1e3:.0f} ms of every {period_s * 1e3:.0f} ms"
        updates = _updates(times_s, power_w, period_s)
        if _can_undo(times_s, period_s, window_s):
            times_s, power_w = undo_average(times_s, power_w, updates, window_s)
            times_s = times_s - lag_s - period_s / 2
            source = f"power samples, running mean of {window_s * 1e3:.0f} ms undone"
        else:
            _refuse_aliased(updates.times_s - lag_s, window_s, windows_s, seen)
            source = f"mean of power samples, the sensor sees {seen}"
    return _mean_in_steps(times_s, power_w, windows_s, source)


def _from_average(
    samples: Mapping[str, np.ndarray], windows_s: np.ndarray, card: Mapping[str, Any] | None
) -> DeviceEnergy | None:
    """Return the power in the steps from power that the driver averages over about a second.

    A reading counts at the middle of its window. If the sensor card gives window and period, and all updates were read,
    the average is undone. Otherwise steps shorter than the window share readings, so only their overall mean is exact.
    """
    if "gpu_power_average_w" not in samples:
        return None
    times_s, power_w = _finite(samples, "gpu_power_average_w")
    sensor = (card or {}).get("sensors", {}).get("gpu_power_average_w", {})
    window_s, period_s = sensor.get("window_s", AVERAGE_S), sensor.get("period_s", np.inf)
    source = f"mean of power that the driver averages over about {window_s:.2g} s"
    if _can_undo(times_s, period_s, window_s):
        times_s, power_w = undo_average(times_s, power_w, _updates(times_s, power_w, period_s), window_s)
        times_s = times_s - sensor.get("lag_s", 0.0) - period_s / 2
        source = f"power samples, running mean of {window_s * 1e3:.0f} ms undone"
    else:
        times_s = times_s - window_s / 2
    if not np.any(_in_steps(times_s, windows_s)):
        return None
    return _mean_in_steps(times_s, power_w, windows_s, source)


def _in_steps(times_s: np.ndarray, windows_s: np.ndarray) -> np.ndarray:
    """Return whether each sample is in each step. Shape (num_steps, num_samples)."""
    return (times_s >= windows_s[:, :1]) & (times_s <= windows_s[:, 1:])


def _mean_in_steps(times_s: np.ndarray, power_w: np.ndarray, windows_s: np.ndarray, source: str) -> DeviceEnergy:
    """Return the mean of power samples in each step and over all steps."""
    in_steps = _in_steps(times_s, windows_s)
    steps_w = np.array([power_w[in_step].mean() if in_step.any() else np.nan for in_step in in_steps])
    return DeviceEnergy(steps_w, float(power_w[in_steps.any(axis=0)].mean()), source)


def _can_undo(times_s: np.ndarray, period_s: float, window_s: float) -> bool:
    """Return whether an average can be undone: its window has several updates, and all updates were read."""
    if window_s < _LEAST_UPDATES_PER_WINDOW * period_s:
        return False
    return times_s.size > 1 and float(np.median(np.diff(times_s))) <= _MOST_READ_PERIOD * period_s


def _updates(times_s: np.ndarray, power_w: np.ndarray, period_s: float) -> Updates:
    """Return the updates of a sensor with the period of its card and the phase of the changes in its readings."""
    changed = np.flatnonzero(np.diff(power_w) != 0) + 1
    changes_s = (times_s[changed - 1] + times_s[changed]) / 2 if changed.size else times_s[:1]
    mean_phasor = np.exp(2j * np.pi * changes_s / period_s).mean()
    phase_s = float(np.angle(mean_phasor)) / (2 * np.pi) * period_s
    numbers = np.arange(np.ceil((times_s[0] - phase_s) / period_s), (times_s[-1] - phase_s) / period_s)
    updates_s = phase_s + numbers * period_s
    return Updates(period_s, updates_s, np.interp(updates_s, times_s, power_w))


def _refuse_aliased(ends_s: np.ndarray, window_s: float, windows_s: np.ndarray, seen: str) -> None:
    """Raise `NotMeasuredError` if the averaging windows, which end at given times, miss the same part of every step."""
    is_seen = np.zeros(_BINS, bool)
    for start, end in windows_s:
        bins_s = start + (np.arange(_BINS) + 0.5) / _BINS * (end - start)
        next_end = np.searchsorted(ends_s, bins_s)
        has_end = next_end < len(ends_s)
        is_seen[has_end] |= ends_s[next_end[has_end]] - window_s <= bins_s[has_end]
    if (unseen := 1 - is_seen.mean()) > _MOST_UNSEEN:
        raise NotMeasuredError(
            f"the power sensor sees {seen}, which is never {percent(unseen, 0)} of the step, and the energy counter "
            "did not move; use another number of micro-batches or more steps"
        )


Card = Mapping[str, Any]
"""A sensor card from `triplepoint characterise`."""


@dataclass(frozen=True)
class Sensors:
    """Content of `results/sensors/`."""

    cards: Mapping[str, Card]
    """Sensor cards, by file name without suffix."""
    overheads: Mapping[str, Mapping[str, Mapping[str, float]]]
    """Measurements of the sampling overhead, by file name and training loop: number of pairs, change of step time, and
    its interval."""

    def card_of(self, uuid: str | None, product: str | None) -> Card | None:
        """Return the card of a GPU, or else of a GPU of the same product; None if there is none."""
        for key, wanted in (("uuid", uuid), ("product", product)):
            for card in self.cards.values():
                if wanted is not None and card.get(key) == wanted:
                    return card
        return None


NONE = Sensors({}, {})


def read_sensors(folder: Path) -> Sensors:
    """Return all sensor cards and measurements of the overhead in a folder, which need not exist.

    Raises:
        UserError: If a file is neither.
    """
    cards, overheads = {}, {}
    for path in sorted(folder.glob("*.json")):
        try:
            content = load_json(path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise UserError(f"{path}: not readable as JSON ({error}); write it again or remove it") from None
        if isinstance(content, dict) and "sensors" in content:
            cards[path.stem] = content
        elif isinstance(content, dict) and content and all(_is_overhead(loop) for loop in content.values()):
            overheads[path.stem] = content
        else:
            raise UserError(
                f"{path}: expected a sensor card of 'triplepoint characterise' or a trial of "
                "'triplepoint overhead'; remove the file"
            )
    return Sensors(cards, overheads)


def _is_overhead(content: Any) -> bool:
    return isinstance(content, dict) and {"num_pairs", "change", "low", "high"} <= set(content)
