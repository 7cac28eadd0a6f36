"""A slow GPU from the recording to the next attempt: a launcher whose gangs are fake nodes, sampled in virtual time."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.presets import hgx_h200
from tests.fakes.scenario import Scenario
from tests.fakes.wave import constant
from tests.points import planned, tiny_point, write_run
from tests.sampling import record
from triplepoint.config.plan import PlannedRun
from triplepoint.config.point import Layout, PointCluster, Steps
from triplepoint.launch import launch_run
from triplepoint.manifest import read_manifest

PLACEMENT: dict[str, Any] = {"switches": None, "devices": None, "cpus": "0-7", "adapters": {}}


@dataclass
class FakeSlurm:
    """Gives each gang its next node, on which all goes well."""

    nodes: list[tuple[str, Scenario]]
    free: frozenset[str]
    excluded: list[frozenset[str]] = field(default_factory=list)

    def submit(self, raw: Path, planned: PlannedRun, options: Any, exclude: frozenset[str], say: Any) -> "FakeSlurm":
        self.excluded.append(exclude)
        host, scenario = self.nodes.pop(0)
        for folder in ("telemetry", "steps", "nodes"):
            (raw / folder).mkdir()
        samples = record(scenario, raw / "telemetry", seconds=2.0).recording.samples
        _write_node(raw, host, planned, samples["t_ns"].to_pylist())
        return self

    def is_over(self) -> bool:
        return True

    def cancel(self) -> None:
        raise AssertionError("nothing to cancel")


def _write_node(raw: Path, host: str, planned: PlannedRun, t_ns: Sequence[int]) -> None:
    report = {"node": 0, "host": host, "monotonic_ns": 1, "wall_ns": 1, "num_cores": 8, "memory_bytes": 1}
    report |= {"placement": PLACEMENT, "ranks": list(range(8)), "failure": None, "facts": {}}
    report |= {"duration_s": 1.0, "sampler_ends": [], "checks": None, "clock": [], "clock_absent": None}
    (raw / "nodes/node0.json").write_text(json.dumps(report))
    times = {"t_start_ns": min(t_ns), "t_end_ns": max(t_ns)}
    row = {"step": 0, "kind": "measured", "loss": None, "num_tokens": 1, "peak_memory_bytes": None, **times}
    for rank in range(8):
        (raw / f"steps/rank{rank}.jsonl").write_text(json.dumps({"rank": rank, **row}) + "\n")


@pytest.fixture
def launch_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Launches a run of 8 GPUs on the nodes given; returns its folder, what Slurm was asked, and what was said."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))

    def launch(nodes: list[tuple[str, Scenario]], free: set[str]) -> tuple[Path, FakeSlurm, list[str]]:
        slurm, said = FakeSlurm(nodes, frozenset(free)), list[str]()
        monkeypatch.setattr(launch_run, "submit", slurm.submit)
        monkeypatch.setattr(launch_run, "adopt", lambda *_: None)
        monkeypatch.setattr(launch_run, "usable_nodes", lambda partition: slurm.free)
        cluster = PointCluster(name="test", device="cuda", gpu="h200", gpus_per_node=8)
        steps = Steps(warmup=0, measured=1, profiled=0)
        point = tiny_point(cluster=cluster, num_gpus=8, layout=Layout(dp=8), global_batch_size=8, steps=steps)
        folder = write_run(tmp_path / "results", planned(point, executor="slurm"))
        launch_run.launch(folder, said.append)
        return folder, slurm, said

    return launch


def healthy() -> Scenario:
    return hgx_h200().set_all(load=constant(0.8))


def hot() -> Scenario:
    return healthy().set_gpu(5, hw_thermal=constant(1.0))


def test_launch_with_a_slow_gpu_moves_to_other_nodes(launch_on: Any) -> None:
    folder, slurm, said = launch_on([("n1", hot()), ("n2", healthy())], {"n1", "n2"})
    assert slurm.excluded == [frozenset(), {"n1"}]
    (path,) = folder.glob("attempts/*/manifest.json")
    rejected = read_manifest(path)
    (suspect,) = rejected.suspects
    assert (rejected.status, suspect.rank, suspect.host, suspect.device) == ("bad_node", 5, "n1", "gpu5")
    assert suspect.uuid == rejected.nodes[0].devices[5].uuid is not None
    assert rejected.evidence is not None
    assert (rejected.evidence.rank, rejected.evidence.host) == (5, "n1")
    assert "heat, by the hardware" in rejected.evidence.message
    noted = json.loads((folder.parents[1] / "slow_nodes/n1.json").read_text())
    assert noted["message"] == rejected.evidence.message
    kept = read_manifest(folder / "raw/manifest.json")
    assert (kept.status, kept.nodes[0].host, kept.suspects) == ("ok", "n2", ())
    assert any("n1 is left out from now on" in line for line in said)


def test_launch_keeps_a_slow_gpus_result_where_no_other_node_is(launch_on: Any) -> None:
    folder, slurm, said = launch_on([("n1", hot())], {"n1"})
    kept = read_manifest(folder / "raw/manifest.json")
    assert kept.status == "ok"
    assert [suspect.device for suspect in kept.suspects] == ["gpu5"]
    assert len(slurm.excluded) == 1
    assert not (folder.parents[1] / "slow_nodes").exists()
    assert any("kept, though gpu5" in line for line in said)


def test_launch_on_a_hot_node_whose_gpus_are_all_alike_accuses_nobody(launch_on: Any) -> None:
    folder, _, _ = launch_on([("n1", healthy().set_all(hw_thermal=constant(1.0)))], {"n1", "n2"})
    assert read_manifest(folder / "raw/manifest.json").suspects == ()


@pytest.mark.parametrize(("free", "left_out"), [({"n1", "n2"}, {"n1"}), ({"n1"}, set())])
def test_launch_does_without_a_slow_node_where_it_can(
    launch_on: Any, tmp_path: Path, free: set[str], left_out: set[str]
) -> None:
    (tmp_path / "results/slow_nodes").mkdir(parents=True)
    (tmp_path / "results/slow_nodes/n1.json").write_text("{}")
    _, slurm, said = launch_on([("n2", healthy())], free)
    assert slurm.excluded == [left_out]
    assert any("n1 would be left out as slow" in line for line in said) == (not left_out)
