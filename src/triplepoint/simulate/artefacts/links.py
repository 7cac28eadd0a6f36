"""Link counters of a simulated run: bytes of every GPU and node by kind of link, as drivers and adapters count them.

Collectives are counted as rings, where every rank sends as much as every other (with several rings, as NCCL has them,
the hops between nodes take turns too); reduction in switches would move less. What leaves a node crosses the PCIe of
its GPU and an adapter of the node.
"""

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from triplepoint.simulate.artefacts.groups import ProcessGroup, split_sync
from triplepoint.simulate.artefacts.simulated import Simulated
from triplepoint.simulate.operations import CommKind, Message, Operation
from triplepoint.simulate.timeline.model import Float
from triplepoint.simulate.timeline.schedule import BACKWARD, BACKWARD_WEIGHT, FORWARD

_ROUNDS: dict[CommKind, int] = {"all_reduce": 2, "all_gather": 1, "reduce_scatter": 1, "broadcast": 1}
"""Times a ring passes the buffer on, but for the share that is there already."""


class Traffic(NamedTuple):
    """What one rank sends. Unit: byte.

    Attributes:
        inside: To GPUs of its node.
        outside: To other nodes.
    """

    inside: float
    outside: float


class Spread(NamedTuple):
    """How the ranks of a process group lie over nodes, as one of them sees it.

    Attributes:
        size: Ranks.
        near: Of them on its node, itself among them.
        num_nodes: Nodes they are on.
    """

    size: int
    near: int
    num_nodes: int


