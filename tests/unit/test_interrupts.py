"""Signals that reach a running Snakemake, and what its launches hear of them."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

LAUNCH = """
import signal, sys, time
from pathlib import Path
heard = Path(sys.argv[3])
def note(number, frame):
    heard.write_text(signal.Signals(number).name)
    sys.exit()
for number in (signal.SIGINT, signal.SIGTERM):
    signal.signal(number, note)
heard.with_suffix(".ready").touch()
time.sleep(60)
"""
SNAKEMAKE = """
import signal, subprocess, sys
from triplepoint.workflow_site import pass_interrupts_on
signal.signal(signal.SIGINT, signal.default_int_handler)
pass_interrupts_on()
command = [sys.executable, "-c", sys.argv[1], "triplepoint", "launch", sys.argv[2]]
subprocess.Popen(command, start_new_session=True).wait()
"""


@pytest.mark.parametrize(("number", "heard"), [(signal.SIGINT, "SIGINT"), (signal.SIGTERM, None)])
def test_pass_interrupts_on(tmp_path: Path, number: int, heard: str | None) -> None:
    file = tmp_path / "heard"
    # The launch has a session of its own, so that it hears nothing but what is passed on.
    snakemake = subprocess.Popen([sys.executable, "-c", SNAKEMAKE, LAUNCH, str(file)], stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 60
    while not file.with_suffix(".ready").exists():
        assert time.monotonic() < deadline
        time.sleep(0.02)
    children = Path(f"/proc/{snakemake.pid}/task/{snakemake.pid}/children").read_text().split()
    snakemake.send_signal(number)
    snakemake.wait(60)
    if heard is None:
        assert not file.exists()
        os.kill(int(children[0]), signal.SIGKILL)
        return
    while not file.exists() or not file.read_text():
        assert time.monotonic() < deadline
        time.sleep(0.02)
    assert file.read_text() == heard
