"""Timelines of runs' pages: what is written comes back, in the room there is."""

from pathlib import Path
from typing import Any

import numpy as np

from triplepoint.figures import marks
from triplepoint.report.lanes import LEVELS, colours, describe_lanes
from triplepoint.report.payload import pack, pack_largest, steps_of, unpack
from triplepoint.tables.traces import TIMELINE

MS = 1_000_000


def span(
    start_ms: float, end_ms: float, lane: str = "phase", label: str = "forward", rank: int = 0, **more: Any
) -> dict:
    row = {"rank": rank, "lane": lane, "label": label, **more}
    return row | {"t_start_ns": int(start_ms * MS), "duration_ns": int((end_ms - start_ms) * MS)}


def described(folder: Path, rows: list[dict], num_cells: int | None = None) -> dict[str, Any]:
    TIMELINE.write(folder / "timeline.parquet", TIMELINE.from_rows(rows))
    found = describe_lanes(folder / "timeline.parquet", num_cells)
    assert found is not None
    return found


def decoded(found: dict[str, Any]) -> list[tuple]:
    """Return (rank, lane, label, group, stage, microbatch, start ms, end ms) of all spans."""
    spans = []
    for rank, starts, lengths, looks in found["lanes"]:
        for start, length, look in zip(np.cumsum(starts).tolist(), lengths, looks, strict=True):
            times = [round(time * found["unit_ns"] / MS, 4) for time in (start, start + length)]
            spans.append((rank, *found["looks"][look], *times))
    return spans


def test_describe_lanes_come_back_as_they_were(tmp_path: Path) -> None:
    rows = [
        span(0, 400, stage=1, microbatch=0),
        span(400, 1000, label="backward", stage=1, microbatch=0),
        span(100, 250, "comm", "all_reduce", group="dp"),
        span(20, 30, "comm", "send", rank=10, group="pp"),
        span(30, 40, "memory", "dtoh", rank=2),
    ]
    found = described(tmp_path, rows)
    assert sorted(decoded(found), key=str) == sorted(
        [
            (0, "comm", "all_reduce", "dp", None, None, 100, 250),
            (0, "phase", "backward", None, 1, 0, 400, 1000),
            (0, "phase", "forward", None, 1, 0, 0, 400),
            (2, "memory", "dtoh", None, None, None, 30, 40),
            (10, "comm", "send", "pp", None, None, 20, 30),
        ],
        key=str,
    )
    assert [lane[0] for lane in found["lanes"]] == [0, 0, 2, 10], "ranks in numeric order"
    assert found["end"] * found["unit_ns"] == 1000 * MS


def test_describe_lanes_without_a_trace_are_none(tmp_path: Path) -> None:
    assert describe_lanes(tmp_path / "timeline.parquet") is None
    TIMELINE.write(tmp_path / "timeline.parquet", TIMELINE.from_rows([]))
    assert describe_lanes(tmp_path / "timeline.parquet") is None


def test_describe_lanes_in_cells_are_fewer_and_keep_their_time(tmp_path: Path) -> None:
    # A gap of a tenth of a span is far less than a cell of a 500th of the step: it is drawn together with its span.
    rows = [span(k, k + 0.9, "compute", f"kernel{k % 3}") for k in range(6000)]
    full, thin = described(tmp_path, rows), described(tmp_path, rows, 500)
    assert len(decoded(full)) == 6000
    assert len(decoded(thin)) <= 3 * 500
    assert thin["cells"] == 500 and full["cells"] is None


def test_colours_are_those_of_the_figures() -> None:
    assert colours("comm", "all_reduce")[0] == marks.COMMUNICATION["all_reduce"].colour
    assert colours("phase", "backward") == (marks.BLUE, marks.DARK[marks.BLUE])
    assert colours("memory", "dtoh")[0] == marks.MIDDLE


def test_pack_comes_back_and_cannot_end_the_script() -> None:
    content = {"label": '</script><script>alert(1)</script>"', "numbers": [1, None, -3]}
    script = pack(content)
    assert unpack(script) == content
    assert "<" not in script and script.count('"') == 2
    assert pack(content) == script


def test_pack_largest_takes_the_first_level_that_fits() -> None:
    # Digits of no pattern, so that they hardly shrink: a half of a byte each.
    random = np.random.default_rng(7)
    levels = [{"digits": "".join(map(str, random.integers(0, 10, size)))} for size in (40_000, 4_000, 400)]
    made = []

    def make(number: int) -> dict[str, Any]:
        made.append(number)
        return levels[number]

    script = pack_largest((lambda number=number: make(number) for number in range(3)), limit_bytes=10_000)
    assert unpack(script) == levels[1]
    assert made == [0, 1], "smaller ones are not made for nothing"
    tight = pack_largest((lambda number=number: make(number) for number in range(3)), limit_bytes=10)
    assert unpack(tight) == levels[2], "the least there is, where none fits"


def test_steps_of_are_distances() -> None:
    assert steps_of(np.array([5.2, 7.9, 7.9, 3.0])) == [5, 3, 0, -5]


def test_levels_begin_with_all_spans_and_fall() -> None:
    assert LEVELS[0] is None
    assert list(LEVELS[1:]) == sorted(LEVELS[1:], reverse=True)
