"""The scanner in C: the same rows whatever the layout and however the text comes in, and what it steps over."""

import json
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.examples import examples
from tests.unit.trace.judge.layouts import LAYOUTS
from tests.unit.trace.kineto.scanned import Row, scan
from tests.unit.trace.traces import document, event, kernel, launch, note
from triplepoint.trace.kineto import HAS_STREAM, IS_BEGIN, IS_END, Category
from triplepoint.trace.kineto._scanner import Scanner

EVENTS = [
    {"ph": "M", "name": "process_name", "pid": 9, "tid": 0, "ts": 0, "args": {"name": "python"}},
    note("ProfilerStep#3", 10, 90.5),
    launch(11, 5),
    {"ph": "f", "id": 5, "pid": 0, "tid": 7, "ts": 20, "cat": "ac2g", "name": "ac2g", "bp": "e"},
    kernel('gemm<"a", \\b>\n', 20.125, 30, correlation=5, grid=[8, 2, 1], **{"Group size": 2, "dtype": "Float"}),
    event("Memset (Device)", 60, 0, "gpu_memset", 7, stream=7, bytes=64),
]
TOP = {"schemaVersion": 1, "distributedInfo": {"rank": 3}, "host_name": "a]}[{b"}
TEXTS = {name: layout.render(EVENTS, TOP).data for name, layout in LAYOUTS.items()}

EXPECTED = [
    Row(b"ProfilerStep#3", 10_000, 90_500, Category.ANNOTATION, -1, 0, b"9\t1", None, None),
    Row(rb"gemm<\"a\", \\b>\n", 20_125, 30_000, Category.KERNEL, 5, HAS_STREAM, b"9\t7", b"?", b"?"),
    Row(b"Memset (Device)", 60_000, 0, Category.MEMSET, -1, HAS_STREAM, b"9\t7", None, None),
]


def one(members: str) -> bytes:
    return b'{"traceEvents": [{%s}]}' % members.encode()


@pytest.mark.parametrize("layout", sorted(LAYOUTS))
def test_scan_any_layout_gives_the_same_rows(layout: str) -> None:
    found = scan(TEXTS[layout])
    kept = [row._replace(message=row.message and b"?", geometry=row.geometry and b"?") for row in found.rows]
    assert kept == EXPECTED
    assert json.loads(found.rows[1].message or b"") == {"Group size": 2, "dtype": "Float"}
    assert json.loads(found.rows[1].geometry or b"") == {"grid": [8, 2, 1]}
    assert (found.num_events, found.num_damaged, found.has_events, found.is_closed) == (len(EVENTS), 0, True, True)
    assert found.launches == [(5, 11_000, b"9\t1", None)]
    assert found.damaged == []
    if layout != "list":
        assert json.loads(found.metadata[b"distributedInfo"]) == {"rank": 3}
        assert found.metadata[b"host_name"] == b"a]}[{b"


@pytest.mark.parametrize("piece", [1, 2, 3, 7, 64])
@pytest.mark.parametrize("layout", sorted(LAYOUTS))
def test_scan_in_pieces_equals_in_one(layout: str, piece: int) -> None:
    assert scan(TEXTS[layout], piece) == scan(TEXTS[layout])


edits = st.tuples(
    st.floats(0, 1, exclude_max=True),
    st.integers(0, 40),
    st.sampled_from([b'"', b"\\", b"{", b"}", b"]", b",", b"\n", b"\0", b"\xef\xbb\xbf"]) | st.binary(max_size=3),
)


@settings(max_examples=examples(200), deadline=None)
@given(st.sampled_from(sorted(LAYOUTS)), st.lists(edits, max_size=3), st.integers(1, 40))
def test_scan_damaged_text_in_pieces_equals_in_one(
    layout: str, changes: list[tuple[float, int, bytes]], piece: int
) -> None:
    text = TEXTS[layout]
    for place, removed, new in changes:
        at = int(place * len(text))
        text = text[:at] + new + text[at + removed :]
    assert scan(text, piece) == scan(text)


