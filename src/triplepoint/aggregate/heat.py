"""Temperature, clocks, throttling and peak power in the measured steps: of each GPU, and of a run."""

from collections.abc import Iterable, Mapping

import numpy as np

from triplepoint.config.gpu import GpuConfig
from triplepoint.units import NS_PER_S

CAUSES = ("power_cap", "sync_boost", "sw_thermal", "hw_thermal", "power_brake")


def throttle_shares(samples: Mapping[str, np.ndarray], start_ns: int, end_ns: int) -> dict[str, float]:
    """Return the share of time each cause throttled a GPU, by `<cause>_share`; none that is not counted.

    The time runs from the last sample before the start to the first one after the end, between which the counters are
    exact; where there is no sample before or after, from the first or to the last one.

    Args:
        samples: Columns of table `telemetry`, rows of one GPU by time.
        start_ns: Start, on the clock of the samples. Unit: ns.
        end_ns: End. Unit: ns.
    """
    row = {}
    for cause in CAUSES:
        throttled_s = samples[f"gpu_{cause}_s"].astype(float)
        known = np.isfinite(throttled_s)
        t_ns, throttled_s = samples["t_ns"][known], throttled_s[known]
        if t_ns.size < 2:
            continue
        first = max(int(np.searchsorted(t_ns, start_ns, side="right")) - 1, 0)
        last = min(int(np.searchsorted(t_ns, end_ns, side="left")), t_ns.size - 1)
        if last > first:
            passed_s = float(t_ns[last] - t_ns[first]) / NS_PER_S
            row[f"{cause}_share"] = min(1.0, float(throttled_s[last] - throttled_s[first]) / passed_s)
    return row


_QUANTITIES = (("gpu_temp", "c"), ("sm_clock", "mhz"))
SAMPLED = ("gpu_temp_c", "sm_clock_mhz", "gpu_power_w")
"""Columns of table `telemetry` that are needed."""


def peak_column(gpu: GpuConfig) -> str:
    """Return what the highest sample of power is of: of a GPU, or of a package whose GPUs share a sensor."""
    return "gpu_power_peak_w" if gpu.gpus_per_package == 1 else "package_power_peak_w"


def heat_of_gpu(samples: Mapping[str, np.ndarray], peak: str) -> dict[str, float]:
    """Return what samples of measured steps say of a GPU, by column of `gpus`; nothing of what was not sampled.

    Args:
        samples: Values without nulls, by column of table `telemetry`.
        peak: Column for the highest power: `peak_column`.
    """
    row = _spreads(samples)
    if samples["gpu_power_w"].size:
        row[peak] = float(samples["gpu_power_w"].max())
    return row


def heat_of_run(
    samples: Iterable[Mapping[str, np.ndarray]], throttle: Iterable[Mapping[str, float]], peak: str
) -> dict[str, float]:
    """Return the same of all GPUs of a run together, by column of `points`.

    Args:
        samples: Of every GPU, as of `heat_of_gpu`.
        throttle: Shares of time by cause, of every GPU.
        peak: Column for the highest power: `peak_column`.
    """
    each = list(samples)
    together = {name: np.concatenate([one[name] for one in each] or [np.array([])]) for name in SAMPLED}
    row = heat_of_gpu(together, peak)
    # Causes can hold clocks at the same time.
    shares = [min(1.0, sum(one.get(f"{cause}_share", 0.0) for cause in CAUSES)) for one in throttle if one]
    return row | ({"throttle_fraction": float(np.mean(shares))} if shares else {})


def _spreads(samples: Mapping[str, np.ndarray]) -> dict[str, float]:
    row: dict[str, float] = {}
    for name, unit in _QUANTITIES:
        values = samples[f"{name}_{unit}"]
        if values.size:
            low, high = np.percentile(values, [10, 90])
            row |= {f"{name}_{unit}": values.mean(), f"{name}_p10_{unit}": low, f"{name}_p90_{unit}": high}
            if name == "gpu_temp":
                row["gpu_temp_max_c"] = values.max()
    return {name: float(value) for name, value in row.items()}
