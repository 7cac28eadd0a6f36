"""Energy of a simulated GPU by cause: the parts of its power in every control period, attributed to labels.

Power at rest and leakage are proportional to time, switching and memory to the work done, the clock tree to the time of
kernels: the equation of power itself (`simulate.power.gpu`).
"""

from typing import NamedTuple

import numpy as np

from triplepoint.simulate.artefacts.groups import split_sync
from triplepoint.simulate.artefacts.simulated import Heated, Simulated, ns
from triplepoint.simulate.power.gpu import Float, Int64, data_share, leakage_w
from triplepoint.simulate.power.parameters import PowerConfig
from triplepoint.simulate.power.work import UNITS, Workload
from triplepoint.simulate.timeline.schedule import operations_by_task
from triplepoint.simulate.truth.spans import LABELS, Spans
from triplepoint.units import NS_PER_S

_IS_COMPUTE = np.array([label.category == "compute" for label in LABELS])


class Usage(NamedTuple):
    """Time and energy of a GPU in each control period of a step, by label; shape (num_periods, len(LABELS)).

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


def usage_of(simulated: Simulated, heated: Heated, place: tuple[int, int], spans: Spans, num_periods: int) -> Usage:
    """Return time and energy by label of the GPUs of one place.

    Args:
        simulated: The step.
        heated: Its power and heat.
        place: Stage and class of replica.
        spans: Spans of these GPUs.
        num_periods: Number of equal control periods in the step; their edges need not be edges of spans.
    """
    edges = np.linspace(0.0, float(spans.border[-1]), num_periods + 1)
    cells = np.union1d(edges, spans.border)
    span = np.searchsorted(spans.border, cells[:-1], side="right") - 1
    label_share = spans.part / np.maximum(np.diff(spans.border), 1)[:, None]
    time_s = label_share[span] * (np.diff(cells) / NS_PER_S)[:, None]
    power, workload = heated.machine.power, heated.warm.load.workload
    span_work, transfers = _work(simulated, place, spans, workload)
    pass_work = span_work[span] * (np.diff(cells) / np.diff(spans.border)[span])[:, None]
    transfer_work = np.stack([np.diff(_work_until(cells, *transfers, unit)) for unit in range(len(UNITS))], axis=1)
    polling = power.polling_share.value if simulated.job.num_gpus > 1 else 0.0
    columns = [time_s, *_energies(power, time_s, pass_work, transfer_work, polling)]
    period = np.minimum(np.searchsorted(edges, cells[:-1], side="right") - 1, num_periods - 1)
    summed = [np.zeros((num_periods, len(LABELS))) for _ in columns]
    for sums, column in zip(summed, columns, strict=True):
        np.add.at(sums, period, column)
    return Usage(*summed)


def _energies(power: PowerConfig, time_s: Float, pass_work: Float, transfer_work: Float, polling: float) -> list[Float]:
    """Return the energies of `Usage` for cells, intervals of constant activity.

    Work of kernels belongs to computation, work of communication to all labels by their time, polling to waiting.

    Args:
        power: Power parameters of the GPU type.
        time_s: Time by label; shape (num_cells, len(LABELS)). Unit: s.
        pass_work: Work of passes; shape (num_cells, len(UNITS)). Unit: s.
        transfer_work: Work of collectives and sends between passes; same shape. Unit: s.
        polling: Share of the clock tree that waiting drives.
    """
    length_s = time_s.sum(axis=1, keepdims=True)
    by_time = np.divide(time_s, length_s, out=np.zeros_like(time_s), where=length_s > 0.0)
    computing = np.where(_IS_COMPUTE, time_s, 0.0)
    waiting = time_s - computing
    by_computing, by_waiting = (_normalised(part, by_time) for part in (computing, waiting))
    awake_s, tensor, sm, hbm, link, _ = pass_work.T[..., None]
    data = float(data_share(power, 1.0))
    switched = (power.tensor.value * tensor + power.sm.value * sm) * data * by_computing
    moved = power.hbm.value * hbm * data * by_computing + power.link.value * link * by_time
    moved = (
        moved + (power.hbm.value * transfer_work[:, 3:4] * data + power.link.value * transfer_work[:, 4:5]) * by_time
    )
    awake_s = np.minimum(awake_s, length_s)
    clocked = power.clock_tree.value * (awake_s * by_computing + polling * (length_s - awake_s) * by_waiting)
    return [switched, moved, clocked]


def _normalised(part: Float, otherwise: Float) -> Float:
    """Return the shares of each row in its sum; rows without a sum come from `otherwise`."""
    total = part.sum(axis=1, keepdims=True)
    return np.where(total > 0.0, part / np.where(total > 0.0, total, 1.0), otherwise)


def _work_until(time_ns: Float, start: Float, end: Float, amount: Float, unit: int) -> Float:
    """Return the work of one unit done until each time by transfers of constant rate; shape (num_times,). Unit: s."""
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
    """Return the work of passes in every span, and start, end and work of transfers between passes.

    Transfers are collectives outside passes, and sends. Start and end are in ns, shape (num_transfers,); work is in s,
    shape (num_spans, len(UNITS)) and (num_transfers, len(UNITS)).
    """
    stage, replica_class = place
    timeline, order, work = simulated.timeline, simulated.timeline.order, simulated.stages[stage]
    task_work = np.zeros((order.num_tasks + 2, len(UNITS)))
    for task, (kind, chunk) in enumerate(zip(order.kind[stage].tolist(), order.chunk[stage].tolist(), strict=True)):
        task_work[task] = workload.of_all(operations_by_task(work.chunks[chunk], order.is_split)[kind])
    task_work[order.num_tasks] = workload.of(work.optimizer)
    # A span has the share of its time in the work of its pass. Task -1, outside passes, is the last row, without work.
    task_ns = np.bincount(spans.task + 1, np.diff(spans.border), order.num_tasks + 2)
    share = np.diff(spans.border) / np.maximum(task_ns[spans.task + 1], 1.0)
    gathers, reductions, after = (workload.of(tuple(collectives)) for collectives in split_sync(work))
    gathered_s = float(timeline.durations.gather_overlapped[stage].sum())
    synced = np.concatenate([[[0.0, gathered_s]], timeline.sync[stage], timeline.final_sync[stage : stage + 1]])
    transfers = [(synced, np.stack([gathers * order.num_chunks, *[reductions] * order.num_chunks, after]))]
    if order.num_stages > 1:
        times = np.stack([timeline.sent[:, :, replica_class], timeline.arrival[:, :, replica_class]], axis=-1).reshape(
            -1, 2
        )
        sends = np.flatnonzero(order.is_sent[stage]) + stage * order.num_tasks
        sends_and_receives = np.concatenate([sends, order.needs[stage][order.needs[stage] >= 0]])
        num_bytes = max(chunk.send_bytes for stage_work in simulated.stages for chunk in stage_work.chunks)
        is_inside = simulated.job.mesh.ranks_per_stage < simulated.job.fabric.gpus_per_node
        send_work = np.tile(workload.sent(num_bytes, is_inside), (len(sends_and_receives), 1))
        transfers.append((times[sends_and_receives], send_work))
    times, amount = (np.concatenate(column) for column in zip(*transfers, strict=True))
    start, end = (ns(column).astype(float) for column in times.T)
    return task_work[spans.task] * share[:, None], (start, end, amount)


def energy_j(heated: Heated, node: int, device: int, usage: Usage) -> Float:
    """Return the energy of one device in a step, by label; the sum is the difference of its energy counter. Unit: J.

    Args:
        heated: Power and heat of the step.
        node: Number of the node.
        device: Number of the device in the node.
        usage: Time and energy of the device in the control periods of a step, at the highest clock.
    """
    power, trace, machine = heated.machine.power, heated.trace, heated.machine
    watts, clock_mhz, temp_c = (column[:, node, device] for column in (trace.power_w, trace.clock_mhz, trace.temp_c))
    row = machine.table.nearest(clock_mhz)
    voltage, share = machine.table.energy_share[row][:, None], machine.table.share[row][:, None]
    leakage = leakage_w(power, clock_mhz, temp_c) * _leakage_factor(heated, node, device)
    rest_w = power.base.value + power.memory_idle.value + leakage
    total_j = (watts * trace.period_s)[:, None]
    num_steps = max(1, round(len(watts) / len(usage.time_s)))
    period = periods_of_step(len(watts), num_steps, len(usage.time_s))
    time_s, switched, moved, clocked = (column[period] for column in usage)
    fixed_j = time_s * rest_w[:, None] + clocked * voltage * share
    work_j = switched * voltage + moved
    # The rate of work differs between periods with the speed of the job: work gets the remaining energy of the period.
    left_j = np.maximum(total_j - fixed_j.sum(axis=1, keepdims=True), 0.0)
    done_j = work_j.sum(axis=1, keepdims=True)
    energy = fixed_j + work_j * np.divide(left_j, done_j, out=np.zeros_like(left_j), where=done_j > 0.0)
    energy *= total_j / np.maximum(energy.sum(axis=1, keepdims=True), 1e-12)
    return np.asarray(energy.sum(axis=0) / num_steps)


def periods_of_step(num_periods: int, num_steps: int, per_step: int) -> Int64:
    """Return the period of a step that each period of a trace over several steps is; shape (num_periods,).

    The periods of the trace need not be a multiple of its steps.
    """
    share = (np.arange(num_periods) + 0.5) * num_steps / num_periods % 1.0
    return (share * per_step).astype(np.int64)


def _leakage_factor(heated: Heated, node: int, device: int) -> float:
    """Return the leakage of a device over that of its GPU type."""
    leakage = np.broadcast_to(heated.machine.devices.leakage, heated.machine.shape)
    return float(leakage[node, device])
