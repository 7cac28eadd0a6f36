"""Launchers that are killed, and those who come after them."""

import json
import signal
import time

import pytest

from tests.launchers import finish, held, let_go, wait_until
from tests.slurm import launches
from tests.slurm.cluster import Cluster
from tests.slurm.launches import Place

pytestmark = [pytest.mark.slurm, pytest.mark.timeout(300)]


def test_killed_launchers_job_is_gone_on_with(place: Place) -> None:
    folder = place.run(launches.SHORT)
    first = place.launch(folder)
    ranks = held(folder)
    job_id = launches.job_of(folder)
    first.kill()
    second = place.launch(folder)
    launches.hear(second, f"continues with job {job_id}")
    let_go(ranks)
    status, said = finish(second)
    assert status == 0, said
    assert [job for job, *_ in launches.jobs_of(folder)] == [job_id]
    assert launches.result(folder).status == "ok"


def test_job_that_ended_meanwhile_is_collected(place: Place) -> None:
    folder = place.run(launches.SHORT)
    first = place.launch(folder)
    wait_until(lambda: list(folder.glob("attempts/*/nodes/begun*.json")), "agents start")
    first.kill()
    wait_until(lambda: len(list(folder.glob("attempts/*/nodes/node*.json"))) == 2, "the gang ends by itself")
    status, said = finish(place.launch(folder))
    assert status == 0, said
    assert len(launches.jobs_of(folder)) == 1


def test_job_whose_number_was_never_learned_is_found(place: Place) -> None:
    folder = place.run(launches.SHORT)
    first = place.launch(folder)
    ranks = held(folder)
    first.kill()
    note = next(folder.glob("attempts/*/submission.json"))
    note.write_text(json.dumps(json.loads(note.read_text()) | {"job_id": None}))
    second = place.launch(folder)
    wait_until(lambda: json.loads(note.read_text())["job_id"], "the job is found")
    let_go(ranks)
    status, said = finish(second)
    assert status == 0, said
    assert "continues with job" in said
    assert len(launches.jobs_of(folder)) == 1


def test_job_of_a_point_that_changed_is_ended_first(place: Place) -> None:
    folder = place.run(launches.ENDLESS)
    first = place.launch(folder)
    launches.training(folder)
    old = launches.job_of(folder)
    first.kill()
    place.run(launches.SHORT)
    status, said = finish(place.launch(folder))
    assert status == 0, said
    jobs = launches.jobs_of(folder, at_least=2)
    assert old in [job for job, *_ in jobs] and len(jobs) == 2
    assert launches.never_two_at_once(folder)


def test_two_launchers_at_once_launch_once(place: Place) -> None:
    folder = place.run(launches.SHORT)
    said = [finish(launcher) for launcher in (place.launch(folder), place.launch(folder))]
    assert [status for status, _ in said] == [0, 0], said
    assert len(launches.jobs_of(folder)) == 1


def test_interrupted_launcher_ends_its_job(place: Place) -> None:
    folder = place.run(launches.ENDLESS)
    launcher = place.launch(folder)
    launches.training(folder)
    launcher.send_signal(signal.SIGINT)
    status, said = finish(launcher, 30)
    assert status == 130
    assert "Traceback" not in said
    wait_until(lambda: launches.no_ranks(folder), "the ranks end", 30)
    assert not list(folder.glob("attempts/*"))


def test_launcher_ended_by_sigterm_leaves_its_job_to_the_next(place: Place) -> None:
    folder = place.run(launches.SHORT)
    first = place.launch(folder)
    ranks = held(folder)
    job_id = launches.job_of(folder)
    first.terminate()
    _, said = finish(first, 30)
    assert f"job {job_id} goes on" in said
    # As if it were an automount that takes a moment: the agents go on without it.
    away = place.results.rename(place.results.with_name("away"))
    time.sleep(3)
    away.rename(place.results)
    second = place.launch(folder)
    launches.hear(second, f"continues with job {job_id}")
    let_go(ranks)
    status, said = finish(second)
    assert status == 0, said
    assert [job for job, *_ in launches.jobs_of(folder)] == [job_id]


def test_ranks_end_without_a_controller_too(place: Place, cluster: Cluster) -> None:
    folder = place.run(launches.ENDLESS)
    launcher = place.launch(folder)
    launches.training(folder)
    cluster.kill_controller()
    launcher.send_signal(signal.SIGINT)
    wait_until(lambda: launches.no_ranks(folder), "the agents end them, told by the folder", 30)
    cluster.start_controller()
    finish(launcher)


def test_broken_device_bars_its_node(place: Place) -> None:
    """A rank says what a broken GPU would make it say; later launches do without the node."""
    bad = place.results / "bad_nodes" / "h200-1.json"
    bad.parent.mkdir(parents=True)
    bad.write_text('{"message": "ECC error"}')
    folder = place.run(launches.SHORT)
    status, said = finish(place.launch(folder))
    assert status == 0, said
    assert "h200-1" not in [node.host for node in launches.result(folder).nodes]
