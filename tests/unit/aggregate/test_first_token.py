"""Time to the first token, of ranks of which only those of the last pipeline stage see it."""

import pyarrow as pa
import pytest

from triplepoint.aggregate.steps import _first_token_s

START_NS = [10**18 + 1_000 * step for step in (0, 1)] * 3


def measured(after_s: list[float | None]) -> pa.Table:
    """Return two steps of three ranks, rank by rank."""
    first = [None if s is None else start + round(s * 1e9) for start, s in zip(START_NS, after_s, strict=True)]
    return pa.table({"t_start_ns": START_NS, "t_first_token_ns": pa.array(first, pa.int64())})


def test_first_token_is_that_of_the_slowest_rank_that_sees_it() -> None:
    found = _first_token_s(measured([None, None, 0.25, 0.5, 0.125, 0.75]), (3, 2), [0, 1])
    assert found is not None and found.tolist() == pytest.approx([0.25, 0.75])


def test_first_token_of_steps_that_are_left_out_does_not_count() -> None:
    found = _first_token_s(measured([None, None, None, 0.5, None, 0.75]), (3, 2), [1])
    assert found is not None and found.tolist() == pytest.approx([0.75])


@pytest.mark.parametrize("after_s", [[None] * 6, [None, 0.5, None, 0.5, None, 0.5]])
def test_first_token_that_no_rank_saw_is_not_made_up(after_s: list[float | None]) -> None:
    assert _first_token_s(measured(after_s), (3, 2), [0, 1]) is None
