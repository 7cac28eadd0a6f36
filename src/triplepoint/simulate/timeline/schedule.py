"""Pipeline schedules: the order of passes on every stage, and their dependencies on passes of other stages.

All schedules have warm-up forward passes, then forward and backward passes in turn, then the remaining backward passes.
They differ in the number of warm-up passes and in whether gradients of weights are delayed.
"""

from dataclasses import dataclass, replace
from functools import cached_property, lru_cache

import numpy as np
import numpy.typing as npt

from triplepoint.config.point import Schedule
from triplepoint.errors import PointError
from triplepoint.simulate.operations import ChunkWork, Operation

Int64 = npt.NDArray[np.int64]
Bool = npt.NDArray[np.bool_]

FORWARD, BACKWARD, BACKWARD_WEIGHT = 0, 1, 2
"""Kinds of tasks. With a split backward pass `BACKWARD` is only the gradient of the input, else the whole pass."""

TASK_NAMES = ("forward", "backward", "backward_weight")


def operations_by_task(chunk: ChunkWork, is_split: bool) -> dict[int, tuple[tuple[Operation, ...], ...]]:
    """Return the operations of a chunk by kind of task, in the parts of `ChunkWork`.

    Args:
        chunk: Work of the chunk.
        is_split: Whether gradients of inputs and of weights are separate tasks.
    """
    weight = (chunk.backward_weight,)
    return {
        FORWARD: (chunk.forward,),
        BACKWARD: (chunk.backward_input,) if is_split else (chunk.backward_input, *weight),
        BACKWARD_WEIGHT: weight,
    }


_INTERLEAVED: tuple[Schedule, ...] = ("interleaved_1f1b", "zero_bubble")
"""Schedules that can have more than one chunk per stage."""


@dataclass(frozen=True, eq=False)
class Order:
    """Order of the tasks on every stage. Shape of arrays: (num_stages, num_tasks).

    Attributes:
        num_stages: Pipeline stages, pp.
        num_chunks: Model chunks per stage, vp.
        num_microbatches: Micro-batches.
        is_split: Whether gradients of inputs and of weights are separate tasks.
        kind: Kind of every task: FORWARD, BACKWARD or BACKWARD_WEIGHT.
        chunk: Chunk of the stage.
        microbatch: Micro-batch.
        needs: Number of the task (stage * num_tasks + place) whose output each task waits for; -1 for none.
        is_sent: Whether the output of the task goes to another stage.
        wave: Wave of every task. Tasks depend only on earlier waves, and a wave has at most one task of each stage.
    """

    num_stages: int
    num_chunks: int
    num_microbatches: int
    is_split: bool
    kind: Int64
    chunk: Int64
    microbatch: Int64
    needs: Int64
    is_sent: Bool
    wave: Int64

    @property
    def num_tasks(self) -> int:
        """Number of tasks of every stage."""
        return int(self.kind.shape[1])

    @cached_property
    def queue(self) -> "Queue":
        """The tasks of all stages, wave by wave."""
        return _queue(self)

    @property
    def boundary(self) -> Int64:
        """Boundary that the output of each task crosses: `s` is after stage s, the last one leads back to stage 0."""
        stage = np.arange(self.num_stages)[:, None]
        return np.where(self.kind == FORWARD, stage, (stage - 1) % self.num_stages)

    def without_waits(self) -> "Order":
        """Return the order without dependencies between stages: a pipeline without bubble."""
        wave = np.broadcast_to(np.arange(self.num_tasks), self.wave.shape)
        return replace(self, needs=np.full_like(self.needs, -1), wave=wave)

    def completes(self, chunk: int) -> Int64:
        """Return the place of the task that completes the gradients of a chunk, on every stage; shape (num_stages,)."""
        kind = BACKWARD_WEIGHT if self.is_split else BACKWARD
        is_last = (self.kind == kind) & (self.chunk == chunk) & (self.microbatch == self.num_microbatches - 1)
        return np.asarray(is_last.argmax(axis=1))


@dataclass(frozen=True, eq=False)
class Queue:
    """The tasks of an order, sorted by wave. Rows count from 1; row 0 stands for no task.

    All arrays except `rows` have the order of `tasks`.

    Attributes:
        tasks: Number (stage * num_tasks + place) of every task.
        rows: Row of every task, by its number.
        waves: First task of each wave, and the one after its last.
        previous: Row of the previous task on the stage.
        needs: Row of the task whose output each task waits for.
        link: Row of the task whose send precedes the task's send on the same link.
    """

    tasks: Int64
    rows: Int64
    waves: list[tuple[int, int]]
    previous: Int64
    needs: Int64
    link: Int64


