"""What is saved of damaged events: what can be told for certain, and nothing else."""

import json
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.trace.traces import kernel
from triplepoint.trace.kineto.reader import salvage

WHOLE = kernel("gemm_k", 4458676983301.376, 99.624, correlation=504, **{"Group size": 2, "dtype": "BFloat16"})
TEXT = json.dumps(WHOLE).encode()
KNOWN = {
    **{"ph": "X", "cat": "kernel", "name": "gemm_k", "pid": "9", "tid": "7", "ts": "4458676983301.376"},
    "dur": "99.624",
    "args": {"stream": 7, "correlation": 504, "Group size": 2, "dtype": "BFloat16"},
}


def saved(text: bytes) -> list[dict[str, Any]]:
    return [json.loads(event.decode(errors="replace")) for event in salvage(text)]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        (b'gemm<"tn", "bf16">(int)', 'gemm<"tn", "bf16">(int)'),
        (rb"C:\gemm\kernel", r"C:\gemm\kernel"),
        (b"gemm\\", "gemm\\"),
        (b"gemm\nkernel\x01", "gemm\nkernel\x01"),
        (b"gemm\xff\xfe", r"gemm\xff\xfe"),
        (b"gemm\xc3\xa9", "gemm\u00e9"),
        (b"", ""),
        (b"{}", "{}"),
    ],
)
def test_salvage_damaged_name_is_kept_as_far_as_it_can_be(name: bytes, expected: str) -> None:
    assert saved(TEXT.replace(b"gemm_k", name)) == [KNOWN | {"name": expected}]


def test_salvage_unclosed_event_keeps_all_it_had() -> None:
    assert saved(TEXT.removesuffix(b"}}") + b"\n") == [KNOWN]
    assert saved(TEXT.removesuffix(b"}")) == [KNOWN]


def test_salvage_event_merged_with_the_next_gives_both() -> None:
    other = json.dumps(WHOLE | {"ts": 5.5, "name": "other"}).encode()
    expected = [KNOWN, KNOWN | {"ts": "5.5", "name": "other"}]
    assert saved(TEXT + b",\n  " + other) == expected
    assert saved(TEXT + other) == expected
    assert saved(TEXT.replace(b"gemm_k", b'gemm"k') + b", " + other) == [KNOWN | {"name": 'gemm"k'}, expected[1]]


@pytest.mark.parametrize("missing", ["ph", "cat", "ts"])
def test_salvage_event_without_phase_category_or_time_is_lost(missing: str) -> None:
    assert saved(json.dumps({key: value for key, value in WHOLE.items() if key != missing}).encode()) == []


@pytest.mark.parametrize("text", [b"", b"null", b"{{{", b'{"ph": "X"', b"\xff\xfe", b'"ts": 1, "ph": 2, "cat": '])
def test_salvage_of_nothing_is_nothing(text: bytes) -> None:
    assert saved(text) == []


@given(st.integers(0, len(TEXT)))
def test_salvage_never_takes_a_number_cut_short_by_the_end(length: int) -> None:
    cut = TEXT[:length]
    for event in saved(cut):
        for key in ("ts", "dur", "pid", "tid"):
            assert event.get(key) in (None, str(WHOLE[key]))
        for key, value in event["args"].items():
            assert value == WHOLE["args"][key]


def test_salvage_number_followed_by_damage_is_not_taken() -> None:
    assert saved(TEXT.replace(b"99.624", b"99.6\x0024")) == [{k: v for k, v in KNOWN.items() if k != "dur"}]
    assert saved(TEXT.replace(b"4458676983301.376", b"4458676983301.3\xff76")) == []


def test_salvage_word_in_place_of_a_number_stays_a_word() -> None:
    assert saved(TEXT.replace(b"99.624", b"nan").replace(b"gemm_k", b'"')) == [KNOWN | {"name": '"', "dur": "nan"}]


@given(st.binary(max_size=60), st.integers(0, len(TEXT)), st.integers(0, 20))
def test_salvage_any_damage_gives_whole_json(noise: bytes, at: int, removed: int) -> None:
    for event in saved(TEXT[:at] + noise + TEXT[at + removed :]):
        assert {"ph", "cat", "ts", "args"} <= event.keys()


@pytest.mark.parametrize(
    "damage",
    [
        b"}" + b" " * 1_000_000,
        b'"name":"a ' * 100_000,
        b'"name":"' + b" " * 1_000_000 + b",",
        b'"name":"' + b", " * 500_000,
    ],
    ids=["spaces", "names", "name of spaces", "commas"],
)
def test_salvage_of_a_megabyte_takes_no_square_of_time(damage: bytes) -> None:
    begin = time.process_time()
    list(salvage(b'{"ph":"X","cat":"kernel","ts":1 ,' + damage))
    assert time.process_time() - begin < 5, "0.07 s; with the square of its size, an hour"
