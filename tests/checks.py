"""A made-up table `telemetry_checks`: measured runs, a simulated run, a sensor card and a trial of sampling cost."""

from typing import Any

import numpy as np
import pandas as pd

from triplepoint.aggregate.checks import CHECKS, sensor_checks
from triplepoint.aggregate.energy import Sensors
from triplepoint.tables.results import TELEMETRY_CHECKS

CARD = {
    "product": "NVIDIA H200",
    "sensors": {
        "gpu_power_w": {"period_s": 0.1, "window_s": 0.025, "lag_s": 0.004},
        "gpu_memory_power_w": {"unknown": "not measured here"},
    },
}
TRIAL = {
    "gemm": {"num_pairs": 30, "change": 0.0004, "low": -0.0011, "high": 0.0019},
    "launch": {"num_pairs": 30, "change": 0.0021, "low": 0.0004, "high": 0.0043},
}
SIZES = {
    "integral_10s": 0.006, "integral_60s": 0.0025, "zeus": 0.004, "lateness_fast": 0.0003, "lateness_slow": 0.0004,
    "latency_fast": 0.0002, "latency_slow": 0.0025, "clock": 0.00012,
}  # fmt: skip


def checks_of(runs: tuple[str, ...] = ("one", "two", "three")) -> pd.DataFrame:
    """Return the table of measured runs and a simulated run."""
    random = np.random.default_rng(1)
    rows: list[dict[str, Any]] = []
    for run in runs:
        for check, size in SIZES.items():
            values = random.normal(0, size, 40) if CHECKS[check][0] == "1" else random.lognormal(np.log(size), 0.4, 40)
            rows.append(row(run, "measured", check, values))
        rows.append(row(run, "measured", "gaps", np.array([0.001])) | {"num": 12, "of_total": 12000.0})
        rows.append(row(run, "measured", "stale", np.array([0.0])) | {"num": 0, "of_total": 12000.0})
        rows[-3] |= {"num": 3}
        next(r for r in rows if r["subject"] == run and r["check"] == "zeus").update(of_total=39.0)
    rows.append(row("four", "simulated", "integral_10s", random.normal(0.001, 0.003, 50)))
    rows += sensor_checks(Sensors({"h200": CARD}, {"trial": TRIAL}))
    return TELEMETRY_CHECKS.from_rows(rows).to_pandas()


def row(run: str, origin: str, check: str, values: np.ndarray) -> dict[str, Any]:
    """Return a row of the table from the values of a check."""
    p10, p50, p90 = np.percentile(values, [10, 50, 90])
    sizes = np.abs(values)
    return {
        "subject": run, "origin": origin, "check": check, "unit": CHECKS[check][0], "num": len(values),
        "worst": sizes.max(), "value": p50, "low": p10, "high": p90, "p99": np.percentile(sizes, 99),
    }  # fmt: skip
