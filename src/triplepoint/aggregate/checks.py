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
    "integral_60s": ("1", "The same in windows of 60 s."),
    "lateness_fast": ("s", "Samples of the fast lane after the most punctual one, on its grid of deadlines."),
    "lateness_slow": ("s", "The same of the slow lane."),
    "latency_fast": ("s", "Time the reads of a sample of the fast lane took."),
    "latency_slow": ("s", "The same of the slow lane."),
    "gaps": ("1", "Share of samples that came more than two periods after the one before."),
    "stale": ("1", "Share of samples in which an energy counter had stood still for over a second."),
    "zeus": ("1", "Zeus's energy over the sampler's in the same time, less 1."),
    "clock": ("s", "How well each further node's clock is known against the first one's."),
    "sensor_period": ("s", "Time between updates of a sensor."),
    "sensor_window": ("s", "What its reading is a mean over."),
    "sensor_lag": ("s", "From the end of that to the update."),
    "overhead": ("1", "Change of step time by sampling."),
}
"""Unit and meaning of every check."""
_SIMULATED = "simulated: nothing was sampled"
_FARTHEST_S = 0.5
"""Samples of power farther apart say nothing of the sensor: what a load does between them is not seen."""
_NO_COUNTER = "no GPU with an energy counter around the measured steps"
_COLUMNS = ("node", "device", "t_ns", "read_latency_ns", "gpu_power_w", "gpu_energy_j", "is_gap")

Columns = Mapping[str, np.ndarray]


def run_checks(planned: PlannedRun, manifest: Manifest, telemetry: pa.Table, power: Power) -> list[dict[str, Any]]:
    """Return the rows of one finished run.

    Args:
        planned: The run as planned.
        manifest: Its record.
        telemetry: Table `telemetry` of the run.
        power: What was made of it.
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
        # Recordings of other tools do not say how long a read took.
        read_s = latency_ns / NS_PER_S if latency_ns.any() else np.array([])
        rows.append(_row(f"latency_{name}", read_s, "not recorded" if latency_ns.size else absent))
    is_gap = columns["is_gap"].astype(bool)
    rows.append(_share("gaps", int(is_gap.sum()), len(is_gap), "nothing was sampled"))
    rows += [_stale(manifest), _zeus(manifest), _clock(manifest)]
    if manifest.origin == "simulated":
        rows = [row if row["check"].startswith("integral") else _none(row["check"], _SIMULATED) for row in rows]
    return [{"subject": planned.run, "origin": manifest.origin, **row} for row in rows]


def sensor_checks(sensors: Sensors) -> list[dict[str, Any]]:
    """Return the rows of all sensor cards and trials of the sampler's cost."""
    rows = [{"subject": name, **row} for name, card in sensors.cards.items() for row in _card(card)]
    for name, trial in sensors.overheads.items():
        for loop, found in trial.items():
            row = _row("overhead", np.array([found["change"]]), "") | {"what": loop, "num": int(found["num_pairs"])}
            rows.append({"subject": name, **row, "low": found["low"], "high": found["high"]})
    return [{"origin": "measured", **row} for row in rows]


def _row(check: str, values: np.ndarray, absent: str) -> dict[str, Any]:
    """Return median and spread of values, or why there are none."""
    if not values.size:
        return _none(check, absent)
    p10, median, p90 = (float(value) for value in np.percentile(values, [10, 50, 90]))
    size = np.abs(values)
    found = {
        "value": median,
        "low": p10,
        "high": p90,
        "p99": float(np.percentile(size, 99)),
        "worst": float(size.max()),
    }
    return {"check": check, "unit": CHECKS[check][0], "num": int(values.size), **found}


def _none(check: str, absent: str) -> dict[str, Any]:
    return {"check": check, "unit": CHECKS[check][0], "num": 0, "absent": absent}


def _share(check: str, num: int, total: int, absent: str) -> dict[str, Any]:
    if not total:
        return _none(check, absent)
    return {"check": check, "unit": "1", "value": num / total, "num": num, "of_total": float(total)}


