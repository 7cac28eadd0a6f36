"""Power, temperatures and clocks of a warm job, with 90 % intervals, for predictions and simulated runs."""

import math
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np

from triplepoint.metrics import Z90
from triplepoint.simulate.heat.clocks import Reason
from triplepoint.simulate.heat.known import mean_sigma_k
from triplepoint.simulate.heat.nodes import node_power_of
from triplepoint.simulate.heat.warm import Warm
from triplepoint.simulate.power.gpu import Activity, Float, gpu_power_w, power_parts
from triplepoint.simulate.power.load import Training
from triplepoint.simulate.power.node import node_power_w
from triplepoint.simulate.power.parameters import NodePowerConfig
from triplepoint.simulate.predict.peaks import peak_w

_HELD_SIGMA = 0.01
"""Relative standard deviation of mean power at the power limit. Source: GPUs at their limit of 700 W show 686 to 699 W,
nodes A and E of tests/data/heat and tests/data/power."""
_BUSY_SHARE = 0.1
"""Share of the control periods of a step that count as busy, those of the highest power."""
_THROTTLED = int(Reason.POWER_CAP | Reason.SW_THERMAL | Reason.HW_THERMAL | Reason.POWER_BRAKE)
"""Reasons for clocks below the highest."""


@dataclass(frozen=True)
class PowerPrediction:
    """Power and heat of a job; NaN where they are not known.

    `..._lo_...` and `..._hi_...` are the ends of the 90 % interval of the quantity before them.

    Attributes:
        gpu_power_w: Mean power of a GPU over the step. Unit: W.
        gpu_power_lo_w: Lower end. Unit: W.
        gpu_power_hi_w: Upper end. Unit: W.
        gpu_power_peak_w: Highest power that an instantaneous sensor shows on a GPU. Unit: W.
        gpu_power_peak_lo_w: Lower end. Unit: W.
        gpu_power_peak_hi_w: Upper end. Unit: W.
        node_power_w: Mean power of a node at the plug. Unit: W.
        gpu_temp_max_c: Highest die temperature of the hottest GPU, with the spread of parts. Unit: degC.
        gpu_temp_max_lo_c: Lower end. Unit: degC.
        gpu_temp_max_hi_c: Upper end. Unit: degC.
        gpu_temp_c: Mean die temperature over GPUs and the step. Unit: degC.
        gpu_temp_lo_c: Lower end. Unit: degC.
        gpu_temp_hi_c: Upper end. Unit: degC.
        sm_clock_mhz: Mean clock over GPUs and the step. Unit: MHz.
        sm_clock_lo_mhz: Lower end. Unit: MHz.
        sm_clock_hi_mhz: Upper end. Unit: MHz.
        sm_clock_busy_mhz: Mean clock while kernels run whose time depends on the clock. Unit: MHz.
        throttle_fraction: Share of GPU time with clocks throttled below the highest, 0 to 1.
        lost_to_power_limit_fraction: Share of the step lost to clocks below the highest, 0 to 1, while the power limit
            throttled the slowest GPU or its governor was still raising the clock.
        lost_to_heat_fraction: The same, while heat throttled it.
        lost_to_brake_fraction: The same, while a power brake throttled it.
        gpu_energy_per_token_j: Energy of all GPUs per token. Unit: J.
        gpu_energy_per_token_lo_j: Lower end. Unit: J.
        gpu_energy_per_token_hi_j: Upper end. Unit: J.
    """

    gpu_power_w: float = math.nan
    gpu_power_lo_w: float = math.nan
    gpu_power_hi_w: float = math.nan
    gpu_power_peak_w: float = math.nan
    gpu_power_peak_lo_w: float = math.nan
    gpu_power_peak_hi_w: float = math.nan
    node_power_w: float = math.nan
    gpu_temp_max_c: float = math.nan
    gpu_temp_max_lo_c: float = math.nan
    gpu_temp_max_hi_c: float = math.nan
    gpu_temp_c: float = math.nan
    gpu_temp_lo_c: float = math.nan
    gpu_temp_hi_c: float = math.nan
    sm_clock_mhz: float = math.nan
    sm_clock_lo_mhz: float = math.nan
    sm_clock_hi_mhz: float = math.nan
    sm_clock_busy_mhz: float = math.nan
    throttle_fraction: float = math.nan
    lost_to_power_limit_fraction: float = math.nan
    lost_to_heat_fraction: float = math.nan
    lost_to_brake_fraction: float = math.nan
    gpu_energy_per_token_j: float = math.nan
    gpu_energy_per_token_lo_j: float = math.nan
    gpu_energy_per_token_hi_j: float = math.nan


