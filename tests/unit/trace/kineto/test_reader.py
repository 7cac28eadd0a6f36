"""Reading Kineto traces: what rows refer to, what is told of the whole file, and what is refused."""

import gzip
import json
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from tests.unit.trace.traces import ALL_REDUCE, BASE_NS, document, event, kernel, launch, note, write_trace
from triplepoint.errors import UserError
from triplepoint.trace.kineto import LAUNCH, ROW, Category, Rows, reader, source
from triplepoint.trace.kineto.reader import Geometry, Header, Message, read_trace


class Read(NamedTuple):
    header: Header
    rows: Rows
    launches: Rows

    @property
    def spans(self) -> list[tuple[str, int, int]]:
        """Return (name, start, duration) of every row. Unit: ns."""
        found = zip(
            self.rows["name"].tolist(), self.rows["start"].tolist(), self.rows["duration"].tolist(), strict=True
        )
        return [(self.header.names[name], start, duration) for name, start, duration in found]


def read(path: Path, **options: Any) -> Read:
    taken: dict[Any, list[Rows]] = {ROW: [np.empty(0, dtype=ROW)], LAUNCH: [np.empty(0, dtype=LAUNCH)]}

    def sink(rows: Rows, names: list[str]) -> None:
        assert len(rows), "no batch is empty"
        assert rows.dtype == LAUNCH or rows["name"].max() < len(names), "names come before the rows that need them"
        taken[rows.dtype].append(rows.copy())

    header = read_trace(path, sink, **options)
    return Read(header, np.concatenate(taken[ROW]), np.concatenate(taken[LAUNCH]))


def read_text(folder: Path, text: str | bytes, **options: Any) -> Read:
    path = folder / "t.json"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return read(path, **options)


def test_read_trace_header_of_a_whole_file(tmp_path: Path) -> None:
    events = [kernel("k", 1.5, 2), launch(1, 5), note("forward", 0, 9), {"ph": "M", "name": "x", "pid": 1}]
    path = write_trace(tmp_path / "t.json.gz", events, distributedInfo={"rank": 3, "backend": "nccl"}, host_name="h{1}")
    header, rows, launches = read(path)
    assert (header.path, header.rank, header.base_ns) == (path, 3, BASE_NS)
    assert header.metadata["distributedInfo"] == {"rank": 3, "backend": "nccl"}
    assert header.metadata["host_name"] == "h{1}"
    assert (header.num_events, header.num_damaged, header.is_truncated) == (4, 0, False)
    assert rows["start"].tolist() == [1_500, 0]
    assert rows["category"].tolist() == [Category.KERNEL, Category.ANNOTATION]
    assert launches[["correlation", "start"]].tolist() == [(5, 1_000)]


def test_read_trace_absolute_times_without_base(tmp_path: Path) -> None:
    events = [kernel("a", 1694128201426556, 7), kernel("b", 1711964646000000.25, 2.5), kernel("c", 0.5, 0)]
    found = read_text(tmp_path, json.dumps({"traceEvents": events}))
    assert found.header.base_ns == 0
    assert found.spans == [
        ("a", 1694128201426556000, 7_000),
        ("b", 1711964646000000250, 2_500),
        ("c", 500, 0),
    ]


def test_read_trace_list_without_document(tmp_path: Path) -> None:
    found = read_text(tmp_path, json.dumps([kernel("k", 1, 2)]))
    assert found.spans == [("k", 1_000, 2_000)]
    assert (found.header.rank, found.header.metadata, found.header.is_truncated) == (None, {}, False)


@pytest.mark.parametrize("piece", [1, 7, 100])
def test_read_trace_however_the_text_comes_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, piece: int) -> None:
    events = [kernel(f'k"{i}"', i, 1, **{"Group size": i}) for i in range(50)] + [launch(i, i + 1) for i in range(50)]
    text = json.dumps(document(events, distributedInfo={"rank": 3})).replace('k\\"9', 'k"9').encode()
    whole = read_text(tmp_path, text)
    assert whole.header.num_damaged == 1
    monkeypatch.setattr(source, "_PIECE", piece)
    monkeypatch.setattr(reader, "_PIECES_AT_ONCE", 3)
    pieces = read_text(tmp_path, text)
    # A damaged event is saved when its batch is taken: sooner in a file of many batches.
    order: dict[str, Any] = {"names": [], "messages": []}
    assert replace(pieces.header, **order) == replace(whole.header, **order)
    assert sorted(pieces.header.names) == sorted(whole.header.names)
    assert len(pieces.header.messages) == len(whole.header.messages) == 50
    assert sorted(pieces.spans) == sorted(whole.spans)
    assert pieces.launches.tolist() == whole.launches.tolist()


