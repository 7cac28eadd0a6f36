"""Exposed waiting inside communication."""

import numpy as np

from tests.unit.trace.cross.worlds import numbered
from triplepoint.trace.clocks import Arrivals
from triplepoint.trace.compare import ExposedWaits, find_exposed_waits
from triplepoint.trace.rank_results import CollectiveSignature, Label, Segments, Step

LABELS = [
    Label("compute", "gemm"),
    Label("comm", "all_reduce", "dp"),
    Label("comm", "recv", "pp"),
    Label("idle", "host"),
]


def ints(*values: int) -> np.ndarray:
    return np.array(values, dtype=np.int64)


def lane(*segments: tuple[int, int, int], step: tuple[int, int] = (0, 1000)) -> Segments:
    start, end, label = (ints(*column) for column in zip(*segments, strict=True))
    return Segments(0, [Step(0, *step)], start, end, label, LABELS)


def waited(own: Segments, kind: str, start: int, end: int, wait: int) -> ExposedWaits:
    signature = CollectiveSignature("g", kind, num_ranks=2, ranks=(0, 1))
    collectives = numbered(0, [signature], ints(start), ints(end))
    one = ints(1)
    arrived = Arrivals(0, 2 * one, one.astype(bool), 0 * one, wait * one, wait * one, one, (start + wait) * one)
    return find_exposed_waits(own, collectives, arrived)


def test_exposed_waits_counts_only_time_without_computation() -> None:
    # All-reduce from 100 to 200, the last rank comes at 180; computation runs beside it until 150.
    own = lane((0, 150, 0), (150, 200, 1), (200, 1000, 0))
    assert waited(own, "all_reduce", 100, 200, 80) == ExposedWaits(bubble=0, straggler=30)


def test_exposed_waits_in_a_message_is_bubble() -> None:
    own = lane((0, 100, 0), (100, 200, 2), (200, 1000, 3))
    assert waited(own, "recv", 100, 200, 80) == ExposedWaits(bubble=80, straggler=0)


def test_exposed_waits_ends_with_the_rank_s_own_part() -> None:
    own = lane((0, 100, 0), (100, 200, 1), (200, 1000, 3))
    assert waited(own, "all_reduce", 100, 200, 500) == ExposedWaits(bubble=0, straggler=100)


def test_exposed_waits_outside_steps_does_not_count() -> None:
    own = lane((0, 100, 0), (100, 200, 1), (200, 1000, 0), step=(150, 1000))
    assert waited(own, "all_reduce", 100, 200, 80) == ExposedWaits(bubble=0, straggler=30)
