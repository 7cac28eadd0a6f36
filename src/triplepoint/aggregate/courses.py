"""Rows of tables `step_samples` and `job_power`: time series within a step and over a run."""

from typing import Any

import numpy as np

from triplepoint.aggregate.nodes import job_power, readings_of
from triplepoint.aggregate.samples import Samples
from triplepoint.units import NS_PER_S

MOST_STEP_SAMPLES = 2048
"""Most rows of a run, over all its GPUs: a printed curve resolves no more."""
MOST_JOB_POWER = 2000
"""Most rows of a run. They are the first ones, because a spectrum needs them evenly spaced."""
_COLUMNS = ("gpu_power_w", "gpu_temp_c", "sm_clock_mhz")


def step_sample_rows(run: str, samples: Samples) -> list[dict[str, Any]]:
    """Return samples of each GPU in measured steps, ordered by time within the step, thinned to `MOST_STEP_SAMPLES`.

    All steps are overlaid, so they show the time series even if a sensor is read only a few times per step.

    Args:
        run: Run id.
        samples: Samples of the run.
    """
    devices = list(samples.sampled())
    most = max(MOST_STEP_SAMPLES // max(len(devices), 1), 8)
    rows: list[dict[str, Any]] = []
    for node, device in devices:
        columns, windows_ns = samples.of((node.node, device.device)), samples.windows_ns(node)
        values = {name: columns[name].astype(float) for name in _COLUMNS}
        has_value = np.any([np.isfinite(column) for column in values.values()], axis=0)
        step = np.searchsorted(windows_ns[:, 0], columns["t_ns"], side="right") - 1
        is_inside = has_value & (columns["kind"] == "measured") & (step >= 0)
        is_inside[is_inside] = columns["t_ns"][is_inside] <= windows_ns[step[is_inside], 1]
        t_s = (columns["t_ns"] - windows_ns[np.maximum(step, 0), 0]) / NS_PER_S
        indices = np.flatnonzero(is_inside)
        indices = indices[np.argsort(t_s[indices], kind="stable")]
        if len(indices) > most:
            indices = indices[np.linspace(0, len(indices) - 1, most).round().astype(int)]
        for index in indices.tolist():
            row = {"run": run, "node": node.node, "rank": device.rank, "step": int(columns["step"][index])}
            rows.append(row | {"t_s": round(float(t_s[index]), 6)} | _finite(values, index))
    return rows


def _finite(values: dict[str, np.ndarray], index: int) -> dict[str, float]:
    """Return the values of one sample without those that are missing."""
    return {name: float(column[index]) for name, column in values.items() if np.isfinite(column[index])}


def job_power_rows(run: str, samples: Samples) -> list[dict[str, Any]]:
    """Return the power of all nodes at the plug over measured steps, evenly spaced; none if a node has no meter.

    Args:
        run: Run id.
        samples: Samples of the run.
    """
    series = job_power([readings_of(samples, node) for node in samples.manifest.nodes])
    if series is None:
        return []
    power_w, period_s = series
    return [
        {"run": run, "t_s": round(index * period_s, 6), "job_power_w": value}
        for index, value in enumerate(power_w[:MOST_JOB_POWER].tolist())
    ]
