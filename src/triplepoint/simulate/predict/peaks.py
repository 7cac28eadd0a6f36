"""The highest power that a sensor shows on a GPU: of passes that begin, updates, and kernels shorter than a window."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from triplepoint.simulate.heat.warm import Warm
from triplepoint.simulate.operations import Kernel
from triplepoint.simulate.power.gpu import Activity, Float, gpu_power_w, power_at_limit, rate_at
from triplepoint.simulate.power.load import Load
from triplepoint.simulate.power.parameters import PowerConfig
from triplepoint.simulate.power.phases import Phases
from triplepoint.simulate.power.work import activity_of

_WINDOW_S = 0.025
"""Window of an instantaneous power sensor (arXiv:2312.02741): what is shorter shows with what is around it."""


def peak_w(warm: Warm[Any]) -> float:
    """Return the highest power over a sensor's window: a pass, or a kernel with its pass where it is shorter.

    Governors follow the mean of short passes and the gaps between them, and any pass only once it has begun.
    """
    power, seats = warm.machine.power, warm.seats
    stages = np.unique(seats.stage[seats.stage >= 0])
    mean_w, mean_c = warm.trace.power_w.mean(axis=0), warm.trace.temp_c.mean(axis=0)
    stage_w = np.array([mean_w[seats.stage == stage].mean() for stage in stages])
    temp_c = np.array([mean_c[seats.stage == stage].max() for stage in stages])[:, None]
    phases = warm.load.phases(stages.tolist(), power.polling_share.value)
    found = _Balance(power, phases, temp_c, *power_at_limit(power, activity_of(phases.work, phases.seconds), temp_c))
    part = np.minimum(phases.once_s / _WINDOW_S, 1.0)
    around = found.watts.copy()
    # Passes are among passes, an update is by itself.
    around[:, 2:] = stage_w[:, None]
    begins = (part * _alone_w(found) + (1.0 - part) * around)[:, :3]
    # Of the stage that draws most and of the last one, which has the largest GEMM of all.
    likely = {int(begins.max(axis=1).argmax()), len(stages) - 1}
    bursts = [_burst_w(found, warm.load, stage, phase) for stage in likely for phase in range(min(2, found.num_kinds))]
    return max(float(begins.max()), *bursts)


@dataclass(frozen=True)
class _Balance:
    """Phases at the clocks that the power limit leaves each; arrays of shape (num_stages, num_phases)."""

    power: PowerConfig
    phases: Phases
    temp_c: Float
    share: Float
    watts: Float

    @property
    def num_kinds(self) -> int:
        """Phases with operations."""
        return len(self.phases.operations[0])


def _alone_w(found: _Balance) -> Float:
    """Return the power of every phase as it begins, without the gaps between passes."""
    phases, power, share = found.phases, found.power, _onset_share(found)
    own: Activity = activity_of(phases.alone, phases.alone_s)
    if len(phases.seconds) == 1:
        bound = np.asarray(own.clock_bound)
        own = own.at_rate(rate_at(share, bound) / rate_at(found.share, bound))
    # In a pipeline other stages are throttled meanwhile, and all go at the speed of the slowest, as in the closed loop.
    return gpu_power_w(power, own, share * power.clocks.max_clock.value, found.temp_c)


def _onset_share(found: _Balance) -> Float:
    """Return the share of the highest clock that phases begin with: all of it, after one that no limit throttled."""
    is_seen = found.phases.once_s >= _WINDOW_S
    has_rest = ((found.share >= 1.0) & is_seen).any(axis=1, keepdims=True)
    return np.asarray(np.where(has_rest & is_seen, 1.0, found.share))


def _burst_w(found: _Balance, load: Load, stage: int, phase: int) -> float:
    """Return the highest power over a window of one kernel with the rest of its phase around it."""
    power, highest = found.power, found.power.clocks.max_clock.value
    kernels = [one for one in found.phases.operations[stage][phase] if isinstance(one, Kernel)]
    if not kernels:
        return 0.0
    work = np.array([load.workload.each(one) for one in kernels])
    time_s = np.maximum(work[:, 0], 1e-12)
    share, temp_c = float(found.share[stage, phase]), float(found.temp_c[stage, 0])
    alone = activity_of(work, time_s)
    own_share, _ = power_at_limit(power, alone, temp_c)
    # Tables were measured where the limit holds the clock of the kernel alone; here it runs at that of its phase.
    bound = alone.clock_bound * own_share / (alone.clock_bound * own_share + 1.0 - np.asarray(alone.clock_bound))
    faster = rate_at(share, bound) / rate_at(own_share, bound)
    watts = gpu_power_w(power, alone.at_rate(faster), share * highest, temp_c)
    part = np.minimum(time_s / _WINDOW_S, 1.0)
    return float((part * watts + (1.0 - part) * found.watts[stage, phase]).max())
