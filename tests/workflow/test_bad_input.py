"""What a user can get wrong: one clear line, exit status 2, nothing half-written."""

import gzip
import subprocess
import sys
from pathlib import Path

import pytest

from tests.mounts import needs_mounts
from tests.workflow.conftest import Outcome, Project

pytestmark = pytest.mark.workflow


def lines_of(text: str) -> list[str]:
    return [line for line in text.splitlines() if line.startswith("triplepoint: ")]


def assert_refused(outcome: Outcome | subprocess.CompletedProcess[str], *expected: str) -> None:
    """One line that names everything expected, no traceback, status 2."""
    if isinstance(outcome, Outcome):
        status, text = outcome.status, outcome.output
    else:
        status, text = outcome.returncode, outcome.stdout + outcome.stderr
    assert status == 2, text
    assert "Traceback" not in text
    (line,) = lines_of(text)
    for part in expected:
        assert part in line, line


def test_snakemake_unknown_configuration_key(fresh: Project) -> None:
    assert_refused(fresh.snakemake("-n", "all", "--config", "studdies=[mini]"), "'studdies'", "studies")


def test_snakemake_unknown_study(fresh: Project) -> None:
    assert_refused(fresh.snakemake("-n", "all", "--config", "studies=[minni]"), "minni", "mini")


def test_snakemake_unknown_cluster(fresh: Project) -> None:
    assert_refused(fresh.snakemake("-n", "all", "--config", "clusters=[h200x3]"), "h200x32")


def test_plan_unknown_key_in_study(fresh: Project) -> None:
    fresh.edit("config/studies/mini.yaml", "precision:", "precison:")
    assert_refused(fresh.triplepoint("plan"), "mini.yaml", "precison", "precision")


def test_plan_typo_in_model(fresh: Project) -> None:
    fresh.edit("config/models/test-llama.yaml", "num_layers:", "num_layer:")
    assert_refused(fresh.triplepoint("plan"), "test-llama.yaml", "num_layer")


def test_plan_impossible_parallelism_leaves_no_valid_point(fresh: Project) -> None:
    fresh.edit("config/studies/mini.yaml", "num_gpus: 2", "num_gpus: 2\n  tp: 3")
    assert_refused(fresh.triplepoint("plan"), "mini.yaml", "none of its 3 points can run", "tp")


def test_plan_not_yaml(fresh: Project) -> None:
    (fresh.folder / "config/studies/mini.yaml").write_text("a: [1,\nb: {")
    assert_refused(fresh.triplepoint("plan"), "mini.yaml", "YAML")


def test_plan_key_given_twice(fresh: Project) -> None:
    fresh.edit("config/studies/mini.yaml", "  num_gpus: 2\n", "  num_gpus: 2\n  num_gpus: 4\n")
    assert_refused(fresh.triplepoint("plan"), "mini.yaml", "num_gpus", "twice")


@pytest.mark.parametrize("content", [b"", b"<html><body>404</body></html>", gzip.compress(b"{}")])
def test_trace_not_a_trace(project: Project, content: bytes) -> None:
    (project.folder / "rank0.json").write_bytes(content)
    assert_refused(project.triplepoint("trace", "rank0.json", "--out", "out"), "rank0.json")
    assert not (project.folder / "out").exists() or not any((project.folder / "out").iterdir())


def test_aggregate_missing_run_is_named_and_tables_stay(project: Project) -> None:
    run = sorted(project.manifests())[0]
    (project.folder / "results/runs" / run / "raw/manifest.json").unlink()
    before = {path: path.read_bytes() for path in project.folder.glob("results/tables/mini/*")}
    assert_refused(project.triplepoint("aggregate"), run)
    assert {path: path.read_bytes() for path in project.folder.glob("results/tables/mini/*")} == before


def test_aggregate_run_of_another_point_is_refused(project: Project) -> None:
    first, second = sorted((project.folder / "results/runs").iterdir())
    (first / "raw/manifest.json").write_text((second / "raw/manifest.json").read_text())
    assert_refused(project.triplepoint("aggregate"), "another point")


