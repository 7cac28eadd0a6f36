"""Suspects and their repairs: what a recorded step consists of, who is slow in it, and what a repair would change."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from triplepoint.why.operations import Bool, Float, Operations
from triplepoint.why.replay import Order, find_gaps, with_unrecorded_waits

Respect = Literal["computation", "work", "transfer", "launch", "data"]
Place = tuple[int, int]
"""Data parallel replica and pipeline stage."""

LEAST_PEERS = 3
"""Workers or GPUs from which their spread shows an outlier."""


@dataclass(frozen=True)
class Suspect:
    """A worker that is slower than its peers in one respect.

    Attributes:
        place: Replica and stage.
        ranks: Its recorded ranks.
        respect: What takes longer: computation; work (all that it does between collectives); transfer (at equal size);
            launch (it starts operations late); data (it starts the step late).
        excess: Excess time as a fraction of the time of its peers; for launch and data, of the step.
        excess_s: Time per step beyond that of its peers. Unit: s.
        has_peers: Whether it is compared with workers that do the same work; else stages are compared.
        lost_s: Time of the job's step that it costs. Unit: s.
        is_single: Whether it is one rank, compared with the others of its tensor parallel group.
        num_stages: Stages of the pipeline.
    """

    place: Place
    ranks: tuple[int, ...]
    respect: Respect
    excess: float
    excess_s: float
    has_peers: bool
    lost_s: float = 0.0
    is_single: bool = False
    num_stages: int = 1


@dataclass(frozen=True)
class Repair:
    """A suspect, and all durations and gaps if it were as fast as its peers.

    Attributes:
        suspect: The suspect.
        work_s: Durations without waits; shape (num_operations, num_steps). Unit: s.
        gap_s: Gaps before operations; same shape. Unit: s.
    """

    suspect: Suspect
    work_s: Float
    gap_s: Float


class Recorded:
    """Recorded operations with their order, gaps and places.

    Attributes:
        operations: The operations.
        order: Order of their events, with unrecorded waits.
        gap_s: Time by which each operation starts later than it could; shape (num_operations, num_steps). Unit: s.
        is_first: Whether each operation is the first of its worker; shape (num_operations,).
        places: Replica and stage of all workers.
        place: Index of the place of each operation; shape (num_operations,).
        step_s: Mean time of a step. Unit: s.
    """

    def __init__(self, operations: Operations, order: Order) -> None:
        """Find unrecorded waits, gaps and places."""
        self.operations = operations
        self.gap_s, self.is_first = find_gaps(operations, order)
        self.order = with_unrecorded_waits(operations, order, self.gap_s)
        if not np.array_equal(self.order.awaited, order.awaited):
            self.gap_s, self.is_first = find_gaps(operations, self.order)
        dp, stage = operations.of_worker("dp"), operations.of_worker("stage")
        places = sorted({(worker.dp, worker.stage) for worker in operations.workers})
        index_of = {place: index for index, place in enumerate(places)}
        self.places: Sequence[Place] = places
        self.place = np.array([index_of[place] for place in zip(dp.tolist(), stage.tolist(), strict=True)])
        self.step_s = float(operations.step_time_s.mean())

    def ranks(self, place: Place) -> tuple[int, ...]:
        """Return the recorded ranks of a place."""
        return tuple(sorted(worker.rank for worker in self.operations.workers if (worker.dp, worker.stage) == place))

    def peers(self) -> tuple[list[Bool], bool]:
        """Return groups of places that are compared, each of shape (num_places,), and whether they do the same work."""
        stages = np.array([stage for _, stage in self.places])
        groups = [stages == stage for stage in np.unique(stages)]
        if all(group.sum() >= LEAST_PEERS for group in groups):
            return groups, True
        return [np.ones(len(stages), dtype=np.bool_)], len(groups) == 1

    def per_place(self, values: Float, chosen: Bool) -> Float:
        """Return sums over the chosen operations of each place's slowest rank; shape (num_places, num_steps)."""
        by_worker = np.zeros((len(self.operations.workers), values.shape[1]))
        np.add.at(by_worker, self.operations.worker[chosen], values[chosen])
        by_place = np.zeros((len(self.places), values.shape[1]))
        for index, worker in enumerate(self.operations.workers):
            place = self.places.index((worker.dp, worker.stage))
            if by_worker[index].mean() > by_place[place].mean():
                by_place[place] = by_worker[index]
        return by_place
