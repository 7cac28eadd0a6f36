"""The sensor card: what each power sensor of a GPU does to the truth, from samples taken under a load that is known."""

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from triplepoint.recording.counter import integral_j
from triplepoint.telemetry.energy import counter_energy_j
from triplepoint.telemetry.response import find_updates, fit_response, resolution, settling_time_s
from triplepoint.units import NS_PER_S, NS_PER_US

POWERS = ("gpu_power_w", "gpu_power_average_w", "gpu_memory_power_w")
_LONG_S = 1.0
"""Busy intervals from which a settling time is read."""


@dataclass(frozen=True)
class Load:
    """Busy intervals of a GPU, everything else idle, on the clock of the samples."""

    starts_s: np.ndarray
    """Shape (num_intervals,). Unit: s."""
    ends_s: np.ndarray
    """Shape (num_intervals,). Unit: s."""


def make_card(samples: pa.Table, device: str, load: Load) -> dict[str, Any]:
    """Return the card of one GPU.

    Args:
        samples: Table `samples`, or a part of it, recorded under the load.
        device: Which GPU.
        load: The load, with intervals of many lengths.

    Returns:
        For each power sensor its period, window, lag, duty and resolution, or why they are not known; the period of the
        energy counter; how the integral of power compares with it; settling times; time a read takes.
    """
    mine = samples.filter(pc.equal(samples["device"], device))
    card: dict[str, Any] = {"device": device, "sensors": {name: _sensor(mine, name, load) for name in POWERS}}
    card["energy_counter"] = _counter(mine, load)
    card["read_latency_us"] = _latencies(mine)
    return card


def series(samples: pa.Table, column: str) -> tuple[np.ndarray, np.ndarray]:
    """Return times in s and values of a column where it was read; empty where it never was."""
    if column not in samples.column_names:
        return np.array([]), np.array([])
    kept = samples.select(["t_ns", column]).drop_null()
    return kept["t_ns"].to_numpy() / NS_PER_S, kept[column].to_numpy().astype(float)


def _sensor(samples: pa.Table, column: str, load: Load) -> dict[str, Any]:
    times_s, power_w = series(samples, column)
    if not times_s.size:
        return {"unknown": "not measured here"}
    try:
        updates = find_updates(times_s, power_w)
        response = fit_response(updates, load.starts_s, load.ends_s)
    except ValueError as error:
        return {"unknown": str(error)}
    found = {"period_s": updates.period_s, **asdict(response), "resolution_w": resolution(power_w)}
    found["duty"] = min(1.0, response.window_s / updates.period_s)
    settling = [
        settling_time_s(times_s[inside], power_w[inside], start)
        for start, end in zip(load.starts_s, load.ends_s, strict=True)
        if end - start > _LONG_S and (inside := (times_s >= start) & (times_s < end)).sum() > 10
    ]
    if settling:
        found["settling_time_s"] = float(np.median(settling))
    return found


def _counter(samples: pa.Table, load: Load) -> dict[str, Any]:
    times_s, energy_j = series(samples, "gpu_energy_j")
    power_t, power_w = series(samples, "gpu_power_w")
    try:
        updates = find_updates(times_s, energy_j)
        window = updates.times_s[1], updates.times_s[-2]
        counted_j = counter_energy_j(times_s, energy_j, *window)
    except (ValueError, IndexError) as error:
        return {"unknown": str(error)}
    integrated_j = integral_j(power_t, power_w, *window) if power_t.size else float("nan")
    return {
        "period_s": updates.period_s,
        "resolution_j": resolution(energy_j),
        "window_s": window[1] - window[0],
        "counted_j": counted_j,
        "integral_over_counter": integrated_j / counted_j,
    }


def _latencies(samples: pa.Table) -> dict[str, float]:
    """Return the time one read of all fast values takes. Unit: microsecond."""
    fast = samples.filter(pc.is_valid(samples["gpu_energy_j"])) if "gpu_energy_j" in samples.column_names else samples
    latency_us = fast["read_latency_ns"].to_numpy() / NS_PER_US
    if not latency_us.size:
        return {}
    return dict(zip(("p50", "p99", "max"), np.percentile(latency_us, [50, 99, 100]).tolist(), strict=True))
