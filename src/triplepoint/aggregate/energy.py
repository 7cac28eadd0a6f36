"""Energy of one GPU in the measured steps: from its energy counter, else from power samples as its sensor allows.

Sensor cards, and trials of what sampling costs, are read from `results/sensors/*.json`.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from triplepoint.errors import UserError
from triplepoint.power_sensor import EnergyCounter, Updates, undo_average
from triplepoint.units import NS_PER_S

COUNTER = "energy counter"
_FEWEST_IN_A_WINDOW = 2
"""Updates in a sensor's window, from which on its mean can be undone."""
_MOST_UNSEEN = 0.2
"""Share of the step no window of the sensor ever falls in, above which its samples do not hold the step's mean."""
_BINS = 50
_SELDOM = 1.5
"""Periods of a sensor between two reads, from which on some of what it published was not read."""
_AVERAGE_S = 1.0
"""Window of the average power of NVML's drivers. Source: nvml.h, nvmlDeviceGetPowerUsage. Unit: s."""


@dataclass(frozen=True)
class DeviceEnergy:
    """What one GPU drew in the measured steps."""

    power_w: np.ndarray
    """Mean of each step, NaN where it has no samples. Shape (num_measured,). Unit: W."""
    mean_w: float
    """Mean over all of them. Unit: W."""
    source: str
    """What it is from, and what that does to it."""
    counter: EnergyCounter | None = None
    """The energy counter, on the first node's clock, where it reaches around all steps."""


class NotMeasuredError(ValueError):
    """The samples do not hold the energy of the steps; the message says why."""


def measure_energy(
    samples: Mapping[str, np.ndarray], windows_ns: np.ndarray, card: Mapping[str, Any] | None
) -> DeviceEnergy | None:
    """Return the energy of the steps, or None where nothing of it was sampled.

    Args:
        samples: Columns of table `telemetry`, rows of one GPU by time.
        windows_ns: Start and end of each measured step on the clock of the samples. Shape (num_measured, 2). Unit: ns.
        card: The GPU's sensor card, if there is one.

    Raises:
        NotMeasuredError: If the card says that the sensor always saw the same part of a step.
    """
    windows_s = windows_ns / NS_PER_S
    counter = EnergyCounter(*_known(samples, "gpu_energy_j"))
    try:
        energy_j = np.diff(counter.at(windows_s), axis=1)[:, 0]
    except ValueError:
        return _from_power(samples, windows_s, card)
    if not (energy_j > 0).all():  # frozen within a step
        return _from_power(samples, windows_s, card)
    length_s = np.diff(windows_s, axis=1)[:, 0]
    return DeviceEnergy(energy_j / length_s, float(energy_j.sum() / length_s.sum()), COUNTER, counter)


def _known(samples: Mapping[str, np.ndarray], column: str) -> tuple[np.ndarray, np.ndarray]:
    """Return times in s and values of the samples that have one."""
    values = samples[column].astype(float)
    known = np.isfinite(values)
    return samples["t_ns"][known] / NS_PER_S, values[known]


def _from_power(
    samples: Mapping[str, np.ndarray], windows_s: np.ndarray, card: Mapping[str, Any] | None
) -> DeviceEnergy | None:
    times_s, power_w = _known(samples, "gpu_power_w")
    inside = [(times_s >= start) & (times_s <= end) for start, end in windows_s]
    if not np.any(inside):
        return _from_average(samples, windows_s, card)
    sensor = (card or {}).get("sensors", {}).get("gpu_power_w", {})
    source = "mean of power samples; the sensor is not characterised"
    if "window_s" in sensor:
        period_s, window_s, lag_s = sensor["period_s"], sensor["window_s"], sensor["lag_s"]
        seen = f"{window_s * 1e3:.0f} ms of every {period_s * 1e3:.0f} ms"
        if window_s >= _FEWEST_IN_A_WINDOW * period_s and _is_read_often(times_s, period_s):
            updates = _updates(times_s, power_w, period_s)
            times_s, power_w = undo_average(times_s, power_w, updates, window_s)
            times_s = times_s - lag_s - period_s / 2
            inside = [(times_s >= start) & (times_s <= end) for start, end in windows_s]
            source = f"power samples, running mean of {window_s * 1e3:.0f} ms undone"
        else:
            _refuse_aliased(_updates(times_s, power_w, period_s).times_s - lag_s, window_s, windows_s, seen)
            source = f"mean of power samples, the sensor sees {seen}"
    steps_w = np.array([power_w[chosen].mean() if chosen.any() else np.nan for chosen in inside])
    return DeviceEnergy(steps_w, float(power_w[np.any(inside, axis=0)].mean()), source)


