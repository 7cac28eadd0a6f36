"""What processes of one gang owe each other."""

import ctypes
import signal

_PR_SET_PDEATHSIG = 1
"""Source: Linux prctl(2)."""


def die_with_parent(number: int = signal.SIGKILL) -> None:
    """Ask the kernel to send this process `number` when its parent goes, so that nothing outlives its gang."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(number))
