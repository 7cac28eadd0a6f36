"""A trace of known content damaged in the ways of killed jobs, full disks and careless tools, and what must come out.

The rules judged by
- A spelling is no damage: text or exponents for times, NaN among the arguments, compression, layout, a tail of NULs.
- A damaged event whose phase, category, start and duration can be read keeps its time and counts as damaged.
- One without a usable time is left out and counts as damaged.
- A file that ends early is truncated; what stood before its end counts.
- Damage to an event that is no GPU work need not be seen, and costs no GPU work.
"""

import gzip
import re
import zlib
from collections.abc import Callable
from decimal import Decimal
from typing import NamedTuple

import pyarrow as pa

from tests.unit.trace.judge.layouts import LAYOUTS, Event, Text
from tests.unit.trace.judge.reference import Row, to_ns
from tests.unit.trace.judge.small import EVENTS, GEMM, TOP, is_gpu, rows_of

WHOLE = rows_of(EVENTS)
_LAYOUT = LAYOUTS["kineto_2024"]
_TEXT = _LAYOUT.render(EVENTS, TOP)

VICTIM = next(number for number, event in enumerate(EVENTS) if event.get("dur") == 99.624)
"""The kernel most damage is done to: the second matrix product of the first step."""
OPERATOR = next(number for number, event in enumerate(EVENTS) if event["name"] == "aten::mm")
PYTHON = next(number for number, event in enumerate(EVENTS) if event.get("cat") == "python_function")
_WITHOUT_VICTIM = rows_of([event for number, event in enumerate(EVENTS) if number != VICTIM])


class Case(NamedTuple):
    """One damaged file, and what the command must make of it.

    Attributes:
        data: The file's bytes.
        rows: GPU rows that must be counted.
        damaged: Acceptable numbers of damaged events.
        truncated: Whether the file ends early.
        same_names: Whether names can still be read.
        suffix: End of the file's name.
    """

    data: bytes
    rows: list[Row] = WHOLE
    damaged: tuple[int, ...] = (0,)
    truncated: bool = False
    same_names: bool = True
    suffix: str = ".json"


def in_event(old: bytes, new: bytes, number: int = VICTIM) -> bytes:
    """Return the text with one event altered."""
    begin, end = _TEXT.spans[number]
    event = _TEXT.data[begin:end]
    assert event.count(old) == 1, (old, event)
    return _TEXT.data[:begin] + event.replace(old, new) + _TEXT.data[end:]


def everywhere(pattern: bytes, change: Callable[[re.Match[bytes]], bytes]) -> bytes:
    """Return the text with all matches of a pattern altered."""
    altered, count = re.subn(pattern, change, _TEXT.data)
    assert count
    return altered


def cut(number: int, before: bytes) -> bytes:
    """Return the text up to some bytes in an event."""
    begin, end = _TEXT.spans[number]
    return _TEXT.data[: _TEXT.data.index(before, begin, end)]


def rendered(events: list[Event], layout: str = "kineto_2024") -> Text:
    """Return events as text."""
    return LAYOUTS[layout].render(events, TOP)


def _altered(number: int = VICTIM, **members: object) -> list[Event]:
    return [event | members if index == number else event for index, event in enumerate(EVENTS)]


def _times(spell: Callable[[bytes], bytes]) -> bytes:
    return everywhere(rb'("ts"|"dur"): ([\d.]+)', lambda found: found[1] + b": " + spell(found[2]))


def _exponent(number: bytes) -> bytes:
    return f"{Decimal(number.decode()):e}".encode()


def _before(number: int) -> list[Row]:
    return rows_of(EVENTS[:number])


def _cut_gzip() -> bytes:
    """Return a stream that ends, without its last block and checksum, within the second event after the victim."""
    packer = zlib.compressobj(wbits=31)
    return packer.compress(cut(VICTIM + 2, b'"cat"')) + packer.flush(zlib.Z_SYNC_FLUSH)


def _begin_and_end(bare: bool) -> list[Event]:
    """Return the trace with two events for each piece of GPU work, by time, an end before the begin it touches."""
    halves = []
    for event in filter(is_gpu, EVENTS):
        end = (to_ns(event["ts"]) + to_ns(event["dur"])) / 1000
        kept = ("pid", "tid") if bare else ("cat", "name", "pid", "tid")
        halves.append((event["ts"], 1, {"ph": "B", **{key: event[key] for key in event if key not in ("ph", "dur")}}))
        halves.append((end, 0, {"ph": "E", "ts": end, **{key: event[key] for key in kept}}))
    return [event for event in EVENTS if not is_gpu(event)] + [half for *_, half in sorted(halves, key=lambda h: h[:2])]


def _since_1970() -> list[Event]:
    """Return the trace in absolute microseconds, of which the text of a float tells halves for certain."""
    return [event | {"ts": round(2 * event["ts"]) / 2 + 1_711_964_646_000_000.0} for event in EVENTS]


