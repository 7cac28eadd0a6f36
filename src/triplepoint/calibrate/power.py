"""Fits of a GPU type: power to measured kernels, with the error on held-out kernels, and cooling to a log.

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
"""Parameters of the fit, by their logarithms. Power of memory at rest is given, as it has its own sensor."""


@dataclass(frozen=True, eq=False)
class KernelTable:
    """Measured kernels, one per row, each run long enough that power, clock and temperature are settled.

    Attributes:
        kernel: Name of the kernel, equal for all its clocks and operands: rows of one name are held out together.
        activity: Measured activity, rates as shares of the peak at the highest clock; shape (num_rows,).
        clock_mhz: Mean clock; shape (num_rows,). Unit: MHz.
        temp_c: Mean die temperature; shape (num_rows,). Unit: degC.
        power_w: Mean power; shape (num_rows,). Unit: W.
    """

    kernel: tuple[str, ...]
    activity: Activity
    clock_mhz: Float
    temp_c: Float
    power_w: Float

    def pick(self, rows: Float) -> "KernelTable":
        """Return some of the rows, selected by a mask or by indices."""
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
    """Power model fitted to kernels.

    Attributes:
        config: Power model with the fitted parameters and their standard deviations.
        blind: By kernel, the power model fitted to all other kernels.
        error: Modelled over measured power less 1; shape (num_rows,).
        held_out_error: The same error, of the model fitted without the row's kernel; shape (num_rows,).
    """

    config: PowerConfig
    blind: dict[str, PowerConfig]
    error: Float
    held_out_error: Float


def fit_power(table: KernelTable, known: PowerConfig, source: str, fitted: Sequence[str] = FITTED) -> PowerFit:
    """Fit the power model of a GPU type to kernels, and determine its errors on kernels held out one by one.

    Args:
        table: Kernels with different activities; rest (`awake` 0) may be among them.
        known: Power model before the fit. Its values and standard deviations are the prior.
        source: Source of the table, noted with every fitted parameter.
        fitted: Names of the parameters to fit.

    Raises:
        UserError: If there are fewer than three kernels, as none could be held out.
    """
    kernels = sorted(set(table.kernel))
    if len(kernels) < 3:
        raise UserError(f"{source}: {len(kernels)} kernels, at least 3 are needed to fit power and to hold one out")
    held_out = np.empty(len(table.power_w))
    names, blind = np.array(table.kernel, dtype=object), {}
    for kernel in kernels:
        is_held_out = names == kernel
        blind[kernel] = _search(table.pick(~is_held_out), known, source, fitted)
        held_out[is_held_out] = power_error(blind[kernel], table.pick(is_held_out))
    config = _search(table, known, source, fitted)
    return PowerFit(config, blind, power_error(config, table), held_out)


def power_error(config: PowerConfig, table: KernelTable) -> Float:
    """Return modelled over measured power less 1; shape (num_rows,)."""
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
    """Return a power model with other values; without `sigma`, sources and standard deviations stay as they are."""
    changes = {}
    for k, name in enumerate(names):
        estimate = _get(config, name)
        new: dict[str, object] = {"value": float(value[k])}
        if sigma is not None:
            new = {"value": rounded(value[k], 3), "sigma": rounded(sigma[k], 3), "source": source}
        changes[name] = estimate.model_copy(update=new)
    clocks = config.clocks.model_copy(update={name: changes.pop(name) for name in _CLOCKS if name in changes})
    return config.model_copy(update={"clocks": clocks, **changes})


_NOISE_K = 0.5
"""Least error of a temperature: sensors show whole degrees (0.3 K), and power within a sample is not known."""

_DELAY_S = 0.1
"""Prior width of the delay between power and temperature: each sensor publishes every 100 ms at its own phase."""

COOLING = ("die_resistance", "sink_resistance", "die_time", "sink_time")
"""Fitted parameters of cooling."""


@dataclass(frozen=True, eq=False)
class StepLog:
    """Temperature and power of one device over time.

    Attributes:
        t_s: Time of each sample, ascending; shape (num_samples,). Unit: s.
        power_w: Mean power since the previous sample; shape (num_samples,). Unit: W.
        temp_c: Die temperature; shape (num_samples,). Unit: degC.
    """

    t_s: Float
    power_w: Float
    temp_c: Float


@dataclass(frozen=True, eq=False)
class HeatFit:
    """Cooling fitted to logs.

    Attributes:
        cooling: Cooling with the fitted parameters and their standard deviations.
        inlet_c: Coolant temperature at the device of each log. Unit: degC.
        rmse_k: Root mean square error of each log. Unit: K.
        worst_k: Largest error over all logs. Unit: K.
        delay_s: Time by which the power sensor lags the temperature sensor. Unit: s.
    """

    cooling: CoolingConfig
    inlet_c: tuple[float, ...]
    rmse_k: tuple[float, ...]
    worst_k: float
    delay_s: float


def simulate_log(log: StepLog, cooling: CoolingConfig, inlet_c: float) -> Float:
    """Return modelled die temperatures of a log, from balance at its first power; shape (num_samples,). Unit: degC."""
    values = np.array([getattr(cooling, name).value for name in COOLING])
    return np.asarray(_rises_k(log, values) + inlet_c)


def delayed(log: StepLog, delay_s: float) -> StepLog:
    """Return a log whose power is shifted `delay_s` seconds later."""
    return StepLog(log.t_s, np.interp(log.t_s - delay_s, log.t_s, log.power_w), log.temp_c)


def _rises_k(log: StepLog, cooling: Float) -> Float:
    """Return modelled rises of the die over the inlet; shape (num_samples,). Unit: K.

    The response of die and sink to power is the sum of two independent exponentials.

    Args:
        log: Power over time.
        cooling: Values in the order of `COOLING`.
    """
    die, sink, die_s, sink_s = cooling
    to_die, to_sink, off = 1.0 / die_s, sink / (die * sink_s), 1.0 / sink_s
    middle = (to_die + to_sink + off) / 2
    half_gap = np.sqrt(middle**2 - to_die * off)
    decay_rate = np.array([middle + half_gap, middle - half_gap])
    # Partial fractions of the die's temperature over power, each over its decay rate.
    weight = die * to_die * (to_sink + off - decay_rate) / (decay_rate[::-1] - decay_rate) / decay_rate
    kept = np.exp(-np.diff(log.t_s)[:, None] * decay_rate)
    added = (1.0 - kept) * weight * log.power_w[1:, None]
    rise = weight * log.power_w[0]
    rises = np.empty((len(log.t_s), 2))
    rises[0] = rise
    for k in range(1, len(log.t_s)):
        rise = kept[k - 1] * rise + added[k - 1]
        rises[k] = rise
    return np.asarray(rises.sum(axis=1))


def fit_heat(logs: list[StepLog], known: CoolingConfig, source: str) -> HeatFit:
    """Fit cooling to logs of equal devices, each with its own inlet temperature.

    Args:
        logs: One log per device, each from thermal balance.
        known: Cooling before the fit. Its values and standard deviations are the prior.
        source: Source of the logs, noted with every fitted parameter.

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
    priors = [getattr(known, name) for name in COOLING]
    optimum, delay_s = _search_cooling(logs, priors)
    value, sigma = np.exp(optimum.at[:-1]), np.sqrt(np.diag(optimum.covariance))[:-1] * np.exp(optimum.at[:-1])
    fitted = known.model_copy(update={
        name: Estimate(value=rounded(value[k], 3), unit=prior.unit, sigma=rounded(sigma[k], 3), source=source)
        for k, (name, prior) in enumerate(zip(COOLING, priors, strict=True))
    })  # fmt: skip
    inlets, rmse, worst = [], [], 0.0
    for log in logs:
        above_rise = log.temp_c - simulate_log(delayed(log, delay_s), fitted, 0.0)
        inlets.append(float(above_rise.mean()))
        rmse.append(float(above_rise.std()))
        worst = max(worst, float(np.abs(above_rise - above_rise.mean()).max()))
    return HeatFit(fitted, tuple(inlets), tuple(rmse), worst, delay_s)


