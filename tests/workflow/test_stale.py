"""Nothing lost, nothing stale: what a failed stage, an edit, another selection or a lost record must not lead to."""

import json
import shutil
from pathlib import Path

import pytest

from tests.workflow.conftest import UP_TO_TABLES, Project
from triplepoint.claims import HELD, claim_results
from triplepoint.config.plan import read_plan

pytestmark = pytest.mark.workflow

OTHER = """\
description: One of the runs of the study mini, alone.
figures: [microbatch_power, timeline]
defaults: {cluster: cpu-local, engine: native, model: test-llama, num_gpus: 2, global_batch_size: 4, precision: fp32,
           telemetry_period_s: 0.05, steps: {warmup: 1, measured: 3, profiled: 1}}
sweeps: [{}]
"""


def run_of(project: Project) -> Path:
    return project.folder / "results/runs" / sorted(project.manifests())[0]


def tables_of(project: Project) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in project.folder.glob("results/tables/**/*") if path.is_file()}


def points(project: Project) -> int:
    return len((project.folder / "results/tables/mini/points.csv").read_text().splitlines()) - 1


def test_failed_aggregate_is_run_again_for_all_and_for_one_figure(project: Project) -> None:
    (run_of(project) / "kernels.parquet").write_text("damaged by hand")
    for target in ("all", "all", "figs/mini/timeline.pdf"):
        outcome = project.snakemake(target)
        assert outcome.status != 0, outcome.output
        assert outcome.of("aggregate") == ["mini"], "yesterday's figures are not up to date"


@pytest.mark.parametrize("target", ["all", "figs/mini/timeline.pdf"])
def test_missing_table_behind_finished_figures_is_made_again(project: Project, target: str) -> None:
    (project.folder / "results/tables/mini/gpus.parquet").unlink()
    outcome = project.snakemake("-n", target)
    assert "aggregate" in outcome.rules
    assert "figure" in outcome.rules
    assert not {"launch", "telemetry", "trace"} & outcome.rules


@pytest.mark.parametrize(
    ("product", "rule"),
    [("raw/manifest.json", "launch"), ("telemetry.parquet", "telemetry"), ("ranks.parquet", "trace")],
)
def test_empty_file_is_made_again(project: Project, product: str, rule: str) -> None:
    run = run_of(project)
    (run / product).write_bytes(b"")
    outcome = project.snakemake("-n", "figs/mini/timeline.pdf")
    assert outcome.of(rule) == [run.name]
    assert {"aggregate", "figure"} <= outcome.rules


@pytest.mark.parametrize(
    ("product", "rule"),
    [
        ("results/tables/mini/kernels.parquet", "aggregate"),
        ("figs/mini/timeline.svg", "figure"),
        ("report.html", "report"),
    ],
)
def test_empty_table_figure_or_report_is_made_again(project: Project, product: str, rule: str) -> None:
    (project.folder / product).write_bytes(b"")
    outcome = project.snakemake("-n", "all")
    assert rule in outcome.rules
    assert not {"launch", "telemetry", "trace"} & outcome.rules


@pytest.mark.long
def test_launch_that_failed_on_a_changed_point_is_launched_again_with_the_limits_of_today(project: Project) -> None:
    """Also: results of the point as it was are kept, and found again."""
    before = project.manifests()
    project.edit("config/models/test-llama.yaml", "ffn_hidden_size: 64", "ffn_hidden_size: 96")
    project.edit("config/clusters/cpu-local.yaml", "time_limit_s: 600", "time_limit_s: 1")
    failed = project.snakemake(*UP_TO_TABLES)
    assert failed.status != 0
    assert "time limit of 1 s reached" in failed.output
    assert project.manifests() == before
    project.edit("config/clusters/cpu-local.yaml", "time_limit_s: 1", "time_limit_s: 600")
    mended = project.snakemake(*UP_TO_TABLES, "--quiet")
    assert mended.status == 0, mended.output
    after = project.manifests()
    assert len(after) == len(before) + 2
    assert before.items() <= after.items()
    project.edit("config/models/test-llama.yaml", "ffn_hidden_size: 96", "ffn_hidden_size: 64")
    assert project.snakemake("-n", "all").of("launch") == []


