"""Where the time of a rank goes, against counting nanosecond by nanosecond."""

from collections import defaultdict

from hypothesis import given, settings

from tests.examples import examples
from tests.unit.trace.rank.parsed import Parsed, parse
from tests.unit.trace.rank.random_work import NORM, Case, Times, cases, count
from tests.unit.trace.traces import ALL_REDUCE, BASE_NS, COPY, GEMM, event, kernel, note
from triplepoint.trace.rank.phases import PHASES
from triplepoint.trace.rank_results import Label


def labels_of(parsed: Parsed) -> list[Label]:
    return [account.label for account in parsed.summary.accounts]


@settings(max_examples=examples(40), deadline=None)
@given(cases)
def test_parse_any_device_trace_equals_counting(case: Case) -> None:
    expected = count(case)
    parsed = parse(case.events())
    accounts: dict[tuple[int, str], Times] = defaultdict(dict)
    for row in parsed.intervals:
        label = Label(row["category"], row["kind"], row["group"])
        accounts[row["step"], row["phase"]][label] = [row["busy_ns"], row["exposed_ns"]]
        assert row["overlapped_ns"] == row["busy_ns"] - row["exposed_ns"]
    assert accounts == expected.accounts
    total = {
        one.label: [one.busy, one.exposed] for one in parsed.summary.accounts if one.label.kind != "all" and one.busy
    }
    assert total == expected.total
    labels = labels_of(parsed)
    segments = {
        row["t_start_ns"] - BASE_NS + at: labels[row["label"]]
        for row in parsed.segments
        for at in range(row["duration_ns"])
    }
    assert segments == expected.exposed
    assert len(segments) == sum(row["duration_ns"] for row in parsed.segments)


@settings(max_examples=examples(20), deadline=None)
@given(cases)
def test_parse_any_device_trace_adds_up(case: Case) -> None:
    parsed = parse(case.events())
    span = parsed.summary.span[1] - parsed.summary.span[0]
    assert sum(parsed.summary.exposed(one) for one in ("compute", "comm", "memory", "idle")) == span
    assert len(parsed.categories) == len(parsed.summary.steps) * len(PHASES) * 4
    for step in parsed.summary.steps:
        length = step.end - step.start
        for table in (parsed.intervals, parsed.categories):
            assert sum(row["exposed_ns"] for row in table if row["step"] == step.number) == length
    for row in parsed.categories:
        key = ("step", "phase", "category")
        parts = [part for part in parsed.intervals if all(part[name] == row[name] for name in key)]
        assert row["exposed_ns"] == sum(part["exposed_ns"] for part in parts)
        assert max((part["busy_ns"] for part in parts), default=0) <= row["busy_ns"]
        assert row["busy_ns"] <= sum(part["busy_ns"] for part in parts)
    comm = sum(row["exposed_ns"] for row in parsed.collectives)
    assert comm == parsed.summary.exposed("comm")


def times_us(parsed: Parsed) -> dict[str, tuple[float, float]]:
    """Return busy and exposed time of every label that has any."""
    return {
        "/".join(filter(None, one.label)): (one.busy / 1000, one.exposed / 1000)
        for one in parsed.summary.accounts
        if one.busy
    }


def test_parse_overlap_by_hand() -> None:
    parsed = parse(
        [
            kernel(ALL_REDUCE, 0, 40, stream=9),
            kernel(GEMM, 10, 20),
            kernel(NORM, 25, 10, stream=8),
            event(COPY, 30, 20, "gpu_memcpy", 10, stream=10),
            kernel(GEMM, 60, 10),
        ]
    )
    # 0-10 collective alone, 10-30 gemm, 30-35 norm (it began later), 35-40 collective, 40-50 copy, 50-60 nothing.
    assert times_us(parsed) == {
        "compute/gemm": (30, 30),
        "compute/norm": (10, 5),
        "comm/all_reduce": (40, 15),
        "memory/device_to_device": (20, 10),
        "idle/other": (10, 10),
        "compute/all": (35, 35),
        "comm/all": (40, 15),
        "memory/all": (20, 10),
        "idle/all": (10, 10),
    }


def test_parse_cpu_backward_on_another_thread_is_backward_time() -> None:
    parsed = parse(
        [
            note("ProfilerStep#0", 0, 100),
            note("backward stage=0 microbatch=0", 20, 60),
            event("aten::mm", 30, 20, tid=2),
            note("gloo:all_reduce", 40, 30, tid=3),
        ]
    )
    times = {(row["phase"], row["category"]): (row["busy_ns"], row["exposed_ns"]) for row in parsed.categories}
    assert {category: time for (phase, category), time in times.items() if phase == "backward"} == {
        "compute": (20_000, 20_000),
        "comm": (30_000, 20_000),
        "memory": (0, 0),
        "idle": (20_000, 20_000),
    }
    assert {category: busy for (phase, category), (busy, _) in times.items() if phase == "other"} == {
        "compute": 0,
        "comm": 0,
        "memory": 0,
        "idle": 40_000,
    }


def test_parse_two_threads_at_once_count_once() -> None:
    parsed = parse([event("aten::mm", 0, 30), event("aten::mm", 10, 30, tid=2), event("aten::copy_", 35, 10, tid=3)])
    assert times_us(parsed)["compute/gemm"] == (40, 40)
    assert times_us(parsed)["memory/all"] == (10, 5)
    assert [(row["name"], row["count"], row["sum_ns"]) for row in parsed.kernels] == [
        ("aten::mm", 2, 60_000),
        ("aten::copy_", 1, 10_000),
    ]


def test_parse_step_without_work_is_idle() -> None:
    parsed = parse([note("ProfilerStep#4", 100, 50)])
    assert {row["category"]: row["exposed_ns"] for row in parsed.categories if row["phase"] == "other"} == {
        "compute": 0,
        "comm": 0,
        "memory": 0,
        "idle": 50_000,
    }
    assert [(row["t_start_ns"] - BASE_NS, row["duration_ns"]) for row in parsed.segments] == [(100_000, 50_000)]
    assert parsed.kernels == parsed.collectives == []


def test_parse_work_without_length_counts_for_nothing_but_itself() -> None:
    parsed = parse([note("ProfilerStep#4", 0, 50), kernel(GEMM, 20, 0)])
    assert {row["category"]: row["exposed_ns"] for row in parsed.categories if row["exposed_ns"]} == {"idle": 50_000}
    assert [(row["count"], row["sum_ns"]) for row in parsed.kernels] == [(1, 0)]
    assert parsed.summary.num_gpu_events == 1


def test_parse_empty_trace_has_nothing() -> None:
    parsed = parse([])
    assert parsed.summary.steps == []
    assert parsed.summary.exposed("idle") == 0
    assert [*parsed[1:]] == [[]] * 6
