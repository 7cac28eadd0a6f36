"""Rows of table `telemetry_checks`: energy, timing, clocks, gaps and sensors of the telemetry."""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from triplepoint.aggregate.energy import Sensors
from triplepoint.aggregate.power import Power
from triplepoint.config.plan import PlannedRun
from triplepoint.manifest import Manifest
from triplepoint.power_sensor import integral_j
from triplepoint.units import NS_PER_S

CHECKS = {
    "integral_10s": ("1", "Integral of sampled power over the energy counter, less 1, in windows of 10 s."),
    "integral_60s": ("1", "Integral of sampled power over the energy counter, less 1, in windows of 60 s."),
    "lateness_fast": (
        "s",
        "Delay of samples of the fast lane after their deadlines, relative to the most punctual one.",
    ),
    "lateness_slow": (
        "s",
        "Delay of samples of the slow lane after their deadlines, relative to the most punctual one.",
    ),
    "latency_fast": ("s", "Duration of the reads of a sample of the fast lane."),
    "latency_slow": ("s", "Duration of the reads of a sample of the slow lane."),
    "gaps": ("1", "Share of samples more than two periods after the previous one."),
    "stale": ("1", "Share of samples in which an energy counter had not changed for over a second."),
    "zeus": ("1", "Zeus's energy over the sampler's in the same time, less 1."),
    "clock": ("s", "Uncertainty of the clock offset of each further node from the first node."),
    "sensor_period": ("s", "Time between updates of a sensor."),
    "sensor_window": ("s", "Averaging window of a sensor."),
    "sensor_lag": ("s", "Time from the end of that window to the update."),
    "overhead": ("1", "Change of step time by sampling."),
}
"""Unit and description of every check."""
_SIMULATED = "simulated: nothing was sampled"
_LONGEST_PERIOD_S = 0.5
"""Longest mean time between samples of power for a check of the integral: the load changes faster than that."""
_NO_COUNTER = "no GPU with an energy counter around the measured steps"
_COLUMNS = ("node", "device", "t_ns", "read_latency_ns", "gpu_power_w", "gpu_energy_j", "is_gap")

Columns = Mapping[str, np.ndarray]


def run_checks(planned: PlannedRun, manifest: Manifest, telemetry: pa.Table, power: Power) -> list[dict[str, Any]]:
    """Return the rows of one finished run.

    Args:
        planned: The planned run.
        manifest: Manifest of the run.
        telemetry: Table `telemetry` of the run.
        power: Power computed from the telemetry.
    """
    columns = {name: telemetry[name].to_numpy(zero_copy_only=False) for name in _COLUMNS}
    lanes = _lanes(planned, columns)
    has_counter = any(energy.counter is not None for energy in power.device_energy.values())
    rows = []
    for seconds in (10, 60):
        rows.append(
            _row(
                f"integral_{seconds}s",
                _integrals(columns, power, seconds),
                _too_short(seconds) if has_counter else _NO_COUNTER,
            )
        )
    for name, (t_ns, latency_ns, period_s) in lanes.items():
        absent = "no GPU was sampled" if name == "fast" else "nothing was sampled"
        rows.append(_row(f"lateness_{name}", _lateness_s(t_ns, period_s), absent))
        # Imported recordings have no latency of reads.
        read_s = latency_ns / NS_PER_S if latency_ns.any() else np.array([])
        rows.append(_row(f"latency_{name}", read_s, "not recorded" if latency_ns.size else absent))
    is_gap = columns["is_gap"].astype(bool)
    rows.append(_share("gaps", int(is_gap.sum()), len(is_gap), "nothing was sampled"))
    rows += [_stale(manifest), _zeus(manifest), _clock(manifest)]
    if manifest.origin == "simulated":
        rows = [row if row["check"].startswith("integral") else _absent_row(row["check"], _SIMULATED) for row in rows]
    return [{"subject": planned.run, "origin": manifest.origin, **row} for row in rows]


def sensor_checks(sensors: Sensors) -> list[dict[str, Any]]:
    """Return the rows of all sensor cards and of all measurements of the sampling overhead."""
    rows = [{"subject": name, **row} for name, card in sensors.cards.items() for row in _card(card)]
    for name, loops in sensors.overheads.items():
        for loop, overhead in loops.items():
            row = _row("overhead", np.array([overhead["change"]]), "")
            row |= {"what": loop, "num": int(overhead["num_pairs"]), "low": overhead["low"], "high": overhead["high"]}
            rows.append({"subject": name, **row})
    return [{"origin": "measured", **row} for row in rows]


def _row(check: str, values: np.ndarray, absent: str) -> dict[str, Any]:
    """Return median and spread of values, or why there are none."""
    if not values.size:
        return _absent_row(check, absent)
    p10, median, p90 = (float(value) for value in np.percentile(values, [10, 50, 90]))
    magnitude = np.abs(values)
    return {
        "check": check,
        "unit": CHECKS[check][0],
        "num": int(values.size),
        "value": median,
        "low": p10,
        "high": p90,
        "p99": float(np.percentile(magnitude, 99)),
        "worst": float(magnitude.max()),
    }


