"""Processes: lifetime tied to the parent, signals, worker pools, process ends, and free ports."""

import contextlib
import ctypes
import errno
import gc
import os
import random
import resource
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from types import FrameType
from typing import TypeVar

from triplepoint.errors import UserError

Task = TypeVar("Task")
Result = TypeVar("Result")
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
"""Source: Linux prctl(2)."""
_EPHEMERAL_PORTS = Path("/proc/sys/net/ipv4/ip_local_port_range")
_FIRST_PORT, _FIRST_EPHEMERAL = 10_000, 32_768
"""Range of ports for ranks to meet at: above those of most services, below Linux's default ephemeral ports."""
_TRIES = 100
_FILES_OF_PROCESS, _FILES_OF_RANK, _MOST_FILES = 64, 4, 65_536
"""Open files that a process needs, those more for each rank, and the limit that is asked for. A rank of two on gloo
failed with 24 and ran with 40 (measured)."""
_PARENT = "TRIPLEPOINT_PARENT"
"""Environment variable with the id of the process that started this one."""


def free_port() -> int:
    """Return a free port that most likely stays free until the ranks listen on it.

    It is below the ephemeral ports, which the kernel assigns to outgoing connections (Linux ip(7),
    `ip_local_port_range`).

    Raises:
        OSError: If none of 100 random ports is free.
    """
    try:
        end = int(_EPHEMERAL_PORTS.read_text().split()[0])
    except (OSError, ValueError, IndexError):
        end = _FIRST_EPHEMERAL
    ports = range(_FIRST_PORT, end) or range(_FIRST_PORT, _FIRST_EPHEMERAL)
    generator = random.SystemRandom()  # not the seeded one: gangs with one seed must not choose one port
    for _ in range(_TRIES):
        port = generator.choice(ports)
        with contextlib.suppress(OSError), socket.socket() as probe:
            probe.bind(("", port))
            return port
    raise OSError(errno.EADDRINUSE, f"no free port found between {ports[0]} and {ports[-1]}")


def worker_pool(num_jobs: int | None = None) -> ProcessPoolExecutor:
    """Return worker processes that end with this one, even if it is killed; None: one per core."""
    return ProcessPoolExecutor(num_jobs, initializer=_die_with, initargs=(os.getpid(),))


def in_processes(do: Callable[[Task], Result], tasks: Sequence[Task], num_jobs: int, doing: str) -> Iterator[Result]:
    """Yield the result of every task, in order, computed in worker processes.

    Args:
        do: Function to call with each task; it must be importable, so a function of a module.
        tasks: The tasks.
        num_jobs: Number of processes; with 1 the tasks run in this process.
        doing: Activity of the processes, for the error.

    Raises:
        UserError: If one of the processes was killed. Errors of `do` are raised too.
    """
    num_jobs = min(num_jobs, len(tasks))
    if num_jobs <= 1:
        yield from map(do, tasks)
        return
    with worker_pool(num_jobs) as pool:
        try:
            yield from pool.map(do, tasks)
        except BrokenProcessPool:
            why = "perhaps for lack of memory; run again with --jobs 1"
            raise UserError(f"a process {doing} was killed, {why}") from None
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise


