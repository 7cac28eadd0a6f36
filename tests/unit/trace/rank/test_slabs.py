"""Work cut into slabs of time: whatever fits into memory, the tables are the same."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.examples import examples
from tests.unit.trace.rank.parsed import Parsed, parse
from tests.unit.trace.rank.random_work import Case, cases
from tests.unit.trace.traces import GEMM, event, kernel, launch, note
from triplepoint.trace.rank.events import LAUNCHED, slabs


def sorted_tables(parsed: Parsed) -> list[Any]:
    """Return all of a rank's tables, of which only the order of rows may differ."""
    as_text = [sorted(map(str, table)) for table in (*parsed[1:-1], drawn(parsed))]
    summary = parsed.summary
    return [*as_text, summary.span, summary.steps, summary.accounts, summary.num_gpu_events]


def drawn(parsed: Parsed) -> list[tuple[Any, ...]]:
    """Return what is drawn, spans that touch and look alike as one: at a border an operator may be cut."""
    found: list[list[Any]] = []
    looks = ("lane", "label", "group", "stage", "microbatch")
    for row in parsed.timeline:
        look, start = [row[name] for name in looks], row["t_start_ns"]
        if found and found[-1][:5] == look and found[-1][6] == start:
            found[-1][6] += row["duration_ns"]
        else:
            found.append([*look, start, start + row["duration_ns"]])
    return [tuple(one) for one in found]


messages = st.fixed_dictionaries({"Group size": st.integers(1, 2), "Process Group Name": st.sampled_from(["1", "2"])})


@settings(max_examples=examples(25), deadline=None)
@given(cases, st.integers(1, 6), st.data())
def test_parse_any_capacity_gives_the_same_tables(case: Case, capacity: int, data: st.DataObject) -> None:
    events = case.events()
    for one in events:
        if one["name"].startswith("nccl"):
            one["args"] |= data.draw(messages)
    # Some rows stand in the trace twice.
    events += [one for one in events if one["cat"] == "kernel" and data.draw(st.booleans())]
    assert sorted_tables(parse(events, capacity=capacity)) == sorted_tables(parse(events))


calls = st.recursive(
    st.tuples(st.sampled_from(["aten::mm", "aten::copy_", "c10d::allreduce_"]), st.integers(0, 6), st.just([])),
    lambda inner: st.tuples(
        st.sampled_from(["aten::linear", "autograd::engine"]), st.integers(0, 6), st.lists(inner, max_size=3)
    ),
    max_leaves=5,
)
"""Name, time before and after each call within, those calls."""


def called(call: tuple[str, int, list], start: int, thread: int) -> list[dict]:
    """Return the events of a call, itself first."""
    name, pause, inner = call
    now, within = start + pause, []
    for one in inner:
        events = called(one, now, thread)
        within += events
        now += int(events[0]["dur"]) + pause
    return [event(name, start, now - start, tid=thread), *within]


@settings(max_examples=examples(25), deadline=None)
@given(
    st.lists(st.tuples(calls, st.integers(0, 40)), max_size=3),
    st.lists(st.tuples(st.integers(0, 60), st.integers(1, 25)), max_size=4),
    st.integers(1, 6),
)
def test_parse_cpu_any_capacity_gives_the_same_tables(
    roots: list[tuple[tuple[str, int, list], int]], collectives: list[tuple[int, int]], capacity: int
) -> None:
    events = [one for thread, (call, start) in enumerate(roots) for one in called(call, start, thread)]
    events += [note("gloo:all_reduce", start, length, tid=9) for start, length in collectives]
    events += [note("ProfilerStep#0", 5, 40), note("forward", 10, 20)]
    assert sorted_tables(parse(events, capacity=capacity)) == sorted_tables(parse(events))


@pytest.mark.parametrize("capacity", [5, 1 << 17])
def test_parse_long_trace_by_hand_at_any_capacity(capacity: int) -> None:
    # 600 kernels of 3 us, one every 5 us, launched 4 us before; beside them a fill that outlasts every slab.
    events = [kernel(GEMM, 5 * i, 3, correlation=i + 1) for i in range(600)]
    events += [launch(5 * i - 4, i + 1) for i in range(600)]
    parsed = parse([*events, event("Memset (Device)", 0, 3000, "gpu_memset", 9, stream=9)], capacity=capacity)
    assert parsed.summary.busy("compute") == parsed.summary.exposed("compute") == 1_800_000
    assert (parsed.summary.busy("memory"), parsed.summary.exposed("memory")) == (3_000_000, 1_200_000)
    assert parsed.summary.exposed("idle") == 0
    assert sorted(row["count"] for row in parsed.kernels) == [1, 600]
    alone = parse(events, capacity=capacity)
    assert alone.idle_us == {"other": 599 * 2}
    assert len(alone.segments) == 1199


def launched(spans: list[tuple[int, int]]) -> np.ndarray:
    rows = np.zeros(len(spans), dtype=LAUNCHED)
    rows["start"], rows["duration"] = [s for s, _ in spans], [d for _, d in spans]
    rows["name"] = range(len(spans))
    return rows


def test_slabs_touch_and_carry_what_reaches_on() -> None:
    blocks = [launched([(0, 100), (5, 5)]), launched([(20, 2)]), launched([(30, 10), (31, 200)])]
    found = list(slabs(blocks))
    assert [(slab.begin, slab.end) for slab in found] == [(0, 20), (20, 30), (30, 231)]
    spans = [list(zip(slab.start.tolist(), slab.stop.tolist(), strict=True)) for slab in found]
    assert spans == [[(0, 20), (5, 10)], [(20, 30), (20, 22)], [(30, 100), (30, 40), (31, 231)]]
    assert [slab.is_begun.tolist() for slab in found] == [[True, True], [False, True], [False, True, True]]
    assert [slab.is_done.tolist() for slab in found] == [[False, True], [False, True], [True, True, True]]
    assert [slab.following["start"].tolist() for slab in found] == [[20], [30], []]


def test_slabs_what_is_set_in_a_row_comes_again() -> None:
    blocks = [launched([(0, 100)]), launched([(20, 2)])]
    seen = []
    for slab in slabs(blocks):
        slab.rows["exposed"] += slab.stop - slab.start
        seen.append(slab.rows["exposed"].tolist())
    assert seen == [[20], [100, 2]]


def test_slabs_drop_rows_equal_in_everything() -> None:
    rows = launched([(0, 5), (0, 5), (0, 5), (0, 6), (7, 1), (7, 1)])
    rows["name"] = [1, 1, 2, 1, 3, 3]
    (slab,) = slabs([rows])
    assert slab.rows["name"].tolist() == [1, 2, 1, 3]
    assert slab.num_dropped == 2
    (slab,) = slabs([rows], keep_duplicates=True)
    assert (len(slab.rows), slab.num_dropped) == (6, 0)


@pytest.mark.parametrize("field", ["start", "duration", "thread", "name", "correlation", "category"])
def test_slabs_keep_rows_that_differ_in_anything(field: str) -> None:
    rows = launched([(3, 5), (3, 5)])
    rows["name"] = 1
    rows[field][1] += 1
    (slab,) = slabs([rows])
    assert (len(slab.rows), slab.num_dropped) == (2, 0)


def test_slabs_of_nothing_are_none() -> None:
    assert list(slabs([])) == []
