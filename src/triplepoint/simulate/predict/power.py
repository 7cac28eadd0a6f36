"""Power and heat of a warm job, with what they are known to: of predictions and of simulated runs."""

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
"""Relative: GPUs at their limit of 700 W show 686 to 699 W, nodes A and E of tests/data/heat and tests/data/power."""
_BUSY_SHARE = 0.1
"""Share of a step whose control periods draw most: what its highest power comes from."""
_HELD = int(Reason.POWER_CAP | Reason.SW_THERMAL | Reason.HW_THERMAL | Reason.POWER_BRAKE)


@dataclass(frozen=True)
class PowerPrediction:
    """Power and heat of a job; NaN where they are not known. The ends of intervals hold 90 %.

    Attributes:
        gpu_power_w: Mean of a GPU over the step.
        gpu_power_lo_w: Lower end.
        gpu_power_hi_w: Upper end.
        gpu_power_peak_w: Highest that an instantaneous sensor shows on a GPU.
        gpu_power_peak_lo_w: Lower end.
        gpu_power_peak_hi_w: Upper end.
        node_power_w: Mean of a node at the plug.
        gpu_temp_max_c: Highest of the hottest GPU's die, parts differing as they do.
        gpu_temp_max_lo_c: Lower end.
        gpu_temp_max_hi_c: Upper end.
        gpu_temp_c: Mean over GPUs and the step.
        gpu_temp_lo_c: Lower end.
        gpu_temp_hi_c: Upper end.
        sm_clock_mhz: The same of the clock.
        sm_clock_lo_mhz: Lower end.
        sm_clock_hi_mhz: Upper end.
        sm_clock_busy_mhz: The same of the clock while kernels run whose time goes with it.
        throttle_fraction: Share of GPU time in which clocks are held below the highest, 0 to 1.
        lost_to_power_limit_fraction: Share of the step that clocks below the highest cost, 0 to 1, where the power
            limit held the slowest GPU or its governor was still raising the clock.
        lost_to_heat_fraction: The same where heat did.
        lost_to_brake_fraction: The same where a power brake did.
        gpu_energy_per_token_j: Of all GPUs.
        gpu_energy_per_token_lo_j: Lower end.
        gpu_energy_per_token_hi_j: Upper end.
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


_RATE_SHARE = 0.6
"""Share of the deviation of a time that shows as one of rates; the rest is of work that was counted wrong with it.

