"""Rows of tables `step_samples` and `job_power`: power, temperature and clock over the step, power over the run."""

from typing import Any

import numpy as np

from triplepoint.aggregate.nodes import readings_of
from triplepoint.aggregate.plug import together
from triplepoint.aggregate.samples import Samples
from triplepoint.units import NS_PER_S

MOST_STEP_SAMPLES = 2048
"""Rows of a run, all its GPUs together: a curve is no wider on paper."""
MOST_JOB_POWER = 2000
"""Rows of a run: the first ones, since a spectrum needs them evenly spaced."""
_COLUMNS = ("gpu_power_w", "gpu_temp_c", "sm_clock_mhz")


def step_sample_rows(run: str, samples: Samples) -> list[dict[str, Any]]:
    """Return samples of each GPU in measured steps, by the time within their step; evenly chosen of more than it holds.

    Steps are laid over each other: where a sensor is read a few times a step, all steps together show its course.

    Args:
        run: Run id.
        samples: Its samples.
    """
    devices = list(samples.sampled())
    most = max(MOST_STEP_SAMPLES // max(len(devices), 1), 8)
    rows: list[dict[str, Any]] = []
    for node, device in devices:
        columns, windows_ns = samples.of((node.node, device.device)), samples.windows_ns(node)
        values = {name: columns[name].astype(float) for name in _COLUMNS}
        known = np.any([np.isfinite(found) for found in values.values()], axis=0)
        step = np.searchsorted(windows_ns[:, 0], columns["t_ns"], side="right") - 1
        inside = known & (columns["kind"] == "measured") & (step >= 0)
        inside[inside] = columns["t_ns"][inside] <= windows_ns[step[inside], 1]
        t_s = (columns["t_ns"] - windows_ns[np.maximum(step, 0), 0]) / NS_PER_S
        places = np.flatnonzero(inside)
        places = places[np.argsort(t_s[places], kind="stable")]
        if len(places) > most:
            places = places[np.linspace(0, len(places) - 1, most).round().astype(int)]
        for place in places.tolist():
            row = {"run": run, "node": node.node, "rank": device.rank, "step": int(columns["step"][place])}
            rows.append(row | {"t_s": round(float(t_s[place]), 6)} | _known(values, place))
    return rows


def _known(values: dict[str, np.ndarray], place: int) -> dict[str, float]:
    return {name: float(found[place]) for name, found in values.items() if np.isfinite(found[place])}


def job_power_rows(run: str, samples: Samples) -> list[dict[str, Any]]:
    """Return power of all nodes at the plug at even times over measured steps; none where a node has no meter.

    Args:
        run: Run id.
        samples: Its samples.
    """
    course = together([readings_of(samples, node) for node in samples.manifest.nodes])
    if course is None:
        return []
    power_w, period_s = course
    return [
        {"run": run, "t_s": round(place * period_s, 6), "job_power_w": value}
        for place, value in enumerate(power_w[:MOST_JOB_POWER].tolist())
    ]
