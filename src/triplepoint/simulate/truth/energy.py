"""Energy of a simulated GPU by what it did: power in a control period is the sum of parts, each of which has a cause.

Power at rest and leakage go with time. What switching and memory draw goes with the work that was done in it, and the
clock tree with the time a kernel ran, by the same equation as the power itself (`simulate.power.gpu`).
"""

from typing import NamedTuple

import numpy as np

from triplepoint.simulate.artefacts.groups import split_sync
from triplepoint.simulate.artefacts.simulated import Heated, Simulated, ns
from triplepoint.simulate.power.gpu import Float, data_share, leakage_w
from triplepoint.simulate.power.parameters import PowerConfig
from triplepoint.simulate.power.work import UNITS, Workload
from triplepoint.simulate.timeline.schedule import operations_by_task
from triplepoint.simulate.truth.spans import LABELS, Spans
from triplepoint.units import NS_PER_S

_COMPUTES = np.array([label.category == "compute" for label in LABELS])


class Spent(NamedTuple):
    """What a GPU did in each control period of a step; shapes (num_periods, len(LABELS)).

    Attributes:
        time_s: Time. Unit: s.
        switched_j: Energy of switching at the highest voltage. Unit: J.
        moved_j: Energy of bytes in memory and on links. Unit: J.
        clocked_j: Energy of the clock tree at the highest clock and voltage. Unit: J.
    """

    time_s: Float
    switched_j: Float
    moved_j: Float
    clocked_j: Float


def spent(simulated: Simulated, heated: Heated, place: tuple[int, int], spans: Spans, num_periods: int) -> Spent:
    """Return what the GPUs of a place did.

    Args:
        simulated: The step.
        heated: With power and heat.
        place: Stage and class of replica.
        spans: Of these GPUs.
        num_periods: Control periods that the step is cut into, all of one length; need not be a whole number of it.
    """
    edges = np.linspace(0.0, float(spans.border[-1]), num_periods + 1)
    cells = np.union1d(edges, spans.border)
    span = np.searchsorted(spans.border, cells[:-1], side="right") - 1
    share = spans.part / np.maximum(np.diff(spans.border), 1)[:, None]
    time_s = share[span] * (np.diff(cells) / NS_PER_S)[:, None]
    power, workload = heated.machine.power, heated.warm.load.workload
    passes, between = _work(simulated, place, spans, workload)
    of_pass = passes[span] * (np.diff(cells) / np.diff(spans.border)[span])[:, None]
    aside = np.stack([np.diff(_until(cells, *between, unit)) for unit in range(len(UNITS))], axis=1)
    polling = power.polling_share.value if simulated.job.num_gpus > 1 else 0.0
    columns = [time_s, *_energies(power, time_s, of_pass, aside, polling)]
    period = np.minimum(np.searchsorted(edges, cells[:-1], side="right") - 1, num_periods - 1)
    summed = [np.zeros((num_periods, len(LABELS))) for _ in columns]
    for sums, column in zip(summed, columns, strict=True):
        np.add.at(sums, period, column)
    return Spent(*summed)


def _energies(power: PowerConfig, time_s: Float, of_pass: Float, aside: Float, polling: float) -> list[Float]:
    """Return energies as in `Spent` of cells in which nothing changes.

    Kernels of a pass are its computation; what communication moves is divided by time; waiting is polling.
    """
    length = time_s.sum(axis=1, keepdims=True)
    even = np.divide(time_s, length, out=np.zeros_like(time_s), where=length > 0.0)
    computing = np.where(_COMPUTES, time_s, 0.0)
    waiting = time_s - computing
    own, idle = (_normalised(part, even) for part in (computing, waiting))
    awake, tensor, sm, hbm, link, _ = of_pass.T[..., None]
    data = float(data_share(power, 1.0))
    switched = (power.tensor.value * tensor + power.sm.value * sm) * data * own
    moved = power.hbm.value * hbm * data * own + power.link.value * link * even
    moved = moved + (power.hbm.value * aside[:, 3:4] * data + power.link.value * aside[:, 4:5]) * even
    awake = np.minimum(awake, length)
    clocked = power.clock_tree.value * (awake * own + polling * (length - awake) * idle)
    return [switched, moved, clocked]


def _normalised(part: Float, otherwise: Float) -> Float:
    whole = part.sum(axis=1, keepdims=True)
    return np.where(whole > 0.0, part / np.where(whole > 0.0, whole, 1.0), otherwise)


