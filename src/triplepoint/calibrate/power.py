"""Fits power of a GPU type to measured kernels, with its error on kernels left out, and cooling to a log.

The log is a step from rest to load and back, or any load that changes temperature and power.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np

from triplepoint.calibrate.protocol import Optimum, least_squares, rounded
from triplepoint.errors import UserError
from triplepoint.simulate.heat.parameters import CoolingConfig
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


_NOISE_K = 0.5
"""Temperatures are whole degrees (0.3 K), and power within a sample is not known."""

_DELAY_S = 0.1
"""How far power and temperature may be shown apart: sensors publish every 100 ms, each at a moment of its own."""

_NAMES = ("die_resistance", "sink_resistance", "die_time", "sink_time")


@dataclass(frozen=True, eq=False)
class StepLog:
    """Temperature and power of one device over time.

    Attributes:
        t_s: When; shape (num_samples,), in order. Unit: s.
        power_w: Mean power since the sample before. Unit: W.
        temp_c: Die temperature. Unit: degC.
    """

    t_s: Float
    power_w: Float
    temp_c: Float


@dataclass(frozen=True, eq=False)
class HeatFit:
    """Cooling fitted to logs.

    Attributes:
        cooling: With the fitted numbers and their standard deviations.
        inlet_c: Coolant at every device. Unit: degC.
        rmse_k: Of every log. Unit: K.
        worst_k: Largest error of all. Unit: K.
        delay_s: How much later than temperature power is shown. Unit: s.
    """

    cooling: CoolingConfig
    inlet_c: tuple[float, ...]
    rmse_k: tuple[float, ...]
    worst_k: float
    delay_s: float


def simulate_log(log: StepLog, cooling: CoolingConfig, inlet_c: float) -> Float:
    """Return the die temperatures of a log by cooling alone, from balance at its first power. Unit: degC."""
    at = np.array([getattr(cooling, name).value for name in _NAMES])
    return np.asarray(_respond(log, at) + inlet_c)


def delayed(log: StepLog, delay_s: float) -> StepLog:
    """Return a log with its power later by a delay. Unit: s."""
    return StepLog(log.t_s, np.interp(log.t_s - delay_s, log.t_s, log.power_w), log.temp_c)


def _respond(log: StepLog, cooling: Float) -> Float:
    """Return rises over the inlet by cooling alone, in the order of `_NAMES`. Unit: K.

    Die and sink together answer power as two exponentials would, each following it by itself.
    """
    die, sink, die_s, sink_s = cooling
    to_die, to_sink, off = 1.0 / die_s, sink / (die * sink_s), 1.0 / sink_s
    middle = (to_die + to_sink + off) / 2
    apart = np.sqrt(middle**2 - to_die * off)
    speed = np.array([middle + apart, middle - apart])
    # Partial fractions of the die's temperature over power, each over its speed.
    weight = die * to_die * (to_sink + off - speed) / (speed[::-1] - speed) / speed
    keep = np.exp(-np.diff(log.t_s)[:, None] * speed)
    fed = (1.0 - keep) * weight * log.power_w[1:, None]
    rise = weight * log.power_w[0]
    rises = np.empty((len(log.t_s), 2))
    rises[0] = rise
    for k in range(1, len(log.t_s)):
        rise = keep[k - 1] * rise + fed[k - 1]
        rises[k] = rise
    return np.asarray(rises.sum(axis=1))


def fit_heat(logs: list[StepLog], known: CoolingConfig, source: str) -> HeatFit:
    """Return cooling fitted to logs of alike devices, each with an inlet of its own.

    Args:
        logs: Of devices that begin in balance.
        known: What is known so far: where the search begins, and what holds where logs say nothing.
        source: Where the logs come from.

    Raises:
        UserError: If a log has fewer than ten samples, or power or temperature hardly change in any.
    """
    swing_w, swing_k = (max(float(np.ptp(values)) for values in part) for part in (
        [log.power_w for log in logs], [log.temp_c for log in logs]
    ))  # fmt: skip
    if any(len(log.t_s) < 10 for log in logs) or swing_w < 50.0 or swing_k < 3.0:
        raise UserError(
            f"{source}: power changes by {swing_w:.0f} W and temperature by {swing_k:.0f} K; fitting cooling needs ten "
            "samples, 50 W and 3 K"
        )
    priors = [getattr(known, name) for name in _NAMES]
    optimum, delay_s = _search_cooling(logs, priors)
    value, sigma = np.exp(optimum.at[:-1]), np.sqrt(np.diag(optimum.covariance))[:-1] * np.exp(optimum.at[:-1])
    fitted = known.model_copy(update={
        name: Estimate(value=rounded(value[k], 3), unit=prior.unit, sigma=rounded(sigma[k], 3), source=source)
        for k, (name, prior) in enumerate(zip(_NAMES, priors, strict=True))
    })  # fmt: skip
    inlets, rmse, worst = [], [], 0.0
    for log in logs:
        away = log.temp_c - simulate_log(delayed(log, delay_s), fitted, 0.0)
        inlets.append(float(away.mean()))
        rmse.append(float(away.std()))
        worst = max(worst, float(np.abs(away - away.mean()).max()))
    return HeatFit(fitted, tuple(inlets), tuple(rmse), worst, delay_s)


def _search_cooling(logs: list[StepLog], priors: list[Estimate]) -> tuple[Optimum, float]:
    """Return the logarithms of the numbers of `_NAMES` and the delay, and the delay by itself. Unit: s."""
    start = np.array([*np.log([prior.value for prior in priors]), 0.0])
    width = np.array([*np.maximum([prior.sigma / prior.value for prior in priors], 0.2), _DELAY_S])

    def errors(at: Float) -> list[Float]:
        rises = [_respond(delayed(log, at[-1]), np.exp(at[:-1])) for log in logs]
        # The inlet is whatever makes the mean right.
        return [log.temp_c - rise - (log.temp_c - rise).mean() for log, rise in zip(logs, rises, strict=True)]

    def search(noise_k: list[float], at: Float) -> Optimum:
        def residuals(at: Float) -> Float:
            parts = [error / noise for error, noise in zip(errors(at), noise_k, strict=True)]
            return np.concatenate([*parts, (at - start) / width])

        return least_squares(residuals, at)

    optimum = search([_NOISE_K] * len(logs), start)
    # Errors that hang together say less than their number: whole degrees stay wrong by the same for seconds.
    noise_k = [max(_NOISE_K, float(error.std())) * correlation_time(error) ** 0.5 for error in errors(optimum.at)]
    optimum = search(noise_k, optimum.at)
    return optimum, float(optimum.at[-1])


def correlation_time(errors: Float) -> float:
    """Return how many errors in a row count as one, 1 or more: twice their autocorrelation up to its first zero."""
    away = errors - errors.mean()
    if not away.any():
        return 1.0
    together = np.correlate(away, away, "full")[len(away) - 1 :] / (away @ away)
    below = np.flatnonzero(together <= 0.0)
    return float(2.0 * together[: below[0] if below.size else None].sum() - 1.0)
