"""A simulated job with everything its artefacts are made of, in whole nanoseconds as traces have it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from triplepoint.config.mesh import Place
from triplepoint.simulate.artefacts.groups import lockstep
from triplepoint.simulate.job import Job
from triplepoint.simulate.operations import StageWork
from triplepoint.simulate.timeline.durations import Durations, Float, Pass
from triplepoint.simulate.timeline.expand import TimeOf
from triplepoint.simulate.timeline.model import Timeline, run
from triplepoint.simulate.timeline.schedule import Int64, make_order
from triplepoint.units import NS_PER_S

if TYPE_CHECKING:
    from triplepoint.simulate.artefacts.heated import Heated


@dataclass(frozen=True, eq=False)
class Simulated:
    """What is simulated of a job that runs.

    Attributes:
        job: The job.
        stages: Work of every pipeline stage.
        time_of: Time of one run of an operation. Unit: s.
        durations: Times of passes; they may exceed those of their operations, by contention say.
        class_of_replica: Class of every data parallel replica; shape (dp,).
        peak_memory_bytes: Highest memory of a rank, by stage; None where not known.
        slow: Factor on the time of computation, of every rank that is not as the others.
        interval_s: Lower and upper end of what the step's time is known to, 90 %; None where not known. Unit: s.
        heated: The job with its power, heat and clocks; None where those of the GPU type are not known.
    """

    job: Job
    stages: Sequence[StageWork]
    time_of: TimeOf
    durations: Durations
    class_of_replica: Int64
    peak_memory_bytes: tuple[int, ...] | None = None
    slow: Mapping[int, float] = field(default_factory=dict)
    interval_s: tuple[float, float] | None = None
    heated: "Heated | None" = None

    @cached_property
    def timeline(self) -> Timeline:
        """The step, of durations in whole nanoseconds: all its times are, to the precision of a float."""
        layout, job = self.job.layout, self.job
        order = make_order(layout.schedule, layout.pp, job.num_microbatches, layout.vp)
        return run(in_whole_ns(self.durations), order)

    def place(self, rank: int) -> tuple[int, int]:
        """Return stage and class of a rank."""
        place = self.job.mesh.place(rank)
        return place.pp, int(self.class_of_replica[place.dp])

    def pace(self, rank: int) -> float:
        """Return the time a rank computes over that of the slowest it works with: 1 for the slowest themselves."""
        if not self.slow:
            return 1.0
        size = lockstep(self.stages, self.job)
        first = rank // size * size
        slowest = max(self.slow.get(other, 1.0) for other in range(first, first + size))
        return self.slow.get(rank, 1.0) / slowest

    def representatives(self) -> list[int]:
        """Return one rank of every stage and class: all that differ."""
        replicas = np.unique(self.class_of_replica, return_index=True)[1].tolist()
        stages = range(self.job.layout.pp)
        return [self.job.mesh.rank(Place(dp=replica, pp=stage)) for stage in stages for replica in replicas]


def in_whole_ns(durations: Durations) -> Durations:
    """Return durations rounded to whole nanoseconds."""
    return replace(
        durations,
        forward=_rounded_pass(durations.forward),
        backward_input=_rounded_pass(durations.backward_input),
        backward_weight=_rounded_pass(durations.backward_weight),
        optimizer=_rounded_pass(durations.optimizer),
        send=_rounded(durations.send),
        sync_overlapped=_rounded(durations.sync_overlapped),
        sync_exposed=_rounded(durations.sync_exposed),
        gather_overlapped=_rounded(durations.gather_overlapped),
    )


def ns(seconds: Float) -> Int64:
    """Return times in whole nanoseconds."""
    return np.rint(seconds * NS_PER_S).astype(np.int64)


def one_ns(seconds: float) -> int:
    """Return a time in whole nanoseconds."""
    return round(seconds * NS_PER_S)


def _rounded_pass(time: Pass) -> Pass:
    return Pass(_rounded(time.compute), _rounded(time.comm))


def _rounded(seconds: Float) -> Float:
    return np.asarray(np.rint(seconds * NS_PER_S) / NS_PER_S)
