"""Reading Kineto traces: exact times, spellings of several years, and what is refused."""

import gzip
import json
from pathlib import Path

import pytest

from tests.unit.trace.traces import BASE_NS, document, event, kernel, write_trace
from triplepoint.errors import UserError
from triplepoint.trace.kineto.reader import Category, read_trace


def test_read_trace_relative_float_us_is_exact_to_1_ns(tmp_path: Path) -> None:
    # 2^43 us is where float64 stops resolving 1 ns: eight years after the base.
    times = [4335363504504.961, 4335363504504.962, 4396104007314.152, 8796093022207.001]
    path = write_trace(tmp_path / "t.json", [event("aten::mm", t, 0.001) for t in times])
    trace = read_trace(path)
    expected = [4335363504504961, 4335363504504962, 4396104007314152, 8796093022207001]
    assert (trace.start - BASE_NS).tolist() == expected
    assert trace.duration.tolist() == [1, 1, 1, 1]


def test_read_trace_absolute_times_without_base(tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    events = [event("a", 1694128201426556, 7), event("b", 1711964646000000.25, 2.5), event("c", 1711964646000000.75, 0)]
    path.write_text(json.dumps({"traceEvents": events}))
    trace = read_trace(path)
    assert trace.start.tolist() == [1694128201426556000, 1711964646000000250, 1711964646000000750]
    assert trace.duration.tolist() == [7000, 2500, 0]


def test_read_trace_plain_gzip_and_members_are_the_same(tmp_path: Path) -> None:
    text = json.dumps(document([event("aten::mm", 1.5, 2)], distributedInfo={"rank": 3})).encode()
    for name, content in [
        ("plain.json", text),
        ("one.json.gz", gzip.compress(text)),
        ("members.json.gz", gzip.compress(text[:40]) + gzip.compress(text[40:])),
        ("bom.json", b"\xef\xbb\xbf" + text),
    ]:
        (tmp_path / name).write_bytes(content)
        trace = read_trace(tmp_path / name)
        assert (trace.names, trace.rank, trace.start.tolist()) == (["aten::mm"], 3, [BASE_NS + 1500])


def test_read_trace_list_without_document(tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    path.write_text(json.dumps([event("aten::mm", 1, 2)]))
    assert read_trace(path).start.tolist() == [1000]


def test_read_trace_spelling_of_2021(tmp_path: Path) -> None:
    spellings = ["Kernel", "Memcpy", "Memset", "Operator", "Runtime"]
    path = write_trace(tmp_path / "t.json", [event(cat, 1, 1, cat) for cat in spellings])
    expected = [Category.KERNEL, Category.MEMCPY, Category.MEMSET, Category.CPU_OP, Category.RUNTIME]
    assert read_trace(path).category.tolist() == expected


def test_read_trace_keeps_only_complete_events_of_known_categories(tmp_path: Path) -> None:
    others = [
        {"ph": "M", "name": "process_name", "pid": "Spans", "tid": 0, "args": {"name": "python"}},
        {"ph": "s", "cat": "ac2g", "name": "ac2g", "ts": 1, "pid": 0, "tid": 7, "id": 5},
        event("step", 0, 9, "python_function"),
        event("cudaDeviceSynchronize", 0, 9, "cuda_sync", stream=7),
    ]
    trace = read_trace(write_trace(tmp_path / "t.json", [*others, kernel("k", 1, 2)]))
    assert trace.names == ["k"]
    assert trace.num_damaged == 0


def test_read_trace_events_without_usable_time_are_counted(tmp_path: Path) -> None:
    no_duration = event("a", 1, 1)
    del no_duration["dur"]
    events = [no_duration, event("b", 1, -5), event("c", 1, 1e15), event("d", -3, 1), event("e", 2, 1)]
    trace = read_trace(write_trace(tmp_path / "t.json", events))
    assert trace.names == ["e"]
    assert trace.num_damaged == 4


def test_read_trace_arguments_of_another_type_do_not_refuse_the_trace(tmp_path: Path) -> None:
    events = [kernel("a", 1, 1, correlation="x"), kernel("b", 2, 1, correlation=12)]
    assert read_trace(write_trace(tmp_path / "t.json", events)).correlation.tolist() == [-1, 12]


GOOD = json.dumps(document([event(f"aten::op{i}", i, 1) for i in range(400)])).encode()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (gzip.compress(GOOD)[:1000], "gzip stream ends after 1000 bytes, the trace is truncated (was the job killed?)"),
        (gzip.compress(GOOD)[:200] + b"\xff" * 100 + gzip.compress(GOOD)[300:], "gzip stream is damaged"),
        (GOOD[:5000], "JSON ends after 5000 bytes, the trace is truncated (was the job killed?)"),
        (GOOD.replace(b'"name"', b"name", 1), "not a readable Kineto trace"),
        (b"", "the file is empty"),
        (b" \n\n", "the file is empty"),
        (b"<!DOCTYPE html><html></html>", "this is an HTML or XML page"),
        (b"PK\x03\x04zip", "expected a Kineto trace in JSON"),
        (b"\x28\xb5\x2f\xfd....", "compressed with zstd"),
        (b'{"schemaVersion": 1}', "traceEvents"),
    ],
)
def test_read_trace_no_trace_is_refused_in_one_line(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "rank2.json.gz"
    path.write_bytes(content)
    with pytest.raises(UserError) as error:
        read_trace(path)
    text = str(error.value)
    assert "rank2.json.gz" in text
    assert message in text
    assert "\n" not in text


def test_read_trace_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"rank7\.json: no such trace file"):
        read_trace(tmp_path / "rank7.json")
