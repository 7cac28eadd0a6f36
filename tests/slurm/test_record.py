"""`triplepoint record` on a cluster: as a prefix of every rank's command, and for a job that already runs."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.launchers import wait_until
from tests.slurm.cluster import Cluster
from triplepoint.manifest import Manifest, read_manifest
from triplepoint.recorded.studies import read_recorded

ROOT = Path(__file__).parents[2]
RECORD = [sys.executable, "-m", "triplepoint", "record", "--config", str(ROOT / "config"), "--device", "cpu"]

pytestmark = pytest.mark.slurm


def environment() -> dict[str, str]:
    paths = os.pathsep.join([str(ROOT / "src"), str(ROOT), os.environ.get("PYTHONPATH", "")])
    return {name: value for name, value in os.environ.items() if not name.startswith("SLURM")} | {"PYTHONPATH": paths}


def manifest_of(results: Path) -> Manifest:
    (entry,) = read_recorded(results).entries
    return read_manifest(results / "runs" / entry.run / "raw" / "manifest.json")


def test_ranks_of_srun_on_two_nodes_are_one_run(cluster: Cluster, tmp_path: Path) -> None:
    script = tmp_path / "rank.sh"
    ranks = "export RANK=$SLURM_PROCID WORLD_SIZE=$SLURM_NTASKS MASTER_ADDR=127.0.0.1 MASTER_PORT=29873"
    loop = f"{sys.executable} {ROOT / 'tests' / 'loops' / 'plain.py'} 20 0.02"
    script.write_text(f"#!/bin/sh\n{ranks}\nexec {' '.join(RECORD)} --results {tmp_path / 'results'} -- {loop}\n")
    script.chmod(0o755)
    command = ["srun", "--partition=h200", "--nodes=2", "--ntasks-per-node=1", str(script)]
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    manifest = manifest_of(tmp_path / "results")
    assert [[device.rank for device in node.devices] for node in manifest.nodes] == [[0], [1]]
    assert all(node.telemetry is not None for node in manifest.nodes)
    assert manifest.facts["steps_marked_by"] == "steps of the optimizer"


def test_job_that_runs_is_watched_on_all_its_nodes(cluster: Cluster, tmp_path: Path) -> None:
    batch = ["sbatch", "--parsable", "--partition=h200", "--nodes=2", f"--output={tmp_path / 'out'}"]
    command = [*batch, "--wrap", "sleep 15"]
    job = subprocess.run(command, env=environment(), capture_output=True, text=True, check=True).stdout.strip()
    state = ["squeue", "--noheader", f"--jobs={job}", "--format=%T"]
    wait_until(lambda: b"RUNNING" in subprocess.run(state, capture_output=True, check=False).stdout, "job runs")
    words = [*RECORD, "--results", str(tmp_path / "results"), "--job", job]
    done = subprocess.run(words, env=environment(), capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    manifest = manifest_of(tmp_path / "results")
    assert len({node.host for node in manifest.nodes}) == 2
    assert "ending" not in manifest.facts
