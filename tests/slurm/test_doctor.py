"""`triplepoint doctor` on two nodes of the test cluster with a fake of AMD's library."""

import json
import os
import subprocess
import sys

import pytest

from tests.fakes.node import fake_node
from tests.fakes.presets import mi250_node
from tests.slurm.launches import Workspace

pytestmark = pytest.mark.slurm


def test_doctor_checks_two_nodes_through_slurm(workspace: Workspace) -> None:
    command = [sys.executable, "-m", "triplepoint", "doctor", "--cluster", "mi250x32", "--nodes", "2", "--json"]
    with fake_node(mi250_node()) as node:
        done = subprocess.run(
            [*command, "--results", str(workspace.results)], env=os.environ | node.env, capture_output=True, text=True
        )
    assert done.returncode == 1, done.stderr
    report = json.loads(done.stdout)
    checks = {check["name"]: check for check in report["checks"]}
    hosts = ["mi250-1", "mi250-2"]
    assert [node["facts"]["host"] for node in report["nodes"]] == hosts
    assert checks["nodes"]["status"] == checks["shared folder"]["status"] == "ok"
    # Both slurmd read the clock of this machine.
    offset = report["nodes"][1]["meeting"]
    assert abs(offset["offset_s"]) <= offset["uncertainty_s"]
    assert checks["power limit"]["found"] == "gpu0,2,4,6: 500 W"
    assert checks["power limit"]["nodes"] == hosts
    # These checks fail because this torch is a build for CPUs.
    failed = {name for name, check in checks.items() if check["status"] == "fail"}
    assert {"gpu count", "driver"} <= failed
    assert checks["gpu count"]["found"] == "the driver shows 8, torch sees 0"
