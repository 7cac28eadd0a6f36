"""Peak power of a GPU as an instantaneous sensor shows it: of passes as they begin, updates and single kernels."""

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
"""Window over which an instantaneous power sensor averages (arXiv:2312.02741). Unit: s."""


def peak_w(warm: Warm[Any]) -> float:
    """Return the highest mean power over a window of the sensor. Unit: W.

    Candidates are passes and updates as they begin, before the governor has lowered the clock, and single kernels with
    the rest of their pass around them. Governors follow the mean of short passes and of the gaps between them.
    """
    power, seats = warm.machine.power, warm.seats
    stages = np.unique(seats.stage[seats.stage >= 0])
    mean_w, mean_c = warm.trace.power_w.mean(axis=0), warm.trace.temp_c.mean(axis=0)
    stage_w = np.array([mean_w[seats.stage == stage].mean() for stage in stages])
    temp_c = np.array([mean_c[seats.stage == stage].max() for stage in stages])[:, None]
    phases = warm.load.phases(stages.tolist(), power.polling_share.value)
    governed = _Governed(
        power, phases, temp_c, *power_at_limit(power, activity_of(phases.work, phases.seconds), temp_c)
    )
    window_share = np.minimum(phases.once_s / _WINDOW_S, 1.0)
    around_w = governed.watts.copy()
    # Other passes are around a pass; around an update is the rest of the step.
    around_w[:, 2:] = stage_w[:, None]
    onset_w = (window_share * _onset_w(governed) + (1.0 - window_share) * around_w)[:, :3]
    # Kernels of two stages only: the one that draws most, and the last one, which has the largest GEMM.
    candidates = {int(onset_w.max(axis=1).argmax()), len(stages) - 1}
    num_phases = min(2, len(phases.operations[0]))
    kernels_w = [_kernel_w(governed, warm.load, stage, phase) for stage in candidates for phase in range(num_phases)]
    return max(float(onset_w.max()), *kernels_w)


@dataclass(frozen=True)
class _Governed:
    """Phases at the clocks that the power limit allows.

    Attributes:
        power: Power parameters of the GPU type.
        phases: Work of the stages by phase.
        temp_c: Highest die temperature of every stage; shape (num_stages, 1). Unit: degC.
        share: Clock over the highest clock; shape (num_stages, num_phases).
        watts: Power; same shape. Unit: W.
    """

    power: PowerConfig
    phases: Phases
    temp_c: Float
    share: Float
    watts: Float


def _onset_w(governed: _Governed) -> Float:
    """Return the power of every phase as it begins, without the gaps between passes. Unit: W."""
    phases, power, share = governed.phases, governed.power, _onset_share(governed)
    activity: Activity = activity_of(phases.alone, phases.alone_s)
    if len(phases.seconds) == 1:
        bound = np.asarray(activity.clock_bound)
        activity = activity.at_rate(rate_at(share, bound) / rate_at(governed.share, bound))
    # In a pipeline the other stages are throttled meanwhile, and all go at the speed of the slowest: no higher rate.
    return gpu_power_w(power, activity, share * power.clocks.max_clock.value, governed.temp_c)


def _onset_share(governed: _Governed) -> Float:
    """Return the clock over the highest with which phases begin: 1 for a visible phase if one runs unthrottled."""
    is_visible = governed.phases.once_s >= _WINDOW_S
    has_rest = ((governed.share >= 1.0) & is_visible).any(axis=1, keepdims=True)
    return np.asarray(np.where(has_rest & is_visible, 1.0, governed.share))


def _kernel_w(governed: _Governed, load: Load, stage: int, phase: int) -> float:
    """Return the highest mean power over a window with one kernel and the rest of its phase around it. Unit: W."""
    power, highest_mhz = governed.power, governed.power.clocks.max_clock.value
    kernels = [operation for operation in governed.phases.operations[stage][phase] if isinstance(operation, Kernel)]
    if not kernels:
        return 0.0
    work = np.array([load.workload.each(kernel) for kernel in kernels])
    time_s = np.maximum(work[:, 0], 1e-12)
    share, temp_c = float(governed.share[stage, phase]), float(governed.temp_c[stage, 0])
    activity = activity_of(work, time_s)
    alone_share, _ = power_at_limit(power, activity, temp_c)
    # Kernel times were measured at the clock that the power limit allows the kernel alone; here it runs at the clock of
    # its phase.
    clock_bound = np.asarray(activity.clock_bound)
    bound = clock_bound * alone_share / (clock_bound * alone_share + 1.0 - clock_bound)
    speed_up = rate_at(share, bound) / rate_at(alone_share, bound)
    watts = gpu_power_w(power, activity.at_rate(speed_up), share * highest_mhz, temp_c)
    window_share = np.minimum(time_s / _WINDOW_S, 1.0)
    return float((window_share * watts + (1.0 - window_share) * governed.watts[stage, phase]).max())