MOST_PASSES = 4_000_000
"""Most passes of all stages in a step. More would take minutes to simulate, and no training has as many."""


def make_order(schedule: Schedule | None, num_stages: int, num_microbatches: int, num_chunks: int = 1) -> Order:
    """Return the order of tasks of a schedule; equal arguments give the same object.

    Args:
        schedule: Name of the schedule; None, without a pipeline, for 1f1b.
        num_stages: Pipeline stages, pp.
        num_microbatches: Micro-batches.
        num_chunks: Model chunks per stage, vp.

    Raises:
        PointError: If the schedule cannot have that many chunks or micro-batches, or there are too many passes.

    Source:
        gpipe: Huang et al. 2019, arXiv:1811.06965. 1f1b, interleaved_1f1b: Narayanan et al. 2021, arXiv:2104.04473, in
        groups of pp micro-batches as Megatron-LM, core/pipeline_parallel/schedules.py. zero_bubble: ZB-H1 of Qi et al.
        2023, arXiv:2401.10241.
    """
    schedule = schedule or "1f1b"
    if num_chunks > 1 and schedule not in _INTERLEAVED:
        raise PointError(
            f"schedule {schedule} has one chunk per stage, found vp: {num_chunks}; set vp: 1 or interleave"
        )
    if num_chunks > 1 and num_microbatches % num_stages:
        raise PointError(
            f"{schedule} takes micro-batches in groups of pp: {num_stages}, which does not divide their number "
            f"{num_microbatches}; change global_batch_size, or set vp: 1"
        )
    if (passes := num_microbatches * num_stages * num_chunks) > MOST_PASSES:
        raise PointError(
            f"micro-batches*pp*vp = {passes} passes, at most {MOST_PASSES} are simulated; lower global_batch_size"
        )
    return _make_order(schedule, num_stages, num_microbatches, num_chunks)


