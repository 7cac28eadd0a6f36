"""Display of table columns: heading, unit and scale."""

import math
import re
from typing import Any

from triplepoint.tables.schema import Column
from triplepoint.units import GIB

_SUFFIX = {"s": "_s", "byte": "_bytes", "W": "_w", "J/token": "_j", "degC": "_c", "MHz": "_mhz"}
"""Suffix of a column's name that its unit makes redundant, by unit."""
_UNITS = {"1": "", "byte": "GiB", "degC": "°C", "sample/(s*MJ)": "sample/(s MJ)"}
_LABELS = {
    "tokens_per_s": "throughput", "tokens_per_s_per_gpu": "throughput per GPU", "gpu_power_peak_w": "highest gpu power",
    "gpu_temp_max_c": "highest gpu temp", "sm_clock_busy_mhz": "sm clock while busy",
    "throttle_fraction": "time throttled", "exposed_comm_s": "exposed communication", "idle_s": "idle time",
    "kernel_sum_s": "sum of kernel times", "lost_to_power_limit_fraction": "step time lost to power limit",
    "lost_to_heat_fraction": "step time lost to heat", "job_gpu_power_w": "power of all GPUs",
    "job_gpu_samples_per_s_mj": "samples per second and megajoule", "job_host_power_w": "power of all hosts",
    "cpu_utilisation": "CPU utilisation", "predicted_gpu_temp_max_c": "predicted highest gpu temp",
    "loss_first": "loss of first step", "loss_last": "loss of last step",
}  # fmt: skip
"""Headings of columns whose names are no plain words."""
_FRACTIONS = re.compile(r"mfu|.*_(fraction|utilisation|error|share)$")


def describe(column: Column) -> dict[str, Any]:
    """Return name, heading, display unit and description of a column."""
    label = _LABELS.get(column.name) or column.name.removesuffix(_SUFFIX.get(column.unit, "")).replace("_", " ")
    for short, full in (("gpu", "GPU"), ("mfu", "MFU"), ("sm clock", "SM clock"), ("temp", "temperature")):
        label = label.replace(short, full)
    unit = "%" if _FRACTIONS.fullmatch(column.name) else _UNITS.get(column.unit, column.unit)
    return {"name": column.name, "label": label[0].upper() + label[1:], "unit": unit, "about": column.about}


def shown_value(name: str, value: float | None) -> float | None:
    """Return a value in its display unit, to five digits; None if it is missing or not finite."""
    if value is None or not math.isfinite(value):
        return None
    scale = 1 / GIB if name.endswith("_bytes") else 100 if _FRACTIONS.fullmatch(name) else 1
    return float(f"{value * scale:.5g}")


def is_fraction(name: str) -> bool:
    """Return whether a column is a fraction shown in percent, whose changes are differences and not ratios.

    MFU is shown in percent too. But it is tokens per second times a constant, so its changes are ratios like theirs.
    """
    return name != "mfu" and bool(_FRACTIONS.fullmatch(name))
