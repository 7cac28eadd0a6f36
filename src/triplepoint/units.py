"""Unit conversion factors, and numbers as text with their unit or noun."""

NS_PER_US = 1_000
NS_PER_S = 1_000_000_000
MS_PER_S = 1_000
US_PER_S = 1_000_000
S_PER_HOUR = 3_600
S_PER_YEAR = 365 * 24 * S_PER_HOUR

KILO = 1e3
MEGA = 1e6
GIGA = 1e9

BITS_PER_BYTE = 8

KIB = 1 << 10
MIB = 1 << 20
GIB = 1 << 30

_LEAST_S = 1e-9
"""Traces resolve no less."""


def ns_to_s(duration_ns: float) -> float:
    """Convert nanoseconds to seconds."""
    return duration_ns / NS_PER_S


def show_seconds(value_s: float) -> str:
    """Return a time with a unit that suits it, to four digits."""
    size = abs(value_s)
    if size < _LEAST_S:
        return "0 s"
    return f"{value_s:.4g} s" if size >= 1 else f"{value_s * 1e3:.4g} ms" if size >= 1e-3 else f"{value_s * 1e6:.3g} us"


def show_step(time_s: float) -> str:
    """Return a step, or a part of one: to 0.01 s from a second on, else as `show_seconds`."""
    return f"{time_s:.2f} s" if time_s >= 1.0 else show_seconds(time_s)


def signed_seconds(value_s: float) -> str:
    """Return a difference of times with its sign."""
    return f"{'+' if value_s >= 0 else '-'}{show_seconds(abs(value_s))}"


def counted(num: int, noun: str, plural: str = "") -> str:
    """Return a number with its noun, such as '1 layout' or '3 layouts'; the plural adds an s unless given."""
    return f"{num} {noun}" if num == 1 else f"{num} {plural or noun + 's'}"
