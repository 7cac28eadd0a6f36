"""Processes go with their parent, also one that went before they could ask for it."""

import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

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