def test_executor_and_slots_of_today_reach_the_launch(project: Project) -> None:
    """Through `point.json`, which is what a launch reads; what is measured already is not launched for it."""
    changed = {"executor": "slurm", "hang_timeout_s": 90.0, "fast_telemetry_period_s": 0.2, "slots": list(range(8))}
    project.edit("config/clusters/cpu-local.yaml", "executor: local\n", "executor: slurm\n")
    project.edit("config/clusters/cpu-local.yaml", "hang_timeout_s: 120", "hang_timeout_s: 90")
    with (project.folder / "config/clusters/cpu-local.yaml").open("a") as cluster:
        cluster.write("fast_telemetry_period_s: 0.2\nslots: [0, 1, 2, 3, 4, 5, 6, 7]\n")
    outcome = project.snakemake(*UP_TO_TABLES)
    assert outcome.status == 0, outcome.output
    assert outcome.of("launch") == []
    limits = [json.loads(path.read_text())["limits"] for path in project.folder.glob("results/runs/*/point.json")]
    assert len(limits) == 2
    assert all(changed.items() <= found.items() for found in limits)


def test_study_of_its_own_leaves_the_tables_of_others_alone(project: Project) -> None:
    """A second study that shares a run: the first is neither stale beside it nor once it is gone."""
    before = tables_of(project)
    (project.folder / "config/studies/other.yaml").write_text(OTHER)
    alone = project.snakemake("figs/other/timeline.pdf", "--config", "studies=[other]")
    assert alone.status == 0, alone.output
    assert alone.of("aggregate") == ["other"] and alone.of("figure") == ["other/timeline"]
    assert alone.rules == {"aggregate", "figure"}, "its run is there"
    assert before.items() <= tables_of(project).items()
    both = project.snakemake("-n", "all")
    assert both.of("aggregate") == [], "tables of both are up to date"
    assert {name.partition("/")[0] for name in both.of("figure")} == {"other"}
    assert both.rules == {"claims", "figure", "report"}
    (project.folder / "config/studies/other.yaml").unlink()
    assert project.snakemake("-n", "all").jobs == []


@pytest.mark.long
def test_study_alone_leaves_the_report_and_the_figures_of_all_alone(project: Project) -> None:
    """And a changed study makes its own tables and figures again."""
    (project.folder / "config/studies/other.yaml").write_text(OTHER)
    assert project.snakemake("all").status == 0
    alone = project.snakemake("all", "--config", "studies=[other]")
    assert alone.status == 0, alone.output
    assert alone.rules == {"report"}
    assert (project.folder / "report-other.html").is_file() and list((project.folder / "report-other").glob("*.js"))
    assert project.snakemake("-n", "all").jobs == [], "nothing of the others is stale"
    assert project.snakemake("-n", "all", "--config", "studies=[other]").jobs == []
    project.edit("config/studies/other.yaml", "sweeps: [{}]", "sweeps: [{set: {micro_batch_size: 2}}]")
    outcome = project.snakemake("-n", "all")
    assert outcome.of("aggregate") == ["other"]
    assert {name.partition("/")[0] for name in outcome.of("figure")} == {"other"}
    assert "launch" not in outcome.rules, "the first study has the run"


@pytest.mark.long
def test_tables_written_by_hand_from_another_study_do_not_reach_the_figures(project: Project) -> None:
    study = project.folder / "config/studies/mini.yaml"
    content = study.read_text()
    study.write_text(content.replace("[1, 2, 4]", "[1]"))
    for command in (("plan", "--write"), ("aggregate",)):
        done = project.triplepoint(*command)
        assert done.returncode == 0, done.stderr
    assert points(project) == 1
    study.write_text(content)
    outcome = project.snakemake("all")
    assert outcome.status == 0, outcome.output
    assert outcome.rules == {"aggregate", "claims", "figure", "report"}
    assert points(project) == 3


def test_aggregate_refuses_another_plan_than_the_rules_ask_for(project: Project) -> None:
    before = tables_of(project)
    done = project.triplepoint("aggregate", "mini", "--plan", "0" * 64)
    assert done.returncode == 2
    assert "holds another plan" in done.stderr
    assert tables_of(project) == before