def spelled(event: dict[str, Any], random: Random) -> str:
    """Return the text of an event with any spaces, and in two of three with its members in any order."""
    members = list(event.items())
    if random.random() < 2 / 3:
        random.shuffle(members)
    texts = [
        (json.dumps(key), spelled(value, random) if key == "args" else json.dumps(value)) for key, value in members
    ]
    before, after = (random.choice(["", " ", "\n  ", " " * 40]) for _ in range(2))
    return "{" + ",".join(f"{before}{key}:{after}{value}{before}" for key, value in texts) + "}"


@given(st.lists(st.sampled_from(EVENTS), max_size=8), st.randoms(use_true_random=False))
@settings(max_examples=examples(100))
def test_scan_event_is_the_same_whatever_the_spelling_of_those_before(
    events: list[dict[str, Any]], random: Random
) -> None:
    texts = [spelled(event, random) for event in events]
    alone = [scan(f"[{text}]".encode()) for text in texts]
    together = scan(f"[{','.join(texts)}]".encode())
    assert together.rows == [row for each in alone for row in each.rows]
    assert together.launches == [launch for each in alone for launch in each.launches]
    assert together.num_damaged == 0


def test_scan_metadata_before_and_after_the_events() -> None:
    text = b'{"a": {"b": [1, "]"]}, "traceEvents": [{"ph": "M"}], "c": "x\\"y", "d": -1.5e3, "e": null}'
    members = {b"a": b'{"b": [1, "]"]}', b"c": rb"x\"y", b"d": b"-1.5e3", b"e": b"null"}
    assert scan(text).metadata == members
    assert scan(text).is_closed


@pytest.mark.parametrize(
    ("text", "has_events", "is_closed"),
    [
        (b"{}", False, True),
        (b'{"traceEvents": []}', True, True),
        (b'{"traceEvents": {}}', False, True),
        (b"[]", True, True),
        (b'{"traceEvents": [', True, False),
        (b'{"traceEvents": []', True, False),
        (b'{"a": 1', False, False),
        (b"[{}]", True, True),
        (b'\xef\xbb\xbf{"traceEvents": []}\0\0\n\0', True, True),
        (b"", False, False),
    ],
)
def test_scan_document_without_events(text: bytes, has_events: bool, is_closed: bool) -> None:
    for piece in (1, 100):
        found = scan(text, piece)
        assert (found.has_events, found.is_closed) == (has_events, is_closed)
        assert (found.num_events, found.num_damaged, found.rows) == (0, 0, [])


@pytest.mark.parametrize(
    ("members", "num_rows", "num_damaged"),
    [
        ('"cat": "kernel", "name": "k", "ts": 1, "dur": 1', 0, 1),
        ('"ph": "X", "name": "k", "ts": 1, "dur": 1', 0, 1),
        ('"ph": "X", "cat": "kernel", "name": "k", "ts": 1', 0, 1),
        ('"ph": "X", "cat": "kernel", "name": "k", "dur": 1', 0, 1),
        ('"ph": "X", "cat": "kernel", "ts": 1, "dur": 1', 1, 1),
        ('"ph": "i", "cat": "kernel", "name": "k", "ts": "never"', 0, 0),
        ('"ph": "X", "cat": "kernel", "name": "k", "ts": 1, "dur": 1, "args": null', 1, 0),
        ('"ph": "X", "cat": "kernel", "name": "k", "ts": 1, "dur": 1, "args": {}', 1, 0),
        ('"ph": "X", "cat": "python_function", "name": "f", "ts": 1, "dur": 1', 0, 0),
    ],
)
def test_scan_event_that_lacks_something(members: str, num_rows: int, num_damaged: int) -> None:
    found = scan(one(members))
    assert (len(found.rows), found.num_events, found.num_damaged) == (num_rows, 1, num_damaged)


