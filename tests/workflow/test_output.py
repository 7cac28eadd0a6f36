"""What a user is shown: a run on a pipe, a failure, a dry run, the end, and what is asked before GPU hours go."""

import os
import subprocess

import pytest

from tests.workflow.conftest import Project

pytestmark = pytest.mark.workflow

ON_GPUS = """\
description: One point on four nodes of H200.
defaults: {cluster: h200x32, engine: megatron, model: gpt3-175b, tp: 8, pp: 4, global_batch_size: 128}
sweeps: [{axes: {micro_batch_size: [1, 2]}}]
"""


def shown(project: Project, *arguments: str) -> tuple[int, list[str]]:
    """Status and lines of Snakemake as a user calls it, on a pipe."""
    environment = project.environment()
    del environment["SNAKEMAKE_LOGGER_TRIPLEPOINT_STYLE"]
    done = subprocess.run(
        project.command(*arguments), cwd=project.folder, env=environment,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    return done.returncode, done.stdout.splitlines()


def test_run_is_a_few_short_lines_and_ends_with_the_report(project: Project) -> None:
    project.edit("src/triplepoint/telemetry/align.py", '"""', '"""Changed. ')
    status, lines = shown(project, "all")
    assert status == 0, lines
    assert len(lines) < 40 and max(map(len, lines)) < 300
    assert any(line.startswith("telemetry ##") and "2/2" in line for line in lines)
    assert any(line.startswith("report.html: 3 runs: 2 ok, 1 invalid") for line in lines[-6:])
    status, lines = shown(project, "all")
    assert status == 0 and any(line.startswith("Nothing to be done") for line in lines)
    assert any(line.startswith("report.html: 3 runs") for line in lines), "where it is, also where nothing was to do"


def test_failure_is_said_with_reason_and_log(project: Project) -> None:
    run = next((project.folder / "results/runs").glob("*"))
    (run / "kernels.parquet").write_text("damaged by hand")
    status, lines = shown(project, "all")
    assert status != 0
    at = lines.index("failed: aggregate mini")
    assert lines[at + 1].startswith("    triplepoint: ") and "kernels.parquet" in lines[at + 1]
    assert lines[at + 2] == "    log: logs/aggregate/mini.log"
    assert "failed: aggregate 1" in lines[-1]
    assert not any(line.startswith("report.html") for line in lines)


def test_log_file_has_all_that_snakemake_said(project: Project) -> None:
    (project.folder / "report.html").unlink()
    assert shown(project, "all")[0] == 0
    newest = max((project.folder / ".snakemake/log").glob("*.log"), key=os.path.getmtime)
    assert "rule report:" in newest.read_text()


def test_dry_run_has_no_long_lines(fresh: Project) -> None:
    fresh.edit("config/studies/mini.yaml", "micro_batch_size: [1, 2, 4]", "seed: [1, 2, 3, 4, 5, 6, 7, 8, 9]")
    status, lines = shown(fresh, "-n", "all")
    assert status == 0
    assert any(line.startswith("rule aggregate:") for line in lines)
    assert max(map(len, lines)) < 2000


def test_launches_beyond_the_budget_ask_for_a_name(fresh: Project) -> None:
    (fresh.folder / "config/studies/gpus.yaml").write_text(ON_GPUS)
    reached = ("--config", "clusters=[h200x32]", "simulated=[]")
    status, lines = shown(fresh, "all", *reached)
    assert status == 2
    assert lines[-1].startswith("triplepoint: 2 launches are expected to take ")
    assert "max_gpu_hours is 4: gpus " in lines[-1] and "--config studies=[gpus]" in lines[-1]
    assert not (fresh.folder / "results").exists(), "nothing was begun"
    status, lines = shown(fresh, "-n", "all", *reached)
    assert status == 0
    assert any(line.startswith("beyond the budget, snakemake will ask before it launches") for line in lines)
    status, lines = shown(fresh, "-n", "all", *reached, "max_gpu_hours=1000")
    assert status == 0 and not any("budget" in line for line in lines)
