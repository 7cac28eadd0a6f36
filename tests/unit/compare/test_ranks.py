"""The rank that changed more than the others: its parts, and one line for one cause."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.unit.why.test_traced_operations import LATE_MS, TRANSFER_MS, WORK_MS, one_late, write_traces
from triplepoint.compare.answer import answer
from triplepoint.compare.parts import find_changed_rank, step_difference
from triplepoint.compare.sides import Side
from triplepoint.compare.traced import Traced, of_tables
from triplepoint.tables import KERNELS


def sound(rank: int, index: int) -> float:
    return 0.0


def every(rank: int, index: int) -> float:
    return LATE_MS


def side(folder: Path, num_ranks: int, late_ms: Callable[[int, int], float]) -> Side:
    """Return a side of traces in which ranks are late by some milliseconds."""
    write_traces(folder, num_ranks, late_ms)
    KERNELS.write(folder / "kernels.parquet", KERNELS.from_rows([]))
    return Side("folder", [], of_tables(folder))


def traced(one: Side) -> Traced:
    assert one.traced is not None
    return one.traced


@pytest.mark.parametrize("num_ranks", [2, 4])
@pytest.mark.parametrize("is_turned", [False, True])
def test_sleep_of_one_rank_is_one_part_and_names_it(num_ranks: int, is_turned: bool, tmp_path: Path) -> None:
    sides = [side(tmp_path / "a", num_ranks, sound), side(tmp_path / "b", num_ranks, one_late)]
    first, other = sides[::-1] if is_turned else sides
    sign = -1 if is_turned else 1
    changed = find_changed_rank(first, other)
    assert changed is not None and (changed.rank, changed.others_s) == (1, 0.0)
    assert changed.change_s == pytest.approx(sign * LATE_MS / 1e3)
    own = [Side("folder", [], traced(one).of_rank(1)) for one in (first, other)]
    step = step_difference(*own)
    assert step is not None
    parts = {one.part.kind: one.effect.value for one in step.parts}
    assert parts == pytest.approx({"host": sign * LATE_MS / 1e3, "gemm": 0.0, "all_reduce": 0.0}, abs=1e-9)
    assert "mostly on rank 1: waiting for launches from the CPU (" in answer(*own, [], step, [], 1)


def test_parts_of_means_split_one_cause_in_two(tmp_path: Path) -> None:
    """What of_rank is there for: half of the sleep is idle time of the mean rank, half is waited in the all-reduce."""
    step = step_difference(side(tmp_path / "a", 2, sound), side(tmp_path / "b", 2, one_late))
    assert step is not None and step.first_s == pytest.approx((WORK_MS + TRANSFER_MS) / 1e3)
    parts = {one.part.kind: one.effect.value for one in step.parts}
    assert (parts["host"], parts["all_reduce"]) == pytest.approx((LATE_MS / 2e3, LATE_MS / 2e3))


def test_ranks_that_all_changed_alike_name_none(tmp_path: Path) -> None:
    assert find_changed_rank(side(tmp_path / "a", 4, sound), side(tmp_path / "b", 4, every)) is None


def test_other_ranks_are_not_compared(tmp_path: Path) -> None:
    assert find_changed_rank(side(tmp_path / "a", 2, sound), side(tmp_path / "b", 4, one_late)) is None
