"""The sampler as a process of its own, in real time."""

import ctypes.util
import os
import signal
import subprocess
import sys
from contextlib import contextmanager

import psutil
import pytest

from tests.fakes.node import fake_node
from tests.fakes.presets import hgx_h200
from tests.fakes.wave import constant
from triplepoint.recording import fast_path, read_recording

POWER_INSTANT = (186, 0)
FLUSH_SAMPLES = 20 + 4
"""What the fast lane holds back at most at 20 Hz: a second's worth and its spare slots."""


@contextmanager
def sampler(node, out, prefix=()):
    """Run `triplepoint sample` on a fake node; killed at the end if it still runs."""
    command = [*prefix, sys.executable, "-m", "triplepoint", "sample", str(out), "--device", "cuda"]
    with subprocess.Popen([*command, "--fast-period", "0.05"], env=node.env, stderr=subprocess.PIPE, text=True) as run:
        try:
            yield run
        finally:
            run.kill()


def wait_for_reads(node, run, reads):
    """Wait until the power of the GPUs was read so often; a sampler that ends before fails the test."""
    while node.fields().get(POWER_INSTANT, 0) < reads:
        with pytest.raises(subprocess.TimeoutExpired):
            run.wait(0.05)


def rows(out, gpu=0):
    """Return how many samples of the power of a GPU are in a recording."""
    table = read_recording(out).samples.select(["device", "gpu_power_w"]).drop_null()
    return table["device"].to_pylist().count(f"gpu{gpu}")


def test_killed_sampler_leaves_all_but_a_second(tmp_path):
    with fake_node(hgx_h200(1).set_all(load=constant(1.0))) as node, sampler(node, tmp_path / "node0.arrow") as run:
        wait_for_reads(node, run, 50)
        run.send_signal(signal.SIGKILL)
        run.wait()
        assert rows(tmp_path / "node0.arrow") >= node.fields()[POWER_INSTANT] - 3 - FLUSH_SAMPLES - 1


def test_stopped_sampler_leaves_every_read_of_one_process(tmp_path):
    with fake_node(hgx_h200(8).set_all(load=constant(1.0))) as node, sampler(node, tmp_path / "node0.arrow") as run:
        wait_for_reads(node, run, 8 * 10)
        children = psutil.Process(run.pid).children()
        run.terminate()
        assert run.wait(60) == 0
        assert children == [], "one process for eight GPUs"
        assert node.calls()["nvmlInit_v2"] == 1
        kept = sum(rows(tmp_path / "node0.arrow", gpu) for gpu in range(8))
        probes = node.fields()[POWER_INSTANT] - kept
        assert 0 < probes <= 8 * 3


def test_full_disk_ends_sampling_with_one_line_and_a_readable_file(tmp_path):
    # No file may grow beyond 64 kB: the same failed write as on a full disk, without one.
    limit = ("prlimit", "--fsize=65536")
    out = tmp_path / "node0.arrow"
    with fake_node(hgx_h200(8).set_all(load=constant(1.0))) as node, sampler(node, out, limit) as run:
        _, errors = run.communicate(timeout=120)
        assert run.returncode == 2
        assert len(errors.strip().splitlines()) == 1 and "node0" in errors, errors
        assert rows(out) > 0
        assert fast_path(out).stat().st_size <= 65536


def test_second_sampler_of_a_node_is_refused_with_one_line(tmp_path):
    out = tmp_path / "node0.arrow"
    with fake_node(hgx_h200(1)) as node, sampler(node, out) as first:
        wait_for_reads(node, first, 10)
        with sampler(node, out) as second:
            _, errors = second.communicate(timeout=120)
            assert second.returncode == 2
            assert len(errors.strip().splitlines()) == 1 and "node0.arrow" in errors, errors
        first.terminate()
        assert first.wait(60) == 0
        assert rows(out) > 0


@pytest.mark.parametrize(("vendor", "library"), [("nvidia", "libnvidia-ml.so.1"), ("amd", "libamd_smi.so")])
def test_node_without_a_driver_is_a_reason(vendor, library):
    if ctypes.util.find_library(library.removeprefix("lib").partition(".so")[0]):
        pytest.skip(f"this machine has {library}")
    code = f"from triplepoint.telemetry.{vendor} import open_{vendor}; print(open_{vendor}().absent['gpu_power_w'])"
    env = {name: value for name, value in os.environ.items() if name not in ("LD_LIBRARY_PATH", "ROCM_PATH")}
    said = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True).stdout
    assert library in said and len(said.splitlines()) == 1