def _until(time_ns: Float, start: Float, end: Float, amount: Float, unit: int) -> Float:
    """Return how much was done until some times, of what flows evenly from start to end; shape (num_times,)."""
    rate = amount[:, unit] / np.maximum(end - start, 1.0)
    at, change = np.concatenate([start, end]), np.concatenate([rate, -rate])
    order = np.argsort(at, kind="stable")
    at, change = at[order], change[order]
    if not len(at):
        return np.zeros_like(time_ns)
    done = np.concatenate([[0.0], np.cumsum(np.cumsum(change)[:-1] * np.diff(at))])
    return np.asarray(np.interp(time_ns, at, done))


def _work(
    simulated: Simulated, place: tuple[int, int], spans: Spans, workload: Workload
) -> tuple[Float, tuple[Float, Float, Float]]:
    """Return the work of every span that is part of a pass, and start, end and work of what runs aside of them."""
    stage, which = place
    timeline, order, work = simulated.timeline, simulated.timeline.order, simulated.stages[stage]
    passes = np.zeros((order.num_tasks + 2, len(UNITS)))
    for task, (kind, chunk) in enumerate(zip(order.kind[stage].tolist(), order.chunk[stage].tolist(), strict=True)):
        passes[task] = workload.of_all(operations_by_task(work.chunks[chunk], order.is_split)[kind])
    passes[order.num_tasks] = workload.of(work.optimizer)
    # A span that is part of a pass has its share of the work; place -1 is the last row, of no work.
    length = np.bincount(spans.task + 1, np.diff(spans.border), order.num_tasks + 2)
    share = np.diff(spans.border) / np.maximum(length[spans.task + 1], 1.0)
    gathers, reductions, after = (workload.of(tuple(part)) for part in split_sync(work))
    gathered = float(timeline.durations.gather_overlapped[stage].sum())
    synced = np.concatenate([[[0.0, gathered]], timeline.sync[stage], timeline.final_sync[stage : stage + 1]])
    aside = [(synced, np.stack([gathers * order.num_chunks, *[reductions] * order.num_chunks, after]))]
    if order.num_stages > 1:
        times = np.stack([timeline.sent[:, :, which], timeline.arrival[:, :, which]], axis=-1).reshape(-1, 2)
        sends = np.flatnonzero(order.is_sent[stage]) + stage * order.num_tasks
        both = np.concatenate([sends, order.needs[stage][order.needs[stage] >= 0]])
        num_bytes = max(chunk.send_bytes for each in simulated.stages for chunk in each.chunks)
        is_inside = simulated.job.mesh.ranks_per_stage < simulated.job.fabric.gpus_per_node
        aside.append((times[both], np.tile(workload.sent(num_bytes, is_inside), (len(both), 1))))
    times, amount = (np.concatenate(column) for column in zip(*aside, strict=True))
    start, end = (ns(column).astype(float) for column in times.T)
    return passes[spans.task] * share[:, None], (start, end, amount)


def energy_j(heated: Heated, node: int, device: int, did: Spent) -> Float:
    """Return the energy of a step of one device, by label; the sum is what its energy counter counts. Unit: J.

    Args:
        heated: Power and heat.
        node: Node.
        device: Device of the node.
        did: What the device did in the control periods of a step.
    """
    power, trace, machine = heated.machine.power, heated.trace, heated.machine
    watts, clock, warm = (column[:, node, device] for column in (trace.power_w, trace.clock_mhz, trace.temp_c))
    place = machine.table.nearest(clock)
    voltage, share = machine.table.energy_share[place][:, None], machine.table.share[place][:, None]
    still = power.base.value + power.memory_idle.value + leakage_w(power, clock, warm) * _factor(heated, node, device)
    whole = (watts * trace.period_s)[:, None]
    num_steps = max(1, round(len(watts) / len(did.time_s)))
    spent_by_period = [np.tile(column, (num_steps, 1))[: len(watts)] for column in did]
    time_s, switched, moved, clocked = spent_by_period
    at_rest = time_s * still[:, None] + clocked * voltage * share
    work = switched * voltage + moved
    # Work goes as fast as the job does in the period.
    left = np.maximum(whole - at_rest.sum(axis=1, keepdims=True), 0.0)
    done = work.sum(axis=1, keepdims=True)
    energy = at_rest + work * np.divide(left, done, out=np.zeros_like(left), where=done > 0.0)
    energy *= whole / np.maximum(energy.sum(axis=1, keepdims=True), 1e-12)
    return np.asarray(energy.sum(axis=0) / num_steps)


def _factor(heated: Heated, node: int, device: int) -> float:
    """Return the leakage of a device over the type's."""
    leakage = np.broadcast_to(heated.machine.devices.leakage, heated.machine.shape)
    return float(leakage[node, device])