def test_figure_without_tables(fresh: Project) -> None:
    assert_refused(
        fresh.triplepoint("figure", "timeline"), "study smoke has no finished run", "snakemake figs/timeline.pdf"
    )
    assert not (fresh.folder / "figs").exists() or not any((fresh.folder / "figs").iterdir())


@pytest.mark.parametrize("target", ["figs/timelin.pdf", "figs/mini/timelin.csv"])
def test_snakemake_unknown_figure(fresh: Project, target: str) -> None:
    assert_refused(fresh.snakemake("-n", target), "'timelin'", "timeline")


def test_snakemake_figure_of_a_study_that_is_not_there(fresh: Project) -> None:
    assert_refused(fresh.snakemake("-n", "figs/timeline.pdf"), "no study 'smoke'", "mini")
    assert_refused(fresh.snakemake("-n", "figs/minni/timeline.pdf"), "no study 'minni'", "mini")


def test_study_with_an_unknown_figure(fresh: Project) -> None:
    fresh.edit("config/studies/mini.yaml", "figures: [microbatch_power, timeline]", "figures: [timelin]")
    for outcome in (fresh.triplepoint("plan"), fresh.snakemake("-n", "all")):
        assert_refused(outcome, "study mini: figures", "'timelin'", "timeline")


def test_figure_unknown_name(fresh: Project) -> None:
    assert_refused(fresh.triplepoint("figure", "timelin"), "'timelin'", "timeline")


def test_subcommand_unknown(fresh: Project) -> None:
    assert_refused(fresh.triplepoint("lauch"), "'lauch'", "launch")


def test_run_unknown_names_the_nearest(project: Project) -> None:
    run = sorted(project.manifests())[0]
    assert_refused(project.triplepoint("telemetry", run[:-1] + "9"), run[:-1] + "9", "no such run")


@needs_mounts
@pytest.mark.parametrize("command", [("aggregate",), ("figure", "mini/timeline"), ("report",), ("plan", "--write")])
def test_read_only_folder_is_one_line(project: Project, command: tuple[str, ...]) -> None:
    folder = project.folder
    script = (
        f"mount --bind {folder} {folder} && mount -o remount,bind,ro {folder} && cd {folder} && "
        f"exec {sys.executable} -m triplepoint {' '.join(command)}"
    )
    if command[0] == "plan":  # which writes only what changed
        (folder / "results/plan.json").unlink()
    done = subprocess.run(
        ["unshare", "-rm", "sh", "-c", script], env=project.environment(), capture_output=True, text=True
    )
    assert_refused(done, "read-only")


@needs_mounts
@pytest.mark.parametrize(
    ("command", "written"),
    [("aggregate", "results/tables"), ("figure mini/timeline", "figs"), ("report --out small/report.html", "small")],
)
def test_full_disk_is_one_line_and_leaves_nothing_half_written(project: Project, command: str, written: str) -> None:
    target = project.folder / written
    target.mkdir(exist_ok=True)
    script = (
        f"mount -t tmpfs -o size=8k tmpfs {target} && cd {project.folder} && "
        f"{sys.executable} -m triplepoint {command}; status=$?; find {target} -type f -size -1; "
        f"find {target} -name '.partial*'; exit $status"
    )
    done = subprocess.run(
        ["unshare", "-rm", "sh", "-c", script], env=project.environment(), capture_output=True, text=True
    )
    assert_refused(done, "no space left")
    assert done.stdout == ""


def test_hostile_text_in_a_study_reaches_no_shell(fresh: Project) -> None:
    fresh.edit("config/studies/mini.yaml", "precision: fp32", "precision: fp32\n  corpus: '$(touch /tmp/pwned); `id`'")
    outcome = fresh.snakemake("-n", "all", "-p")
    assert outcome.status == 0, outcome.output
    assert "pwned" not in outcome.output


def test_hostile_study_name_is_refused(fresh: Project) -> None:
    study = fresh.folder / "config/studies/mini.yaml"
    study.rename(study.with_name("a;touch pwned;.yaml"))
    outcome = fresh.snakemake("-n", "all")
    assert_refused(outcome, "touch pwned")


def test_path_with_spaces_works(tmp_path: Path) -> None:
    from tests.workflow.conftest import make_project

    project = make_project(tmp_path / "a folder with 'quotes' and spaces")
    assert project.snakemake("-n", "all").status == 0