def spread_of(ranks: Sequence[int], rank: int, gpus_per_node: int) -> Spread:
    """Return how the ranks of a group lie over nodes of so many GPUs, as `rank` sees it."""
    nodes = [one // gpus_per_node for one in ranks]
    return Spread(len(ranks), nodes.count(rank // gpus_per_node), len(set(nodes)))


def traffic(kind: CommKind, num_bytes: float, spread: Spread) -> Traffic:
    """Return what a rank sends in one collective; it receives as much.

    What two ranks exchange (tied embeddings of the first and the last stage, a ring's neighbours) counts as leaving the
    node where their group does.

    Args:
        kind: Of the collective; activations between pipeline stages are not asked for here.
        num_bytes: As nccl-tests counts it, see `Message`. Unit: byte.
        spread: Of the process group, as the rank sees it.

    Source:
        NVIDIA/nccl-tests doc/PERFORMANCE.md, the factors between algorithm and bus bandwidth.
    """
    size, near, num_nodes = spread
    if kind == "all_to_all":
        return Traffic(num_bytes * (near - 1) / size, num_bytes * (size - near) / size)
    if kind == "send_recv":
        return Traffic(num_bytes, 0.0) if num_nodes == 1 else Traffic(0.0, num_bytes)
    sent = _ROUNDS[kind] * (size - 1) / size * num_bytes
    hops_outside = num_nodes if num_nodes > 1 else 0
    return Traffic(sent * (size - hops_outside) / size, sent * hops_outside / size)


_Add = Callable[..., None]
_Lie = tuple[tuple[str, Spread], ...]


class Flow(NamedTuple):
    """Bytes of one rank that flow evenly between two times of the step. Shapes (num_flows,).

    Attributes:
        start_s: When they begin. Unit: s.
        end_s: When they are through. Unit: s.
        sent: To (GPUs of the node, other nodes); shape (num_flows, 2). Unit: byte.
        received: From them; same shape. Unit: byte.
    """

    start_s: Float
    end_s: Float
    sent: Float
    received: Float

    def until(self, time_s: Float) -> Float:
        """Return bytes so far; shape (num_times, 4): sent inside and outside, received inside and outside."""
        length = np.maximum(self.end_s - self.start_s, 1e-12)
        share = np.clip((time_s[:, None] - self.start_s) / length, 0.0, 1.0)
        return np.asarray(share @ np.concatenate((self.sent, self.received), axis=1))


class Links:
    """Counts the bytes of a simulated step."""

    def __init__(self, simulated: Simulated, gpus_per_node: int) -> None:
        """Count on nodes of so many GPUs."""
        self._simulated = simulated
        self._per_node = gpus_per_node
        chunks = [chunk for stage in simulated.stages for chunk in stage.chunks]
        # The same for all, as in traces.
        self._activation = float(round(max(chunk.send_bytes for chunk in chunks)))
        self._summed = lru_cache(maxsize=4096)(_sum)
        self._known: dict[object, Flow] = {}

    def flow(self, rank: int, groups: dict[str, ProcessGroup]) -> Flow:
        """Return what a rank sends and receives in a step, the same object for ranks that do the same.

        Args:
            rank: The rank.
            groups: Its process groups by name.
        """
        lie = tuple((name, spread_of(group.ranks, rank, self._per_node)) for name, group in groups.items())
        near = tuple(self._is_near(rank, other) for other in range(self._simulated.timeline.order.num_stages))
        stage, which = self._simulated.place(rank)
        key = (stage, which, lie, near)
        if key not in self._known:
            self._known[key] = self._flow(stage, which, lie, near)
        return self._known[key]

    def _is_near(self, rank: int, stage: int) -> bool:
        """Return whether the rank's counterpart in a stage is on its node."""
        layout = self._simulated.job.layout
        stride = layout.tp * layout.cp * layout.dp
        return (rank % stride + stage * stride) // self._per_node == rank // self._per_node

    def _flow(self, stage: int, which: int, lie: _Lie, near: tuple[bool, ...]) -> Flow:
        timeline = self._simulated.timeline
        order, work = timeline.order, self._simulated.stages[stage]
        rows: list[tuple[float, float, Traffic, Traffic]] = []

        def add(start: float, end: float, *parts: tuple[Operation, ...]) -> None:
            moved = Traffic(*np.sum([self._summed(part, lie) for part in parts], axis=0))
            if sum(moved):
                rows.append((float(start), float(end), moved, moved))

        for place in range(order.num_tasks):
            chunk = work.chunks[order.chunk[stage, place]]
            whole = (chunk.backward_input,) if order.is_split else (chunk.backward_input, chunk.backward_weight)
            parts = {FORWARD: (chunk.forward,), BACKWARD: whole, BACKWARD_WEIGHT: (chunk.backward_weight,)}
            add(
                timeline.start[stage, place, which],
                timeline.end[stage, place, which],
                *parts[int(order.kind[stage, place])],
            )
        self._add_sync(add, stage)
        begin = timeline.optimizer_start
        add(begin, begin + timeline.durations.optimizer.total[stage, which], work.optimizer)
        rows += self._sends(stage, which, near)
        times = np.array([row[:2] for row in rows]).reshape(-1, 2)
        sent, received = (np.array([row[at] for row in rows]).reshape(-1, 2) for at in (2, 3))
        return Flow(times[:, 0], times[:, 1], sent, received)

    def _add_sync(self, add: _Add, stage: int) -> None:
        """Add the messages of the step, each where it runs."""
        timeline = self._simulated.timeline
        gathers, reductions, after = split_sync(self._simulated.stages[stage])
        gathered = float(timeline.durations.gather_overlapped[stage].sum())
        add(0.0, gathered, *[tuple(gathers)] * timeline.order.num_chunks)
        for begin, end in timeline.sync[stage].tolist():
            add(begin, end, tuple(reductions))
        add(*timeline.final_sync[stage].tolist(), tuple(after))

    def _sends(self, stage: int, which: int, near: tuple[bool, ...]) -> list[tuple[float, float, Traffic, Traffic]]:
        """Return activations and gradients that go to other stages and come from them."""
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


def _sum(operations: tuple[Operation, ...], lie: _Lie) -> Traffic:
    known, total = dict(lie), np.zeros(2)
    for message in operations:
        if isinstance(message, Message) and known[message.group].size > 1:
            total += np.array(traffic(message.kind, round(message.num_bytes), known[message.group])) * message.count
    return Traffic(*total.tolist())