_SPELLINGS = {
    "plain": Case(_TEXT.data),
    "gzip": Case(gzip.compress(_TEXT.data), suffix=".json.gz"),
    "gzip_in_members": Case(gzip.compress(_TEXT.data[:5000]) + gzip.compress(_TEXT.data[5000:]), suffix=".json.gz"),
    "gzip_named_plain": Case(gzip.compress(_TEXT.data)),
    "zstd": Case(pa.compress(_TEXT.data, codec="zstd", asbytes=True), suffix=".json.zst"),
    "byte_order_mark": Case(b"\xef\xbb\xbf" + _TEXT.data),
    "carriage_returns": Case(_TEXT.data.replace(b"\n", b"\r\n")),
    "nul_tail": Case(_TEXT.data + bytes(4096)),
    "trailing_comma": Case(_TEXT.data.replace(b'\n  ],\n  "traceName"', b',\n  ],\n  "traceName"')),
    "top_level_list": Case(rendered(EVENTS, "list").data),
    "sorted_keys": Case(rendered(EVENTS, "sorted").data),
    "compact": Case(rendered(EVENTS, "compact").data),
    "indented": Case(rendered(EVENTS, "indented").data),
    "torch_2.13": Case(rendered(EVENTS, "torch_2.13").data),
    "times_as_text": Case(_times(lambda number: b'"' + number + b'"')),
    "times_with_exponents": Case(_times(_exponent)),
    "absolute_microseconds": Case(rendered(_since_1970()).data, rows_of(_since_1970())),
    "streams_as_text": Case(everywhere(rb'"stream": (\d+)', lambda found: b'"stream": "' + found[1] + b'"')),
    "nan_among_arguments": Case(everywhere(rb'(bandwidth \(GB/s\)": )[\d.]+', lambda found: found[1] + b"nan")),
    "infinity_among_arguments": Case(everywhere(rb'("blocks per SM": )[\d.]+', lambda found: found[1] + b"-Infinity")),
    "inf_among_arguments": Case(everywhere(rb'(bandwidth \(GB/s\)": )[\d.]+', lambda found: found[1] + b"inf")),
    "huge_integers_among_arguments": Case(everywhere(rb'("bytes": )\d+', lambda found: found[1] + b"9" * 40)),
    "without_communication_arguments": Case(everywhere(rb', "Collective name".*?(?=\n)', lambda found: b"")),
    "every_row_twice": Case(rendered([*EVENTS, *EVENTS]).data),
    "begin_and_end": Case(rendered(_begin_and_end(bare=False)).data),
    "begin_and_bare_end": Case(rendered(_begin_and_end(bare=True)).data),
    "cpu_in_the_process_of_the_gpu": Case(
        everywhere(rb'"pid": 4711, "tid": 4711', lambda found: b'"pid": 0, "tid": 7')
    ),
    "arguments_named_like_members": Case(
        rendered(_altered(args={"ts": 1.5, "dur": 2, "ph": "B", "cat": "cpu_op", "stream": 7}), "sorted").data
    ),
    "event_among_arguments": Case(rendered(_altered(PYTHON, args={"event": EVENTS[VICTIM]})).data),
    "event_in_a_name": Case(rendered(_altered(PYTHON, name='f("ph": "X", "cat": "kernel", "ts": 1, "dur": 2)')).data),
    "escaped_name": Case(
        rendered(_altered(name='a "b" \\ c\n\u00e9\U0001f600')).data,
        rows_of(_altered(name='a "b" \\ c\n\u00e9\U0001f600')),
    ),
}

_LEFT_OUT = {
    "no_duration": Case(in_event(b', "dur": 99.624', b""), _WITHOUT_VICTIM, (1,)),
    "no_start": Case(in_event(b'"ts": 4458676983301.376, ', b""), _WITHOUT_VICTIM, (1,)),
    **{
        f"duration_{name}": Case(in_event(b"99.624", text), _WITHOUT_VICTIM, (1,))
        for name, text in {
            "nan": b"NaN",
            "inf": b"inf",
            "infinity": b"-Infinity",
            "null": b"null",
            "word": b'"long"',
            "empty": b"",
            "negative": b"-99.624",
            "of_30_years": b"1e15",
            "past_int64": b"9223372036854775808000",
        }.items()
    },
    **{
        f"start_{name}": Case(in_event(b"4458676983301.376", text), _WITHOUT_VICTIM, (1,))
        for name, text in {
            "nan": b"nan",
            "infinity": b"Infinity",
            "past_int64": b"9223372036854775807",
            "far_past_int64": b"1" + b"0" * 300,
            "past_float": b"1e999",
            "object": b"{}",
        }.items()
    },
}

