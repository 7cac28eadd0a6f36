"""Fits cooling to a log of temperature and power: a step from rest to load and back, or any load that changes."""

from dataclasses import dataclass

import numpy as np

from triplepoint.calibrate.protocol import rounded
from triplepoint.calibrate.statistics import Optimum, least_squares
from triplepoint.errors import UserError
from triplepoint.simulate.heat.parameters import CoolingConfig
from triplepoint.simulate.power.gpu import Float
from triplepoint.simulate.power.parameters import Estimate

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
    optimum, delay_s = _search(logs, priors)
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


def _search(logs: list[StepLog], priors: list[Estimate]) -> tuple[Optimum, float]:
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
