"""Unit conversion factors, and numbers with their noun as text."""

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


def ns_to_s(duration_ns: float) -> float:
    """Convert nanoseconds to seconds."""
    return duration_ns / NS_PER_S


def counted(num: int, noun: str, plural: str = "") -> str:
    """Return a number with its noun, such as '1 layout' or '3 layouts'; the plural adds an s unless given."""
    return f"{num} {noun}" if num == 1 else f"{num} {plural or noun + 's'}"
