"""What the project changes in a running Snakemake."""

import asyncio
import threading
import time
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest

from triplepoint import workflow_site
from triplepoint.workflow_site import DAG, JobScheduler, Quietness, dryrun


def test_group_is_checked_once_however_many_jobs_it_has(monkeypatch: pytest.MonkeyPatch) -> None:
    checked: list[set[Any]] = []
    monkeypatch.setattr(DAG, "_check_groups", lambda dag: checked.append(set(dag._group)))
    workflow_site.check_groups_once()
    dag = SimpleNamespace(_group={"job 1": "group a", "job 2": "group a", "job 3": "group b"})
    DAG._check_groups(dag)
    assert checked == [{"group a", "group b"}] and set(dag._group) == {"job 1", "job 2", "job 3"}


@pytest.mark.parametrize(("quiet", "is_prepared"), [(None, True), ({Quietness.ALL}, True), ({Quietness.RULES}, False)])
def test_lines_on_jobs_are_prepared_where_they_are_printed(
    monkeypatch: pytest.MonkeyPatch, quiet: set[Quietness] | None, is_prepared: bool
) -> None:
    monkeypatch.setattr(dryrun.Executor, "printjob", MagicMock())
    before = dryrun.Executor.printjob
    workflow_site.prepare_only_what_is_said(SimpleNamespace(output_settings=SimpleNamespace(quiet=quiet)))
    assert (dryrun.Executor.printjob is before) == is_prepared


@pytest.fixture
def rarely(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The scheduler's own method, as `wake_scheduler_rarely` leaves it."""
    monkeypatch.setattr(JobScheduler, "_schedule_reevalutation", JobScheduler._schedule_reevalutation)
    workflow_site.wake_scheduler_rarely()
    return JobScheduler._schedule_reevalutation


def scheduler(num_free: int) -> Any:
    limiter = SimpleNamespace(get_free_jobs=lambda: num_free)
    return SimpleNamespace(job_rate_limiter=limiter, _open_jobs=threading.Semaphore(0))


def test_scheduler_sleeps_while_no_limit_holds_jobs_back(rarely: Any) -> None:
    before = threading.active_count()
    for _ in range(50):
        rarely(scheduler(num_free=1), 60)
    assert threading.active_count() == before


def test_scheduler_is_woken_once_by_its_limit_however_often_it_passes(rarely: Any) -> None:
    before, held = threading.active_count(), scheduler(num_free=0)
    for _ in range(50):
        rarely(held, 0.05)
    assert threading.active_count() == before + 1
    assert held._open_jobs.acquire(timeout=10)
    assert not held._open_jobs.acquire(blocking=False)
    rarely(held, 0.0)
    assert held._open_jobs.acquire(timeout=10), "and again after that"


def test_scheduler_of_snakemake_still_starts_a_timer_at_every_pass() -> None:
    """Once this fails, Snakemake has mended it, and `wake_scheduler_rarely` can go."""
    before, held = threading.active_count(), scheduler(num_free=1)
    for _ in range(5):
        JobScheduler._schedule_reevalutation(held, 0.2)
    assert threading.active_count() == before + 5
    time.sleep(0.4)


def test_make_again_forces_files_and_rules(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []

    async def init(dag: Any, *arguments: Any) -> None:
        seen.append((dag.forcefiles, dag.forcerules, arguments))

    monkeypatch.setattr(DAG, "init", init)
    workflow_site.make_again({"a"}, ("trace",))
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
def test_asked_figures_are_those_of_the_command_line(
    words: list[str], figures: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.argv", ["/bin/snakemake", *words])
    assert workflow_site.asked_figures(is_main_process=True) == figures
    assert workflow_site.asked_figures(is_main_process=False) == [], "a job has no command line of its own"


def test_asked_reports_are_those_of_the_command_line(monkeypatch: pytest.MonkeyPatch) -> None:
    words = ["report.html", "report-a.b.html", "report", "x/report.html", "--report", "report-b.html"]
    monkeypatch.setattr("sys.argv", ["/bin/snakemake", *words])
    assert workflow_site.asked_reports(is_main_process=True) == ["report.html", "report-a.b.html"]
    assert workflow_site.asked_reports(is_main_process=False) == []


@pytest.mark.parametrize("target", ["figs/timelin.pdf", "figs/smoke/timelin.csv"])
def test_asked_figures_there_are_not_end_it_with_one_line(
    target: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    monkeypatch.setattr("sys.argv", ["/bin/snakemake", target])
    with pytest.raises(SystemExit) as ended:
        workflow_site.asked_figures(is_main_process=True)
    assert ended.value.code == 2
    assert capsys.readouterr().err == "triplepoint: no figure 'timelin' (did you mean 'timeline'?)\n"
