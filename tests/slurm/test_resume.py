"""Killed launchers, and launchers that continue their jobs."""

import json
import signal
import time

import pytest

from tests.launchers import finish, hold_ranks, resume, wait_until
from tests.slurm import launches
from tests.slurm.cluster import Cluster
from tests.slurm.launches import Workspace

pytestmark = [pytest.mark.slurm, pytest.mark.timeout(300)]


def test_killed_launchers_job_is_gone_on_with(workspace: Workspace) -> None:
    folder = workspace.run(launches.SHORT)
    first = workspace.launch(folder)
    ranks = hold_ranks(folder)
    job_id = launches.job_id_of(folder)
    first.kill()
    second = workspace.launch(folder)
    launches.wait_for_output(second, f"continues with job {job_id}")
    resume(ranks)
    status, output = finish(second)
    assert status == 0, output
    assert [job for job, *_ in launches.jobs_of(folder)] == [job_id]
    assert launches.result_of(folder).status == "ok"


def test_job_that_ended_meanwhile_is_collected(workspace: Workspace) -> None:
    folder = workspace.run(launches.SHORT)
    first = workspace.launch(folder)
    wait_until(lambda: list(folder.glob("attempts/*/nodes/begun*.json")), "agents start")
    first.kill()
    wait_until(lambda: len(list(folder.glob("attempts/*/nodes/node*.json"))) == 2, "the gang ends by itself")
    status, output = finish(workspace.launch(folder))
    assert status == 0, output
    assert len(launches.jobs_of(folder)) == 1


def test_job_whose_number_was_never_learned_is_found(workspace: Workspace) -> None:
    folder = workspace.run(launches.SHORT)
    first = workspace.launch(folder)
    ranks = hold_ranks(folder)
    first.kill()
    note = next(folder.glob("attempts/*/submission.json"))
    note.write_text(json.dumps(json.loads(note.read_text()) | {"job_id": None}))
    second = workspace.launch(folder)
    wait_until(lambda: json.loads(note.read_text())["job_id"], "the job is found")
    resume(ranks)
    status, output = finish(second)
    assert status == 0, output
    assert "continues with job" in output
    assert len(launches.jobs_of(folder)) == 1


def test_job_of_a_point_that_changed_is_ended_first(workspace: Workspace) -> None:
    folder = workspace.run(launches.ENDLESS)
    first = workspace.launch(folder)
    launches.wait_for_training(folder)
    old = launches.job_id_of(folder)
    first.kill()
    workspace.run(launches.SHORT)
    status, output = finish(workspace.launch(folder))
    assert status == 0, output
    jobs = launches.jobs_of(folder, at_least=2)
    assert old in [job for job, *_ in jobs] and len(jobs) == 2
    assert launches.never_two_at_once(folder)


def test_two_launchers_at_once_launch_once(workspace: Workspace) -> None:
    folder = workspace.run(launches.SHORT)
    output = [finish(launcher) for launcher in (workspace.launch(folder), workspace.launch(folder))]
    assert [status for status, _ in output] == [0, 0], output
    assert len(launches.jobs_of(folder)) == 1


def test_interrupted_launcher_ends_its_job(workspace: Workspace) -> None:
    folder = workspace.run(launches.ENDLESS)
    launcher = workspace.launch(folder)
    launches.wait_for_training(folder)
    launcher.send_signal(signal.SIGINT)
    status, output = finish(launcher, 30)
    assert status == 130
    assert "Traceback" not in output
    wait_until(lambda: launches.no_ranks(folder), "the ranks end", 30)
    assert not list(folder.glob("attempts/*"))


def test_launcher_ended_by_sigterm_leaves_its_job_to_the_next(workspace: Workspace) -> None:
    folder = workspace.run(launches.SHORT)
    first = workspace.launch(folder)
    ranks = hold_ranks(folder)
    job_id = launches.job_id_of(folder)
    first.terminate()
    _, output = finish(first, 30)
    assert f"job {job_id} goes on" in output
    # The results are missing for a moment, like an automounted file system. The agents continue without them.
    away = workspace.results.rename(workspace.results.with_name("away"))
    time.sleep(3)
    away.rename(workspace.results)
    second = workspace.launch(folder)
    launches.wait_for_output(second, f"continues with job {job_id}")
    resume(ranks)
    status, output = finish(second)
    assert status == 0, output
    assert [job for job, *_ in launches.jobs_of(folder)] == [job_id]


def test_ranks_end_without_a_controller_too(workspace: Workspace, cluster: Cluster) -> None:
    folder = workspace.run(launches.ENDLESS)
    launcher = workspace.launch(folder)
    launches.wait_for_training(folder)
    cluster.kill_controller()
    launcher.send_signal(signal.SIGINT)
    wait_until(lambda: launches.no_ranks(folder), "the agents end them, told by the folder", 30)
    cluster.start_controller()
    finish(launcher)


def test_broken_device_bars_its_node(workspace: Workspace) -> None:
    """Later launches avoid a node that was recorded with a broken device."""
    bad = workspace.results / "bad_nodes" / "h200-1.json"
    bad.parent.mkdir(parents=True)
    bad.write_text('{"message": "ECC error"}')
    folder = workspace.run(launches.SHORT)
    status, output = finish(workspace.launch(folder))
    assert status == 0, output
    assert "h200-1" not in [node.host for node in launches.result_of(folder).nodes]