def test_read_trace_keeps_only_what_it_is_asked_for(tmp_path: Path) -> None:
    others = [
        {"ph": "M", "name": "process_name", "pid": "Spans", "tid": 0, "args": {"name": "python"}},
        {"ph": "s", "cat": "ac2g", "name": "ac2g", "ts": 1, "pid": 0, "tid": 7, "id": 5},
        event("step", 0, 9, "python_function"),
        event("cudaDeviceSynchronize", 0, 9, "cuda_sync", stream=7),
        event("aten::mm", 0, 9),
    ]
    path = write_trace(tmp_path / "t.json", [*others, kernel("k", 1, 2)])
    assert read(path).header.names == ["k"]
    assert read(path, host=True).header.names == ["aten::mm", "k"]
    assert read(path, streams=True).header.names == ["cudaDeviceSynchronize", "k"]
    assert read(path).header.num_events == 6


def test_read_trace_events_without_usable_time_are_counted(tmp_path: Path) -> None:
    no_duration = kernel("a", 1, 1)
    del no_duration["dur"]
    events = [no_duration, kernel("b", 1, -5), kernel("c", 1, 1e15), kernel("d", 1e16, 1), kernel("e", -2, 1)]
    found = read(write_trace(tmp_path / "t.json", events))
    assert found.spans == [("e", -2_000, 1_000)]
    assert found.header.num_damaged == 4


def test_read_trace_names_are_unescaped(tmp_path: Path) -> None:
    name = 'a "b" \\ /c\n\u00e9\U0001f600'
    assert read_text(tmp_path, json.dumps([kernel(name, 1, 1)])).header.names == [name]
    text = json.dumps([kernel("plain \u00e9", 1, 1)], ensure_ascii=False)
    assert read_text(tmp_path, text).header.names == ["plain \u00e9"]
    # Half a pair of surrogates is no character.
    half = read_text(tmp_path, json.dumps([kernel("x", 1, 1)]).replace('"x"', r'"\ud83d"'))
    assert len(half.header.names) == 1


def test_read_trace_names_that_are_no_utf8_count_as_damaged_each_time(tmp_path: Path) -> None:
    events = [kernel("bad", 1, 1), kernel("bad", 2, 1), kernel("good", 3, 1)]
    found = read_text(tmp_path, json.dumps(events).encode().replace(b"bad", b"\xff\xfe"))
    assert found.header.names == [r"\xff\xfe", "good"]
    assert [start for _, start, _ in found.spans] == [1_000, 2_000, 3_000]
    assert found.header.num_damaged == 2


def test_read_trace_damaged_events_are_saved_and_counted(tmp_path: Path) -> None:
    events = [kernel(f"k{i}", i, 1, correlation=i) for i in range(5)]
    text = json.dumps(document(events)).replace('"k1"', '"k"1"').replace('"k3"', '"k\n3"')
    found = read_text(tmp_path, text)
    assert sorted(found.spans) == sorted(
        [("k0", 0, 1_000), ('k"1', 1_000, 1_000), ("k2", 2_000, 1_000), ("k\n3", 3_000, 1_000), ("k4", 4_000, 1_000)]
    )
    assert sorted(found.rows["correlation"].tolist()) == [0, 1, 2, 3, 4]
    assert found.header.num_damaged == 2
    assert not found.header.is_truncated


def test_read_trace_begins_and_ends_are_whole_rows(tmp_path: Path) -> None:
    begin = {"ph": "B", "cat": "kernel", "name": "k", "pid": 0, "tid": 7, "ts": 2, "args": {"stream": 7}}
    outer = {"ph": "B", "cat": "python_function", "name": "f", "pid": 0, "tid": 7, "ts": 1}
    end = {"ph": "E", "pid": 0, "tid": 7}
    lost = {"ph": "E", "pid": 0, "tid": 8, "ts": 3}
    found = read(write_trace(tmp_path / "t.json", [outer, begin, end | {"ts": 5}, end | {"ts": 9}, lost]))
    kernels = [span for span in found.spans if span[0] == "k"]
    assert kernels == [("k", 2_000, 3_000)]
    assert (found.header.num_events, found.header.num_damaged) == (5, 1)


def test_read_trace_messages_and_geometries_are_kept_once_each(tmp_path: Path) -> None:
    said = {"Collective name": "allreduce", "Process Group Ranks": "[0, 1]", "Group size": 2, "dtype": "Float"}
    shape = {"grid": [8, 2, 1], "block": [128, 1, 1], "est. achieved occupancy %": 50}
    events = [kernel(ALL_REDUCE, i, 1, **said, **shape) for i in range(3)] + [
        kernel("k", 5, 1),
        kernel("k", 6, 1, **shape),
    ]
    header, rows, _ = read(write_trace(tmp_path / "t.json", events))
    assert header.messages == [Message(collective="allreduce", group_ranks="[0, 1]", group_size=2, dtype="Float")]
    assert header.geometries == [Geometry(grid=[8, 2, 1], block=[128, 1, 1], occupancy_percent=50)]
    assert rows["message"].tolist() == [0, 0, 0, -1, -1]
    assert rows["geometry"].tolist() == [0, 0, 0, -1, 0]


