"""Zeus itself, unchanged, measures the energy of the fakes."""

import json
import subprocess
import sys

import pytest

from tests.fakes.node import fake_node
from tests.fakes.presets import hgx_h200, mi250_node
from tests.fakes.wave import square

CODE = """
import json, sys, time
from zeus.monitor import ZeusMonitor

if __name__ == "__main__":
    monitor = ZeusMonitor(gpu_indices=[0, 2])
    monitor.begin_window("step", sync_execution=False)
    begin = time.monotonic_ns()
    time.sleep(1.2)
    found = monitor.end_window("step", sync_execution=False)
    print(json.dumps({"begin": begin, "end": time.monotonic_ns(), "energy_j": found.gpu_energy}))
"""


def measure(scenario, tmp_path):
    (tmp_path / "measure.py").write_text(CODE)
    with fake_node(scenario) as node:
        command = [sys.executable, str(tmp_path / "measure.py")]
        done = subprocess.run(command, env=node.env, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stderr
        found = json.loads(done.stdout)
        return node, found["begin"], found["end"], {int(gpu): j for gpu, j in found["energy_j"].items()}


def test_zeus_monitor_on_nvidia(tmp_path):
    node, begin, end, energy_j = measure(hgx_h200(4).set_all(load=square(0.3, 0.5)), tmp_path)
    for gpu in (0, 2):
        # The counter is up to 0.1 s old at either end, at 700 W at most; the window has a few ms of its own.
        assert energy_j[gpu] == pytest.approx(node.truth.energy_j(gpu, begin, end), abs=75)


def test_zeus_monitor_on_mi250_knows_gpus_by_their_hip_index(tmp_path):
    scenario = mi250_node(4).set_all(load=square(0.3, 0.5))
    for die in (6, 7):
        scenario.set_gpu(die, load=square(0.3, 0.1))
    node, begin, end, energy_j = measure(scenario, tmp_path)
    assert energy_j[0] == pytest.approx(node.truth.package_energy_j(3, begin, end), rel=0.05)
    assert energy_j[2] == pytest.approx(node.truth.package_energy_j(0, begin, end), rel=0.05)
