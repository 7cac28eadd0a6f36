"""The only home of powers of ten and of two."""

NS_PER_US = 1_000
NS_PER_S = 1_000_000_000
US_PER_S = 1_000_000
MS_PER_S = 1_000

KILO = 1e3
MEGA = 1e6
GIGA = 1e9
TERA = 1e12

KIB = 1 << 10
MIB = 1 << 20
GIB = 1 << 30

BYTES_PER_PARAMETER = {"fp32": 4, "bf16": 2, "fp16": 2, "fp8": 1}
"""Storage of one value. Unit: byte."""


def ns_to_s(duration_ns: float) -> float:
    """Return nanoseconds as seconds."""
    return duration_ns / NS_PER_S
