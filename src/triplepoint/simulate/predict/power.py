"""Power, heat and throttling of a job in balance, without going through time: the same model as simulated runs have.

Each pipeline stage is a few phases (kinds of passes, the update, the rest), each place in a node's air a resistance.
What the power limit takes is what the governor takes from stretches of the step; peaks and the highest temperature are
of phases, each at the highest clock that the limit leaves it.
"""

import math
from dataclasses import dataclass, fields
from pathlib import Path
from typing import NamedTuple

import numpy as np

from triplepoint.config.conditions import USUAL, ConditionsConfig
from triplepoint.simulate.costs import largest_of
from triplepoint.simulate.fabric import Fabric
from triplepoint.simulate.heat.job import is_known, node_power_of, power_at_limit, power_of
from triplepoint.simulate.heat.parameters import LimitConfig, read_heat
from triplepoint.simulate.operations import Kernel
from triplepoint.simulate.power.gpu import Activity, Float, gpu_power_w, power_parts, rate_at
from triplepoint.simulate.power.node import node_power_w
from triplepoint.simulate.power.parameters import PowerConfig, read_power
from triplepoint.simulate.power.step import Ran
from triplepoint.simulate.power.work import Workload, activity_of
from triplepoint.simulate.predict.governed import govern
from triplepoint.simulate.predict.phases import Phases, phases_of
from triplepoint.simulate.predict.places import Places, places_of

_WINDOW_S = 0.025
"""Window of an instantaneous power sensor (arXiv:2312.02741): what is shorter shows with what is around it."""
_INLET_SIGMA_K = 4.0
"""Inlets of public nodes, see `ConditionsConfig.inlet_temp_c`, span 18 to 37 degC; most lie within 20 to 28."""
_HELD_SIGMA = 0.01
"""Relative: GPUs at their limit of 700 W show 686 to 699 W, nodes A and E of tests/data/heat and tests/data/power."""
_Z90 = 1.645
_BALANCE_TURNS = 2


@dataclass(frozen=True)
class PowerPrediction:
    """Power and heat of a job; NaN where they are not known. The ends of intervals hold 90 %.

    Attributes:
        gpu_power_w: Mean of a GPU over the step.
        gpu_power_lo_w: Lower end.
        gpu_power_hi_w: Upper end.
        gpu_power_peak_w: Highest that an instantaneous sensor shows on a GPU.
        node_power_w: Mean of a node at the plug.
        gpu_temp_max_c: Highest of the hottest GPU's die, parts differing as they do.
        gpu_temp_max_lo_c: Lower end.
        gpu_temp_max_hi_c: Upper end.
        throttle_fraction: Share of GPU time in which clocks are held below the highest, 0 to 1.
        gpu_energy_per_token_j: Of all GPUs.
        gpu_energy_per_token_lo_j: Lower end.
        gpu_energy_per_token_hi_j: Upper end.
    """

    gpu_power_w: float = math.nan
    gpu_power_lo_w: float = math.nan
    gpu_power_hi_w: float = math.nan
    gpu_power_peak_w: float = math.nan
    node_power_w: float = math.nan
    gpu_temp_max_c: float = math.nan
    gpu_temp_max_lo_c: float = math.nan
    gpu_temp_max_hi_c: float = math.nan
    throttle_fraction: float = math.nan
    gpu_energy_per_token_j: float = math.nan
    gpu_energy_per_token_lo_j: float = math.nan
    gpu_energy_per_token_hi_j: float = math.nan


class Repeated(NamedTuple):
    """What GPUs do over and over.

    Attributes:
        time_s: Of once. Unit: s.
        num_tokens: That energy is counted by.
        phases: What it is made of; all but the last are passes with operations.
    """

    time_s: float
    num_tokens: int
    phases: Phases


def predict_power(
    ran: Ran, interval_s: tuple[float, float], config: Path, conditions: ConditionsConfig = USUAL
) -> PowerPrediction:
    """Return power and heat of a job on sound GPUs.

    Args:
        ran: Its step.
        interval_s: What the step's time is known to, 90 %; NaN where it is not. Unit: s.
        config: Folder of the configuration.
        conditions: Of the cluster; faults of single GPUs and nodes do not count.
    """
    job = ran.job
    if not is_known(job.gpu, config):
        return PowerPrediction()
    workload = Workload(job, ran.time_of)
    phases = phases_of(ran, workload, read_power(job.gpu.name, config).polling_share.value)
    step = Repeated(ran.timeline.step_time_s, job.global_batch_size * job.sequence_length, phases)
    return power_in_balance(step, workload, interval_s, config, conditions)


