"""Ranks of a node: a process starts them and leaves them to the agent, whatever happens to it meanwhile."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from tests.launchers import wait_until
from triplepoint.launch import watch
from triplepoint.launch.watch import Ending, Ranks
from triplepoint.processes import adopt_orphans
from triplepoint.status import Status

STARTER = """
import faulthandler, os, signal, sys, time
from pathlib import Path
from triplepoint.processes import die_with_parent, fork_for_parent

raw, fault, pipe = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
print("Loading a module of this site")
die_with_parent()
faulthandler.register(signal.SIGUSR1, file=Path(raw, "stack").open("w"))
Path(raw, "imports").touch()
while fault == "imports":
    time.sleep(0.01)
for rank in range(2):
    pid = fork_for_parent()
    if not pid and fault == "vanishes" and rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    os.write(pipe, f"{rank} {pid or os.getpid()}\\n".encode())
    if not pid:
        os.close(pipe)
        Path(raw, f"rank{rank}").write_text(str(os.getppid()))
        while fault != "none":
            time.sleep(0.01)
        os._exit(0)
    if fault == "fails":
        sys.exit(3)
"""


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[[str], Ranks]]:
    adopt_orphans()

    def start(fault: str) -> Ranks:
        read, write = os.pipe()
        command = [sys.executable, "-c", STARTER, str(tmp_path), fault, str(write)]
        starter = subprocess.Popen(command, pass_fds=[write])
        os.close(write)
        return Ranks(tmp_path, range(2), starter, read, time_limit_s=60.0, hang_timeout_s=60.0)

    yield start
    adopt_orphans(False)
    assert not [process for process in psutil.process_iter(["cmdline"]) if STARTER in (process.info["cmdline"] or ())]


def test_ranks_are_left_to_this_process(start: Callable[[str], Ranks], tmp_path: Path) -> None:
    ranks = start("none")
    assert ranks.pids() == {}
    assert ranks.wait(lambda: None) == []
    assert list(ranks.pids()) == [0, 1]
    assert [Path(tmp_path, f"rank{rank}").read_text() for rank in range(2)] == [str(os.getpid())] * 2


def test_ranks_told_to_end_before_they_are_there(start: Callable[[str], Ranks], tmp_path: Path) -> None:
    ranks = start("imports")
    wait_until((tmp_path / "imports").exists, "the engine is imported")
    [failure] = ranks.wait(lambda: Ending(Status.CANCELLED, "told to end"))
    assert (failure.rank, failure.status, failure.message) == (0, Status.CANCELLED, "told to end")
    assert ranks.starter.returncode == -signal.SIGKILL


def test_ranks_whose_starter_is_killed(start: Callable[[str], Ranks], tmp_path: Path) -> None:
    ranks = start("imports")
    wait_until((tmp_path / "imports").exists, "the engine is imported")
    ranks.starter.kill()
    failures = ranks.wait(lambda: None)
    assert [(failure.rank, failure.status) for failure in failures] == [(0, Status.CRASHED), (1, Status.CRASHED)]
    assert "SIGKILL" in failures[0].message


def test_ranks_whose_engine_is_imported_forever(
    start: Callable[[str], Ranks], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch, "STARTUP_S", 0.5)
    ranks = start("imports")
    ranks.hang_timeout_s = 0.5
    wait_until((tmp_path / "imports").exists, "the engine is imported")
    [failure] = ranks.wait(lambda: None)
    assert failure.status == Status.HUNG
    assert "the engine was still being imported" in failure.message
    assert "line" in (tmp_path / "stack").read_text()


@pytest.mark.parametrize(("fault", "message"), [("fails", "status 3"), ("vanishes", "SIGKILL")])
def test_ranks_of_which_one_never_came(start: Callable[[str], Ranks], fault: str, message: str) -> None:
    [failure] = start(fault).wait(lambda: None)
    assert (failure.rank, failure.status) == (1, Status.CRASHED)
    assert message in failure.message
