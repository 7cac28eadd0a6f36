"""Every metric is measured or said to be absent with a reason, on every kind of node."""

import pytest

from tests.fakes.host import HostParts, Hwmon, Port, Rapl
from tests.fakes.presets import hgx_a100, hgx_h100, hgx_h200, mi250_node, mi300x_node
from tests.fakes.wave import square
from tests.sampling import record
from triplepoint.recording import NEVER
from triplepoint.tables.telemetry import METRICS

NODES = {"h200": hgx_h200, "h100": hgx_h100, "a100": hgx_a100, "mi250": mi250_node, "mi300x": mi300x_node}


@pytest.mark.parametrize("kind", NODES)
@pytest.mark.parametrize("has_host", [True, False])
def test_every_metric_is_measured_or_absent(tmp_path, kind, has_host):
    scenario = NODES[kind](2).set_all(load=square(0.3, 0.5))
    if has_host:
        rapl = [Rapl(), Rapl("intel-rapl:0:0", "dram")]
        scenario.host = HostParts([Port(load=square(0.3, 0.5))], rapl, [Hwmon(), Hwmon("board", "Inlet")])
    recording = record(scenario, tmp_path, seconds=2).recording
    assert set(METRICS) == set(recording.measured) | set(recording.absent)
    never = {metric for metric, reason in recording.absent.items() if reason == NEVER}
    # No error was raised; in virtual time the kernel's own clock, which counts busy processors, may not tick at all.
    assert never <= {"gpu_xid", "cpu_utilisation"}
    assert not set(recording.absent) & set(recording.measured), "measured and said to be absent"
    assert all(len(reason) > 10 and "\n" not in reason for reason in recording.absent.values())
    assert "cpu_energy_j" in (recording.measured if has_host else recording.absent)
    assert "infiniband_tx_bytes" in (recording.measured if has_host else recording.absent)