RATE_SHARE = 0.6
"""Share of the standard deviation of a time that comes from the rates of work; the rest comes from wrongly counted
work, which leaves power as it is.

Source: chosen with 152 rows of decoding on H100 (ml-energy/leaderboard) in view; with it the 90 % intervals contain 93
% of them. There errors of power follow errors of time with an exponent of 0.2; rates alone would give about 0.6.
"""
_RATE_PARTS = ("tensor", "sm", "hbm", "link")
"""Parts of power that are proportional to rates of work."""


def predict_power(warm: Warm[Any], interval_s: tuple[float, float], config: Path) -> PowerPrediction:
    """Return power and heat of a warm job.

    Args:
        warm: The job.
        interval_s: Ends of the 90 % interval of the step time; NaN if it is not known. Unit: s.
        config: Folder of the configuration.
    """
    load, machine = warm.load, warm.machine
    mean_w = _mean(warm, warm.trace.power_w)
    # The same work in another time draws another power. This matters for inference, whose times are less certain.
    is_time_certain = isinstance(load, Training) or not interval_s[0] < interval_s[1]
    rate_sigma = 0.0 if is_time_certain else RATE_SHARE * math.log(interval_s[1] / interval_s[0]) / (2.0 * Z90)
    sigma_w, step_s = _sigma_w(warm, rate_sigma), load.length_s
    energy_j = mean_w * load.job.num_gpus * step_s / load.num_tokens
    # Mean power exceeds the power limit only if even the lowest clock draws more.
    low_w, high_w = mean_w - Z90 * sigma_w, max(mean_w, min(mean_w + Z90 * sigma_w, machine.power.power_limit.value))
    low_factor, high_factor = (
        math.exp(math.hypot(end_w / mean_w - 1.0, math.log(end_s / step_s)))
        for end_w, end_s in zip((low_w, high_w), interval_s, strict=True)
    )
    busy_sigma = _busy_sigma(warm)
    return PowerPrediction(
        gpu_power_w=mean_w,
        gpu_power_lo_w=low_w,
        gpu_power_hi_w=high_w,
        **_peak(warm, busy_sigma),
        node_power_w=float(nodes_power_w(warm, node_power_of(load.job.gpu, config)).mean()),
        **_temperatures(warm, sigma_w / mean_w),
        **_clocks(warm, busy_sigma),
        **_lost_fractions(warm),
        gpu_energy_per_token_j=energy_j,
        gpu_energy_per_token_lo_j=energy_j / low_factor,
        gpu_energy_per_token_hi_j=energy_j * high_factor,
    )


def _mean(warm: Warm[Any], values: Float) -> float:
    """Return the mean of values over the step and the GPUs of the job; shape (num_periods, num_nodes, num_devices)."""
    return float(np.average(values.mean(axis=0), weights=warm.seats.weight))


def _peak(warm: Warm[Any], sigma: float) -> dict[str, float]:
    """Return peak power with its interval; `sigma` is the relative standard deviation of the power of busy periods."""
    machine, excursion_limit = warm.machine, warm.machine.power.excursion_limit
    # With power brakes on all nodes no pass begins at the highest clock.
    onset_w = 0.0 if machine.braked.any(axis=1).all() else peak_w(warm)
    peak = max(float(warm.trace.power_w[:, warm.seats.weight > 0].max()), min(onset_w, excursion_limit.value))
    high = min(peak * math.exp(Z90 * sigma), excursion_limit.value + Z90 * excursion_limit.sigma)
    return {
        "gpu_power_peak_w": peak,
        "gpu_power_peak_lo_w": peak * math.exp(-Z90 * sigma),
        "gpu_power_peak_hi_w": max(peak, high),
    }