def _absent_row(check: str, absent: str) -> dict[str, Any]:
    """Return the row of a check without values, with the reason."""
    return {"check": check, "unit": CHECKS[check][0], "num": 0, "absent": absent}


def _share(check: str, num: int, total: int, absent: str) -> dict[str, Any]:
    """Return the row of a check that is a share of a total."""
    if not total:
        return _absent_row(check, absent)
    return {"check": check, "unit": "1", "value": num / total, "num": num, "of_total": float(total)}


def _too_short(seconds: int) -> str:
    return f"no {seconds} s of power sampled twice a second or more while an energy counter moved"


def _integrals(columns: Columns, power: Power, seconds: int) -> np.ndarray:
    """Return the relative error of the integral of power, for every window of every GPU with an energy counter."""
    errors = []
    for (node, device), energy in power.device_energy.items():
        counter = energy.counter
        if counter is None or len(counter.moved_s) < 2:
            continue
        is_sample = (
            (columns["node"] == node)
            & (columns["device"] == device)
            & np.isfinite(columns["gpu_power_w"].astype(float))
        )
        times_s, power_w = columns["t_ns"][is_sample] / NS_PER_S, columns["gpu_power_w"][is_sample].astype(float)
        if times_s.size < 2 or times_s[-1] - times_s[0] > _LONGEST_PERIOD_S * (times_s.size - 1):
            continue
        first, last = max(times_s[0], counter.moved_s[0]), min(times_s[-1], counter.moved_s[-1])
        edges_s = np.arange(first, last, seconds)
        if len(edges_s) < 2:
            continue
        counted_j = np.diff(counter.at(edges_s))
        for start, end, joules in zip(edges_s[:-1], edges_s[1:], counted_j, strict=True):
            if joules > 0:
                errors.append(integral_j(times_s, power_w, start, end) / joules - 1)
    return np.array(errors)


def _lanes(planned: PlannedRun, columns: Columns) -> dict[str, tuple[np.ndarray, np.ndarray, float]]:
    """Return times, latencies and period of each lane, for the first device of the first node."""
    is_first = columns["node"] == 0
    is_fast = is_first & (columns["device"] == "gpu0") & np.isfinite(columns["gpu_energy_j"].astype(float))
    periods = {"fast": planned.limits.fast_telemetry_period_s, "slow": planned.point.telemetry_period_s}
    in_lane = {"fast": is_fast, "slow": is_first & (columns["device"] == "host")}
    return {
        name: (columns["t_ns"][rows], columns["read_latency_ns"][rows], periods[name]) for name, rows in in_lane.items()
    }


def _lateness_s(t_ns: np.ndarray, period_s: float) -> np.ndarray:
    """Return the delay of samples after their deadlines, which are a period apart; 0 for the most punctual sample."""
    if not t_ns.size:
        return np.array([])
    period_ns = round(period_s * NS_PER_S)
    phase_ns = (t_ns - t_ns[0] + period_ns // 2) % period_ns
    return np.asarray((phase_ns - phase_ns.min()) / NS_PER_S)


def _stale(manifest: Manifest) -> dict[str, Any]:
    """Return the row about frozen energy counters."""
    summaries = [node.telemetry for node in manifest.nodes if node.telemetry is not None]
    total = sum(summary.num_samples for summary in summaries)
    num_stale = sum(sum(summary.stale.values()) for summary in summaries)
    return _share("stale", num_stale, total, "the sampler left no account")


def _zeus(manifest: Manifest) -> dict[str, Any]:
    """Return the row about the comparison with Zeus."""
    windows = [window for node in manifest.nodes for window in node.zeus if window.difference is not None]
    reasons = [node.zeus_absent for node in manifest.nodes if node.zeus_absent]
    row = _row("zeus", np.array([window.difference for window in windows], float), (reasons or ["not compared"])[0])
    return row | ({"of_total": float(sum(bool(window.agrees) for window in windows))} if windows else {})


def _clock(manifest: Manifest) -> dict[str, Any]:
    """Return the row about clock offsets between nodes."""
    others = manifest.nodes[1:]
    uncertainties_s = [node.clock.uncertainty_ns / NS_PER_S for node in others if node.clock is not None]
    reasons = [node.clock_absent for node in others if node.clock_absent]
    absent = (reasons or ["wall clocks only"])[0] if others else "one node, one clock"
    return _row("clock", np.array(uncertainties_s), absent)


def _card(card: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the rows about the sensors of a sensor card."""
    for name, sensor in card["sensors"].items():
        for key in ("period", "window", "lag"):
            values = np.array([sensor[f"{key}_s"]]) if f"{key}_s" in sensor else np.array([])
            yield _row(f"sensor_{key}", values, sensor.get("unknown", "not found out")) | {"what": name}