def _search_cooling(logs: list[StepLog], priors: list[Estimate]) -> tuple[Optimum, float]:
    """Return the optimum, with logarithms of `COOLING` and then the delay in s, and the delay alone. Unit: s."""
    start = np.array([*np.log([prior.value for prior in priors]), 0.0])
    width = np.array([*np.maximum([prior.sigma / prior.value for prior in priors], 0.2), _DELAY_S])

    def errors(at: Float) -> list[Float]:
        rises = [_rises_k(delayed(log, at[-1]), np.exp(at[:-1])) for log in logs]
        # The inlet follows from the mean.
        return [log.temp_c - rise - (log.temp_c - rise).mean() for log, rise in zip(logs, rises, strict=True)]

    def search(noise_k: list[float], at: Float) -> Optimum:
        def residuals(at: Float) -> Float:
            parts = [error / noise for error, noise in zip(errors(at), noise_k, strict=True)]
            return np.concatenate([*parts, (at - start) / width])

        return least_squares(residuals, at)

    optimum = search([_NOISE_K] * len(logs), start)
    # Correlated errors carry less information than their number: the error of a whole degree stays for seconds.
    noise_k = [max(_NOISE_K, float(error.std())) * correlation_time(error) ** 0.5 for error in errors(optimum.at)]
    optimum = search(noise_k, optimum.at)
    return optimum, float(optimum.at[-1])


def correlation_time(errors: Float) -> float:
    """Return how many consecutive errors count as one, 1 or more, from their autocorrelation up to its first zero."""
    centred = errors - errors.mean()
    if not centred.any():
        return 1.0
    autocorrelation = np.correlate(centred, centred, "full")[len(centred) - 1 :] / (centred @ centred)
    below = np.flatnonzero(autocorrelation <= 0.0)
    return float(2.0 * autocorrelation[: below[0] if below.size else None].sum() - 1.0)