def _too_short(seconds: int) -> str:
    return f"no {seconds} s of power sampled twice a second or more while an energy counter moved"


def _integrals(columns: Columns, power: Power, seconds: int) -> np.ndarray:
    """Return the error of the integral of power in every whole window of every GPU with an energy counter."""
    found = []
    for (node, device), energy in power.device_energy.items():
        counter = energy.counter
        if counter is None or len(counter.moved_s) < 2:
            continue
        mine = (
            (columns["node"] == node)
            & (columns["device"] == device)
            & np.isfinite(columns["gpu_power_w"].astype(float))
        )
        times_s, power_w = columns["t_ns"][mine] / NS_PER_S, columns["gpu_power_w"][mine].astype(float)
        if times_s.size < 2 or times_s[-1] - times_s[0] > _FARTHEST_S * (times_s.size - 1):
            continue
        first, last = max(times_s[0], counter.moved_s[0]), min(times_s[-1], counter.moved_s[-1])
        borders_s = np.arange(first, last, seconds)
        if len(borders_s) < 2:
            continue
        counted_j = np.diff(counter.at(borders_s))
        for start, end, joules in zip(borders_s[:-1], borders_s[1:], counted_j, strict=True):
            if joules > 0:
                found.append(integral_j(times_s, power_w, start, end) / joules - 1)
    return np.array(found)


def _lanes(planned: PlannedRun, columns: Columns) -> dict[str, tuple[np.ndarray, np.ndarray, float]]:
    """Return times and latencies of the first node's first device of each lane, and the lane's period."""
    is_first = columns["node"] == 0
    is_fast = is_first & (columns["device"] == "gpu0") & np.isfinite(columns["gpu_energy_j"].astype(float))
    periods = {"fast": planned.limits.fast_telemetry_period_s, "slow": planned.point.telemetry_period_s}
    chosen = {"fast": is_fast, "slow": is_first & (columns["device"] == "host")}
    return {
        name: (columns["t_ns"][mine], columns["read_latency_ns"][mine], periods[name]) for name, mine in chosen.items()
    }


def _lateness_s(t_ns: np.ndarray, period_s: float) -> np.ndarray:
    """Return by how much samples come after their deadlines, which lie a period apart; 0 for the most punctual."""
    if not t_ns.size:
        return np.array([])
    period_ns = round(period_s * NS_PER_S)
    off_ns = (t_ns - t_ns[0] + period_ns // 2) % period_ns
    return np.asarray((off_ns - off_ns.min()) / NS_PER_S)


def _stale(manifest: Manifest) -> dict[str, Any]:
    accounts = [node.telemetry for node in manifest.nodes if node.telemetry is not None]
    total = sum(account.num_samples for account in accounts)
    return _share(
        "stale", sum(sum(account.stale.values()) for account in accounts), total, "the sampler left no account"
    )


def _zeus(manifest: Manifest) -> dict[str, Any]:
    windows = [window for node in manifest.nodes for window in node.zeus if window.difference is not None]
    reasons = [node.zeus_absent for node in manifest.nodes if node.zeus_absent]
    row = _row("zeus", np.array([window.difference for window in windows], float), (reasons or ["not compared"])[0])
    return row | ({"of_total": float(sum(bool(window.agrees) for window in windows))} if windows else {})


def _clock(manifest: Manifest) -> dict[str, Any]:
    others = manifest.nodes[1:]
    known = [node.clock.uncertainty_ns / NS_PER_S for node in others if node.clock is not None]
    reasons = [node.clock_absent for node in others if node.clock_absent]
    absent = (reasons or ["wall clocks only"])[0] if others else "one node, one clock"
    return _row("clock", np.array(known), absent)


def _card(card: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    for name, sensor in card["sensors"].items():
        for key in ("period", "window", "lag"):
            values = np.array([sensor[f"{key}_s"]]) if f"{key}_s" in sensor else np.array([])
            yield _row(f"sensor_{key}", values, sensor.get("unknown", "not found out")) | {"what": name}
