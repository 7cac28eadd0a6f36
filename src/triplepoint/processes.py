"""Processes: children end with their parent or by a signal; tasks run in worker processes; a port to meet at."""

import contextlib
import ctypes
import errno
import gc
import os
import random
import signal
import socket
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from types import FrameType
from typing import TypeVar

from triplepoint.errors import UserError

Task = TypeVar("Task")
Result = TypeVar("Result")
_PR_SET_PDEATHSIG = 1
"""Source: Linux prctl(2)."""
_GIVEN_PORTS = Path("/proc/sys/net/ipv4/ip_local_port_range")
_FIRST_PORT, _FIRST_GIVEN = 10_000, 32_768
"""Ports where ranks may meet: above those of most services, below the first that Linux gives by default."""
_TRIES = 100
_PARENT = "TRIPLEPOINT_PARENT"
"""Environment variable with the id of the process that started this one."""


def free_port() -> int:
    """Return a port that is free, and stays so while ranks import what they need before they listen on it.

    It is below those that the kernel gives to anyone who connects (Linux ip(7), `ip_local_port_range`).

    Raises:
        OSError: If none of a hundred is free.
    """
    try:
        end = int(_GIVEN_PORTS.read_text().split()[0])
    except (OSError, ValueError, IndexError):
        end = _FIRST_GIVEN
    ports = range(_FIRST_PORT, end) or range(_FIRST_PORT, _FIRST_GIVEN)
    drawn = random.SystemRandom()  # gangs of one seed must not meet at one port
    for _ in range(_TRIES):
        port = drawn.choice(ports)
        with contextlib.suppress(OSError), socket.socket() as probe:
            probe.bind(("", port))
            return port
    raise OSError(errno.EADDRINUSE, f"no free port found between {ports[0]} and {ports[-1]}")


def in_processes(do: Callable[[Task], Result], tasks: Sequence[Task], num_jobs: int, doing: str) -> Iterator[Result]:
    """Yield the result of every task, in their order.

    Args:
        do: What is done with a task: a function of a module, since other processes have to find it.
        tasks: The tasks.
        num_jobs: Processes to use; with 1 it is done in this one.
        doing: What `do` does, for the error.

    Raises:
        UserError: If one of the processes was killed; and what `do` raises.
    """
    num_jobs = min(num_jobs, len(tasks))
    if num_jobs <= 1:
        yield from map(do, tasks)
        return
    with ProcessPoolExecutor(num_jobs) as pool:
        try:
            yield from pool.map(do, tasks)
        except BrokenProcessPool:
            raise UserError(f"a process {doing} was killed (out of memory?); run again with --jobs 1") from None
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise


def on_all_cores(
    do: Callable[[Task], Result], tasks: Sequence[Task], many: int, count: Callable[[int], None] = lambda done: None
) -> list[Result]:
    """Return the result of every task, in their order: where they are many, from as many processes as there are cores.

    Args:
        do: What is done with a task: a function of a module, or a part of one, since other processes have to find it.
        tasks: The tasks.
        many: Tasks from which on starting processes pays.
        count: Called with the number of tasks that are done, as it grows.

    Raises:
        UserError: If one of the processes was killed; and what `do` raises.
    """
    if len(tasks) < many:
        return _counted(map(do, tasks), count)
    # Processes would go through all objects of this one, time and again, to look for garbage: 7 % of a search.
    gc.freeze()
    try:
        with ProcessPoolExecutor() as pool:
            return _counted(pool.map(do, tasks, chunksize=max(1, many // 4)), count)
    except BrokenProcessPool:
        raise UserError(f"one of the processes for {len(tasks)} tasks was killed (out of memory?)") from None
    finally:
        gc.unfreeze()


def _counted(results: Iterator[Result], count: Callable[[int], None]) -> list[Result]:
    """Return all results; `count` is called with how many there are after each."""
    found: list[Result] = []
    for result in results:
        found.append(result)
        count(len(found))
    return found


def die_with_parent(number: int = signal.SIGKILL) -> None:
    """Ask the kernel to send this process `number` when its parent goes, so that nothing outlives its gang.

    A parent that went before it was asked is noticed where it called this too: its children are told its id.
    """
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(number))
    if os.environ.get(_PARENT, str(os.getppid())) != str(os.getppid()):
        os.kill(os.getpid(), number)
    os.environ[_PARENT] = str(os.getpid())


class Stop:
    """Whether this process was asked to stop, by one of some signals; a loop looks at it before every wait."""

    def __init__(self, *numbers: int) -> None:
        self.asked = False
        for number in numbers:
            signal.signal(number, self._ask)

    def _ask(self, number: int, frame: FrameType | None) -> None:
        self.asked = True


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


def exit_status(pid: int) -> int | None:
    """Return how a process ended that still waits for its parent to ask, a signal as a negative number; else None.

    Any process of the same user may be asked about, not only one's own children.

    Source: Linux proc_pid_stat(5), fields 3 and 52.
    """
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return os.waitstatus_to_exitcode(int(fields[49])) if fields[0] == "Z" else None


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
