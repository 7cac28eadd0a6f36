"""Pipeline schedules: in which order every stage runs its passes, and which pass of another stage each waits for.

All orders are of one form: some forward passes to warm up, then forward and backward passes in turn, then the backward
passes that are left. They differ in how many the warm-up has, and in whether the gradients of weights are put off.
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
"""Kinds of tasks. With a split backward pass `BACKWARD` is the gradient of the input alone, else all of it."""

TASK_NAMES = ("forward", "backward", "backward_weight")


def operations_by_task(chunk: ChunkWork, is_split: bool) -> dict[int, tuple[tuple[Operation, ...], ...]]:
    """Return the operations of a chunk by kind of task, as parts of `ChunkWork`.

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


SEVERAL_CHUNKS: tuple[Schedule, ...] = ("interleaved_1f1b", "zero_bubble")
"""Schedules that take more than one chunk per stage."""


@dataclass(frozen=True, eq=False)
class Order:
    """What every stage does, one task after the other. Shape of arrays (num_stages, num_tasks).

    Attributes:
        num_stages: Pipeline stages, pp.
        num_chunks: Model chunks per stage, vp.
        num_microbatches: Micro-batches.
        is_split: Whether gradients of inputs and of weights are tasks of their own.
        kind: FORWARD, BACKWARD or BACKWARD_WEIGHT.
        chunk: Chunk of the stage.
        microbatch: Micro-batch.
        needs: Number of the task (stage * num_tasks + place) whose output it waits for; -1 for none.
        is_sent: Whether its result goes to another stage.
        wave: Tasks of a wave need earlier waves only, and no two are of one stage.
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
        """Tasks of every stage."""
        return int(self.kind.shape[1])

    @cached_property
    def queue(self) -> "Queue":
        """The tasks of all stages, wave by wave."""
        return _queue(self)

    @property
    def boundary(self) -> Int64:
        """Boundary each result would cross: `s` lies after stage s, the last one leads back to stage 0."""
        stage = np.arange(self.num_stages)[:, None]
        return np.where(self.kind == FORWARD, stage, (stage - 1) % self.num_stages)

    def without_waits(self) -> "Order":
        """Return the order of stages none of which waits for another: what if there were no bubble."""
        alone = np.broadcast_to(np.arange(self.num_tasks), self.wave.shape)
        return replace(self, needs=np.full_like(self.needs, -1), wave=alone)

    def completes(self, chunk: int) -> Int64:
        """Return the place of the task that completes the gradients of a chunk, by stage."""
        kind = BACKWARD_WEIGHT if self.is_split else BACKWARD
        is_last = (self.kind == kind) & (self.chunk == chunk) & (self.microbatch == self.num_microbatches - 1)
        return np.asarray(is_last.argmax(axis=1))


@dataclass(frozen=True, eq=False)
class Queue:
    """The tasks of an order, numbered wave by wave. Rows count from 1: row 0 is what stands for no task at all.

    Attributes:
        tasks: Number (stage * num_tasks + place) of every task; the other arrays are in this order, but for `rows`.
        rows: Row of every task, by its number.
        waves: First task of each wave, and the one after its last.
        previous: Row of the task before it on the stage.
        needs: Row of the task whose output it waits for.
        link: Row of the task whose send goes before its own.
    """

    tasks: Int64
    rows: Int64
    waves: list[tuple[int, int]]
    previous: Int64
    needs: Int64
    link: Int64


MOST_PASSES = 4_000_000
"""Of a step, of all stages: more is beyond anything trained, and would take minutes."""


def make_order(schedule: Schedule | None, num_stages: int, num_microbatches: int, num_chunks: int = 1) -> Order:
    """Return the order of a schedule, the same object when asked again.

    Args:
        schedule: Which; none, without a pipeline, is 1f1b.
        num_stages: Pipeline stages, pp.
        num_microbatches: Micro-batches.
        num_chunks: Model chunks per stage, vp.

    Raises:
        PointError: If the schedule cannot have that many chunks or micro-batches, or there are too many.

    Source:
        gpipe: Huang et al. 2019, arXiv:1811.06965. 1f1b, interleaved_1f1b: Narayanan et al. 2021, arXiv:2104.04473, in
        groups of pp micro-batches as Megatron-LM, core/pipeline_parallel/schedules.py. zero_bubble: ZB-H1 of Qi et al.
        2023, arXiv:2401.10241.
    """
    schedule = schedule or "1f1b"
    if num_chunks > 1 and schedule not in SEVERAL_CHUNKS:
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
    chunk, microbatch = _numbered(passes, num_chunks, group)
    stage = np.arange(num_stages)[:, None]
    place = _places(_warmup(schedule, stage, num_stages, num_chunks, passes), passes)
    if is_split:
        place.append(_put_off(place[1], stage, passes))
    columns = np.concatenate(place, axis=1).argsort(axis=1, kind="stable")
    kind, which = (columns // passes, columns % passes) if passes else (columns, columns)
    of_chunk = np.where(kind == FORWARD, chunk[which], num_chunks - 1 - chunk[which])
    needs, is_sent = _needs(kind, of_chunk, microbatch[which], num_chunks, num_microbatches)
    wave = _waves(needs)
    return Order(
        num_stages, num_chunks, num_microbatches, is_split, kind, of_chunk, microbatch[which], needs, is_sent, wave
    )


def _numbered(passes: int, num_chunks: int, group: int) -> tuple[Int64, Int64]:
    """Return chunk and micro-batch of the passes of a stage: a group of micro-batches through every chunk in turn."""
    one = np.arange(passes)
    begun, inside = one // (group * num_chunks), one % (group * num_chunks)
    return inside // group, begun * group + inside % group


def _warmup(schedule: Schedule, stage: Int64, num_stages: int, num_chunks: int, passes: int) -> Int64:
    """Return how many forward passes come before the first backward pass, by stage."""
    after = num_stages - 1 - stage
    in_flight = {
        "gpipe": np.full_like(stage, passes),
        "1f1b": after,
        "interleaved_1f1b": (2 if num_chunks > 1 else 1) * after + (num_chunks - 1) * num_stages,
        "zero_bubble": after + (num_chunks - 1) * num_stages,
    }
    return np.asarray(np.minimum(in_flight[schedule], passes))


def _places(warmup: Int64, passes: int) -> list[Int64]:
    """Return keys that put forward and backward passes in order, even numbers with room between them."""
    one = np.arange(passes)
    forward = np.where(one < warmup, one, 2 * one - warmup)
    backward = np.where(one < passes - warmup, warmup + 2 * one + 1, passes + one)
    return [2 * forward, 2 * backward]


def _put_off(backward: Int64, stage: Int64, passes: int) -> Int64:
    """Return keys of the weights' gradients: each comes as many backward passes later as there are stages before."""
    one = np.arange(passes)
    after = one + stage
    place = np.take_along_axis(backward, np.minimum(after, max(passes - 1, 0)), axis=1) if passes else backward
    return np.asarray(np.where(after < passes, place + 1, 4 * passes + one))


