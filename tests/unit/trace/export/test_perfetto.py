"""The merged trace: strict JSON, exact times, threads a viewer can draw, counters with gaps."""

import gzip
import json
import math
from collections import defaultdict
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from triplepoint.trace.perfetto import (
    CounterTrack,
    RankTimeline,
    node_process,
    rank_process,
    write_perfetto,
)
from triplepoint.trace.timeline import LaneSpans, Look

BASE = 1_790_857_026_123_456_789


def lane(name: str, looks: list[Look], rows: list[tuple[int, int, int]]) -> LaneSpans:
    columns = np.array(rows, dtype=np.int64).reshape(-1, 3)
    return LaneSpans(name, looks, columns[:, 0] + BASE, columns[:, 1] + BASE, columns[:, 2])


def track(values: list[float], name: str = "GPU power", unit: str = "W") -> CounterTrack:
    times = np.arange(len(values), dtype=np.int64) * 1_000_500 + BASE
    return CounterTrack(rank_process(0, "rank 0"), name, unit, times, np.array(values))


def read(path: Path) -> dict[str, Any]:
    """Return the trace as a strict reader sees it: no NaN, no infinity, decimals as they stand."""

    def refuse(word: str) -> None:
        raise AssertionError(f"{word} is not JSON")

    text = gzip.decompress(path.read_bytes()).decode("utf-8")
    found: dict[str, Any] = json.loads(text, parse_constant=refuse, parse_float=Decimal)
    return found


def written(tmp_path: Path, ranks: list[RankTimeline], counters: list[CounterTrack]) -> dict[str, Any]:
    write_perfetto(tmp_path / "perfetto.json.gz", iter(ranks), iter(counters), BASE)
    return read(tmp_path / "perfetto.json.gz")


def of_kind(trace: dict[str, Any], kind: str) -> list[dict[str, Any]]:
    return [event for event in trace["traceEvents"] if event["ph"] == kind]


def test_write_perfetto_one_span_is_this_event(tmp_path: Path) -> None:
    look = Look("forward", None, 1, 2)
    ranks = [
        RankTimeline(rank_process(3, "rank 3 · node0 · gpu3"), [lane("phase", [look], [(1_234_567, 3_000_007, 0)])])
    ]
    trace = written(tmp_path, ranks, [])
    assert trace["baseTimeNanoseconds"] == BASE
    assert of_kind(trace, "X") == [
        {"ph": "X", "pid": 4, "tid": 1, "ts": Decimal("1234.567"), "dur": Decimal("1765.440"), "name": "forward",
         "cat": "phase", "args": {"stage": 1, "microbatch": 2}}
    ]  # fmt: skip
    names = {(event["name"], event["pid"], event["tid"]): event["args"] for event in of_kind(trace, "M")}
    assert names["process_name", 4, 0] == {"name": "rank 3 · node0 · gpu3"}
    assert names["thread_name", 4, 1] == {"name": "phase"}


def test_write_perfetto_recorded_times_come_back_to_the_nanosecond(tmp_path: Path) -> None:
    rng = np.random.default_rng(5)
    start = np.sort(rng.integers(-10_000, 10**12, 9000))
    rows = [(int(at), int(at + length), 0) for at, length in zip(start, rng.integers(0, 10**9, 9000), strict=True)]
    trace = written(tmp_path, [RankTimeline(rank_process(0, "r"), [lane("compute", [Look("gemm")], rows)])], [])
    events = of_kind(trace, "X")
    found = sorted((int(event["ts"] * 1000), int((event["ts"] + event["dur"]) * 1000), 0) for event in events)
    assert found == sorted(rows)
    assert all(event["ts"].as_tuple().exponent == -3 for event in events)


def test_write_perfetto_threads_are_in_order_and_never_overlap(tmp_path: Path) -> None:
    rng = np.random.default_rng(6)
    rows = [(int(at), int(at) + int(length), 0) for at, length in rng.integers(1, 1000, (500, 2))]
    timeline = RankTimeline(rank_process(0, "r"), [lane(name, [Look("x")], rows) for name in ("comm", "compute")])
    threads = defaultdict(list)
    for event in of_kind(written(tmp_path, [timeline], []), "X"):
        threads[event["cat"], event["tid"]].append((event["ts"], event["ts"] + event["dur"]))
    assert sum(map(len, threads.values())) == 1000
    for spans in threads.values():
        assert all(one[1] <= other[0] for one, other in zip(spans, spans[1:], strict=False))
    # As many threads as spans that run at once at most.
    changes = sorted([(start, 1) for start, _, _ in rows] + [(end, -1) for _, end, _ in rows])
    depth = max(np.cumsum([change for _, change in changes]))
    assert len(threads) == 2 * depth


def test_write_perfetto_counters_are_events_of_the_published_format(tmp_path: Path) -> None:
    names = (("GPU power", "W"), ("GPU temperature", "degC"), ("SM clock", "MHz"))
    trace = written(tmp_path, [], [track([7.5], name, unit) for name, unit in names])
    # Phase C, a name, and a series for each key of args: a track of its own of the process, drawn over time.
    assert of_kind(trace, "C") == [
        {"ph": "C", "pid": 1, "tid": 0, "name": name, "ts": Decimal("0.000"), "args": {unit: Decimal("7.5")}}
        for name, unit in names
    ]


def test_write_perfetto_missing_samples_are_gaps(tmp_path: Path) -> None:
    trace = written(tmp_path, [], [track([300.0, math.nan, math.inf, 0.0])])
    assert of_kind(trace, "C") == [
        {"ph": "C", "pid": 1, "tid": 0, "name": "GPU power", "ts": Decimal("0.000"), "args": {"W": 300}},
        {"ph": "C", "pid": 1, "tid": 0, "name": "GPU power", "ts": Decimal("3001.500"), "args": {"W": 0}},
    ]


def test_write_perfetto_names_each_process_once_whatever_its_title(tmp_path: Path) -> None:
    title = 'rank 0 · "</script>\n\\ü'
    process = rank_process(0, title)
    timeline = RankTimeline(process, [lane("comm", [Look(title, title)], [(0, 5, 0)])])
    tracks = [CounterTrack(one, "p", "W", np.array([BASE]), np.array([1.0])) for one in (process, node_process(0, "h"))]
    trace = written(tmp_path, [timeline], tracks)
    named = [(e["pid"], e["args"]["name"]) for e in of_kind(trace, "M") if e["name"] == "process_name"]
    assert named == [(1, title), (1_000_000, "node 0 · h")]
    assert of_kind(trace, "X")[0]["args"] == {"group": title}


def test_write_perfetto_empty_trace_is_still_one(tmp_path: Path) -> None:
    assert written(tmp_path, [], [])["traceEvents"] == []


def test_write_perfetto_twice_gives_the_same_bytes(tmp_path: Path) -> None:
    for name in ("a", "b"):
        write_perfetto(tmp_path / name / "t.json.gz", [], [track([1.0])], BASE)
    assert (tmp_path / "a/t.json.gz").read_bytes() == (tmp_path / "b/t.json.gz").read_bytes()


def test_write_perfetto_failing_rank_leaves_no_file(tmp_path: Path) -> None:
    def ranks() -> Any:
        yield RankTimeline(rank_process(0, "r"), [lane("comm", [Look("x")], [(0, 5, 0)])])
        raise RuntimeError("lost")

    with pytest.raises(RuntimeError, match="lost"):
        write_perfetto(tmp_path / "t.json.gz", ranks(), [], BASE)
    assert list(tmp_path.iterdir()) == []