Source: chosen with 152 rows of decoding on H100 (ml-energy/leaderboard) in view, of which 90 % intervals hold 93 % with
it. Errors of power go with errors of time by an exponent of 0.2 there, where rates alone would make some 0.6.
"""
_MOVING = ("tensor", "sm", "hbm", "link")
"""Parts of power that go with rates."""


def predict_power(warm: Warm[Any], interval_s: tuple[float, float], config: Path) -> PowerPrediction:
    """Return power and heat of a warm job.

    Args:
        warm: The job.
        interval_s: What the step's time is known to, 90 %; NaN where it is not. Unit: s.
        config: Folder of the configuration.
    """
    load, machine = warm.load, warm.machine
    mean_w = _mean(warm, warm.trace.power_w)
    # The same work in another time draws another power: times of inference are less certain than those of training.
    is_timed = isinstance(load, Training) or not interval_s[0] < interval_s[1]
    rate_sigma = 0.0 if is_timed else _RATE_SHARE * math.log(interval_s[1] / interval_s[0]) / (2.0 * Z90)
    sigma_w, step_s = _sigma_w(warm, rate_sigma), load.length_s
    energy_j = mean_w * load.job.num_gpus * step_s / load.num_tokens
    # A mean is above the limit only where the lowest clock draws more than that.
    low_w, high_w = mean_w - Z90 * sigma_w, max(mean_w, min(mean_w + Z90 * sigma_w, machine.power.power_limit.value))
    low, high = (
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
        **_lost(warm),
        gpu_energy_per_token_j=energy_j,
        gpu_energy_per_token_lo_j=energy_j / low,
        gpu_energy_per_token_hi_j=energy_j * high,
    )


def _mean(warm: Warm[Any], values: Float) -> float:
    """Return the mean over the step and the GPUs of a job of values of shape (num_periods, num_nodes, num_devices)."""
    return float(np.average(values.mean(axis=0), weights=warm.seats.weight))


def _peak(warm: Warm[Any], sigma: float) -> dict[str, float]:
    """Return the highest power with its interval; `sigma` is the relative deviation of that of busy periods."""
    machine, most_w = warm.machine, warm.machine.power.excursion_limit
    # Where brakes are pulled on all nodes no pass begins at the highest clock.
    begins_w = 0.0 if machine.braked.any(axis=1).all() else peak_w(warm)
    peak = max(float(warm.trace.power_w[:, warm.seats.weight > 0].max()), min(begins_w, most_w.value))
    high = min(peak * math.exp(Z90 * sigma), most_w.value + Z90 * most_w.sigma)
    return {
        "gpu_power_peak_w": peak,
        "gpu_power_peak_lo_w": peak * math.exp(-Z90 * sigma),
        "gpu_power_peak_hi_w": max(peak, high),
    }


def _temperatures(warm: Warm[Any], power_sigma: float) -> dict[str, float]:
    """Return the mean and the highest temperature with their intervals, from the relative deviation of mean power."""
    trace, machine, weight = warm.trace, warm.machine, warm.seats.weight
    power_w, rise_k = trace.power_w.mean(axis=0), (trace.temp_c - machine.inlet_c[:, None]).mean(axis=0)
    mean_c = _mean(warm, trace.temp_c)
    known_k = Z90 * math.hypot(
        mean_sigma_k(machine, power_w, weight), float(np.average(rise_k, weights=weight)) * power_sigma
    )
    hottest_c = float(warm.hottest_c(warm.load.job.num_gpus)[:, weight > 0].max())
    # Which part is hottest, and how badly it touches its sink, is made up.
    is_hottest = (rise_k == rise_k[weight > 0].max()) & (weight > 0)
    contact_k = machine.heat.resistance_spread.value * float(
        machine.devices.die[is_hottest].max() * power_w[is_hottest].max()
    )
    contact_k *= machine.cooled_by.die_resistance.value
    most_k = Z90 * math.hypot(
        mean_sigma_k(machine, power_w, is_hottest.astype(float)), contact_k, float(rise_k.max()) * power_sigma
    )
    shutdown_c = machine.heat.limits.shutdown_temperature.value
    return {
        "gpu_temp_c": mean_c,
        "gpu_temp_lo_c": mean_c - known_k,
        "gpu_temp_hi_c": mean_c + known_k,
        "gpu_temp_max_c": hottest_c,
        "gpu_temp_max_lo_c": hottest_c - most_k,
        "gpu_temp_max_hi_c": max(hottest_c, min(hottest_c + most_k, shutdown_c)),
    }


def _clocks(warm: Warm[Any], sigma: float) -> dict[str, float]:
    """Return mean clocks and throttling; `sigma` is the relative deviation of the power of busy periods."""
    mean_mhz, held = _mean(warm, warm.trace.clock_mhz), _mean(warm, (warm.trace.reasons & _HELD) != 0)
    table = warm.machine.table
    # Power that switching takes grows with the clock to this: V^2 f with the voltages of the GPU type.
    exponents = np.gradient(np.log(table.energy_share * table.share), np.log(table.share))
    known_mhz = Z90 * mean_mhz * sigma * held / float(exponents[table.nearest(mean_mhz)])
    return {
        "sm_clock_mhz": mean_mhz,
        "sm_clock_lo_mhz": mean_mhz - known_mhz,
        "sm_clock_hi_mhz": min(mean_mhz + known_mhz, warm.machine.power.clocks.max_clock.value),
        "sm_clock_busy_mhz": _busy_clock_mhz(warm),
        "throttle_fraction": held,
    }


def _busy_clock_mhz(warm: Warm[Any]) -> float:
    """Return the mean clock over the time that kernels take which go with it; NaN where none do."""
    clock_mhz, bound = warm.trace.clock_mhz, np.asarray(warm.profile.activity.clock_bound)
    bins = np.arange(len(clock_mhz)) * len(bound) // len(clock_mhz)
    weight = bound[bins][:, warm.seats.kind] * warm.seats.weight
    return float(np.average(clock_mhz, weights=weight)) if weight.any() else math.nan


def _lost(warm: Warm[Any]) -> dict[str, float]:
    """Return the shares of a step that lower clocks cost, by what held the slowest GPU."""
    trace = warm.trace
    number = len(trace.rate)
    slowest = trace.slowdown.reshape(number, -1).argmax(axis=1)
    reasons = trace.reasons.reshape(number, -1)[np.arange(number), slowest]
    lost = 1.0 - trace.rate
    is_braked = (reasons & int(Reason.POWER_BRAKE)) != 0
    is_hot = ((reasons & int(Reason.SW_THERMAL | Reason.HW_THERMAL)) != 0) & ~is_braked
    causes = {"power_limit": ~is_braked & ~is_hot, "heat": is_hot, "brake": is_braked}
    by_cause = {cause: float((lost * holds).mean()) for cause, holds in causes.items()}
    all_s = sum(by_cause.values())
    # What the step would gain, as the host and communication let it; causes share it by the time they held clocks.
    whole = all_s if math.isnan(warm.fastest_s) else max(1.0 - warm.fastest_s / warm.load.length_s, 0.0)
    scale = whole / all_s if all_s else 0.0
    return {f"lost_to_{cause}_fraction": scale * share for cause, share in by_cause.items()}


def nodes_power_w(warm: Warm[Any], node: NodePowerConfig) -> Float:
    """Return the power of every node at the plug in every control period; shape (num_periods, num_nodes). Unit: W.

    Args:
        warm: The job.
        node: What its nodes draw besides their GPUs.
    """
    gpus_w = warm.trace.power_w * warm.num_alike
    return node_power_w(node, gpus_w, warm.machine.fan_flow, warm.num_nics)


def plug_power_w(warm: Warm[Any], config: Path) -> tuple[float, float, float]:
    """Return power of nodes at the plug: mean, highest of one, highest of all together. Unit: W."""
    watts, weight = nodes_power_w(warm, node_power_of(warm.load.job.gpu, config)), warm.seats.weight.max(axis=1)
    return float(np.average(watts.mean(axis=0), weights=weight)), float(watts.max()), float((watts @ weight).max())


def _sigma_w(warm: Warm[Any], rate_sigma: float) -> float:
    """Return the standard deviation of the mean power: of what power is known to, and of how well limits are held.

    Args:
        warm: The job.
        rate_sigma: Relative standard deviation of the rates at which it works.
    """
    power, weight, activity = warm.machine.power, warm.seats.weight, warm.profile.activity
    kind, num_kinds = warm.seats.kind.reshape(-1), np.shape(activity.awake)[1]
    num_gpus = np.bincount(kind, weight.reshape(-1), num_kinds).astype(float)
    temp_c, highest = warm.trace.temp_c.mean(axis=0), power.clocks.max_clock.value
    sum_c = np.bincount(kind, (temp_c * weight).reshape(-1), num_kinds)
    kind_c, kind_weight = sum_c / np.maximum(num_gpus, 1e-12), num_gpus / weight.sum()
    is_free = gpu_power_w(power, activity, highest, kind_c) <= power.power_limit.value
    free = is_free.mean(axis=0)
    each = np.maximum(is_free.sum(axis=0), 1)
    columns = {part.name: np.asarray(getattr(activity, part.name)) for part in fields(activity)}
    mean = Activity(**{name: (column * is_free).sum(axis=0) / each for name, column in columns.items()})
    parts = power_parts(power, mean, highest, kind_c)
    held, rise = float((1.0 - free) @ kind_weight), power.clock_rise
    # How far below its limit a GPU stays goes with how slowly its governor raises clocks.
    is_capped = (warm.trace.reasons & int(Reason.POWER_CAP)) != 0
    capped_w = warm.trace.power_w[is_capped]
    below_w = max(power.power_limit.value - float(capped_w.mean()), 0.0) if capped_w.size else 0.0
    square = held**2 * ((power.power_limit.value * _HELD_SIGMA) ** 2 + (below_w * rise.sigma / rise.value) ** 2)
    moving_w = 0.0
    for part in fields(parts):
        known = getattr(power, part.name)
        own = float((np.broadcast_to(getattr(parts, part.name), free.shape) * free) @ kind_weight)
        square += (own * known.sigma / max(known.value, 1e-9)) ** 2
        moving_w += own if part.name in _MOVING else 0.0
    return math.hypot(math.sqrt(square), moving_w * rate_sigma)


def _busy_sigma(warm: Warm[Any]) -> float:
    """Return the relative standard deviation of the power of a step's busiest control periods, by its parameters."""
    power, activity = warm.machine.power, warm.profile.activity
    highest, temp_c = power.clocks.max_clock.value, power.leakage_temperature.value
    watts = gpu_power_w(power, activity, highest, temp_c).reshape(-1)
    busiest = watts >= np.quantile(watts, 1.0 - _BUSY_SHARE)
    parts = power_parts(power, activity, highest, temp_c)
    shape, square = np.shape(activity.awake), 0.0
    for part in fields(parts):
        known = getattr(power, part.name)
        own_w = float(np.broadcast_to(getattr(parts, part.name), shape).reshape(-1)[busiest].mean())
        square += (own_w * known.sigma / max(known.value, 1e-9)) ** 2
    return math.sqrt(square) / float(watts[busiest].mean())
