"""Operations of a job: what every worker did in every step, and which of them are one transfer.

A worker is a rank, or the ranks of one tensor parallel group where only one of them was recorded.
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
"""Kind of what a rank does between collectives where its traces do not tell passes apart."""


class Worker(NamedTuple):
    """One sequence of operations.

    Attributes:
        rank: Global rank.
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
        kinds: Names of kinds.
        steps: Numbers of the steps.
        worker: Index of the worker of every operation; shape (num_operations,).
        kind: Index of its kind; same shape.
        group: Number of its transfer, shared by those who take part; of computation one of its own; same shape.
        is_comm: Whether it is communication; same shape.
        alike: Number of the operations that last as long by design: of one kind, size and link; same shape.
        rate_class: Number of the transfers that move as many bytes a second by design; same shape.
        size_bytes: Bytes of a transfer, 1 where only equal ones are compared; same shape. Unit: byte.
        start_s: Start since the step's; shape (num_operations, num_steps). Unit: s.
        duration_s: Duration, waiting for others included; same shape. Unit: s.
    """

    workers: Sequence[Worker]
    kinds: Sequence[str]
    steps: Int64
    worker: Int64
    kind: Int64
    group: Int64
    is_comm: Bool
    alike: Int64
    rate_class: Int64
    size_bytes: Float
    start_s: Float
    duration_s: Float

    @property
    def end_s(self) -> Float:
        """Ends; shape (num_operations, num_steps). Unit: s."""
        return self.start_s + self.duration_s

    @cached_property
    def latest_start_s(self) -> Float:
        """Start of the last that takes part in the same transfer; shape (num_operations, num_steps). Unit: s."""
        latest = np.full((self.group.max() + 1, len(self.steps)), -np.inf)
        np.maximum.at(latest, self.group, self.start_s)
        return np.asarray(latest[self.group])

    @cached_property
    def is_waiting(self) -> Bool:
        """Whether each operation waits for the others of its transfer: a buffered send ends before they start."""
        return np.asarray(np.median(self.end_s - self.latest_start_s, axis=1) >= 0)

    @cached_property
    def work_s(self) -> Float:
        """Duration without waiting for others: of a transfer from the last start to the first end. Unit: s."""
        first = np.full((self.group.max() + 1, len(self.steps)), np.inf)
        waiting = self.is_waiting
        np.minimum.at(first, self.group[waiting], self.end_s[waiting])
        moving_s = np.maximum(first[self.group] - self.latest_start_s, 0.0)
        return np.where(waiting[:, None], moving_s, self.duration_s)

    @property
    def step_time_s(self) -> Float:
        """Time of every step as recorded; shape (num_steps,). Unit: s."""
        return np.asarray(self.end_s.max(axis=0) - self.start_s.min(axis=0).clip(max=0.0))

    def of_worker(self, attribute: str) -> Int64:
        """Return `dp`, `stage` or `rank` of the worker of every operation; shape (num_operations,)."""
        return np.array([getattr(worker, attribute) for worker in self.workers], dtype=np.int64)[self.worker]


def number_groups(keys: Sequence[object]) -> Int64:
    """Return a number for each key, the same for equal ones."""
    numbers: dict[object, int] = {}
    return np.array([numbers.setdefault(key, len(numbers)) for key in keys], dtype=np.int64)
