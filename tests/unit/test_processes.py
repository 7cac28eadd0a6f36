"""Processes go with their parent, also one that went before they could ask for it."""

import errno
import resource
import socket
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from triplepoint import processes
from triplepoint.errors import UserError
from triplepoint.processes import allow_open_files, free_port

CHILD = """
import sys, time
from pathlib import Path
from triplepoint.processes import die_with_parent
while sys.argv[2] == "late" and not Path(sys.argv[1], "gone").exists():
    time.sleep(0.01)
die_with_parent()
Path(sys.argv[1], "asked").touch()
time.sleep(120)
"""
PARENT = """
import subprocess, sys, time
from pathlib import Path
from triplepoint.processes import die_with_parent
die_with_parent()
command = [sys.executable, "-c", sys.argv[3], *sys.argv[1:3]]
print(subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL).pid, flush=True)
while sys.argv[2] == "early" and not Path(sys.argv[1], "asked").exists():
    time.sleep(0.01)
"""


@pytest.mark.parametrize("when", ["early", "late"])
def test_child_goes_with_its_parent(tmp_path: Path, when: str) -> None:
    parent = subprocess.run(
        [sys.executable, "-c", PARENT, str(tmp_path), when, CHILD], capture_output=True, text=True, check=True
    )
    child = int(parent.stdout)
    (tmp_path / "gone").touch()
    deadline = time.monotonic() + 60
    while psutil.pid_exists(child) and psutil.Process(child).status() != psutil.STATUS_ZOMBIE:
        assert time.monotonic() < deadline, "the child outlived its parent"
        time.sleep(0.05)
    assert (tmp_path / "asked").exists() == (when == "early")


def test_port_to_meet_at_is_none_that_whoever_connects_is_given() -> None:
    first_given = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    assert all(10_000 <= free_port() < first_given for _ in range(20))


def test_port_in_use_is_passed_over(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    given = tmp_path / "range"
    monkeypatch.setattr(processes, "_EPHEMERAL_PORTS", given)
    with socket.socket() as busy:
        busy.bind(("", first := free_port()))
        monkeypatch.setattr(processes, "_FIRST_PORT", first)
        given.write_text(f"{first + 1} 60999")
        with pytest.raises(OSError, match="no free port") as refused:
            free_port()
    assert refused.value.errno == errno.EADDRINUSE
    assert free_port() == first


def test_allow_open_files_raises_the_soft_limit_and_refuses_a_low_hard_one(monkeypatch: pytest.MonkeyPatch) -> None:
    limits = {"is": (24, 4096)}
    monkeypatch.setattr(resource, "getrlimit", lambda of: limits["is"])
    monkeypatch.setattr(resource, "setrlimit", lambda of, new: limits.update({"is": new}))
    allow_open_files(8)
    assert limits["is"] == (4096, 4096)
    limits["is"] = (24, 80)
    with pytest.raises(UserError, match=r"at most 80 open files are allowed \(ulimit -Hn\), expected 96 or more"):
        allow_open_files(8)
    assert limits["is"] == (24, 80)
