"""The drawn timeline: joined and thinned without losing what is visible."""

from pathlib import Path

import numpy as np

from tests.unit.trace.traces import BASE_NS, event, kernel, note, write_trace
from triplepoint.trace.export.timeline import Span, span_rows, step_spans
from triplepoint.trace.kineto.reader import read_trace
from triplepoint.trace.lanes import Step
from triplepoint.trace.rank.collectives import GroupRecord
from triplepoint.trace.rank.phases import Phases, Tag, find_phases
from triplepoint.trace.rank.work import find_work

STEP = Step(0, BASE_NS, BASE_NS + 1_000_000)
"""One millisecond: gaps and spans below 500 ns are too narrow to see."""
ALL_REDUCE, ALL_GATHER = "ncclDevKernel_AllReduce_x", "ncclDevKernel_AllGather_x"


def spans_of(tmp_path: Path, events: list[dict]) -> list[tuple[str, str, int, int]]:
    trace = read_trace(write_trace(tmp_path / "t.json", events))
    work = find_work(trace, GroupRecord())
    found = step_spans(STEP, find_phases(trace, work), work)
    return sorted((s.lane, s.label, s.start - BASE_NS, s.end - BASE_NS) for s in found)


def test_step_spans_same_looks_closer_than_visible_are_joined(tmp_path: Path) -> None:
    events = [kernel(ALL_REDUCE, 10, 1), kernel(ALL_REDUCE, 11.4, 1), kernel(ALL_REDUCE, 13, 1)]
    assert spans_of(tmp_path, events) == [
        ("comm", "all_reduce", 10_000, 12_400),
        ("comm", "all_reduce", 13_000, 14_000),
    ]


def test_step_spans_short_span_is_dropped_only_where_covered(tmp_path: Path) -> None:
    events = [kernel(ALL_REDUCE, 10, 10), kernel(ALL_GATHER, 12, 0.1, stream=9), kernel(ALL_GATHER, 40, 0.1, stream=9)]
    assert spans_of(tmp_path, events) == [
        ("comm", "all_gather", 40_000, 40_100),
        ("comm", "all_reduce", 10_000, 20_000),
    ]


def test_step_spans_are_cut_at_the_step(tmp_path: Path) -> None:
    events = [note("optimizer", 900, 500), event("aten::mm", 950, 1), note("gloo:barrier", 0, 2000, tid=4)]
    assert spans_of(tmp_path, events) == [
        ("comm", "barrier", 0, 1_000_000),
        ("phase", "optimizer", 900_000, 1_000_000),
    ]


def test_step_spans_phase_lane_keeps_stage_and_microbatch(tmp_path: Path) -> None:
    trace = read_trace(write_trace(tmp_path / "t.json", [kernel(ALL_REDUCE, 5000, 1)]))
    start = np.array([BASE_NS, BASE_NS + 100_000])
    phases = Phases(start, start + 100_000, [Tag("forward", 0, 0), Tag("forward", 0, 1)])
    found = step_spans(STEP, phases, find_work(trace, GroupRecord()))
    assert [(s.stage, s.microbatch, s.end - s.start) for s in found] == [(0, 0, 100_000), (0, 1, 100_000)]


def test_step_spans_too_many_are_thinned_further(tmp_path: Path) -> None:
    names = [ALL_REDUCE, ALL_GATHER]
    events = [kernel(names[i % 2], i * 0.1, 0.05) for i in range(9_000)]
    trace = read_trace(write_trace(tmp_path / "t.json", events))
    step = Step(0, BASE_NS, BASE_NS + 900_000)
    found = step_spans(step, Phases(np.empty(0, np.int64), np.empty(0, np.int64), []), find_work(trace, GroupRecord()))
    assert len(found) < 5_000
    assert max(s.end for s in found) - min(s.start for s in found) >= 899_900


def test_span_rows_count_from_the_origin() -> None:
    spans = [Span("phase", "forward", None, 1, 2, 500, 800), Span("comm", "send", "pp", None, None, 600, 700)]
    comm = {"lane": "comm", "label": "send", "group": "pp", "stage": None, "microbatch": None}
    phase = {"lane": "phase", "label": "forward", "group": None, "stage": 1, "microbatch": 2}
    assert span_rows(3, spans, 400) == [
        {"rank": 3, **comm, "t_start_ns": 200, "duration_ns": 100},
        {"rank": 3, **phase, "t_start_ns": 100, "duration_ns": 300},
    ]


def test_step_spans_that_all_look_different_are_all_kept(tmp_path: Path) -> None:
    events = [note(f"forward stage=0 microbatch={i}", i * 0.2, 0.1) for i in range(5_001)]
    assert len(spans_of(tmp_path, events)) == 5_000, "the step ends before the last one"