def _from_average(
    samples: Mapping[str, np.ndarray], windows_s: np.ndarray, card: Mapping[str, Any] | None
) -> DeviceEnergy | None:
    """Return energy from power that the driver averages over about a second, where a recording has no other.

    A reading is of the middle of its window. Steps shorter than that share readings: their mean holds, they do not.
    Where the sensor card gives window and period, and it was read often enough, the average is undone.
    """
    if "gpu_power_average_w" not in samples:
        return None
    times_s, power_w = _known(samples, "gpu_power_average_w")
    sensor = (card or {}).get("sensors", {}).get("gpu_power_average_w", {})
    window_s, period_s = sensor.get("window_s", _AVERAGE_S), sensor.get("period_s", np.inf)
    source = f"mean of power that the driver averages over about {window_s:.2g} s"
    if window_s >= _FEWEST_IN_A_WINDOW * period_s and _is_read_often(times_s, period_s):
        times_s, power_w = undo_average(times_s, power_w, _updates(times_s, power_w, period_s), window_s)
        times_s = times_s - sensor.get("lag_s", 0.0) - period_s / 2
        source = f"power samples, running mean of {window_s * 1e3:.0f} ms undone"
    else:
        times_s = times_s - window_s / 2
    inside = [(times_s >= start) & (times_s <= end) for start, end in windows_s]
    if not np.any(inside):
        return None
    steps_w = np.array([power_w[chosen].mean() if chosen.any() else np.nan for chosen in inside])
    return DeviceEnergy(steps_w, float(power_w[np.any(inside, axis=0)].mean()), source)


def _is_read_often(times_s: np.ndarray, period_s: float) -> bool:
    """Return whether a sensor was read as often as it publishes: else what was published between is not known."""
    return times_s.size > 1 and float(np.median(np.diff(times_s))) <= _SELDOM * period_s


def _updates(times_s: np.ndarray, power_w: np.ndarray, period_s: float) -> Updates:
    """Return when the sensor published: its period is the card's, the phase that of the changes seen."""
    changed = np.flatnonzero(np.diff(power_w) != 0) + 1
    seen_s = (times_s[changed - 1] + times_s[changed]) / 2 if changed.size else times_s[:1]
    turns = np.exp(2j * np.pi * seen_s / period_s).mean()
    phase_s = float(np.angle(turns)) / (2 * np.pi) * period_s
    numbers = np.arange(np.ceil((times_s[0] - phase_s) / period_s), (times_s[-1] - phase_s) / period_s)
    at_s = phase_s + numbers * period_s
    return Updates(period_s, at_s, np.interp(at_s, times_s, power_w))


def _refuse_aliased(ends_s: np.ndarray, window_s: float, windows_s: np.ndarray, seen: str) -> None:
    """Raise if windows that end at given times leave out the same part of every step."""
    is_seen = np.zeros(_BINS, bool)
    for start, end in windows_s:
        bins_s = start + (np.arange(_BINS) + 0.5) / _BINS * (end - start)
        following = np.searchsorted(ends_s, bins_s)
        known = following < len(ends_s)
        is_seen[known] |= ends_s[following[known]] - window_s <= bins_s[known]
    if (unseen := 1 - is_seen.mean()) > _MOST_UNSEEN:
        raise NotMeasuredError(
            f"the power sensor sees {seen}, which is never {unseen:.0%} of the step, and the energy counter did "
            "not move; use another number of micro-batches or more steps"
        )


Card = Mapping[str, Any]
"""A sensor card, as `triplepoint characterise` writes it."""


@dataclass(frozen=True)
class Sensors:
    """Sensor cards and trials of the sampler's cost, by file name without suffix."""

    cards: Mapping[str, Card]
    overheads: Mapping[str, Mapping[str, Mapping[str, float]]]
    """By file and training loop: number of pairs, change of step time, and its interval."""

    def card_of(self, uuid: str | None, product: str | None) -> Card | None:
        """Return the card of a GPU, or else of one of the same product, if there is one."""
        for key, wanted in (("uuid", uuid), ("product", product)):
            for card in self.cards.values():
                if wanted is not None and card.get(key) == wanted:
                    return card
        return None


NONE = Sensors({}, {})


def read_sensors(folder: Path) -> Sensors:
    """Return all cards and trials in `folder`, which need not exist.

    Raises:
        UserError: If a file is neither.
    """
    cards, overheads = {}, {}
    for path in sorted(folder.glob("*.json")):
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise UserError(f"{path}: not readable as JSON ({error}); write it again or remove it") from None
        if isinstance(content, dict) and "sensors" in content:
            cards[path.stem] = content
        elif isinstance(content, dict) and content and all(_is_trial(loop) for loop in content.values()):
            overheads[path.stem] = content
        else:
            raise UserError(
                f"{path}: expected a sensor card of 'triplepoint characterise' or a trial of "
                "'triplepoint overhead'; remove the file"
            )
    return Sensors(cards, overheads)


def _is_trial(content: Any) -> bool:
    return isinstance(content, dict) and {"num_pairs", "change", "low", "high"} <= set(content)