@lru_cache(maxsize=256)
def _make_order(schedule: Schedule, num_stages: int, num_microbatches: int, num_chunks: int) -> Order:
    is_split = schedule == "zero_bubble"
    passes = num_microbatches * num_chunks
    group = num_stages if num_chunks > 1 else 1
    chunk, microbatch = _forward_order(passes, num_chunks, group)
    stage = np.arange(num_stages)[:, None]
    keys = _keys(_num_warmup(schedule, stage, num_stages, num_chunks, passes), passes)
    if is_split:
        keys.append(_delayed_keys(keys[1], stage, passes))
    # Columns of all keys: forward passes, backward passes, gradients of weights.
    columns = np.concatenate(keys, axis=1).argsort(axis=1, kind="stable")
    kind, number = (columns // passes, columns % passes) if passes else (columns, columns)
    task_chunk = np.where(kind == FORWARD, chunk[number], num_chunks - 1 - chunk[number])
    task_microbatch = microbatch[number]
    needs, is_sent = _dependencies(kind, task_chunk, task_microbatch, num_chunks, num_microbatches)
    return Order(
        num_stages=num_stages,
        num_chunks=num_chunks,
        num_microbatches=num_microbatches,
        is_split=is_split,
        kind=kind,
        chunk=task_chunk,
        microbatch=task_microbatch,
        needs=needs,
        is_sent=is_sent,
        wave=_waves(needs),
    )


def _forward_order(passes: int, num_chunks: int, group: int) -> tuple[Int64, Int64]:
    """Return chunk and micro-batch of every forward pass of a stage: each chunk takes a group of micro-batches in turn.

    Backward passes have the same order with the chunks reversed.
    """
    number = np.arange(passes)
    groups_before, in_group = number // (group * num_chunks), number % (group * num_chunks)
    return in_group // group, groups_before * group + in_group % group


def _num_warmup(schedule: Schedule, stage: Int64, num_stages: int, num_chunks: int, passes: int) -> Int64:
    """Return the number of forward passes before the first one-forward-one-backward pair; shape (num_stages, 1)."""
    stages_after = num_stages - 1 - stage
    num_warmup = {
        "gpipe": np.full_like(stage, passes),
        "1f1b": stages_after,
        "interleaved_1f1b": (2 if num_chunks > 1 else 1) * stages_after + (num_chunks - 1) * num_stages,
        "zero_bubble": stages_after + (num_chunks - 1) * num_stages,
    }
    return np.asarray(np.minimum(num_warmup[schedule], passes))


def _keys(warmup: Int64, passes: int) -> list[Int64]:
    """Return sort keys of forward and of backward passes: even numbers, with room between them."""
    number = np.arange(passes)
    forward = np.where(number < warmup, number, 2 * number - warmup)
    backward = np.where(number < passes - warmup, warmup + 2 * number + 1, passes + number)
    return [2 * forward, 2 * backward]


def _delayed_keys(backward: Int64, stage: Int64, passes: int) -> Int64:
    """Return sort keys of gradients of weights; stage s delays them by s backward passes.

    Args:
        backward: Keys of backward passes; shape (num_stages, passes).
        stage: Numbers of the stages; shape (num_stages, 1).
        passes: Number of backward passes.
    """
    number = np.arange(passes)
    follows = number + stage
    key = np.take_along_axis(backward, np.minimum(follows, max(passes - 1, 0)), axis=1) if passes else backward
    return np.asarray(np.where(follows < passes, key + 1, 4 * passes + number))


def _dependencies(
    kind: Int64, chunk: Int64, microbatch: Int64, num_chunks: int, num_microbatches: int
) -> tuple[Int64, Bool]:
    """Return `Order.needs` and `Order.is_sent`."""
    num_stages, num_tasks = kind.shape
    stage = np.arange(num_stages)[:, None]
    task = np.full((3, num_stages, num_chunks, num_microbatches), -1)
    task[kind, stage, chunk, microbatch] = stage * num_tasks + np.arange(num_tasks)
    # Virtual stages are numbered through all stages, chunk by chunk; forward passes go up, backward passes down.
    direction = np.where(kind == FORWARD, 1, -1)
    source = chunk * num_stages + stage - direction
    is_needed = (kind != BACKWARD_WEIGHT) & (source >= 0) & (source < num_stages * num_chunks)
    valid_source = np.where(is_needed, source, 0)
    needs = np.where(is_needed, task[kind, valid_source % num_stages, valid_source // num_stages, microbatch], -1)
    is_sent = np.zeros(kind.size, dtype=bool)
    is_sent[needs[is_needed]] = num_stages > 1
    return needs, is_sent.reshape(kind.shape)


def _waves(needs: Int64) -> Int64:
    """Return the wave of every task: each wave has the next task of every stage whose dependency is done."""
    num_stages, num_tasks = needs.shape
    wave = np.full(num_stages * num_tasks + 1, np.iinfo(np.int64).max)
    wave[-1] = -1
    stage, place, number = np.arange(num_stages), np.zeros(num_stages, dtype=np.int64), 0
    while num_tasks and len(stage):
        is_ready = wave[needs[stage, place]] < number
        assert is_ready.any(), "an order never waits in a circle"
        ready = stage[is_ready]
        wave[ready * num_tasks + place[is_ready]] = number
        place = place + is_ready
        stage, place = stage[place < num_tasks], place[place < num_tasks]
        number += 1
    return wave[:-1].reshape(needs.shape)


def _queue(order: Order) -> Queue:
    wave, size = order.wave.reshape(-1), order.wave.size
    tasks = np.argsort(wave, kind="stable")
    # One element more: index -1, no task, is row 0.
    rows = np.zeros(size + 1, dtype=np.int64)
    rows[tasks] = np.arange(1, size + 1)
    number = np.arange(size).reshape(order.wave.shape)
    previous = np.where(np.arange(order.num_tasks) > 0, number - 1, -1)
    borders = np.searchsorted(wave[tasks], np.arange(wave.max(initial=-1) + 2)).tolist()
    return Queue(
        tasks=tasks,
        rows=rows[:-1],
        waves=list(zip(borders[:-1], borders[1:], strict=True)),
        previous=rows[previous.reshape(-1)[tasks]],
        needs=rows[order.needs.reshape(-1)[tasks]],
        link=rows[_link(order, number).reshape(-1)[tasks]],
    )


def _link(order: Order, number: Int64) -> Int64:
    """Return the latest earlier task of the stage that sends in the same direction; -1 if there is none."""
    link = np.full_like(number, -1)
    for kind in (FORWARD, BACKWARD):
        is_sent = (order.kind == kind) & order.is_sent
        latest = np.maximum.accumulate(np.where(is_sent, number, -1), axis=1)
        # The first column is -1: a roll of the array would wrap around.
        earlier = np.concatenate((np.full_like(latest[:, :1], -1), latest[:, :-1]), axis=1)
        link = np.where(is_sent, earlier, link)
    return link
