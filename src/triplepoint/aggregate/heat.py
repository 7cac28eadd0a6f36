"""Temperatures, clocks and peaks of power of measured steps, of single GPUs and of a run."""

from collections.abc import Iterable, Mapping

import numpy as np

from triplepoint.aggregate.throttle import CAUSES
from triplepoint.config.gpu import GpuConfig

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
    found = _spreads(samples)
    if samples["gpu_power_w"].size:
        found[peak] = float(samples["gpu_power_w"].max())
    return found


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
    found = heat_of_gpu(together, peak)
    # Causes can hold clocks at the same time.
    shares = [min(1.0, sum(one.get(f"{cause}_share", 0.0) for cause in CAUSES)) for one in throttle if one]
    return found | ({"throttle_fraction": float(np.mean(shares))} if shares else {})


def _spreads(samples: Mapping[str, np.ndarray]) -> dict[str, float]:
    found: dict[str, float] = {}
    for name, unit in _QUANTITIES:
        values = samples[f"{name}_{unit}"]
        if values.size:
            low, high = np.percentile(values, [10, 90])
            found |= {f"{name}_{unit}": values.mean(), f"{name}_p10_{unit}": low, f"{name}_p90_{unit}": high}
            if name == "gpu_temp":
                found["gpu_temp_max_c"] = values.max()
    return {name: float(value) for name, value in found.items()}
