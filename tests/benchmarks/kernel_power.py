"""Error of power by kernel class on H200: `python -m tests.benchmarks.kernel_power [FOLDER of whole tables]`."""

import sys
from pathlib import Path

import numpy as np
import pandas as pd

from tests.kernel_power import CHARGED, FOLDER, JudgedKernels, judge_kernels, unpaused_spread

_BELOW_LIMIT_W = 690.0


def show(name: str, rows: pd.DataFrame) -> None:
    """Print bias, mean, median and 90th percentile of the error of some rows."""
    error = rows.error.to_numpy()
    if not len(error):
        print(f"  {name:<58}    0 rows")
        return
    size = np.abs(error)
    print(
        f"  {name:<58}{len(error):5} rows  bias {error.mean():+6.1%}  mean {size.mean():5.1%}  median "
        f"{np.median(size):5.1%}  90th percentile {np.quantile(size, 0.9):5.1%}"
    )


def show_table(name: str, judged: JudgedKernels) -> None:
    """Print energies and errors of a table."""
    power = judged.power
    energies = (
        f"{energy:.3g} +- {sigma:.2g} pJ per {what}"
        for what, energy, sigma in zip(CHARGED[name], power.energy_pj, power.sigma[1:], strict=True)
    )
    print(f"{name}: awake {power.awake_w:.0f} W, {', '.join(energies)}")
    for kind, rows in judged.rows.groupby("class"):
        usual = rows[rows.latency.between(0.1, 5.0)]
        show(f"{kind}, fitted, 0.1 to 5 ms", usual[~usual.is_left_out])
        show(f"{kind}, left out, 0.1 to 5 ms", usual[usual.is_left_out])
        show(f"{kind}, left out, 0.1 to 5 ms, under the limit",
             usual[usual.is_left_out & (usual.power_w < _BELOW_LIMIT_W)])  # fmt: skip
        show(f"{kind}, left out, longer", rows[rows.is_left_out & (rows.latency > 5.0)])
        show(f"{kind}, left out, shorter", rows[rows.is_left_out & (rows.latency < 0.1)])
    print(f"  tests of 1 s at the limit after another at the limit differ by {unpaused_spread(judged.rows):.1%} (mean)")


def main() -> None:
    """Print errors of all tables."""
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else FOLDER
    for name in CHARGED:
        show_table(name, judge_kernels(name, folder))


if __name__ == "__main__":
    main()
