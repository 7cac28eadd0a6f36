"""Fits the power of a GPU type to measured kernels, with its error on kernels left out of the fit."""

from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np

from triplepoint.calibrate.protocol import rounded
from triplepoint.calibrate.statistics import least_squares
from triplepoint.errors import UserError
from triplepoint.simulate.power.gpu import Activity, Float, gpu_power_w
from triplepoint.simulate.power.parameters import Estimate, PowerConfig

NOISE = 0.02
"""Relative error of a measured mean power: sensors of H100 and H200 sample a quarter of the time (arXiv:2312.02741)."""

_WATTS = ("base", "leakage", "clock_tree", "tensor", "sm", "hbm", "link")
_RATIOS = ("leakage_growth", "leakage_voltage_exponent", "zeros_share")
_CLOCKS = ("knee_clock", "max_voltage")
FITTED = (*_WATTS, *_RATIOS, *_CLOCKS)
"""What is searched, by the logarithm. Memory at rest is given: it has a sensor of its own."""


@dataclass(frozen=True, eq=False)
class KernelTable:
    """Measured kernels, one per row, each run long enough that power, clock and temperature are settled.

    Attributes:
        kernel: What is held out together: the same kernel at other clocks or operands has the same name.
        activity: What the kernel really did, rates as shares of the peak at the highest clock; shape (num_rows,).
        clock_mhz: Mean clock. Unit: MHz.
        temp_c: Mean die temperature. Unit: degC.
        power_w: Mean power. Unit: W.
    """

    kernel: tuple[str, ...]
    activity: Activity
    clock_mhz: Float
    temp_c: Float
    power_w: Float

    def pick(self, rows: Float) -> "KernelTable":
        """Return some of the rows, by a mask or by index."""
        names = np.array(self.kernel, dtype=object)[rows].tolist()
        shape = self.power_w.shape
        columns = {
            part.name: np.broadcast_to(getattr(self.activity, part.name), shape)[rows] for part in fields(Activity)
        }
        return KernelTable(
            tuple(names), Activity(**columns), self.clock_mhz[rows], self.temp_c[rows], self.power_w[rows]
        )


@dataclass(frozen=True, eq=False)
class PowerFit:
    """Power fitted to kernels.

    Attributes:
        config: With the fitted numbers and their standard deviations.
        blind: By kernel, the same by a fit that has not seen it.
        error: Modelled over measured power less 1, of every row.
        held_out_error: The same by the fit that has not seen the row's kernel.
    """

    config: PowerConfig
    blind: dict[str, PowerConfig]
    error: Float
    held_out_error: Float


def fit_power(table: KernelTable, known: PowerConfig, source: str, fitted: Sequence[str] = FITTED) -> PowerFit:
    """Return the power of a GPU type fitted to kernels, and its errors on kernels left out one by one.

    Args:
        table: Kernels that differ in what they do; rest (awake 0) may be among them.
        known: What is known so far: where the search begins, and, by its `sigma`, what holds where rows say nothing.
        source: Where the table comes from.
        fitted: Names of the numbers to search.

    Raises:
        UserError: If there are fewer than three kernels: nothing could be held out.
    """
    kernels = sorted(set(table.kernel))
    if len(kernels) < 3:
        raise UserError(f"{source}: {len(kernels)} kernels, at least 3 are needed to fit power and to hold one out")
    held_out = np.empty(len(table.power_w))
    names, blind = np.array(table.kernel, dtype=object), {}
    for kernel in kernels:
        is_own = names == kernel
        blind[kernel] = _search(table.pick(~is_own), known, source, fitted)
        held_out[is_own] = power_error(blind[kernel], table.pick(is_own))
    config = _search(table, known, source, fitted)
    return PowerFit(config, blind, power_error(config, table), held_out)


def power_error(config: PowerConfig, table: KernelTable) -> Float:
    """Return modelled over measured power less 1, of every row."""
    return np.asarray(gpu_power_w(config, table.activity, table.clock_mhz, table.temp_c) / table.power_w - 1.0)


def _search(table: KernelTable, known: PowerConfig, source: str, fitted: Sequence[str]) -> PowerConfig:
    priors = [_get(known, name) for name in fitted]
    start = np.log([prior.value for prior in priors])
    width = np.array([max(prior.sigma / prior.value, 1e-3) for prior in priors])

    def residuals(at: Float) -> Float:
        return np.concatenate([power_error(_set(known, fitted, np.exp(at)), table) / NOISE, (at - start) / width])

    optimum = least_squares(residuals, start)
    value = np.exp(optimum.at)
    sigma = np.sqrt(np.diag(optimum.covariance)) * value
    return _set(known, fitted, value, sigma, source)


def _get(config: PowerConfig, name: str) -> Estimate:
    estimate: Estimate = getattr(config.clocks if name in _CLOCKS else config, name)
    return estimate


def _set(config: PowerConfig, names: Sequence[str], value: Float, sigma: Float | None = None,
         source: str | None = None) -> PowerConfig:  # fmt: skip
    """Return `config` with other numbers; while searching, source and deviation stay as they are."""
    changes = {}
    for k, name in enumerate(names):
        old = _get(config, name)
        new: dict[str, object] = {"value": float(value[k])}
        if sigma is not None:
            new = {"value": rounded(value[k], 3), "sigma": rounded(sigma[k], 3), "source": source}
        changes[name] = old.model_copy(update=new)
    clocks = config.clocks.model_copy(update={name: changes.pop(name) for name in _CLOCKS if name in changes})
    return config.model_copy(update={"clocks": clocks, **changes})
