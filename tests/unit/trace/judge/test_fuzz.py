"""Whatever is cut off or overwritten: no traceback, no endless loop, and no undamaged event lost without a word."""

import gzip
import tempfile
import zlib
from collections.abc import Iterable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.examples import examples
from tests.unit.trace.judge.command import Outcome, nanoseconds, run_trace, status_of
from tests.unit.trace.judge.layouts import LAYOUTS, Event, Text
from tests.unit.trace.judge.random_traces import write
from tests.unit.trace.judge.reference import to_ns
from tests.unit.trace.judge.small import EVENTS, GEMM, TOP, is_gpu

_SETTINGS = settings(max_examples=examples(40), deadline=10_000)
"""Far above what a file of 20 KB takes, so that only an endless loop misses it."""


def _named_apart(number: int, event: Event) -> Event:
    return event | {"name": f"{GEMM}_{number * 1111:08d}"} if is_gpu(event) else event


_EVENTS = [_named_apart(number, event) for number, event in enumerate(EVENTS)]
"""The known trace, every piece of GPU work under a name of its own, so that each can be looked for."""
_TEXTS = {name: layout.render(_EVENTS, TOP) for name, layout in LAYOUTS.items()}

_layouts = st.sampled_from(sorted(_TEXTS))
_places = st.floats(0, 1, exclude_max=True)
_inserted = st.sampled_from([b'"', b"\\", b"{", b"}", b"[", b"]", b",", b":", b"\n", b"\0", b"0", b"e", b"\xff"])
_edits = st.tuples(_places, st.integers(0, 3), _inserted | st.binary(max_size=3))
"""Where, how many bytes go, and which come."""


def _run(data: bytes, name: str = "rank0.json") -> Outcome:
    with tempfile.TemporaryDirectory() as folder:
        outcome = run_trace([write(Path(folder), data, name)], Path(folder) / "out")
    assert outcome.status == (status_of(outcome.breakdown[0]) if outcome.breakdown else 2), outcome.err
    assert outcome.status == 0 or outcome.err.count("triplepoint: ") == 1, outcome.err
    return outcome


def _missing(outcome: Outcome, expected: Iterable[int]) -> list[str]:
    """Return the names of the events that the tables lack, by number of the event."""
    found = {row["name"]: row for row in outcome.kernels}
    missing = []
    for number in expected:
        event = _EVENTS[number]
        row = found.get(event["name"])
        if row is None or not nanoseconds(row["min_us"]) <= to_ns(event["dur"]) <= nanoseconds(row["max_us"]):
            missing.append(event["name"])
    return missing


def _is_told(outcome: Outcome) -> bool:
    """Return whether a loss can be seen: refused, or counted, or called truncated."""
    told = [row["truncated"] == "true" or int(row["num_damaged_events"]) > 0 for row in outcome.breakdown]
    return not outcome.breakdown or any(told)


def _gpu_before(text: Text, length: int) -> list[int]:
    return [number for number, (_, end) in enumerate(text.spans) if end <= length and is_gpu(_EVENTS[number])]


def _edited(data: bytes, edits: list[tuple[float, int, bytes]]) -> bytes:
    for place, removed, new in edits:
        at = int(place * len(data))
        data = data[:at] + new + data[at + removed :]
    return data


@_SETTINGS
@given(_layouts, _places)
def test_cut_text_keeps_what_stood_before(layout, place):
    text = _TEXTS[layout]
    length = int(place * len(text.data.rstrip()))
    kept = _gpu_before(text, length)
    outcome = _run(text.data[:length])
    if outcome.breakdown:
        assert not _missing(outcome, kept)
        assert [row["truncated"] for row in outcome.breakdown] == ["true"]
        assert int(outcome.breakdown[0]["num_gpu_events"]) <= len(kept) + 1
    else:
        assert not kept


@_SETTINGS
@given(_layouts, _places)
def test_cut_gzip_keeps_what_can_be_unpacked(layout, place):
    text = _TEXTS[layout]
    packed = gzip.compress(text.data, 1)
    packed = packed[: int(place * len(packed))]
    kept = _gpu_before(text, len(zlib.decompressobj(wbits=31).decompress(packed)))
    outcome = _run(packed, "rank0.json.gz")
    if outcome.breakdown:
        assert not _missing(outcome, kept)
        assert [row["truncated"] for row in outcome.breakdown] == ["true"]
    else:
        assert not kept


@_SETTINGS
@given(_layouts, st.dictionaries(st.sampled_from(range(len(_EVENTS))), st.lists(_edits, max_size=3), min_size=1))
def test_edits_within_events_cost_no_other_event(layout, edits):
    text = _TEXTS[layout]
    data = bytearray(text.data)
    for number in sorted(edits, reverse=True):
        begin, end = text.spans[number]
        data[begin:end] = _edited(bytes(data[begin:end]), edits[number])
    outcome = _run(bytes(data))
    assert outcome.breakdown, outcome.err
    kept = [number for number, event in enumerate(_EVENTS) if is_gpu(event) and number not in edits]
    assert not _missing(outcome, kept)
    assert int(outcome.breakdown[0]["num_gpu_events"]) <= len(kept) + sum(1 + len(places) for places in edits.values())


@_SETTINGS
@given(_layouts, _edits)
def test_an_edit_anywhere_costs_no_event_without_a_word(layout, edit):
    text = _TEXTS[layout]
    begin = int(edit[0] * len(text.data))
    end = begin + edit[1]
    outcome = _run(_edited(text.data, [edit]))
    kept = [
        number
        for number, (first, last) in enumerate(text.spans)
        if is_gpu(_EVENTS[number]) and (end < first or last < begin)
    ]
    is_among_events = text.spans[0][0] < begin and end < text.spans[-1][1]
    assert not _missing(outcome, kept) or (_is_told(outcome) and not is_among_events)


@_SETTINGS
@given(_layouts, st.lists(_edits, min_size=1, max_size=2))
def test_edits_of_a_gzip_cost_no_event_without_a_word(layout, edits):
    outcome = _run(_edited(gzip.compress(_TEXTS[layout].data, 6, mtime=0), edits), "rank0.json.gz")
    assert _is_told(outcome) or not _missing(outcome, _gpu_before(_TEXTS[layout], len(_TEXTS[layout].data)))


@_SETTINGS
@given(st.binary(max_size=200) | st.text('{}[]",:\\ \n0123456789.eE-+phcatsdurXkernel', max_size=200).map(str.encode))
def test_noise_is_refused_or_empty(noise):
    outcome = _run(noise)
    assert not outcome.kernels


@pytest.mark.parametrize("layout", sorted(_TEXTS))
def test_untouched_text_lacks_nothing(layout):
    outcome = _run(_TEXTS[layout].data)
    assert not _missing(outcome, _gpu_before(_TEXTS[layout], len(_TEXTS[layout].data)))
    assert not _is_told(outcome)