@pytest.mark.parametrize("command", ["snakemake", "plan", "aggregate"])
def test_results_in_use_elsewhere_are_left_alone(
    project: Project, command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two terminals, or two clones with one folder of results."""
    (project.folder / "results/tables/mini/points.csv").unlink()
    held = claim_results(project.folder / "results").acquire_or_refuse()
    monkeypatch.delenv(HELD)  # else it would be let through, as a job of this process
    try:
        if command == "snakemake":
            outcome = project.snakemake("all")
            status, output = outcome.status, outcome.output
        else:
            done = project.triplepoint(command, *(["--write"] if command == "plan" else []))
            status, output = done.returncode, done.stderr
    finally:
        held.release()
    assert status == 2, output
    assert "triplepoint: results: in use by process" in output
    assert not (project.folder / "results/tables/mini/points.csv").exists()
    if command == "snakemake":
        outcome = project.snakemake(*UP_TO_TABLES, "--quiet")
        assert outcome.status == 0, "refused at the start, nothing was left behind: " + outcome.output


def test_lost_records_of_snakemake_run_all_stages_but_launches(project: Project) -> None:
    shutil.rmtree(project.folder / ".snakemake")
    outcome = project.snakemake("-n", "all")
    assert outcome.rules == {"telemetry", "parse", "trace", "aggregate", "claims", "figure", "report"}


def test_lost_records_and_a_changed_study_make_the_plan_of_today(project: Project) -> None:
    shutil.rmtree(project.folder / ".snakemake")
    project.edit("config/studies/mini.yaml", "[1, 2, 4]", "[1]")
    (run,) = (name for name in project.manifests() if "_mbs1_" in name)
    outcome = project.snakemake(*UP_TO_TABLES)
    assert outcome.status == 0, outcome.output
    assert (outcome.of("launch"), outcome.of("telemetry")) == ([], [run])
    assert [entry.run for entry in read_plan(project.folder / "results/plan.json").entries] == [run]


def test_renamed_study_launches_nothing(project: Project) -> None:
    studies = project.folder / "config/studies"
    (studies / "mini.yaml").rename(studies / "renamed.yaml")
    outcome = project.snakemake("-n", "all")
    assert outcome.rules == {"aggregate", "claims", "figure", "report"}
    assert outcome.of("aggregate") == ["renamed"]


def test_results_may_be_a_link_to_another_disk(project: Project) -> None:
    results, elsewhere = project.folder / "results", project.folder.with_name("elsewhere")
    results.rename(elsewhere)
    results.symlink_to(elsewhere)
    assert project.snakemake("-n", "all").jobs == []
    (elsewhere / "tables/mini/gpus.parquet").unlink()
    outcome = project.snakemake("results/tables/mini/gpus.parquet")
    assert (outcome.status, outcome.rules) == (0, {"aggregate"}), outcome.output
    assert results.is_symlink() and (elsewhere / "tables/mini/gpus.parquet").is_file()


def test_figure_of_the_catalogue_makes_the_runs_of_its_studies_alone() -> None:
    """On the repository itself: `inference_batch` starts no launch of the smoke study."""
    root = Project(Path(__file__).parents[2])
    outcome = root.snakemake("-n", "--forceall", "figs/inference_batch.pdf")
    assert outcome.status == 0, outcome.output
    of_study = root.triplepoint("plan", "inference").stdout
    assert 20 < len(outcome.of("simulate")) == of_study.count("_simulated_r1_")
    assert outcome.of("aggregate") == ["inference"] and outcome.of("figure") == ["inference_batch"]
    assert outcome.rules == {"simulate", "telemetry", "trace", "aggregate", "figure"}


def test_results_named_by_label_alone_are_taken_over(project: Project) -> None:
    for run in sorted((project.folder / "results/runs").iterdir()):
        run.rename(run.with_name(run.name.rpartition("_")[0]))
    shutil.rmtree(project.folder / ".snakemake")
    outcome = project.snakemake(*UP_TO_TABLES)
    assert outcome.status == 0, outcome.output
    logs = [path.read_text() for path in sorted((project.folder / "logs/launch").glob("*.log"))]
    assert sum("already measured" in log for log in logs) == 2
    assert len(project.manifests()) == 2