_NAME = GEMM.encode()
_SALVAGED = {
    f"name_with_{what}": Case(in_event(_NAME, name), damaged=(1,), same_names=False)
    for what, name in {
        "bad_utf8": b"gemm\xff\xfe\xc3",
        "control_character": b"gemm\x01\x02",
        "newline": b"gemm\nkernel",
        "quotes": b'gemm<"tn", "bf16">(int)',
        "backslashes": rb"C:\gemm\kernel",
        "backslash_at_its_end": b"gemm\\",
    }.items()
} | {
    "unclosed_object": Case(in_event(b"4.740741\n    }\n  }", b"4.740741\n    }"), damaged=(1,)),
    "unclosed_arguments": Case(in_event(b"4.740741\n    }", b"4.740741"), damaged=(1,)),
    "colon_missing": Case(in_event(b'"device": 0', b'"device" 0'), damaged=(1,)),
    "correlation_past_int64": Case(in_event(b'"correlation": 504', b'"correlation": ' + b"9" * 30), damaged=(0, 1)),
    "arguments_null": Case(rendered(_altered(args=None), "compact").data, damaged=(0, 1)),
}

_ELSEWHERE = {
    f"{what}_in_{where}": Case(in_event(old, new, number), damaged=(0, 1))
    for where, number, name in (("operator", OPERATOR, b"aten::mm"), ("python", PYTHON, b"train.py(12): step"))
    for what, old, new in (
        ("bad_utf8", name, b"\xff\xfe"),
        ("newline", name, b"a\nb"),
        ("quotes", name, b'a"b"c'),
        ("one_quote", name, b'a"b'),
        ("backslash", name, b"a\\"),
        ("nan_duration", b'"dur": ', b'"dur": nan, "was": '),
        ("unclosed_arguments", b"\n    }\n", b"\n"),
        ("unclosed_object", b"\n    }\n  }", b"\n    }"),
        ("second_close", b"\n    }\n  }", b"\n    }\n  }}"),
    )
} | {
    "null_for_an_event": Case(_TEXT.data.replace(b"},\n  {", b"},\n  null,\n  {", 1), damaged=(0, 1)),
    "two_commas": Case(_TEXT.data.replace(b"},\n  {", b"},,\n  {", 1), damaged=(0, 1)),
    "no_comma": Case(_TEXT.data.replace(b"},\n  {", b"}\n  {", 1), damaged=(0, 1)),
    "nuls_between_events": Case(_TEXT.data.replace(b"},\n  {", b"}," + bytes(512) + b"\n  {", 1), damaged=(0, 1)),
}

_ENDED_EARLY = {
    "cut_in_a_name": Case(cut(VICTIM, _NAME[-4:]), _before(VICTIM), (1,), True),
    "cut_in_a_duration": Case(cut(VICTIM, b".624"), _before(VICTIM), (1,), True),
    "cut_in_arguments": Case(cut(VICTIM, b'"stream"'), _before(VICTIM + 1), (1,), True),
    "cut_between_events": Case(_TEXT.data[: _TEXT.spans[VICTIM + 1][0]], _before(VICTIM + 1), (0,), True),
    "cut_after_an_event": Case(_TEXT.data[: _TEXT.spans[VICTIM][1]], _before(VICTIM + 1), (0,), True),
    "cut_after_the_last_event": Case(_TEXT.data[: _TEXT.spans[-1][1]], truncated=True),
    "cut_behind_the_events": Case(_TEXT.data[:-8], damaged=(0, 1), truncated=True),
    "missing_close": Case(rendered(EVENTS, "list").data.rstrip().removesuffix(b"]"), truncated=True),
    "cut_and_padded_with_nuls": Case(cut(VICTIM, b".624") + bytes(4096), _before(VICTIM), (1,), True),
    "cut_gzip": Case(_cut_gzip(), _before(VICTIM + 2), (1,), True, suffix=".json.gz"),
}

SURVIVED = {**_SPELLINGS, **_LEFT_OUT, **_SALVAGED, **_ELSEWHERE, **_ENDED_EARLY}
"""Damaged files the command must get through, by name."""

REFUSED = {
    "empty": b"",
    "blank": b" \n\n",
    "web_page": b"<!DOCTYPE html><html><body>404: Not Found</body></html>",
    "text": b"Traceback (most recent call last):\n",
    "number": b"42",
    "other_json": b'{"loss": [2.5, 2.25], "step": 100}',
    "picture": b"\x89PNG\r\n\x1a\n" + bytes(range(256)),
    "nuls": bytes(4096),
    "gzip_of_nothing": gzip.compress(b""),
    "gzip_of_a_web_page": gzip.compress(b"<html></html>"),
    "gzip_header_alone": gzip.compress(b"x")[:9],
    "zstd_header_alone": b"\x28\xb5\x2f\xfd\x24",
}
"""Files that are no trace."""
