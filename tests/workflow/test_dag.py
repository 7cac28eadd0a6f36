"""What runs again, and what does not: the DAG on a small study of real training."""

import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

from tests.workflow.conftest import UP_TO_TABLES, Project

pytestmark = pytest.mark.workflow

FIGURES = {"mini/microbatch_power", "mini/timeline"}
"""What the study `mini` names."""


def test_all_from_nothing_makes_every_product(finished: Project) -> None:
    for figure in FIGURES:
        for suffix in ("pdf", "png", "csv"):
            assert (finished.folder / f"figs/{figure}.{suffix}").stat().st_size > 0
    assert "mini" in (finished.folder / "report.html").read_text()
    assert len(finished.manifests()) == 2


def test_second_all_runs_nothing(project: Project) -> None:
    outcome = project.snakemake("all")
    assert outcome.status == 0
    assert outcome.jobs == []
    assert "Nothing to be done" in outcome.output


def test_touched_configuration_runs_nothing(project: Project) -> None:
    for path in project.folder.glob("config/**/*.yaml"):
        os.utime(path)
    assert project.snakemake("all").jobs == []


def test_comment_in_configuration_runs_nothing(project: Project) -> None:
    study = project.folder / "config/studies/mini.yaml"
    study.write_text("# what this is for\n" + study.read_text())
    assert project.snakemake("-n", "all").jobs == []


def test_new_microbatch_launches_only_the_new_run(project: Project) -> None:
    before = project.manifests()
    project.edit("config/studies/mini.yaml", "global_batch_size: 4", "global_batch_size: 4\n  seed: 1234")
    assert project.snakemake("-n", "all").jobs == [], "a default spelled out is the same point"
    project.edit("config/studies/mini.yaml", "sweeps:\n", "sweeps:\n  - set: {recompute: full, micro_batch_size: 1}\n")
    outcome = project.snakemake(*UP_TO_TABLES)
    assert outcome.status == 0, outcome.output
    assert len(outcome.of("launch")) == 1
    assert "act" in outcome.of("launch")[0]
    after = project.manifests()
    assert {run: after[run] for run in before} == before
    assert set(after) - set(before) == set(outcome.of("launch"))


def test_edited_figure_module_redraws_that_figure_only(project: Project) -> None:
    with (project.folder / "src/triplepoint/figures/timeline.py").open("a") as module:
        module.write("\n# a remark\n")
    outcome = project.snakemake("all")
    assert outcome.status == 0, outcome.output
    assert outcome.of("figure") == ["mini/timeline"]
    assert outcome.rules == {"figure", "report"}


@pytest.mark.parametrize(
    ("path", "old", "new"),
    [
        ("src/triplepoint/launch/launch_run.py", '"""Launch one run', '"""Launches one run'),
        ("src/triplepoint/launch/agent.py", '"""The agent', '"""This is the agent'),
        ("src/triplepoint/launch/engines/native/__init__.py", '"""', '""" '),
        ("src/triplepoint/cli/launch.py", '"""', '""" '),
        ("rules/launch.smk", "triplepoint launch {", "triplepoint  launch {"),
        ("rules/launch.smk", "rule launch:", "# a remark\nrule launch:"),
    ],
)
def test_edited_launcher_launches_nothing(project: Project, path: str, old: str, new: str) -> None:
    project.edit(path, old, new)
    outcome = project.snakemake("-n", "all")
    assert outcome.status == 0, outcome.output
    assert outcome.of("launch") == []


def test_removed_trace_table_is_rebuilt_without_a_launch(project: Project) -> None:
    run = sorted(project.manifests())[0]
    (project.folder / f"results/runs/{run}/intervals.parquet").unlink()
    before = project.manifests()
    outcome = project.snakemake("all")
    assert outcome.status == 0, outcome.output
    assert outcome.of("trace") == [run]
    assert outcome.rules == {"trace", "aggregate", "claims", "figure", "report"}
    assert set(outcome.of("figure")) == FIGURES
    assert project.manifests() == before


