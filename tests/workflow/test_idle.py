"""Snakemake's own process while ranks are timed: it shares their cores."""

import os
import signal
import subprocess
import time
from pathlib import Path

import psutil
import pytest

from tests.benchmarks.dag import NOTHING
from tests.benchmarks.turnover import make_project
from tests.launchers import wait_until

pytestmark = pytest.mark.workflow

NUM_FINISHED = 60
"""Launches before the one that is watched."""
WATCHED_S = 8.0
MOST_OF_A_CORE = 0.02 * NUM_FINISHED / 500
"""A fiftieth after 500 jobs: with a limit of job starts, each finished job leaves Snakemake a chain of timers."""
LONG_LAUNCH = f"""\
#!/bin/sh
if [ "$1" = launch ] && [ "$(ls results/runs/*/raw/manifest.json 2> /dev/null | wc -l)" -ge {NUM_FINISHED} ]; then
    touch launching; exec sleep 60
fi
"""


def test_snakemake_leaves_the_cores_to_a_launch(tmp_path: Path) -> None:
    folder = tmp_path / "project"
    environment = make_project(folder, NUM_FINISHED + 1, "cpu-local", 2)
    (folder / "bin/triplepoint").write_text(LONG_LAUNCH + NOTHING)
    command = [str(folder / "bin/python"), "-m", "snakemake", "all", "--until", "launch", "--quiet", "rules"]
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    with subprocess.Popen(command, cwd=folder, env=environment, start_new_session=True, **quiet) as snakemake:
        try:
            wait_until((folder / "launching").exists, "the last launch begins")
            before = cpu_s(snakemake.pid)
            time.sleep(WATCHED_S)
            taken_s = cpu_s(snakemake.pid) - before
            assert snakemake.poll() is None
        finally:
            os.killpg(snakemake.pid, signal.SIGKILL)
    assert taken_s < MOST_OF_A_CORE * WATCHED_S


def cpu_s(process: int) -> float:
    """Return the CPU time that a process has used, without its children. Unit: s."""
    times = psutil.Process(process).cpu_times()
    return times.user + times.system
