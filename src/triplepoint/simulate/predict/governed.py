"""What the power limit makes of a step: the governor of simulated runs, on stretches of the step spread over it.

A governor sees control periods, and takes some of them to find a clock. So it sees short passes with the gaps between
them and long ones apart, and how much it takes from a pass hangs on what came before.
"""

from dataclasses import fields
from typing import NamedTuple

import numpy as np

from triplepoint.simulate.heat.clocks import Governor, free_clocks
from triplepoint.simulate.heat.job import num_bins, power_at_limit
from triplepoint.simulate.heat.parameters import LimitConfig
from triplepoint.simulate.power.gpu import Activity, Float, clock_table, power_parts
from triplepoint.simulate.power.parameters import PowerConfig
from triplepoint.simulate.power.work import activity_of
from triplepoint.simulate.timeline.schedule import FORWARD
from triplepoint.simulate.timeline.tasks import Timeline

_LEAD, _KEPT = 4, 4
"""Control periods of a stretch in which the governor finds its clock, and those that count."""
_NUM_STRETCHES, _FEWEST = 128, 8
"""Of all stages together, and of each at least."""
_GOLDEN = 0.6180339887498949
"""Multiples of it, less whole numbers, lie evenly apart and repeat nothing: stretches do not go with passes."""


class Stretches(NamedTuple):
    """What runs on stages in control periods, one after the other.

    Attributes:
        activity: Shape (num_periods, num_stages * num_stretches, 1), those of a stage together.
        num_stages: Pipeline stages.
        period_s: Control period. Unit: s.
    """

    activity: Activity
    num_stages: int
    period_s: float


class Governed(NamedTuple):
    """What the limit takes, mean over the step; shape (num_stages, num_places).

    Attributes:
        lost_w: Power at the highest clock, less that at the governor's. Unit: W.
        held_share: Share of the time in which clocks are held below the highest, 0-1.
    """

    lost_w: Float
    held_share: Float


def stretches_of(timeline: Timeline, seconds: Float, work: Float) -> Stretches:
    """Return stretches of a step.

    Args:
        timeline: Of the step.
        seconds: Of forward passes, backward passes, the update and the rest, of every stage; shape (num_stages, 4).
            Unit: s.
        work: In that time; shape (num_stages, 4, len(UNITS)). Unit: s.
    """
    step_s, (num_stages, num_phases) = timeline.step_time_s, seconds.shape
    # Simulated runs know what runs by bins of a control period, and a period lies over two of them.
    bins = np.linspace(0.0, step_s, num_bins(step_s) + 1)
    number = np.arange(max(_FEWEST, _NUM_STRETCHES // num_stages))
    periods = bins[1] * np.arange(-_LEAD, _KEPT + 1)[:, None]
    share = np.zeros((_LEAD + _KEPT, num_stages, len(number), num_phases))
    for stage in range(num_stages):
        first = (number + (stage * len(number) + number) * _GOLDEN % 1.0) * step_s / len(number)
        steps, within = np.divmod(first + periods, step_s)
        edges, lengths = _pieces(timeline, stage, float(seconds[stage, 2]))
        for phase, length in enumerate(lengths):
            total = np.concatenate([[0.0], np.cumsum(length)])
            done = steps * total[-1] + np.interp(within, bins, np.interp(bins, edges, total))
            share[:, stage, :, phase] = np.diff(done, axis=0) / bins[1]
    share[..., -1] = np.maximum(1.0 - share.sum(axis=-1), 0.0)
    rate = work / np.maximum(seconds, 1e-12)[..., None]
    found = activity_of(np.einsum("nswp,spu->nswu", share, rate).reshape(len(share), -1, 1, work.shape[-1]), 1.0)
    return Stretches(found, num_stages, float(bins[1]))


def _pieces(timeline: Timeline, stage: int, optimizer_s: float) -> tuple[Float, list[Float]]:
    """Return borders in a step of a stage, and how much of forward passes, backward passes and update lie between."""
    start, end = timeline.start[stage, :, 0], timeline.end[stage, :, 0]
    begin = timeline.optimizer_start
    edges = np.concatenate([[0.0], np.stack([start, end], axis=1).reshape(-1), [begin, begin + optimizer_s]])
    is_forward = timeline.order.kind[stage] == FORWARD
    lengths = np.zeros((3, len(edges) - 1))
    lengths[0, 1:-2:2], lengths[1, 1:-2:2] = ((end - start) * own for own in (is_forward, ~is_forward))
    lengths[2, -1] = optimizer_s
    return edges, list(lengths)


def _period(stretches: Stretches, index: int) -> Activity:
    return Activity(**{part.name: getattr(stretches.activity, part.name)[index] for part in fields(Activity)})


def govern(stretches: Stretches, power: PowerConfig, limits: LimitConfig, temp_c: Float) -> Governed:
    """Return what the governor makes of stretches of a step.

    Args:
        stretches: Of the step.
        power: Of the GPU type, with the limit.
        limits: Temperatures of its clocks.
        temp_c: Dies; shape (num_stages, num_places). Unit: degC.
    """
    table, num_rows = clock_table(power.clocks), np.shape(stretches.activity.awake)[1]
    warm_c = np.repeat(temp_c, num_rows // len(temp_c), axis=0)
    governor = Governor(table, limits, np.zeros((1, 1), dtype=np.bool_), stretches.period_s)
    clocks = free_clocks(table, (num_rows, temp_c.shape[1]))
    # What came before a stretch was most likely what it begins with.
    share, _ = power_at_limit(_period(stretches, 0), power, warm_c)
    clocks.asked = np.interp(share, table.share, np.arange(len(table.mhz)))
    clocks.place = clocks.asked.astype(np.int64)
    lost, held = np.zeros(warm_c.shape), np.zeros(warm_c.shape)
    for index in range(_LEAD + _KEPT):
        now = _period(stretches, index)
        parts = power_parts(power, now, table.mhz[clocks.place], warm_c)
        if index >= _LEAD:
            free = power_parts(power, now, table.mhz[-1], warm_c)
            lost += (free.total - parts.total) / _KEPT
            held += (clocks.asked < len(table.mhz) - 1) / _KEPT
        movable = parts.total - parts.base - parts.memory - parts.link
        governor.steer(clocks, power.power_limit.value - parts.total, movable, warm_c, -np.inf)
    shape = (stretches.num_stages, -1, temp_c.shape[1])
    return Governed(lost.reshape(shape).mean(axis=1), held.reshape(shape).mean(axis=1))
