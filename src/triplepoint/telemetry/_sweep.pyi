"""Calls a list of C functions one after the other and keeps what they return. Written in C, in `native/sweep.c`."""

from typing_extensions import Buffer

MONOTONIC_NS: int
"""Address of a function that takes nothing and returns CLOCK_MONOTONIC. Unit: ns."""
PREAD: int
"""Address of the C library's pread."""

def run(steps: Buffer, slot: int, /) -> None:
    """Do every step; other threads run meanwhile.

    Args:
        steps: Array of `sweep.STEP`. The addresses in it are believed.
        slot: What each stride is multiplied by before it is added to its address or number.
    """