def power_in_balance(
    step: Repeated,
    workload: Workload,
    interval_s: tuple[float, float],
    config: Path,
    conditions: ConditionsConfig = USUAL,
) -> PowerPrediction:
    """Return power and heat of sound GPUs of a known type that do a step over and over.

    Args:
        step: What they do.
        workload: Work of the job's operations.
        interval_s: What the step's time is known to, 90 %; NaN where it is not. Unit: s.
        config: Folder of the configuration.
        conditions: Of the cluster; faults of single GPUs and nodes do not count.
    """
    job, step_s = workload.job, step.time_s
    power = power_of(conditions, job.gpu, config)
    places = places_of(job.gpu, job.fabric.gpus_per_node, config, conditions.coolant, conditions.airflow)
    limits = read_heat(job.gpu.name, config).limits
    balance = _Balance(power, places, step.phases, conditions.inlet_temp_c, limits)
    found, sigma_w = balance.mean_w, balance.sigma_w
    temp, sigma_k = balance.hottest_c(job.num_gpus), balance.temp_sigma_k(sigma_w)
    each = np.full(min(job.fabric.gpus_per_node, job.num_gpus), found)
    energy = found * job.num_gpus * step_s / step.num_tokens
    # A mean is never above the limit.
    low_w, high_w = found - _Z90 * sigma_w, min(found + _Z90 * sigma_w, power.power_limit.value)
    low, high = (
        math.exp(math.hypot(end_w / found - 1.0, math.log(end_s / step_s)))
        for end_w, end_s in zip((low_w, high_w), interval_s, strict=True)
    )
    return PowerPrediction(
        gpu_power_w=found,
        gpu_power_lo_w=low_w,
        gpu_power_hi_w=high_w,
        gpu_power_peak_w=balance.peak_w(workload),
        node_power_w=float(node_power_w(node_power_of(job.gpu, config), each, temp, _num_nics(job.fabric))),
        gpu_temp_max_c=temp,
        gpu_temp_max_lo_c=temp - _Z90 * sigma_k,
        gpu_temp_max_hi_c=temp + _Z90 * sigma_k,
        throttle_fraction=balance.throttle_fraction,
        gpu_energy_per_token_j=energy,
        gpu_energy_per_token_lo_j=energy / low,
        gpu_energy_per_token_hi_j=energy * high,
    )


def _num_nics(fabric: Fabric) -> int:
    """Return how many network adapters a node has: one a GPU, unless GPUs share them."""
    for level in fabric.levels:
        if level.num_gpus > fabric.gpus_per_node and level.single:
            return max(1, round(fabric.gpus_per_node * level.bandwidth / level.single))
    return fabric.gpus_per_node


