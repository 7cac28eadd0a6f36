"""Load of a job's GPUs: one period of their work, as far as power, heat and clocks depend on it."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from triplepoint.simulate.job import Job
from triplepoint.simulate.power.phases import Phases, phases_of
from triplepoint.simulate.power.step import Pieces, Place, Ran, pieces_of
from triplepoint.simulate.power.work import Workload

AnyRan = TypeVar("AnyRan", bound=Ran)


class Load(Protocol):
    """A training step, or a batch of inference."""

    @property
    def job(self) -> Job:
        """The job."""

    @property
    def workload(self) -> Workload:
        """Work of its operations."""

    @property
    def length_s(self) -> float:
        """Time of one period, at the clocks it was calibrated with. Unit: s."""

    @property
    def num_tokens(self) -> int:
        """Tokens that divide the energy of a period."""

    def place(self, rank: int) -> Place:
        """Return stage and class of a rank; ranks of one place do the same."""

    def pieces(self, places: Sequence[Place]) -> Pieces:
        """Return the work of the ranks at some places."""

    def phases(self, stages: Sequence[int], polling_share: float) -> Phases:
        """Return the work of the ranks of some stages, as a few phases."""


@dataclass(frozen=True)
class Training(Generic[AnyRan]):
    """A training step as the load of GPUs; see `Load`.

    Attributes:
        ran: The step.
    """

    ran: AnyRan

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
        """Return stage and class of replica of a rank."""
        return self.ran.place(rank)

    def pieces(self, places: Sequence[Place]) -> Pieces:
        """Return passes, collectives, sends and update."""
        return pieces_of(self.ran, self.workload, places)

    def phases(self, stages: Sequence[int], polling_share: float) -> Phases:
        """Return forward and backward passes, the update and the rest."""
        return phases_of(self.ran, self.workload, stages, polling_share)
