"""Fits cooling to a log of temperature and power: a step from rest to load and back, or any load that changes."""

from dataclasses import dataclass

import numpy as np

from triplepoint.errors import UserError
from triplepoint.simulate.estimates import Estimate
from triplepoint.simulate.fitting import least_squares
from triplepoint.simulate.heat.config import CoolingConfig
from triplepoint.simulate.power.model import Float

_NOISE_K = 0.5
"""Temperatures are whole degrees (0.3 K), and power within a sample is not known."""

_NAMES = ("die_resistance", "sink_resistance", "die_time", "sink_time")


@dataclass(frozen=True, eq=False)
class StepLog:
    """What one device was seen to do.

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
    """Cooling as logs say it is.

    Attributes:
        cooling: With the fitted numbers and their standard deviations.
        inlet_c: Coolant at every device. Unit: degC.
        rmse_k: Of every log. Unit: K.
        worst_k: Largest error of all. Unit: K.
    """

    cooling: CoolingConfig
    inlet_c: tuple[float, ...]
    rmse_k: tuple[float, ...]
    worst_k: float


def undo_average(t_s: Float, average_w: Float, window_s: float, age_s: float) -> Float:
    """Return the power behind one step as a sensor shows it that averages over a long window.

    The steepest climb of the shown power is a step: half of it is reached half a window after. The rest of the shown
    power is taken as it is.

    Args:
        t_s: When; shape (num_samples,). Unit: s.
        average_w: Shown power. Unit: W.
        window_s: Window of the average. Unit: s.
        age_s: How old a shown value is. Unit: s.

    Returns:
        Mean power since the sample before, of the shape of `t_s`. Unit: W.
    """
    climb = np.interp(t_s + window_s, t_s, average_w) - average_w
    first = int(np.argmax(np.abs(climb)))
    last = int(np.searchsorted(t_s, t_s[first] + window_s, side="right"))
    low, high = float(average_w[first]), float(average_w[min(last, len(t_s)) - 1])
    way = np.sign(high - low)
    half = float(np.interp(way * (low + high) / 2, way * average_w[first:last], t_s[first:last]))
    step = half - window_s / 2 - age_s
    begin = max(int(np.searchsorted(t_s, step)), 1)
    power = average_w.copy()
    power[first:begin] = low
    power[begin:last] = high
    # The step falls between two samples.
    power[begin] += (low - high) * (step - t_s[begin - 1]) / (t_s[begin] - t_s[begin - 1])
    return power


def simulate_log(log: StepLog, cooling: CoolingConfig, inlet_c: float) -> Float:
    """Return the die temperatures of a log by cooling alone, from balance at its first power. Unit: degC."""
    at = np.array([getattr(cooling, name).value for name in _NAMES])
    return np.asarray(_respond(log, at) + inlet_c)


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
    found = np.empty((len(log.t_s), 2))
    found[0] = rise
    for k in range(1, len(log.t_s)):
        rise = keep[k - 1] * rise + fed[k - 1]
        found[k] = rise
    return np.asarray(found.sum(axis=1))


def fit_heat(logs: list[StepLog], known: CoolingConfig, source: str) -> HeatFit:
    """Return cooling fitted to logs of alike devices, each with an inlet of its own.

    Args:
        logs: Of devices that begin in balance.
        known: What is known so far: where the search begins, and what holds where logs say nothing.
        source: Where the logs come from.

    Raises:
        UserError: If a log has fewer than ten samples, or power hardly changes in any.
    """
    if any(len(log.t_s) < 10 for log in logs) or max(float(np.ptp(log.power_w)) for log in logs) < 50.0:
        raise UserError(f"{source}: ten samples and a change of power by 50 W are needed to fit cooling")
    priors = [getattr(known, name) for name in _NAMES]
    start = np.log([prior.value for prior in priors])
    width = np.maximum([prior.sigma / prior.value for prior in priors], 0.2)

    def errors(at: Float) -> list[Float]:
        rises = [_respond(log, np.exp(at)) for log in logs]
        # The inlet is whatever makes the mean right.
        return [log.temp_c - rise - (log.temp_c - rise).mean() for log, rise in zip(logs, rises, strict=True)]

    found = least_squares(
        lambda at: np.concatenate([*(error / _NOISE_K for error in errors(at)), (at - start) / width]), start
    )
    value, sigma = np.exp(found.at), np.sqrt(np.diag(found.covariance)) * np.exp(found.at)
    fitted = known.model_copy(update={
        name: Estimate(value=_rounded(value[k]), unit=prior.unit, sigma=_rounded(sigma[k]), source=source)
        for k, (name, prior) in enumerate(zip(_NAMES, priors, strict=True))
    })  # fmt: skip
    inlets, rmse, worst = [], [], 0.0
    for log in logs:
        away = log.temp_c - simulate_log(log, fitted, 0.0)
        inlets.append(float(away.mean()))
        rmse.append(float(away.std()))
        worst = max(worst, float(np.abs(away - away.mean()).max()))
    return HeatFit(fitted, tuple(inlets), tuple(rmse), worst)


def _rounded(value: float) -> float:
    return float(f"{value:.3g}")
