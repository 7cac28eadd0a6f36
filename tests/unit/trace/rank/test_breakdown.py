"""The accounting of a step, against counting nanosecond by nanosecond."""

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.trace.traces import event, kernel, note, write_trace
from triplepoint.trace.kineto.reader import read_trace
from triplepoint.trace.rank.breakdown import interval_rows, kernel_rows
from triplepoint.trace.rank.collectives import GroupRecord
from triplepoint.trace.rank.phases import find_phases, find_steps
from triplepoint.trace.rank.work import find_work

GEMM, COMM, COPY = "ampere_sgemm_128x64_nn", "ncclDevKernel_AllReduce_x", "Memcpy DtoD (Device -> Device)"
CATEGORY = {GEMM: "compute", COMM: "comm", COPY: "memory"}
PHASE = {
    "forward stage=0 microbatch=0": "forward",
    "backward stage=0 microbatch=0": "backward",
    "optimizer": "optimizer",
}

instants = st.integers(0, 60)
lengths = st.integers(0, 25)
works = st.lists(st.tuples(st.sampled_from(list(CATEGORY)), instants, lengths), max_size=10)
notes = st.lists(st.tuples(st.sampled_from(list(PHASE)), instants, lengths), max_size=5)
steps = st.lists(st.integers(1, 30), min_size=1, max_size=3)


def analyse(events: list[dict]) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    with TemporaryDirectory() as folder:
        trace = read_trace(write_trace(Path(folder) / "t.json", events))
    work = find_work(trace, GroupRecord())
    found = find_steps(trace, work)
    return interval_rows(5, found, find_phases(trace, work), work), kernel_rows(5, found, work)


def device_event(name: str, start_ns: int, length_ns: int) -> dict:
    cat = "gpu_memcpy" if name == COPY else "kernel"
    return event(name, start_ns / 1000, length_ns / 1000, cat, 7, stream=7)


def count_slowly(
    window: range, work: list[tuple[str, int, int]], annotations: list[tuple[str, int, int]]
) -> dict[tuple[str, str], list[int]]:
    """Return busy and exposed time by phase and category: one instant after the other."""
    counted = {(p, c): [0, 0] for p in [*PHASE.values(), "other"] for c in [*CATEGORY.values(), "idle"]}
    for instant in window:
        running = {CATEGORY[name] for name, start, length in work if start <= instant < start + length}
        active = [
            (start, index) for index, (_, start, length) in enumerate(annotations) if start <= instant < start + length
        ]
        phase = PHASE[annotations[max(active)[1]][0]] if active else "other"
        ordered = [category for category in CATEGORY.values() if category in running] or ["idle"]
        for category in ordered:
            counted[phase, category][0] += 1
        counted[phase, ordered[0]][1] += 1
    return counted


@settings(max_examples=150, deadline=None)
@given(works, notes, steps)
def test_interval_rows_any_device_trace_equals_counting(
    work: list[tuple[str, int, int]], annotations: list[tuple[str, int, int]], durations: list[int]
) -> None:
    # One piece of work far outside keeps it a device trace that ends late.
    work = [*work, (GEMM, 300, 1)]
    events = [device_event(*one) for one in work]
    events += [event(n, s / 1000, d / 1000, "gpu_user_annotation", 7) for n, s, d in annotations]
    windows, clock = [], 0
    for number, duration in enumerate(durations):
        events.append(note(f"ProfilerStep#{number}", clock / 1000, duration / 1000))
        windows.append(range(clock, clock + duration))
        clock += duration
    windows[-1] = range(windows[-1].start, 301)
    rows, _ = analyse(events)
    assert len(rows) == 16 * len(durations)
    for number, window in enumerate(windows):
        mine = {(r["phase"], r["category"]): r for r in rows if r["step"] == number}
        expected = count_slowly(window, work, annotations)
        assert {key: [r["busy_ns"], r["exposed_ns"]] for key, r in mine.items()} == expected
        assert sum(r["exposed_ns"] for r in mine.values()) == len(window)
        assert all(r["overlapped_ns"] == r["busy_ns"] - r["exposed_ns"] for r in mine.values())


def test_interval_rows_cpu_backward_on_another_thread_is_backward_time() -> None:
    events = [
        note("ProfilerStep#0", 0, 100),
        note("backward stage=0 microbatch=0", 20, 60),
        event("aten::mm", 30, 20, tid=2),
        note("gloo:all_reduce", 40, 30, tid=3),
    ]
    rows, _ = analyse(events)
    backward = {r["category"]: (r["busy_ns"], r["exposed_ns"]) for r in rows if r["phase"] == "backward"}
    assert backward == {
        "compute": (20_000, 20_000),
        "comm": (30_000, 20_000),
        "memory": (0, 0),
        "idle": (20_000, 20_000),
    }
    other = {r["category"]: r["busy_ns"] for r in rows if r["phase"] == "other"}
    assert other == {"compute": 0, "comm": 0, "memory": 0, "idle": 40_000}


def test_kernel_rows_occurrence_counts_whole_where_it_starts() -> None:
    events = [
        note("ProfilerStep#3", 0, 10),
        note("ProfilerStep#4", 10, 10),
        kernel(GEMM, 2, 3),
        kernel(GEMM, 8, 6),
        kernel(GEMM, 15, 1),
        kernel(COMM, 16, 1),
    ]
    _, rows = analyse(events)
    gemm = {"rank": 5, "class": "gemm", "kind": "dense", "group": None, "name": GEMM}
    comm = {"rank": 5, "class": "comm", "kind": "all_reduce", "group": None, "name": COMM}
    assert rows == [
        {**gemm, "step": 3, "count": 2, "sum_ns": 9_000, "min_ns": 3_000, "max_ns": 6_000},
        {**gemm, "step": 4, "count": 1, "sum_ns": 1_000, "min_ns": 1_000, "max_ns": 1_000},
        {**comm, "step": 4, "count": 1, "sum_ns": 1_000, "min_ns": 1_000, "max_ns": 1_000},
    ]