def _needs(kind: Int64, chunk: Int64, microbatch: Int64, num_chunks: int, num_microbatches: int) -> tuple[Int64, Bool]:
    """Return the task each one waits for, and which of them are waited for by another stage."""
    num_stages, num_tasks = kind.shape
    stage = np.arange(num_stages)[:, None]
    at = np.full((3, num_stages, num_chunks, num_microbatches), -1)
    at[kind, stage, chunk, microbatch] = stage * num_tasks + np.arange(num_tasks)
    # Virtual stages are numbered through all stages, chunk by chunk; forward passes go up, backward passes down.
    forth = np.where(kind == FORWARD, 1, -1)
    source = chunk * num_stages + stage - forth
    is_needed = (kind != BACKWARD_WEIGHT) & (source >= 0) & (source < num_stages * num_chunks)
    held = np.where(is_needed, source, 0)
    needs = np.where(is_needed, at[kind, held % num_stages, held // num_stages, microbatch], -1)
    is_sent = np.zeros(kind.size, dtype=bool)
    is_sent[needs[is_needed]] = num_stages > 1
    return needs, is_sent.reshape(kind.shape)


def _waves(needs: Int64) -> Int64:
    """Return the wave of every task: all stages go on together, each as soon as what it needs is done."""
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
    # One more, so that task -1 is row 0.
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
    """Return the latest task before each one whose send goes the same way, -1 where there is none."""
    link = np.full_like(number, -1)
    for kind in (FORWARD, BACKWARD):
        is_sent = (order.kind == kind) & order.is_sent
        latest = np.maximum.accumulate(np.where(is_sent, number, -1), axis=1)
        # -1 in the first column, and never the end of the stage before.
        earlier = np.concatenate((np.full_like(latest[:, :1], -1), latest[:, :-1]), axis=1)
        link = np.where(is_sent, earlier, link)
    return link