def test_scan_launches_are_calls_that_work_can_refer_to() -> None:
    events = [launch(1, 5, grid=[2]), launch(2, 0), launch(3, -1), launch(4, 6) | {"ph": "B"}, launch(5, 5, tid=2)]
    found = scan(json.dumps(document(events)).encode())
    assert found.launches == [(5, 1_000, b"9\t1", b'{"grid": [2]}'), (5, 5_000, b"9\t2", None)]
    assert [(row.start, row.flags) for row in found.rows] == [(4_000, IS_BEGIN)]
    with_streams = scan(json.dumps(document(events)).encode(), streams=True)
    assert [row.correlation for row in with_streams.rows] == [5, 0, -1, 6, 5]
    assert with_streams.launches == []


def test_scan_begins_and_ends_are_kept_whatever_they_are() -> None:
    events = [
        {"ph": "B", "cat": "python_function", "name": "f", "pid": 1, "tid": 2, "ts": 1},
        {"ph": "B", "cat": "kernel", "name": "k", "pid": 0, "tid": 7, "ts": 2, "args": {"stream": 7}},
        {"ph": "E", "pid": 0, "tid": 7, "ts": 3},
        {"ph": "E", "pid": 1, "tid": 2, "ts": 4},
    ]
    found = scan(json.dumps(document(events)).encode())
    assert [(row.start, row.flags, row.thread) for row in found.rows] == [
        (1_000, IS_BEGIN, b"1\t2"),
        (2_000, IS_BEGIN | HAS_STREAM, b"0\t7"),
        (3_000, IS_END, b"0\t7"),
        (4_000, IS_END, b"1\t2"),
    ]
    assert found.num_damaged == 0


@pytest.mark.parametrize(
    ("number", "expected"),
    [("7", 7), ('"8"', 8), ("-3", -3), ('"x"', -1), ("1.5", -1), ("9" * 30, -1), ("null", -1), ("[7]", -1)],
)
def test_scan_correlation_that_is_no_integer_is_unknown(number: str, expected: int) -> None:
    text = one(f'"ph": "X", "cat": "kernel", "name": "k", "ts": 1, "dur": 1, "args": {{"correlation": {number}}}')
    assert [row.correlation for row in scan(text).rows] == [expected]


def names(events: list[dict], **options: bool) -> list[bytes]:
    return [row.name for row in scan(json.dumps(document(events)).encode(), **options).rows]


def test_scan_options_choose_the_rows() -> None:
    events = [
        event("aten::mm", 0, 1),
        event("c10d::allreduce_", 0, 1),
        event("ProfilerStep#1", 0, 9),
        event("triton_", 0, 1, stream=7),
        event("Stream Sync", 0, 1, "cuda_sync", stream=7),
        event("Event Sync", 0, 1, "cuda_sync", stream=-1, correlation=3),
        event("all streams", 0, 1, "cuda_sync", stream=-1),
        event("overhead", 0, 1, "overhead"),
    ]
    assert names(events) == [b"c10d::allreduce_", b"ProfilerStep#1"]
    assert names(events, host=True) == [b"aten::mm", b"c10d::allreduce_", b"ProfilerStep#1", b"triton_"]
    with_streams = [b"c10d::allreduce_", b"ProfilerStep#1", b"triton_", b"Stream Sync", b"Event Sync"]
    assert names(events, streams=True) == with_streams


def test_scan_spelling_of_2021() -> None:
    spellings = ["Kernel", "Memcpy", "Memset", "Operator", "Runtime"]
    events = [event(cat, 1, 1, cat, correlation=4) for cat in spellings]
    found = scan(json.dumps(document(events)).encode(), host=True, streams=True)
    expected = [Category.KERNEL, Category.MEMCPY, Category.MEMSET, Category.CPU_OP, Category.RUNTIME]
    assert [row.category for row in found.rows] == expected


