"""The short check before a launch, as the agent starts it, on nodes whose libraries are fakes."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.fakes.node import fake_node
from tests.fakes.presets import hgx_h200, mi300x_node
from tests.fakes.scenario import Scenario


def check(scenario: Scenario, device: str, folder: Path, limits_w: str = "{}") -> dict[str, tuple[str, str]]:
    """Return status and finding of each check."""
    out = folder / "checks.json"
    with fake_node(scenario) as node:
        command = [
            sys.executable,
            "-X",
            "importtime",
            "-m",
            "triplepoint.doctor.check_node",
            str(out),
            device,
            limits_w,
        ]
        done = subprocess.run(command, env=node.env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    assert "| torch" not in done.stderr, "it takes seconds to import"
    return {row["name"]: (row["status"], row["found"]) for row in json.loads(out.read_text())}


@pytest.mark.parametrize(("scenario", "device"), [(hgx_h200(), "cuda"), (mi300x_node(), "rocm")])
def test_brief_reads_a_healthy_node(tmp_path: Path, scenario: Scenario, device: str) -> None:
    found = check(scenario, device, tmp_path)
    assert {"power limit", "clocks", "memory errors", "shared memory"} <= set(found)
    assert {status for status, _ in found.values()} <= {"ok", "warn"}
    assert not {"gpu count", "driver", "collective library"} & set(found), "nothing that only torch can tell"


def test_brief_tells_of_a_gpu_with_errors_and_a_lowered_limit(tmp_path: Path) -> None:
    scenario = hgx_h200().set_gpu(1, ecc_uncorrected=2).set_gpu(3, limit_w=500.0)
    found = check(scenario, "cuda", tmp_path)
    assert found["memory errors"] == ("fail", "gpu1: 2 uncorrected errors since the driver was loaded")
    assert found["power limit"] == ("warn", "gpu3: 500 W, default 700 W")


def test_brief_holds_limits_to_those_the_run_is_to_have(tmp_path: Path) -> None:
    scenario = hgx_h200().set_gpu(3, limit_w=500.0)
    assert check(scenario, "cuda", tmp_path, '{"3": 500}')["power limit"][0] == "ok"
    told = check(scenario, "cuda", tmp_path, '{"3": 500, "4": 650}')["power limit"]
    assert told == ("fail", "gpu4: 700 W, the run is to have 650 W")


def test_brief_of_processors_looks_for_no_gpus(tmp_path: Path) -> None:
    assert "power limit" not in check(hgx_h200(), "cpu", tmp_path)
