"""Zeus itself measures the same windows as the sampler, on a fake node in real time."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.fakes.node import FakeNode, fake_node
from tests.fakes.presets import hgx_h200
from tests.fakes.scenario import Scenario
from tests.fakes.wave import square
from tests.points import planned, tiny_point
from triplepoint.config.point import PointCluster
from triplepoint.launch.agent import _start_zeus
from triplepoint.launch.collect import compare_with_zeus
from triplepoint.launch.watch import stop
from triplepoint.recording import read_recording
from triplepoint.telemetry.zeus_windows import blocks

STEP_S = 0.35
KINDS = ["warmup", "measured", "measured", "measured", "profiled"]


def test_blocks_by_hand() -> None:
    assert blocks(KINDS) == [("measured", 1, 4), ("profiled", 4, 5)]
    assert blocks(["warmup"]) == []


def train(scenario: Scenario, folder: Path, steps: int = len(KINDS)) -> FakeNode:
    """Let the sampler and Zeus watch steps of a fixed length, as the agent does."""
    out = folder / "node0.arrow"
    progress = folder / "rank0.jsonl"
    zeus = [sys.executable, "-m", "triplepoint.telemetry.zeus_windows", folder / "zeus0.json", progress]
    sample = [sys.executable, "-m", "triplepoint", "sample", out, "--device", "cuda", "--fast-period", "0.05"]
    with fake_node(scenario) as node:
        environment = os.environ | node.env
        watchers = [
            subprocess.Popen([*zeus, json.dumps(KINDS), "2"], env=environment),
            subprocess.Popen(sample, env=environment),
        ]
        deadline = time.monotonic() + 60
        while not ((folder / "zeus0.json").exists() and out.exists()) and time.monotonic() < deadline:
            time.sleep(0.05)
        time.sleep(0.3)  # the counter is to move before the first window
        with progress.open("w") as file:
            for number in range(steps):
                time.sleep(STEP_S)
                file.write(f"{number}\n")
                file.flush()
        time.sleep(0.5)
        for watcher in watchers:
            watcher.terminate()
        # Zeus may have ended on its own, or be on its way out, where Python hears no signals any more.
        assert watchers[0].wait(30) in (0, -signal.SIGTERM)
        assert watchers[1].wait(30) == 0
    return node


def test_zeus_agrees_with_the_sampler_window_by_window(tmp_path: Path) -> None:
    node = train(hgx_h200(2).set_all(load=square(0.2, 0.5)), tmp_path)
    windows, absent = compare_with_zeus(tmp_path / "zeus0.json", read_recording(tmp_path / "node0.arrow"))
    assert absent is None
    assert [(window.kind, window.device) for window in windows] == [
        (kind, gpu) for kind in ("measured", "profiled") for gpu in ("gpu0", "gpu1")
    ]
    times = json.loads((tmp_path / "zeus0.json").read_text())["windows"]
    for number, window in enumerate(windows):
        start_ns, end_ns = times[number // 2]["t_start_ns"], times[number // 2]["t_end_ns"]
        true_j = node.truth.energy_j(number % 2, start_ns, end_ns)
        # Ours is interpolated between moves 0.1 s apart: half a swing of the load there is all it can be off.
        assert window.sampler_j == pytest.approx(true_j, abs=2 * 0.05 * 312)
        assert window.tolerance is not None and abs(window.difference or 1) <= window.tolerance


def test_agent_starts_zeus_where_there_are_gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for folder in ("telemetry", "steps", "logs"):
        (tmp_path / folder).mkdir()
    on_gpus = planned(tiny_point(cluster=PointCluster(name="h200", device="cuda", gpu="h200", gpus_per_node=2)))
    assert _start_zeus(tmp_path, 0, planned(tiny_point()), range(2)) is None
    with fake_node(hgx_h200(2)) as node:
        for name, value in node.env.items():
            monkeypatch.setenv(name, value)
        zeus = _start_zeus(tmp_path, 0, on_gpus, range(2))
        assert zeus is not None
        deadline = time.monotonic() + 60
        while not (tmp_path / "telemetry/zeus0.json").exists() and time.monotonic() < deadline:
            time.sleep(0.05)
        stop(zeus)
    assert json.loads((tmp_path / "telemetry/zeus0.json").read_text()) == {"windows": [], "absent": None}
    assert "Traceback" not in (tmp_path / "logs/zeus0.log").read_text()


def test_zeus_of_steps_that_never_came_measures_nothing(tmp_path: Path) -> None:
    train(hgx_h200(2), tmp_path, steps=2)
    assert compare_with_zeus(tmp_path / "zeus0.json", read_recording(tmp_path / "node0.arrow")) == ((), None)


def test_compare_with_zeus_says_what_is_missing(tmp_path: Path) -> None:
    assert compare_with_zeus(tmp_path / "zeus0.json", None)[1] == "the process that runs Zeus left nothing"
    (tmp_path / "zeus0.json").write_text('{"windows": [], "absent": "Zeus is not installed"}')
    assert compare_with_zeus(tmp_path / "zeus0.json", None)[1] == "the sampler left no recording to compare with"


def test_zeus_without_a_driver_gives_the_reason(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "triplepoint.telemetry.zeus_windows", tmp_path / "zeus0.json", tmp_path / "none"]
    subprocess.run([*command, json.dumps(KINDS), "2"], check=True, timeout=60, capture_output=True)
    found = json.loads((tmp_path / "zeus0.json").read_text())
    assert found["windows"] == []
    assert found["absent"].startswith("Zeus could not be started (")
