"""Times as the scanner reads them: exact nanoseconds from any spelling, and what cannot be a time."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.trace.kineto.scanned import scan


def timed(time: str, duration: str = "1") -> bytes:
    return f'[{{"ph": "X", "cat": "kernel", "name": "k", "ts": {time}, "dur": {duration}}}]'.encode()


@pytest.mark.parametrize(
    ("time", "expected_ns"),
    [
        ("12", 12_000),
        ('"12.5"', 12_500),
        ("0.001", 1),
        ("1e-3", 1),
        ("1.5E+3", 1_500_000),
        ("+3.25", 3_250),
        ("-2.5", -2_500),
        ("0", 0),
        ("0e99999", 0),
        ("1e-99999", 0),
        ("000000000000000000000000001.5", 1_500),
        ("4335363504504.961", 4_335_363_504_504_961),
        ("8796093022207.001", 8_796_093_022_207_001),
        ("1694128201426556", 1_694_128_201_426_556_000),
        ("1711964646000000.25", 1_711_964_646_000_000_250),
        # A float of this size holds quarters only: whoever printed .2 had a quarter.
        ("1711964646000000.2", 1_711_964_646_000_000_250),
        ("1.711964646000000750e15", 1_711_964_646_000_000_750),
        ("0.1234564", 123),
        ("4099999999999999.999", 4_099_999_999_999_999_999),
    ],
)
def test_scan_time_is_exact(time: str, expected_ns: int) -> None:
    (row,) = scan(timed(time)).rows
    assert row.start == expected_ns


@given(st.integers(-4_099_999_999_999_999_999, 4_099_999_999_999_999_999))
def test_scan_time_any_three_decimals_are_nanoseconds(time_ns: int) -> None:
    sign, size = ("-", -time_ns) if time_ns < 0 else ("", time_ns)
    (row,) = scan(timed(f"{sign}{size // 1000}.{size % 1000:03d}")).rows
    assert row.start == time_ns


@given(st.floats(0, 2**43, exclude_max=True))
def test_scan_time_any_float_is_within_what_it_resolves(time_us: float) -> None:
    (row,) = scan(timed(repr(time_us))).rows
    # A float just below 2^43 stands for 0.98 ns to either side.
    numerator, denominator = time_us.as_integer_ratio()
    assert abs(row.start * denominator - 1000 * numerator) <= denominator


@pytest.mark.parametrize(
    "time",
    [
        *("nan", "NaN", "inf", "-Infinity", "null", "true", '""', '"soon"', "{}", "[]", "1.2.3", "1e", "--1", "0x10"),
        *("9223372036854775807", "9223372036854775.808", "4100000000000000", "-4100000000000000", "1e999"),
        "1" + 300 * "0",
    ],
)
def test_scan_start_that_is_none_is_damage(time: str) -> None:
    found = scan(timed(time))
    assert (found.rows, found.num_events, found.num_damaged) == ([], 1, 1)


@pytest.mark.parametrize(
    "duration", ["-0.001", "-5", "32000000000000", "1e15", "9223372036854775808000", "NaN", "null"]
)
def test_scan_duration_that_is_none_is_damage(duration: str) -> None:
    found = scan(timed("1", duration))
    assert (found.rows, found.num_events, found.num_damaged) == ([], 1, 1)


def test_scan_duration_just_under_a_year_counts() -> None:
    (row,) = scan(timed("1", "31999999999999.999")).rows
    assert row.duration == 31_999_999_999_999_999
