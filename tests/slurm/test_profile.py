"""The whole workflow through `snakemake --profile slurm-h200`, also with Snakemake killed."""

import json
import os
import signal
import subprocess
from pathlib import Path

import psutil
import pytest

from tests.launchers import wait_until
from tests.slurm.conftest import SITE
from tests.slurm.launches import jobs_of, never_two_at_once, no_ranks
from tests.workflow.conftest import Outcome, Project, make_project
from triplepoint.manifest import read_manifest

pytestmark = [pytest.mark.slurm, pytest.mark.workflow, pytest.mark.timeout(600)]

STUDY = """\
description: Two runs as gangs of two nodes, and one figure of them.
figures: [microbatch_power]
defaults:
  {cluster: h200x32, engine: native, model: test-llama, global_batch_size: 8, precision: fp32, telemetry_period_s: 0.05,
   steps: {warmup: 1, measured: 2, profiled: 1}}
sweeps:
  - axes:
      micro_batch_size: [1, 2]
"""
CLUSTER = """\
name: h200x32
device: cpu
num_nodes: 2
gpus_per_node: 1
executor: slurm
time_limit_s: 600
hang_timeout_s: 120
"""


@pytest.fixture
def project(cluster: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    """A project whose H200 cluster is the test cluster, with ranks on CPUs."""
    project = make_project(tmp_path / "project")
    (project.folder / "config/studies/mini.yaml").write_text(STUDY)
    (project.folder / "config/clusters/h200x32.yaml").write_text(CLUSTER)
    site = tmp_path / "site.yaml"
    site.write_text(SITE)
    monkeypatch.setenv("TRIPLEPOINT_SITE", str(site))
    return project


def start(project: Project, *targets: str) -> "subprocess.Popen[str]":
    command = project.command("--profile", "slurm-h200", *targets)
    with (project.folder / "output.log").open("w") as output:
        return subprocess.Popen(
            command,
            cwd=project.folder,
            env=project.environment(),
            stdout=output,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )


def finish(project: Project, *targets: str) -> Outcome:
    """Run Snakemake in a process of its own, because it starts jobs elsewhere; return its outcome."""
    status = start(project, *targets).wait()
    return Outcome(status, (project.folder / "output.log").read_text())


def run_folders(project: Project) -> list[Path]:
    return sorted((project.folder / "results/runs").glob("*"))


def jobs_by_name() -> dict[str, str]:
    rows = subprocess.run(["squeue", "-h", "--states=all", "-o", "%A %j"], capture_output=True, text=True).stdout
    return dict(line.split(None, 1) for line in rows.splitlines())


@pytest.mark.long
def test_everything_through_the_profile_survives_a_kill(project: Project) -> None:
    before = set(jobs_by_name())
    first = start(project, "all")
    wait_until(lambda: [f for f in run_folders(project) if list(f.glob("attempts/*/status"))], "a gang starts")
    os.killpg(first.pid, signal.SIGKILL)  # Snakemake and its launchers, as if the login node were lost
    first.wait()
    outcome = finish(project, "all")
    assert outcome.status == 0, outcome.output
    runs = run_folders(project)
    assert len(runs) == 2
    for run in runs:
        manifest = read_manifest(run / "raw/manifest.json")
        assert manifest.status == "ok"
        assert len({node.host for node in manifest.nodes}) == 2
        assert len(jobs_of(run)) == 1, "launched twice"
        assert never_two_at_once(run)
        assert not (run / "attempts").exists()
    assert (project.folder / "report.html").is_file()
    others = {
        job for job in set(jobs_by_name()) - before if job not in {job for run in runs for job, *_ in jobs_of(run)}
    }
    assert len(others) == 3, "one job for what is made of each run, one for the tables, one for the pages"
    assert finish(project, "all").jobs == []


def test_interrupted_snakemake_cancels_its_gangs(project: Project) -> None:
    model = project.folder / "config/studies/mini.yaml"
    model.write_text(STUDY.replace("measured: 2", "measured: 100000").replace("[1, 2]", "[1]"))
    snakemake = start(project, "all")
    (run,) = wait_until(lambda: [f for f in run_folders(project) if list(f.glob("attempts/*/steps/*"))], "it trains")
    note = json.loads(next(run.glob("attempts/*/submission.json")).read_text())
    snakemake.send_signal(signal.SIGINT)
    snakemake.wait(60)
    wait_until(lambda: no_ranks(run), "the ranks end", 30)
    state = ["sacct", "-X", "-n", "-P", "-j", note["job_id"], "-o", "State"]
    ended = ("CANCELLED", "COMPLETED")  # COMPLETED if its agents end before the job is cancelled
    wait_until(
        lambda: subprocess.run(state, capture_output=True, text=True).stdout.startswith(ended), "it is cancelled"
    )
    assert not [p for p in psutil.process_iter(["cmdline"]) if str(run) in " ".join(p.info["cmdline"] or [])]


def test_end_of_the_session_leaves_the_gangs(project: Project) -> None:
    study = project.folder / "config/studies/mini.yaml"
    study.write_text(STUDY.replace("measured: 2", "measured: 100000").replace("[1, 2]", "[1]"))
    snakemake = start(project, "all")
    (run,) = wait_until(lambda: [f for f in run_folders(project) if list(f.glob("attempts/*/steps/*"))], "it trains")
    job_id = json.loads(next(run.glob("attempts/*/submission.json")).read_text())["job_id"]
    # Snakemake, its shells and its launchers, as systemd does at the end of a session.
    os.killpg(snakemake.pid, signal.SIGTERM)
    snakemake.wait(60)
    state = subprocess.run(["squeue", "-h", "-j", job_id, "-o", "%T"], capture_output=True, text=True)
    assert state.stdout.strip() == "RUNNING"
    assert not no_ranks(run)