@pytest.mark.parametrize(("depth", "num_damaged"), [(50, 0), (100_000, 1)])
def test_scan_deep_lists_cost_one_event_at_most(depth: int, num_damaged: int) -> None:
    deep = json.dumps(kernel("deep", 1, 1, a=0)).replace('"a": 0', f'"a": {"[" * depth}{"]" * depth}')
    text = f"[{json.dumps(kernel('a', 1, 1))}, {deep}, {json.dumps(kernel('b', 2, 1))}]".encode()
    found = scan(text, 1 << 16)
    assert [row.name for row in found.rows if row.name != b"deep"] == [b"a", b"b"]
    assert found.num_damaged == num_damaged
    assert found.is_closed


def test_scan_deep_metadata_costs_no_event() -> None:
    deep = "[" * 5000 + "]" * 5000
    text = f'{{"stack": {deep}, "traceEvents": [{json.dumps(kernel("a", 1, 1))}], "rank": 3}}'.encode()
    assert [row.name for row in scan(text).rows] == [b"a"]


def test_scan_long_strings_are_whole_or_stepped_over() -> None:
    long = "x" * 5_000_000
    events = [kernel(long, 1, 1), kernel("b", 2, 1, stack=long), kernel("c", 3, 1)]
    found = scan(json.dumps(document(events, stacks=long, host_name="h")).encode())
    assert [row.name for row in found.rows] == [long.encode(), b"b", b"c"]
    assert b"stacks" not in found.metadata, "metadata of more than 4 MB is not kept"
    assert found.metadata[b"host_name"] == b"h"
    assert found.num_damaged == 0


def test_scan_string_that_never_ends_is_given_up_in_bounded_memory() -> None:
    scanner = Scanner()
    scanner.feed(b'{"traceEvents": [{"ph": "X", "name": "')
    for _ in range(10):
        scanner.feed(b"x" * 10_000_000)
    scanner.feed(json.dumps(kernel("a", 1, 1)).encode() + b"]}")
    scanner.finish()
    assert scanner.names(0) == [b"a"]
    assert scanner.num_damaged == 1
    assert sum(map(len, scanner.take_damaged())) <= 20_000_000


def test_scan_many_damaged_events_are_counted_each() -> None:
    events = [kernel(f"k{i}", i, 1) for i in range(10)]
    text = json.dumps(document(events)).encode()
    for index in (2, 3, 7):
        text = text.replace(b'"k%d"' % index, b'"k%d' % index)
    found = scan(text)
    assert [row.name for row in found.rows] == [b"k%d" % i for i in (0, 1, 4, 5, 6, 8, 9)]
    assert found.num_damaged == 3
    assert sum(piece.count(b'"ph"') for piece in found.damaged) == 3


def test_scanner_rows_are_taken_once() -> None:
    scanner = Scanner()
    scanner.feed(TEXTS["compact"])
    assert len(scanner.take_rows()) > 0
    assert scanner.take_rows() == b""
    assert scanner.names(1) == scanner.names(0)[1:]
    assert scanner.names(10**6) == []


def test_scanner_event_fed_by_itself_is_not_counted_again() -> None:
    scanner = Scanner()
    assert scanner.feed_event(json.dumps(kernel("a", 1, 1)).encode())
    assert not scanner.feed_event(json.dumps(kernel("b", 1, -1)).encode())
    assert not scanner.feed_event(b'{"ph": "X", ')
    assert (scanner.num_events, scanner.num_damaged) == (0, 0)
    assert scanner.names(0) == [b"a"]


def test_scanner_takes_bytes_only() -> None:
    with pytest.raises(TypeError):
        Scanner().feed("{}")  # type: ignore[arg-type]
    scanner = Scanner()
    scanner.feed(memoryview(b"[]"))
    scanner.feed(bytearray(b"\n"))
    scanner.finish()
    assert scanner.is_closed
