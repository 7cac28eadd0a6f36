"""Operations of a job: computation, collectives and point-to-point transfers of every worker in every step.

A worker is a rank, or a tensor parallel group of which one rank was recorded. A transfer is a collective or a
point-to-point transfer; each of its members has one operation in it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Float = npt.NDArray[np.float64]
Int64 = npt.NDArray[np.int64]
Bool = npt.NDArray[np.bool_]
WORK = "work"
"""Kind of the operations between collectives, if the traces mark no passes."""


class Worker(NamedTuple):
    """A rank, or a tensor parallel group, with its own sequence of operations.

    Attributes:
        rank: Global rank; of a tensor parallel group the recorded one.
        dp: Data parallel replica.
        stage: Pipeline stage.
    """

    rank: int
    dp: int
    stage: int


@dataclass(frozen=True, eq=False)
class Operations:
    """Operations of all workers; every step has the same ones.

    Attributes:
        workers: The workers.
        kinds: Names of the kinds of operations.
        steps: Numbers of the steps.
        worker: Index of the worker of each operation; shape (num_operations,).
        kind: Index of the kind of each operation; same shape.
        transfer: Number of the transfer of each operation, equal for all its members; computation has a number of its
            own; same shape.
        is_comm: Whether each operation is communication; same shape.
        duration_class: Class of each operation; operations of a class have equal durations by design: the same kind,
            size and link; same shape.
        rate_class: Class of each operation; transfers of a class have equal rates (byte/s) by design; same shape.
        size_bytes: Size of each transfer; 1 if only transfers of equal size are compared; same shape. Unit: byte.
        start_s: Start after the start of the step; shape (num_operations, num_steps). Unit: s.
        duration_s: Duration, including the wait for other workers; same shape. Unit: s.
    """

    workers: Sequence[Worker]
    kinds: Sequence[str]
    steps: Int64
    worker: Int64
    kind: Int64
    transfer: Int64
    is_comm: Bool
    duration_class: Int64
    rate_class: Int64
    size_bytes: Float
    start_s: Float
    duration_s: Float

    @property
    def end_s(self) -> Float:
        """End of each operation; shape (num_operations, num_steps). Unit: s."""
        return self.start_s + self.duration_s

    @cached_property
    def latest_start_s(self) -> Float:
        """Start of the last member of the same transfer; shape (num_operations, num_steps). Unit: s."""
        latest = np.full((self.transfer.max() + 1, len(self.steps)), -np.inf)
        np.maximum.at(latest, self.transfer, self.start_s)
        return np.asarray(latest[self.transfer])

    @cached_property
    def is_waiting(self) -> Bool:
        """Whether each operation waits for all members of its transfer; a buffered send ends before they start."""
        return np.asarray(np.median(self.end_s - self.latest_start_s, axis=1) >= 0)

    @cached_property
    def work_s(self) -> Float:
        """Duration without the wait for other workers; shape (num_operations, num_steps). Unit: s.

        For a transfer this is the time from the last start of a member to the first end of one.
        """
        first_end_s = np.full((self.transfer.max() + 1, len(self.steps)), np.inf)
        waiting = self.is_waiting
        np.minimum.at(first_end_s, self.transfer[waiting], self.end_s[waiting])
        transfer_s = np.maximum(first_end_s[self.transfer] - self.latest_start_s, 0.0)
        return np.where(waiting[:, None], transfer_s, self.duration_s)

    @property
    def step_time_s(self) -> Float:
        """Recorded time of each step; shape (num_steps,). Unit: s."""
        return np.asarray(self.end_s.max(axis=0) - self.start_s.min(axis=0).clip(max=0.0))

    def of_worker(self, attribute: str) -> Int64:
        """Return `dp`, `stage` or `rank` of the worker of each operation; shape (num_operations,)."""
        return np.array([getattr(worker, attribute) for worker in self.workers], dtype=np.int64)[self.worker]


def number_groups(keys: Sequence[object]) -> Int64:
    """Return a number for each key; equal keys have equal numbers."""
    numbers: dict[object, int] = {}
    return np.array([numbers.setdefault(key, len(numbers)) for key in keys], dtype=np.int64)
