"""The sampler process on this machine's real sensors."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

from triplepoint.recording import read_recording
from triplepoint.tables.telemetry import METRICS


def start(out: Path, period_s: float) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "triplepoint", "sample", str(out), "--period", str(period_s)]
    return subprocess.Popen(command)


def wait_for(path: Path, size: int) -> None:
    deadline = time.monotonic() + 30
    while not (path.exists() and path.stat().st_size > size):
        assert time.monotonic() < deadline, f"{path} did not grow beyond {size} bytes"
        time.sleep(0.05)


def test_sample_host_accounts_for_every_metric(tmp_path: Path) -> None:
    out = tmp_path / "node0.arrow"
    sampler = start(out, 0.05)
    wait_for(out, 0)
    time.sleep(1.0)
    sampler.send_signal(signal.SIGTERM)
    assert sampler.wait(10) == 0
    found = read_recording(out)
    assert set(found.measured) | set(found.absent) == set(METRICS), "each metric is measured or said to be absent"
    assert {"cpu_utilisation", "memory_used_bytes", "network_rx_bytes"} <= set(found.measured)
    assert all(reason for reason in found.absent.values())


def test_sample_deadlines_do_not_drift(tmp_path: Path) -> None:
    out = tmp_path / "node0.arrow"
    sampler = start(out, 0.02)
    wait_for(out, 0)
    time.sleep(1.5)
    sampler.send_signal(signal.SIGTERM)
    sampler.wait(10)
    t_ns = read_recording(out).samples["t_ns"].to_numpy()
    phase = (t_ns - t_ns[0]) % 20_000_000
    late = np.minimum(phase, 20_000_000 - phase)
    assert len(t_ns) > 10
    # A busy machine delays most samples, but not all: a drift would move them all.
    assert late[len(late) // 2 :].min() < 1_000_000, "samples stay on multiples of the period"


def test_sample_killed_loses_at_most_what_was_not_flushed(tmp_path: Path) -> None:
    out = tmp_path / "node0.arrow"
    sampler = start(out, 0.02)
    wait_for(out, 0)
    wait_for(out, out.stat().st_size + 500)
    killed_at = time.monotonic_ns()
    os.kill(sampler.pid, signal.SIGKILL)
    sampler.wait(10)
    last = read_recording(out).samples["t_ns"].to_pylist()[-1]
    assert killed_at - last < 2_000_000_000
