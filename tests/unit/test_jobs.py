"""Work in other processes gives what it gives in this one."""

import os
import signal
import subprocess
import sys
import time

import pytest

from triplepoint.errors import UserError
from triplepoint.processes import in_processes

ASLEEP_S = 60


def square(number: int) -> int:
    return number * number


def where(number: int) -> int:
    return os.getpid()


def tell_and_sleep(number: int) -> None:
    os.write(1, f"{os.getpid()}\n".encode())  # in one piece, as two workers share the pipe
    time.sleep(ASLEEP_S)


def refuse_three(number: int) -> int:
    if number == 3:
        raise UserError("3 is refused")
    return number


def die_at_three(number: int) -> int:
    if number == 3:
        os.kill(os.getpid(), signal.SIGKILL)
    return number


@pytest.mark.parametrize("num_jobs", [1, 2, 9])
def test_results_are_in_the_order_of_tasks(num_jobs: int) -> None:
    assert list(in_processes(square, [3, 1, 2], num_jobs, "squaring")) == [9, 1, 4]


def test_one_job_is_done_here() -> None:
    assert set(in_processes(where, [1, 2], 1, "looking")) == {os.getpid()}
    assert os.getpid() not in set(in_processes(where, [1, 2], 2, "looking"))


@pytest.mark.parametrize("num_jobs", [1, 2])
def test_errors_of_tasks_arrive(num_jobs: int) -> None:
    with pytest.raises(UserError, match="^3 is refused$"):
        list(in_processes(refuse_three, [1, 2, 3, 4], num_jobs, "refusing"))


def test_killed_process_is_one_line() -> None:
    expected = r"^a process dying was killed, perhaps for lack of memory; run again with --jobs 1$"
    with pytest.raises(UserError, match=expected):
        list(in_processes(die_at_three, [1, 2, 3, 4], 2, "dying"))


def test_workers_end_with_the_process_that_asked_for_them_though_it_is_killed() -> None:
    code = (
        "from triplepoint.processes import in_processes\n"
        "from tests.unit.test_jobs import tell_and_sleep\n"
        "list(in_processes(tell_and_sleep, [1, 2], 2, 'sleeping'))"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as asker:
        assert asker.stdout is not None
        workers = {int(asker.stdout.readline()) for _ in range(2)}
        asker.kill()
        started = time.monotonic()
        assert asker.stdout.read() == "", "workers hold this pipe open for as long as they live"
        assert time.monotonic() - started < ASLEEP_S / 2
    assert len(workers) == 2
