"""Zeus, unchanged, measures the energy of the fakes."""

import json
import subprocess
import sys

from tests.fakes.node import fake_node
from tests.fakes.presets import hgx_h200, mi250_node
from tests.fakes.wave import square

CODE = """
import json, sys, time
from zeus.monitor import ZeusMonitor

if __name__ == "__main__":
    monitor = ZeusMonitor(gpu_indices=[0, 2])
    t_ns = [time.monotonic_ns()]
    monitor.begin_window("step", sync_execution=False)
    t_ns.append(time.monotonic_ns())
    time.sleep(1.2)
    t_ns.append(time.monotonic_ns())
    measured = monitor.end_window("step", sync_execution=False)
    t_ns.append(time.monotonic_ns())
    print(json.dumps({"t_ns": t_ns, "energy_j": measured.gpu_energy}))
"""


def measure(scenario, tmp_path):
    """Return the node, the times before and after each end of the window of Zeus, and the energy of each GPU in J."""
    (tmp_path / "measure.py").write_text(CODE)
    with fake_node(scenario) as node:
        command = [sys.executable, str(tmp_path / "measure.py")]
        done = subprocess.run(command, env=node.env, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stderr
        measured = json.loads(done.stdout)
        return node, measured["t_ns"], {int(gpu): energy_j for gpu, energy_j in measured["energy_j"].items()}


def test_zeus_monitor_on_nvidia(tmp_path):
    node, t_ns, energy_j = measure(hgx_h200(4).set_all(load=square(0.3, 0.5)), tmp_path)
    for gpu in (0, 2):
        # The counter is up to 0.1 s old at both ends of the window, at up to 700 W.
        shortest, longest = node.truth.energy_j(gpu, t_ns[1], t_ns[2]), node.truth.energy_j(gpu, t_ns[0], t_ns[3])
        assert shortest - 70 <= energy_j[gpu] <= longest + 70


def test_zeus_monitor_on_mi250_knows_gpus_by_their_hip_index(tmp_path):
    scenario = mi250_node(4).set_all(load=square(0.3, 0.5))
    for die in (6, 7):
        scenario.set_gpu(die, load=square(0.3, 0.1))
    node, t_ns, energy_j = measure(scenario, tmp_path)
    for gpu, package in ((0, 3), (2, 0)):
        shortest = node.truth.package_energy_j(package, t_ns[1], t_ns[2])
        longest = node.truth.package_energy_j(package, t_ns[0], t_ns[3])
        # The counter is up to 1 ms old. Zeus assumes a unit of 15.3 uJ in place of 15.259 uJ.
        assert 0.995 * shortest - 1 <= energy_j[gpu] <= 1.005 * longest + 1