def _temperatures(warm: Warm[Any], power_sigma: float) -> dict[str, float]:
    """Return the mean and the highest temperature with their intervals.

    `power_sigma` is the relative standard deviation of mean power.
    """
    trace, machine, weight = warm.trace, warm.machine, warm.seats.weight
    power_w, rise_k = trace.power_w.mean(axis=0), (trace.temp_c - machine.inlet_c[:, None]).mean(axis=0)
    mean_c = _mean(warm, trace.temp_c)
    mean_half_k = Z90 * math.hypot(
        mean_sigma_k(machine, power_w, weight), float(np.average(rise_k, weights=weight)) * power_sigma
    )
    hottest_c = float(warm.hottest_c(warm.load.job.num_gpus)[:, weight > 0].max())
    # The model draws at random which part is hottest and how well it touches its heat sink.
    is_hottest = (rise_k == rise_k[weight > 0].max()) & (weight > 0)
    contact_k = machine.heat.resistance_spread.value * float(
        machine.devices.die[is_hottest].max() * power_w[is_hottest].max()
    )
    contact_k *= machine.cooled_by.die_resistance.value
    max_half_k = Z90 * math.hypot(
        mean_sigma_k(machine, power_w, is_hottest.astype(float)), contact_k, float(rise_k.max()) * power_sigma
    )
    shutdown_c = machine.heat.limits.shutdown_temperature.value
    return {
        "gpu_temp_c": mean_c,
        "gpu_temp_lo_c": mean_c - mean_half_k,
        "gpu_temp_hi_c": mean_c + mean_half_k,
        "gpu_temp_max_c": hottest_c,
        "gpu_temp_max_lo_c": hottest_c - max_half_k,
        "gpu_temp_max_hi_c": max(hottest_c, min(hottest_c + max_half_k, shutdown_c)),
    }


def _clocks(warm: Warm[Any], sigma: float) -> dict[str, float]:
    """Return mean clocks and throttling; `sigma` is the relative standard deviation of the power of busy periods."""
    mean_mhz, throttled = _mean(warm, warm.trace.clock_mhz), _mean(warm, (warm.trace.reasons & _THROTTLED) != 0)
    table = warm.machine.table
    # Switching power grows with the clock to this exponent: V^2 f with the voltages of the GPU type.
    exponents = np.gradient(np.log(table.energy_share * table.share), np.log(table.share))
    half_mhz = Z90 * mean_mhz * sigma * throttled / float(exponents[table.nearest(mean_mhz)])
    return {
        "sm_clock_mhz": mean_mhz,
        "sm_clock_lo_mhz": mean_mhz - half_mhz,
        "sm_clock_hi_mhz": min(mean_mhz + half_mhz, warm.machine.power.clocks.max_clock.value),
        "sm_clock_busy_mhz": _busy_clock_mhz(warm),
        "throttle_fraction": throttled,
    }


def _busy_clock_mhz(warm: Warm[Any]) -> float:
    """Return the mean clock over the time of kernels whose speed depends on it; NaN if there is none. Unit: MHz."""
    clock_mhz, bound = warm.trace.clock_mhz, np.asarray(warm.profile.activity.clock_bound)
    bins = np.arange(len(clock_mhz)) * len(bound) // len(clock_mhz)
    weight = bound[bins][:, warm.seats.kind] * warm.seats.weight
    return float(np.average(clock_mhz, weights=weight)) if weight.any() else math.nan


def _lost_fractions(warm: Warm[Any]) -> dict[str, float]:
    """Return the shares of a step that are lost to lower clocks, by the cause that throttled the slowest GPU."""
    trace = warm.trace
    num_periods = len(trace.rate)
    slowest = trace.slowdown.reshape(num_periods, -1).argmax(axis=1)
    reasons = trace.reasons.reshape(num_periods, -1)[np.arange(num_periods), slowest]
    lost = 1.0 - trace.rate
    is_braked = (reasons & int(Reason.POWER_BRAKE)) != 0
    is_hot = ((reasons & int(Reason.SW_THERMAL | Reason.HW_THERMAL)) != 0) & ~is_braked
    causes = {"power_limit": ~is_braked & ~is_hot, "heat": is_hot, "brake": is_braked}
    by_cause = {cause: float((lost * is_cause).mean()) for cause, is_cause in causes.items()}
    lost_rate = sum(by_cause.values())
    # The host and communication limit the gain of a step at the highest clocks. The causes share this gain in
    # proportion to the rate that they cost.
    gain = lost_rate if math.isnan(warm.fastest_s) else max(1.0 - warm.fastest_s / warm.load.length_s, 0.0)
    scale = gain / lost_rate if lost_rate else 0.0
    return {f"lost_to_{cause}_fraction": scale * share for cause, share in by_cause.items()}


def nodes_power_w(warm: Warm[Any], node: NodePowerConfig) -> Float:
    """Return the power of every node at the plug in every control period; shape (num_periods, num_nodes). Unit: W.

    Args:
        warm: The job.
        node: Power parameters of its nodes without their GPUs.
    """
    gpus_w = warm.trace.power_w * warm.num_alike
    return node_power_w(node, gpus_w, warm.machine.fan_flow, warm.num_nics)