def on_all_cores(
    do: Callable[[Task], Result], tasks: Sequence[Task], many: int, count: Callable[[int], None] = lambda done: None
) -> list[Result]:
    """Return the result of every task, in order; many tasks run in as many processes as there are cores.

    Args:
        do: Function to call with each task; it must be importable, so a function of a module or a `partial` of one.
        tasks: The tasks.
        many: Number of tasks from which on starting processes pays.
        count: Called with the number of finished tasks after each.

    Raises:
        UserError: If one of the processes was killed. Errors of `do` are raised too.
    """
    if len(tasks) < many:
        return _counted(map(do, tasks), count)
    # Without this, the garbage collector of each process goes through all objects of the parent: 7 % of a search.
    gc.freeze()
    try:
        with worker_pool() as pool:
            return _counted(pool.map(do, tasks, chunksize=max(1, many // 4)), count)
    except BrokenProcessPool:
        why = "perhaps for lack of memory; give fewer points at once"
        raise UserError(f"one of the processes for {len(tasks)} points was killed, {why}") from None
    finally:
        gc.unfreeze()


def _counted(results: Iterator[Result], count: Callable[[int], None]) -> list[Result]:
    """Return all results as a list; call `count` with its length after each."""
    finished: list[Result] = []
    for result in results:
        finished.append(result)
        count(len(finished))
    return finished


def die_with_parent(number: int = signal.SIGKILL) -> None:
    """Make the kernel send a signal to this process when its parent ends, so that no process outlives its gang.

    If the parent ended before this call, the signal is sent at once, provided that the parent has called this too: it
    then put its id into the environment.

    Args:
        number: The signal; 0 for none, after which only the id is there for children.
    """
    _die_with(int(os.environ.get(_PARENT, os.getppid())), number)
    os.environ[_PARENT] = str(os.getpid())


def _die_with(parent: int, number: int = signal.SIGKILL) -> None:
    """Make the kernel send a signal to this process when its parent ends, or now if it has ended; only Linux does."""
    if sys.platform != "linux":
        return
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(number))
    if os.getppid() != parent:
        os.kill(os.getpid(), number)


def name_process(name: str) -> None:
    """Give this process a name, for people who look at a list of processes."""
    with contextlib.suppress(OSError):
        Path("/proc/self/comm").write_text(name)


def adopt_orphans(adopts: bool = True) -> None:
    """Make this process the parent of its descendants whose own parent ends, in place of init; or stop doing that."""
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, int(adopts))


def fork_for_parent() -> int:
    """Fork a process that becomes a child of this one's parent; return its process number, 0 in the new process.

    The parent has called `adopt_orphans`, and this process `die_with_parent`. The new process waits until this one has
    ended, so that should be soon. It ends with its new parent, as `die_with_parent` has it.
    """
    starter, parent = os.getpid(), os.getppid()
    if pid := os.fork():
        return pid
    while os.getppid() == starter:
        time.sleep(0.002)
    os.environ[_PARENT] = str(parent)
    die_with_parent()
    return 0


def allow_open_files(num_ranks: int) -> None:
    """Raise the limit of open files of this process and its children, as far as the system lets a user do so.

    Args:
        num_ranks: Ranks on this node.

    Raises:
        UserError: If the hard limit is below what that many ranks need.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    least = _FILES_OF_PROCESS + _FILES_OF_RANK * num_ranks
    if hard != resource.RLIM_INFINITY and hard < least:
        raise UserError(
            f"at most {hard} open files are allowed (ulimit -Hn), expected {least} or more for {num_ranks} ranks on a "
            "node; raise the limit, in /etc/security/limits.conf or where this shell sets it"
        )
    wanted = _MOST_FILES if hard == resource.RLIM_INFINITY else min(hard, _MOST_FILES)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


class Stop:
    """Flag that is set by given signals; loops check `asked` before every wait."""

    def __init__(self, *numbers: int) -> None:
        self.asked = False
        for number in numbers:
            signal.signal(number, self._ask)

    def _ask(self, number: int, frame: FrameType | None) -> None:
        self.asked = True


def start_ticks(pid: int) -> int | None:
    """Return the start of a process in clock ticks since boot, which is independent of the wall clock.

    None if there is no such process, if it is a zombie, or if /proc hides it.

    Source: Linux proc_pid_stat(5), fields 3 and 22.
    """
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] in "ZX" else int(fields[19])


def exit_status(pid: int) -> int | None:
    """Return the exit status of a zombie process, a signal as a negative number; None for any other process.

    This also works for processes that are not children of this one.

    Source: Linux proc_pid_stat(5), fields 3 and 52.
    """
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return os.waitstatus_to_exitcode(int(fields[49])) if fields[0] == "Z" else None


def has_ended(pid: int, ticks: int) -> bool | None:
    """Return whether the process with this id and start has ended; None if /proc hides it."""
    if (start := start_ticks(pid)) is not None:
        return start != ticks
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        return None  # a process of another user: hidden by the mount option hidepid of /proc, or a zombie
    return True
