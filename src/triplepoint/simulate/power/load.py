"""Load of a job's GPUs: the work of one period, from which power, heat and clocks are computed."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar

from triplepoint.simulate.job import Job
from triplepoint.simulate.power.phases import Phases, phases_of
from triplepoint.simulate.power.step import Pieces, Place, Ran, pieces_of
from triplepoint.simulate.power.work import Workload

AnyRan = TypeVar("AnyRan", bound=Ran)


class Load(Protocol):
    """One period of a job: a training step, or a batch of inference."""

    @property
    def job(self) -> Job:
        """The job."""

    @property
    def workload(self) -> Workload:
        """Work of the job's operations."""

    @property
    def length_s(self) -> float:
        """Time of one period, at the clocks of the calibration. Unit: s."""

    @property
    def num_tokens(self) -> int:
        """Tokens of one period, for energy per token."""

    def place(self, rank: int) -> Place:
        """Return the place of a rank, its stage and class of replica; ranks of one place do the same work."""

    def pieces(self, places: Sequence[Place]) -> Pieces:
        """Return the runs of the ranks at some places, with their work."""

    def phases(self, stages: Sequence[int], polling_share: float) -> Phases:
        """Return the work of the ranks of some stages by phase; waiting drives `polling_share` of the clock tree."""


@dataclass(frozen=True)
class Training(Generic[AnyRan]):
    """A training step as the load of GPUs; see `Load`.

    Attributes:
        ran: The simulated step.
    """

    ran: AnyRan
    _pieces: dict[tuple[Place, ...], Pieces] = field(default_factory=dict, init=False, repr=False, compare=False)

    @property
    def workload(self) -> Workload:
        """Work of the job's operations."""
        return self.ran.workload

    @property
    def job(self) -> Job:
        """The job."""
        return self.ran.job

    @property
    def length_s(self) -> float:
        """Time of the step. Unit: s."""
        return self.ran.timeline.step_time_s

    @property
    def num_tokens(self) -> int:
        """Tokens of the global batch."""
        return self.job.global_batch_size * self.job.sequence_length

    def place(self, rank: int) -> Place:
        """Return the place of a rank: its stage and class of replica."""
        return self.ran.place(rank)

    def pieces(self, places: Sequence[Place]) -> Pieces:
        """Return passes, collectives, sends and update of the ranks at some places."""
        key = tuple(places)
        if key not in self._pieces:
            self._pieces[key] = pieces_of(self.ran, self.workload, places)
        return self._pieces[key]

    def phases(self, stages: Sequence[int], polling_share: float) -> Phases:
        """Return forward passes, backward passes, the update and the rest of the step."""
        return phases_of(self.ran, self.workload, stages, polling_share)
