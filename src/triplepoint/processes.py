"""What processes of one gang owe each other."""

import ctypes
import os
import signal
from pathlib import Path

_PR_SET_PDEATHSIG = 1
"""Source: Linux prctl(2)."""
_PARENT = "TRIPLEPOINT_PARENT"
"""Environment variable with the id of the process that started this one."""


def die_with_parent(number: int = signal.SIGKILL) -> None:
    """Ask the kernel to send this process `number` when its parent goes, so that nothing outlives its gang.

    A parent that went before it was asked is noticed where it called this too: its children are told its id.
    """
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(number))
    if os.environ.get(_PARENT, str(os.getppid())) != str(os.getppid()):
        os.kill(os.getpid(), number)
    os.environ[_PARENT] = str(os.getpid())


def start_ticks(pid: int) -> int | None:
    """Return when a process started, in clock ticks since boot, which no change of the wall clock moves.

    None if there is none, if it has ended and only waits for its parent to ask how, or if it may not be looked at.

    Source: Linux proc_pid_stat(5), fields 3 and 22.
    """
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] in "ZX" else int(fields[19])


def has_ended(pid: int, ticks: int) -> bool | None:
    """Return whether the process of this number that started at `ticks` has gone; None where /proc hides it."""
    if (found := start_ticks(pid)) is not None:
        return found != ticks
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        return None  # another user's, with /proc mounted with hidepid; or one that ended and was not yet waited for
    return True