class _Balance:
    """Power and temperature of all phases, in balance; shape (num_stages, num_phases, num_places)."""

    def __init__(self, power: PowerConfig, places: Places, phases: Phases, inlet_c: float, limits: LimitConfig) -> None:
        """Find it."""
        self._power, self._places, self._phases, self._inlet_c = power, places, phases, inlet_c
        self._weight = phases.seconds / phases.seconds.sum(axis=1, keepdims=True)
        found = activity_of(phases.work, phases.seconds)
        self._activity = Activity(
            **{part.name: np.asarray(getattr(found, part.name))[..., None] for part in fields(found)}
        )
        self._temp_c: Float = np.full((len(phases.seconds), 1, len(places.share)), power.leakage_temperature.value)
        for _ in range(_BALANCE_TURNS):
            self._share, self._watts = power_at_limit(self._activity, power, self._temp_c)
            self._stage_w = (self._watts * self._weight[..., None]).sum(axis=1, keepdims=True)
            self._temp_c = inlet_c + places.resistance * self._stage_w
        self._held_share = (self._weight[..., None] * self._is_held()).sum(axis=1)
        if phases.stretches is not None:
            lost_w, self._held_share = govern(phases.stretches, power, limits, self._temp_c[:, 0])
            free_w = gpu_power_w(power, self._activity, power.clocks.max_clock.value, self._temp_c)
            self._stage_w = ((free_w * self._weight[..., None]).sum(axis=1) - lost_w)[:, None]

    @property
    def mean_w(self) -> float:
        """Mean power of a GPU."""
        return float((self._stage_w @ self._places.share).mean())

    @property
    def throttle_fraction(self) -> float:
        """Share of GPU time under the power limit."""
        return float((self._held_share @ self._places.share).mean())

    def _is_held(self) -> np.ndarray:
        return np.asarray(self._share < 0.999)

    @property
    def sigma_w(self) -> float:
        """Standard deviation of the mean power, of what power is known to; the limit is held to `_HELD_SIGMA`."""
        clock = self._share * self._power.clocks.max_clock.value
        parts = power_parts(self._power, self._activity, clock, self._temp_c)
        free = self._weight[..., None] * ~self._is_held()
        held = float(((self._weight[..., None] - free) * self._watts).sum(axis=1).mean(axis=0) @ self._places.share)
        square = (held * _HELD_SIGMA) ** 2
        for part in fields(parts):
            known = getattr(self._power, part.name)
            own = (np.broadcast_to(getattr(parts, part.name), free.shape) * free).sum(axis=1) @ self._places.share
            square += (float(own.mean()) * known.sigma / max(known.value, 1e-9)) ** 2
        return math.sqrt(square)

    def hottest_c(self, num_gpus: int) -> float:
        """Return the highest die temperature: of the worst place and part, in the phase that takes most."""
        places = self._places
        follows = -np.expm1(-self._phases.once_s / places.die_time_s)[..., None]
        swing = places.die * follows * (self._watts - self._stage_w)
        worst = 1.0 + places.spread * largest_of(num_gpus)
        return float(self._inlet_c + ((places.resistance * self._stage_w + swing) * worst).max())

    def temp_sigma_k(self, sigma_w: float) -> float:
        """Return the standard deviation of the highest temperature."""
        rise = float((self._places.resistance * self._stage_w).max())
        return math.hypot(_INLET_SIGMA_K, rise * self._places.sigma, rise * sigma_w / self.mean_w)

    def peak_w(self, workload: Workload) -> float:
        """Return the highest power over a sensor's window: a pass, or a kernel with its pass where it is shorter."""
        # Governors follow the mean of short passes and the gaps between them, and any pass only once it has begun.
        part = np.minimum(self._phases.once_s / _WINDOW_S, 1.0)[..., None]
        around = self._watts.copy()
        # Passes are among passes, an update is by itself.
        around[:, 2:] = self._stage_w
        begins = part * self._alone_w(self._onset_share()) + (1.0 - part) * around
        passes = begins[:, :3].max(axis=2)
        # Of the stage that takes most and of the last one, which has the largest product of all.
        stages = {int(passes.max(axis=1).argmax()), len(passes) - 1}
        operations = self._phases.operations
        bursts = [
            self._burst_w(workload, stage, phase) for stage in stages for phase in range(len(operations[stage][:2]))
        ]
        return max(float(passes.max()), *bursts)

    def _alone_w(self, share: Float) -> Float:
        """Return the power of every phase without the gaps between passes, at shares of the highest clock."""
        phases = self._phases
        found = activity_of(phases.alone, phases.alone_s)
        own = Activity(**{part.name: np.asarray(getattr(found, part.name))[..., None] for part in fields(found)})
        if len(phases.seconds) == 1:
            bound = np.asarray(own.clock_bound)
            own = own.at_rate(rate_at(share, bound) / rate_at(self._share, bound))
        # In a pipeline other stages are held meanwhile, and all go at the speed of the slowest, as in the closed loop.
        return gpu_power_w(self._power, own, share * self._power.clocks.max_clock.value, self._temp_c)

    def _onset_share(self) -> Float:
        """Return the share of the highest clock that phases begin with: all of it, after one that no limit held."""
        is_seen = (self._phases.once_s >= _WINDOW_S)[..., None]
        has_rest = (~self._is_held() & is_seen).any(axis=1, keepdims=True)
        return np.asarray(np.where(has_rest & is_seen, 1.0, self._share))

    def _burst_w(self, workload: Workload, stage: int, phase: int) -> float:
        operations = self._phases.operations[stage][phase]
        kernels = [one for one in operations if isinstance(one, Kernel)]
        if not kernels:
            return 0.0
        work = np.array([workload.each(one) for one in kernels])
        time_s = np.maximum(work[:, 0], 1e-12)
        place = int(np.argmin(self._share[stage, phase]))
        share, temp_c = float(self._share[stage, phase, place]), float(self._temp_c[stage, 0, place])
        alone = activity_of(work, time_s)
        own_share, _ = power_at_limit(alone, self._power, temp_c)
        # Tables were measured where the limit holds the clock of the kernel alone; here it runs at that of its phase.
        bound = alone.clock_bound * own_share / (alone.clock_bound * own_share + 1.0 - np.asarray(alone.clock_bound))
        faster = rate_at(share, bound) / rate_at(own_share, bound)
        clock = share * self._power.clocks.max_clock.value
        watts = gpu_power_w(self._power, alone.at_rate(faster), clock, temp_c)
        part = np.minimum(time_s / _WINDOW_S, 1.0)
        return float((part * watts + (1.0 - part) * self._watts[stage, phase, place]).max())