@pytest.mark.parametrize("bad", ["nan", "-Infinity", r'"\ud83d"', '"\\u0000"', "[[[1]]]", "{}"])
def test_read_trace_odd_values_among_arguments_refuse_nothing(tmp_path: Path, bad: str) -> None:
    text = json.dumps([kernel("k", 1, 1, grid=0, **{"In msg nelems": 1})]).replace(": 0", f": {bad}", 1)
    found = read_text(tmp_path, text.replace('elems": 1', f'elems": {bad}'))
    assert found.spans == [("k", 1_000, 1_000)]
    assert len(found.header.messages) == len(found.header.geometries) == 1


@pytest.mark.parametrize(
    ("members", "rank", "base_ns"),
    [
        ('"distributedInfo": {"rank": 3}, "baseTimeNanoseconds": 17', 3, 17),
        ('"distributedInfo": {"rank": -1}, "baseTimeNanoseconds": -17', None, 0),
        ('"distributedInfo": {"rank": "3"}, "baseTimeNanoseconds": "-"', None, 0),
        ('"distributedInfo": [], "baseTimeNanoseconds": null', None, 0),
        ('"distributedInfo": {}, "baseTimeNanoseconds": 99999999999999999999', None, 0),
        ('"distributedInfo": {"rank": 99999999999999999999}, "baseTimeNanoseconds": ' + 5000 * "9", None, 0),
        ('"host": "a"b", "distributedInfo": {"rank": 12345678901}, "baseTimeNanoseconds": ' + 5000 * "9", None, 0),
        ('"distributedInfo": nan, "baseTimeNanoseconds": 1.5', None, 0),
    ],
)
def test_read_trace_metadata_that_cannot_be_is_left_out(
    tmp_path: Path, members: str, rank: int | None, base_ns: int
) -> None:
    header = read_text(tmp_path, f'{{"traceEvents": [], {members}}}').header
    assert (header.rank, header.base_ns) == (rank, base_ns)


def test_read_trace_metadata_is_found_in_damaged_text(tmp_path: Path) -> None:
    events = json.dumps([kernel("k", 1, 1)])
    info = '"distributedInfo": {"backend": "nccl", "rank": 12}, "baseTimeNanoseconds": 17'
    for text in (
        f'{{"host": "a"b", {info}, "traceEvents": {events}}}',
        f'{{"traceEvents": {events}, "host": "a"b", {info}}}',
    ):
        found = read_text(tmp_path, text)
        assert (found.header.rank, found.header.base_ns) == (12, 17), text
        assert found.spans == [("k", 1_000, 1_000)]
        assert not found.header.is_truncated


GOOD = json.dumps(document([kernel(f"op{i}", i, 1) for i in range(400)])).encode()


@pytest.mark.parametrize("packed", [False, True])
def test_read_trace_cut_short_keeps_what_stood_before(tmp_path: Path, packed: bool) -> None:
    text = GOOD[: GOOD.index(b'"op200"') + 20]
    found = read_text(tmp_path, gzip.compress(text) if packed else text)
    assert len(found.rows) == 200
    assert found.header.is_truncated
    stream = gzip.compress(GOOD)
    cut = read_text(tmp_path, stream[: len(stream) // 2])
    assert cut.header.is_truncated
    assert 0 < len(cut.rows) < 400
    assert cut.spans == read_text(tmp_path, GOOD).spans[: len(cut.rows)]


@pytest.mark.parametrize("text", ['{"schemaVersion": 1}', "{}", '{"traceEvents": {"a": 1}}', "{nothing"])
def test_read_trace_without_events_is_refused_in_one_line(tmp_path: Path, text: str) -> None:
    with pytest.raises(UserError, match=r"^t\.json: no `traceEvents` in it, expected a Kineto trace; .*$"):
        read_text(tmp_path, text)


def test_read_trace_empty_list_of_events_is_a_trace(tmp_path: Path) -> None:
    found = read_text(tmp_path, '{"traceEvents": []}')
    assert (len(found.rows), found.header.num_events, found.header.is_truncated) == (0, 0, False)


def test_read_trace_tells_how_far_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader, "_PROGRESS_PERIOD_S", -1.0)
    monkeypatch.setattr(source, "_PIECE", len(GOOD) // 4 + 1)
    lines: list[str] = []
    read_text(tmp_path, GOOD, progress=lines.append)
    assert [line.split(" of ")[0] for line in lines] == [f"t.json: {share} %" for share in (25, 50, 75, 100)]
    assert lines[-1].endswith(" of 0 MB, 400 events")


def test_read_trace_of_a_short_file_tells_nothing(tmp_path: Path) -> None:
    lines: list[str] = []
    read_text(tmp_path, GOOD, progress=lines.append)
    assert lines == []
