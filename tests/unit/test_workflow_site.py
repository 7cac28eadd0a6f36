"""Changes to a running Snakemake."""

import asyncio
import threading
import time
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest
from snakemake.scheduling.job_scheduler import JobRateLimiter, JobScheduler  # type: ignore[import-untyped]
from snakemake.settings.types import MaxJobsPerTimespan  # type: ignore[import-untyped]

from triplepoint import workflow_site
from triplepoint.workflow_site import DAG, Quietness, dryrun


@pytest.mark.parametrize(("quiet", "is_prepared"), [(None, True), ({Quietness.ALL}, True), ({Quietness.RULES}, False)])
def test_lines_on_jobs_are_prepared_where_they_are_printed(
    monkeypatch: pytest.MonkeyPatch, quiet: set[Quietness] | None, is_prepared: bool
) -> None:
    monkeypatch.setattr(dryrun.Executor, "printjob", MagicMock())
    before = dryrun.Executor.printjob
    workflow_site.skip_hidden_job_lines(SimpleNamespace(output_settings=SimpleNamespace(quiet=quiet)))
    assert (dryrun.Executor.printjob is before) == is_prepared


@pytest.mark.parametrize(("rate", "is_lifted"), [("100/1s", True), ("5/1s", False), ("100/1m", False)])
def test_lift_job_rate_limit_of_the_default_alone(rate: str, is_lifted: bool) -> None:
    limiter = JobRateLimiter(MaxJobsPerTimespan.parse_choice(rate))
    workflow = SimpleNamespace(scheduler=SimpleNamespace(job_rate_limiter=limiter))
    workflow_site.lift_job_rate_limit(workflow)
    assert workflow.scheduler.job_rate_limiter is (None if is_lifted else limiter)


def test_lift_job_rate_limit_without_a_limit() -> None:
    workflow = SimpleNamespace(scheduler=SimpleNamespace(job_rate_limiter=None))
    workflow_site.lift_job_rate_limit(workflow)
    assert workflow.scheduler.job_rate_limiter is None


def test_scheduler_of_snakemake_starts_a_timer_at_every_pass() -> None:
    """If this fails, Snakemake is fixed, and `lift_job_rate_limit` can go."""
    before, scheduler = threading.active_count(), SimpleNamespace(_open_jobs=threading.Semaphore(0))
    for _ in range(5):
        JobScheduler._schedule_reevalutation(scheduler, 0.2)
    assert threading.active_count() == before + 5
    time.sleep(0.4)


def test_force_outdated_forces_files_and_rules(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []

    async def init(dag: Any, *arguments: Any) -> None:
        seen.append((dag.forcefiles, dag.forcerules, arguments))

    monkeypatch.setattr(DAG, "init", init)
    workflow_site.force_outdated({"a"}, ("trace",))
    launch, trace = (MagicMock() for _ in range(2))
    launch.name, trace.name = "launch", "trace"
    dag = SimpleNamespace(forcefiles={"b"}, forcerules=set(), rules=[launch, trace])
    asyncio.run(DAG.init(dag, "progress"))
    assert seen == [({"a", "b"}, {trace}, ("progress",))]


@pytest.mark.parametrize(
    ("words", "figures"),
    [
        (["figs/timeline.pdf", "figs/node_airflow.csv", "--cores", "1"], ["timeline", "node_airflow"]),
        (["figs/timeline.pdf", "figs/timeline.png", "figs/my-study.2/timeline.png", "report.html"],
         ["timeline", "my-study.2/timeline"]),
        (["-n", "all"], []),
        ([], []),
    ],
)  # fmt: skip
def test_figures_on_command_line_are_those_of_the_command_line(
    words: list[str], figures: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.argv", ["/bin/snakemake", *words])
    assert workflow_site.figures_on_command_line(is_main_process=True) == figures
    assert workflow_site.figures_on_command_line(is_main_process=False) == [], "a job has no command line of its own"


def test_reports_on_command_line_are_those_of_the_command_line(monkeypatch: pytest.MonkeyPatch) -> None:
    words = ["report.html", "report-a.b.html", "report", "x/report.html", "--report", "report-b.html"]
    monkeypatch.setattr("sys.argv", ["/bin/snakemake", *words])
    assert workflow_site.reports_on_command_line(is_main_process=True) == ["report.html", "report-a.b.html"]
    assert workflow_site.reports_on_command_line(is_main_process=False) == []


@pytest.mark.parametrize("target", ["figs/timelin.pdf", "figs/smoke/timelin.csv"])
def test_figures_on_command_line_there_are_not_end_it_with_one_line(
    target: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    monkeypatch.setattr("sys.argv", ["/bin/snakemake", target])
    with pytest.raises(SystemExit) as ended:
        workflow_site.figures_on_command_line(is_main_process=True)
    assert ended.value.code == 2
    assert capsys.readouterr().err == "triplepoint: no figure 'timelin' (did you mean 'timeline'?)\n"