@pytest.mark.parametrize("forced", [("-R", "launch"), ("-F",)])
def test_forced_launches_keep_results_that_are_there(project: Project, forced: tuple[str, ...]) -> None:
    before = project.manifests()
    outcome = project.snakemake(*forced, "--until", "launch")
    assert outcome.status == 0, outcome.output
    assert len(outcome.of("launch")) == 2
    assert project.manifests() == before


def test_lost_bookkeeping_launches_nothing(project: Project) -> None:
    before = project.manifests()
    subprocess.run(["rm", "-rf", str(project.folder / ".snakemake")], check=True)
    outcome = project.snakemake(*UP_TO_TABLES)
    assert outcome.status == 0, outcome.output
    assert project.manifests() == before


def test_changed_model_launches_its_runs(project: Project) -> None:
    project.edit("config/models/test-llama.yaml", "ffn_hidden_size: 64", "ffn_hidden_size: 96")
    launched = set(project.snakemake("-n", "all").of("launch"))
    assert len(launched) == 2
    assert not launched & set(project.manifests()), "beside those of the model as it was"


@pytest.mark.parametrize("option", [(), ("--rerun-incomplete",)])
def test_killed_snakemake_loses_no_finished_run(project: Project, option: tuple[str, ...]) -> None:
    first, second = sorted(project.manifests())
    kept = project.manifests()[first]
    subprocess.run(["rm", "-rf", str(project.folder / f"results/runs/{second}/raw")], check=True)
    running = subprocess.Popen(
        project.command("all"),
        cwd=project.folder,
        env=project.environment(),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    deadline = time.monotonic() + 60
    while not list(project.folder.glob(f"results/runs/{second}/attempts/*/logs/rank0.log")):
        assert running.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.05)
    os.killpg(running.pid, signal.SIGKILL)
    running.wait()
    assert second not in project.manifests()
    outcome = project.snakemake(*UP_TO_TABLES, *option)
    assert outcome.status == 0, outcome.output
    assert project.manifests()[first] == kept
    assert outcome.of("launch") == [second]


def test_one_figure_brings_only_its_inputs(fresh: Project) -> None:
    outcome = fresh.snakemake("-n", "figs/mini/microbatch_power.pdf")
    assert outcome.status == 0, outcome.output
    assert outcome.of("figure") == ["mini/microbatch_power"]
    assert not {"report", "claims"} & outcome.rules


def test_figures_of_a_comparison_and_a_projection_need_no_run() -> None:
    """On the repository itself: nothing else is simulated, and nothing launched."""
    wanted = "figs/scale_up_vs_out.pdf", "figs/projection.pdf"
    outcome = Project(Path(__file__).parents[2]).snakemake("-n", "-F", *wanted, tells_cost=True)
    assert outcome.status == 0, outcome.output
    assert outcome.rules == {"whatif", "project", "figure"}
    assert sorted(outcome.of("figure")) == ["projection", "scale_up_vs_out"]
    assert "GPU hours" not in outcome.output


@pytest.mark.parametrize("profile", ["local", "ci", "slurm-h200", "slurm-h100", "slurm-mi250"])
def test_profile_resolves_by_name_from_the_root(profile: str) -> None:
    """On the repository itself: its studies, its profiles."""
    project = Project(Path(__file__).parents[2])
    outcome = project.snakemake("--profile", profile, "-n", "all", "--quiet", "all")
    assert outcome.status == 0, outcome.output


def test_dry_run_of_the_published_grid_plans_every_run() -> None:
    project = Project(Path(__file__).parents[2])
    outcome = project.snakemake("--profile", "slurm-h200", "-n", "all")
    assert outcome.status == 0, outcome.output
    planned = project.triplepoint("plan", "--cluster", "h200x32")
    assert f"in all: {len(set(outcome.of('launch')))} launches ahead" in planned.stdout