def plug_power_w(warm: Warm[Any], config: Path, share: float = 0.0) -> tuple[float, float, float]:
    """Return the power at the plug: mean of a node, highest of a node, highest of all nodes together. Unit: W.

    Args:
        warm: The job.
        config: Folder of the configuration.
        share: See `highest_w`.
    """
    watts, weight = nodes_power_w(warm, node_power_of(warm.load.job.gpu, config)), warm.seats.weight.max(axis=1)
    mean_w = float(np.average(watts.mean(axis=0), weights=weight))
    return mean_w, highest_w(watts, share), highest_w(watts @ weight, share)


def highest_w(watts: Float, share: float = 0.0) -> float:
    """Return the mean over the highest control periods of a step, highest of all columns. Unit: W.

    Args:
        watts: Power; shape (num_periods,) or (num_periods, num_columns). Unit: W.
        share: Share of the control periods, at least one of them: 0 returns the peak.
    """
    number = max(1, int(share * len(watts)))
    return float(np.partition(watts, -number, axis=0)[-number:].mean(axis=0).max())


def _sigma_w(warm: Warm[Any], rate_sigma: float) -> float:
    """Return the standard deviation of the mean power, from power parameters, the power limit and rates. Unit: W.

    Args:
        warm: The job.
        rate_sigma: Relative standard deviation of the rates of its work.
    """
    power, weight, activity = warm.machine.power, warm.seats.weight, warm.profile.activity
    kind, num_kinds = warm.seats.kind.reshape(-1), np.shape(activity.awake)[1]
    num_gpus = np.bincount(kind, weight.reshape(-1), num_kinds).astype(float)
    temp_c, highest_mhz = warm.trace.temp_c.mean(axis=0), power.clocks.max_clock.value
    sum_c = np.bincount(kind, (temp_c * weight).reshape(-1), num_kinds)
    kind_c, kind_weight = sum_c / np.maximum(num_gpus, 1e-12), num_gpus / weight.sum()
    is_below_limit = gpu_power_w(power, activity, highest_mhz, kind_c) <= power.power_limit.value
    below_share = is_below_limit.mean(axis=0)
    num_below = np.maximum(is_below_limit.sum(axis=0), 1)
    columns = {part.name: np.asarray(getattr(activity, part.name)) for part in fields(activity)}
    mean = Activity(**{name: (column * is_below_limit).sum(axis=0) / num_below for name, column in columns.items()})
    parts = power_parts(power, mean, highest_mhz, kind_c)
    limited, rise = float((1.0 - below_share) @ kind_weight), power.clock_rise
    # A GPU stays the further below its limit the more slowly its governor raises clocks.
    is_capped = (warm.trace.reasons & int(Reason.POWER_CAP)) != 0
    capped_w = warm.trace.power_w[is_capped]
    below_w = max(power.power_limit.value - float(capped_w.mean()), 0.0) if capped_w.size else 0.0
    variance = limited**2 * ((power.power_limit.value * _HELD_SIGMA) ** 2 + (below_w * rise.sigma / rise.value) ** 2)
    rate_w = 0.0
    for part in fields(parts):
        parameter = getattr(power, part.name)
        part_w = float((np.broadcast_to(getattr(parts, part.name), below_share.shape) * below_share) @ kind_weight)
        variance += (part_w * parameter.sigma / max(parameter.value, 1e-9)) ** 2
        rate_w += part_w if part.name in _RATE_PARTS else 0.0
    return math.hypot(math.sqrt(variance), rate_w * rate_sigma)


def _busy_sigma(warm: Warm[Any]) -> float:
    """Return the relative standard deviation of the power of the busiest control periods, from power parameters."""
    power, activity = warm.machine.power, warm.profile.activity
    highest_mhz, temp_c = power.clocks.max_clock.value, power.leakage_temperature.value
    watts = gpu_power_w(power, activity, highest_mhz, temp_c).reshape(-1)
    busiest = watts >= np.quantile(watts, 1.0 - _BUSY_SHARE)
    parts = power_parts(power, activity, highest_mhz, temp_c)
    shape, variance = np.shape(activity.awake), 0.0
    for part in fields(parts):
        parameter = getattr(power, part.name)
        part_w = float(np.broadcast_to(getattr(parts, part.name), shape).reshape(-1)[busiest].mean())
        variance += (part_w * parameter.sigma / max(parameter.value, 1e-9)) ** 2
    return math.sqrt(variance) / float(watts[busiest].mean())
