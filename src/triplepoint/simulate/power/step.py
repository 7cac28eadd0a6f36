"""What runs on the GPUs of a simulated step at any time: its passes, messages and update, one on another."""

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from triplepoint.simulate.artefacts.groups import split_sync
from triplepoint.simulate.job import Job
from triplepoint.simulate.operations import StageWork
from triplepoint.simulate.power.gpu import Activity, Float, Int64
from triplepoint.simulate.power.parameters import PowerConfig
from triplepoint.simulate.power.segments import overlay
from triplepoint.simulate.power.work import UNITS, Workload, activity_of
from triplepoint.simulate.timeline.expand import TimeOf
from triplepoint.simulate.timeline.schedule import BACKWARD, BACKWARD_WEIGHT, FORWARD
from triplepoint.simulate.timeline.tasks import Timeline
from triplepoint.units import NS_PER_S

Pieces = tuple[Int64, Activity]
"""Edges in ns, shape (num_pieces + 1,), and what runs between them."""


class Ran(NamedTuple):
    """A simulated step, as far as it says what runs.

    Attributes:
        job: The job.
        stages: Work of every pipeline stage.
        timeline: When everything runs.
        time_of: Time of one run of an operation. Unit: s.
    """

    job: Job
    stages: Sequence[StageWork]
    timeline: Timeline
    time_of: TimeOf


NOTHING = Activity(*(np.zeros(1) for _ in range(7)))
"""What a GPU without a rank does."""


class StepPieces:
    """The segments of a step, of any stage and class of replica.

    A pass is as its mean: kernels are shorter than what governors and sensors see, see `bursts` for those that are not.
    A rank with others waits in a kernel that polls.
    """

    def __init__(self, ran: Ran, power: PowerConfig) -> None:
        """Take what was simulated, and the power of the GPU type."""
        self._polling_share = power.polling_share.value if ran.job.num_gpus > 1 else 0.0
        self._job, self._stages, self._timeline = ran.job, ran.stages, ran.timeline
        self._workload = Workload(ran.job, ran.time_of)

    def of(self, stage: int, which: int) -> Pieces:
        """Return what runs on ranks of a stage, in replicas of a class."""
        rows = [*self._tasks(stage, which), *self._sync(stage), *self._sends(stage, which)]
        begin = self._timeline.optimizer_start
        end = begin + float(self._timeline.durations.optimizer.total[stage, which])
        rows.append((np.array([[begin, end]]), self._workload.of(self._stages[stage].optimizer)))
        times = np.concatenate([times for times, _ in rows])
        works = np.concatenate([np.broadcast_to(work, (len(times), len(UNITS))) for times, work in rows])
        kept = times[:, 1] > times[:, 0]
        times, works = times[kept], works[kept]
        start_ns, end_ns = np.rint(times.T * NS_PER_S).astype(np.int64)
        activity = activity_of(works, times[:, 1] - times[:, 0])
        edges, found = overlay(start_ns, end_ns, activity, round(self._timeline.step_time_s * NS_PER_S))
        return edges, replace(found, awake=found.awake + self._polling_share * (1.0 - found.awake))

    def _tasks(self, stage: int, which: int) -> list[tuple[Float, Float]]:
        timeline, order = self._timeline, self._timeline.order
        found = []
        for index, chunk in enumerate(self._stages[stage].chunks):
            weight = (chunk.backward_weight,)
            backward = (chunk.backward_input,) if order.is_split else (chunk.backward_input, *weight)
            for kind, parts in ((FORWARD, (chunk.forward,)), (BACKWARD, backward), (BACKWARD_WEIGHT, weight)):
                own = (order.kind[stage] == kind) & (order.chunk[stage] == index)
                if own.any():
                    times = np.stack([timeline.start[stage, own, which], timeline.end[stage, own, which]], axis=1)
                    found.append((times, self._workload.of_all(parts)))
        return found

    def _sync(self, stage: int) -> list[tuple[Float, Float]]:
        """Return messages of the step outside its passes, each where it runs."""
        timeline = self._timeline
        gathers, reductions, after = (tuple(part) for part in split_sync(self._stages[stage]))
        gathered = float(timeline.durations.gather_overlapped[stage].sum())
        first = self._workload.of(gathers) * timeline.order.num_chunks
        return [
            (np.array([[0.0, gathered]]), first),
            (timeline.sync[stage], self._workload.of(reductions)),
            (timeline.final_sync[stage : stage + 1], self._workload.of(after)),
        ]

    def _sends(self, stage: int, which: int) -> list[tuple[Float, Float]]:
        """Return activations and gradients on their way to other stages, and from them."""
        timeline, order = self._timeline, self._timeline.order
        if order.num_stages == 1:
            return []
        layout, node = self._job.layout, self._job.fabric.gpus_per_node
        stride = layout.tp * layout.cp * layout.dp
        num_bytes = max(chunk.send_bytes for one in self._stages for chunk in one.chunks)
        sent = np.stack([timeline.sent[:, :, which], timeline.arrival[:, :, which]], axis=-1).reshape(-1, 2)
        own = np.flatnonzero(order.is_sent[stage]) + stage * order.num_tasks
        received = order.needs[stage][order.needs[stage] >= 0]
        # Neighbours are near one another, but where a node ends.
        is_inside = stride < node
        return [(sent[np.concatenate([own, received])], self._workload.sent(num_bytes, is_inside))]
