"""Link counters of a simulated run: bytes of every GPU and node by kind of link, as drivers and adapters count them.

Bytes that leave a node cross the PCIe link of its GPU and an adapter of the node.
"""

from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from triplepoint.simulate.artefacts.groups import ProcessGroup, split_sync
from triplepoint.simulate.artefacts.simulated import Simulated
from triplepoint.simulate.collectives.traffic import NodeSpread, Traffic, spread_of_ranks, traffic
from triplepoint.simulate.operations import Communication, Operation
from triplepoint.simulate.timeline.durations import Float
from triplepoint.simulate.timeline.schedule import FORWARD, operations_by_task

_Add = Callable[[float, float, Traffic], None]
_GroupSpreads = tuple[tuple[str, NodeSpread], ...]


class Flow(NamedTuple):
    """Bytes of one rank that flow evenly between two times of the step. Shapes (num_flows,).

    Attributes:
        start_s: Start. Unit: s.
        end_s: End. Unit: s.
        sent: Bytes sent to GPUs of the node and to other nodes; shape (num_flows, 2). Unit: byte.
        received: Bytes received from them; same shape. Unit: byte.
    """

    start_s: Float
    end_s: Float
    sent: Float
    received: Float

    def until(self, time_s: Float) -> Float:
        """Return the bytes up to some times.

        Shape (num_times, 4): sent inside and outside, received inside and outside.
        """
        length = np.maximum(self.end_s - self.start_s, 1e-12)
        share = np.clip((time_s[:, None] - self.start_s) / length, 0.0, 1.0)
        return np.asarray(share @ np.concatenate((self.sent, self.received), axis=1))


class Links:
    """Counts the bytes of a simulated step."""

    def __init__(self, simulated: Simulated, gpus_per_node: int) -> None:
        """Prepare counting.

        Args:
            simulated: The step.
            gpus_per_node: GPUs of a node.
        """
        self._simulated = simulated
        self._per_node = gpus_per_node
        chunks = [chunk for stage in simulated.stages for chunk in stage.chunks]
        # All sends count as the largest one, as in traces.
        self._activation = float(round(max(chunk.send_bytes for chunk in chunks)))
        self._cached_traffic = lru_cache(maxsize=4096)(_traffic_of)
        self._flows: dict[object, Flow] = {}

    def flow(self, rank: int, groups: dict[str, ProcessGroup]) -> Flow:
        """Return the bytes that a rank sends and receives in a step; ranks that do the same share one object.

        Args:
            rank: The rank.
            groups: Its process groups by name.
        """
        spreads = tuple((name, spread_of_ranks(group.ranks, rank, self._per_node)) for name, group in groups.items())
        near = tuple(self._is_near(rank, other) for other in range(self._simulated.timeline.order.num_stages))
        stage, which = self._simulated.place(rank)
        key = (stage, which, spreads, near)
        if key not in self._flows:
            self._flows[key] = self._flow(stage, which, spreads, near)
        return self._flows[key]

    def _is_near(self, rank: int, stage: int) -> bool:
        """Return whether the rank's counterpart in a stage is on its node."""
        stride = self._simulated.job.mesh.ranks_per_stage
        return (rank % stride + stage * stride) // self._per_node == rank // self._per_node

    def _flow(self, stage: int, which: int, spreads: _GroupSpreads, near: tuple[bool, ...]) -> Flow:
        """Return the flows of a rank.

        Args:
            stage: Its pipeline stage.
            which: Its class of replica.
            spreads: Distribution of its process groups over nodes, by name.
            near: Whether its counterpart in each stage is on its node.
        """
        timeline = self._simulated.timeline
        order, work = timeline.order, self._simulated.stages[stage]
        rows: list[tuple[float, float, Traffic, Traffic]] = []

        def add(start: float, end: float, moved: Traffic) -> None:
            if sum(moved):
                rows.append((float(start), float(end), moved, moved))

        # A step has many tasks but few kinds of tasks: operations are summed once per chunk and kind.
        passes = [
            {kind: self._total(parts, spreads) for kind, parts in operations_by_task(chunk, order.is_split).items()}
            for chunk in work.chunks
        ]
        tasks = (order.chunk[stage], order.kind[stage], timeline.start[stage, :, which], timeline.end[stage, :, which])
        for chunk, kind, start, end in zip(*(each.tolist() for each in tasks), strict=True):
            add(start, end, passes[chunk][kind])
        self._add_sync(add, stage, spreads)
        begin = timeline.optimizer_start
        optimizer = self._total((work.optimizer,), spreads)
        add(begin, begin + timeline.durations.optimizer.total[stage, which], optimizer)
        rows += self._sends(stage, which, near)
        times = np.array([row[:2] for row in rows]).reshape(-1, 2)
        sent, received = (np.array([row[at] for row in rows]).reshape(-1, 2) for at in (2, 3))
        return Flow(times[:, 0], times[:, 1], sent, received)

    def _total(self, parts: Iterable[tuple[Operation, ...]], spreads: _GroupSpreads) -> Traffic:
        moved = [self._cached_traffic(part, spreads) for part in parts]
        return Traffic(sum(each.inside for each in moved), sum(each.outside for each in moved))

    def _add_sync(self, add: _Add, stage: int, spreads: _GroupSpreads) -> None:
        """Add the collectives outside of passes."""
        timeline = self._simulated.timeline
        gathers, reductions, after = split_sync(self._simulated.stages[stage])
        gathered = float(timeline.durations.gather_overlapped[stage].sum())
        add(0.0, gathered, self._total([tuple(gathers)] * timeline.order.num_chunks, spreads))
        for begin, end in timeline.sync[stage].tolist():
            add(begin, end, self._total((tuple(reductions),), spreads))
        begin, end = timeline.final_sync[stage].tolist()
        add(begin, end, self._total((tuple(after),), spreads))

    def _sends(self, stage: int, which: int, near: tuple[bool, ...]) -> list[tuple[float, float, Traffic, Traffic]]:
        """Return start, end, sent and received bytes of activations and gradients that cross to other stages."""
        timeline, order = self._simulated.timeline, self._simulated.timeline.order
        none, rows = Traffic(0.0, 0.0), []

        def between(other: int) -> Traffic:
            return Traffic(self._activation, 0.0) if near[other] else Traffic(0.0, self._activation)

        for place in np.flatnonzero(order.is_sent[stage]).tolist():
            other = (stage + (1 if order.kind[stage, place] == FORWARD else -1)) % order.num_stages
            times = timeline.sent[stage, place, which], timeline.arrival[stage, place, which]
            rows.append((float(times[0]), float(times[1]), between(other), none))
        for needs in order.needs[stage][order.needs[stage] >= 0].tolist() if order.num_stages > 1 else []:
            other, place = divmod(needs, order.num_tasks)
            times = timeline.sent[other, place, which], timeline.arrival[other, place, which]
            rows.append((float(times[0]), float(times[1]), none, between(other)))
        return rows


def _traffic_of(operations: tuple[Operation, ...], spreads: _GroupSpreads) -> Traffic:
    """Return the bytes that a rank sends in some operations."""
    by_group, total = dict(spreads), np.zeros(2)
    for operation in operations:
        if isinstance(operation, Communication) and by_group[operation.group].size > 1:
            moved = traffic(operation.kind, round(operation.num_bytes), by_group[operation.group])
            total += np.array(moved) * operation.count
    return Traffic(*total.tolist())
