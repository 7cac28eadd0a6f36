"""What clusters do to gangs, some of them of real training, and what becomes of the runs."""

import json
import subprocess
import time
from pathlib import Path

import pytest

from tests.launchers import finish, held, let_go, wait_until
from tests.slurm.cluster import Cluster
from tests.slurm.launches import (
    ENDLESS,
    SHORT,
    Place,
    failed,
    hear,
    job_of,
    jobs_of,
    never_two_at_once,
    no_ranks,
    result,
    training,
)
from triplepoint.launch.slurm import usable_nodes

pytestmark = [pytest.mark.slurm, pytest.mark.timeout(300)]


def test_gang_records_where_it_ran(place: Place) -> None:
    folder = place.run(SHORT, num_nodes=4)
    status, said = finish(place.launch(folder, trains=True))
    assert status == 0, said
    manifest = result(folder)
    assert [node.host for node in manifest.nodes] == ["h200-1", "h200-2", "h200-3", "h200-4"]
    placements = [node.placement for node in manifest.nodes]
    assert [found.switches for found in placements if found] == [
        "spine.leaf1.h200-1",
        "spine.leaf1.h200-2",
        "spine.leaf2.h200-3",
        "spine.leaf2.h200-4",
    ]
    assert all(found and found.devices == tuple("01234567") for found in placements)
    assert all("shared memory" in [check.name for check in node.checks or ()] for node in manifest.nodes)
    assert manifest.job is not None
    assert [job for job, *_ in jobs_of(folder)] == [manifest.job.job_id]
    assert not (folder / "attempts").exists()


def test_gang_compares_the_clocks_of_its_nodes(place: Place) -> None:
    folder = place.run(SHORT, num_nodes=3)
    launcher = place.launch(folder)
    ranks = held(folder, num_ranks=3)
    (meeting,) = folder.glob("attempts/*/rendezvous.json")
    assert meeting.stat().st_mode & 0o077 == 0, "the token of the clock is private"
    # Each node reaches the others of the test cluster through the loopback, so nothing else is listened to.
    assert json.loads(meeting.read_text())["clock"]["address"] == "127.0.0.1"
    let_go(ranks)
    status, said = finish(launcher)
    assert status == 0, said
    assert not (folder / "raw" / meeting.name).exists()
    first, *others = result(folder).nodes
    assert (first.clock, first.clock_absent) == (None, None)
    for node in others:
        # All nodes of the test cluster are one machine with one clock: the true difference is nothing at all.
        assert node.clock is not None, node.clock_absent
        ends_ns = node.clock.offset_ns, node.clock.offset_ns + node.clock.drift_ppm * 1e-6 * node.clock.duration_s * 1e9
        assert max(map(abs, ends_ns)) <= node.clock.uncertainty_ns + 1000
        # A few milliseconds where others use the machine: a thread that answers waits for its turn.
        assert node.clock.uncertainty_ns < 20_000_000
        assert node.clock.num_bursts >= 2
        assert node.clock.num_round_trips >= 64


def test_usable_nodes_are_those_that_take_jobs(cluster: Cluster) -> None:
    assert usable_nodes("mi250") == {"mi250-1", "mi250-2"}
    subprocess.run(["scontrol", "update", "NodeName=h200-3", "State=DRAIN", "Reason=test"], check=True)
    assert usable_nodes("h200") == usable_nodes(None) == {"h200-1", "h200-2", "h200-4"}
    assert usable_nodes("no-such-partition") == frozenset()


def test_gang_of_the_other_kind_of_node(place: Place) -> None:
    folder = place.run(SHORT, cluster="mi250x32")
    status, said = finish(place.launch(folder))
    assert status == 0, said
    assert [node.host for node in result(folder).nodes] == ["mi250-1", "mi250-2"]


def test_rank_that_exits_fails_the_launch_and_is_tried_again(place: Place) -> None:
    place.with_site(retries=1)
    folder = place.run(ENDLESS)
    launcher = place.launch(folder)
    for attempt in (0, 1):
        training(folder, attempt=attempt)[1].kill()
        wait_until(lambda n=attempt: len(failed(folder)) > n, "the attempt is judged")
    status, said = finish(launcher)
    assert status == 1
    assert [manifest.status for manifest in failed(folder)] == ["crashed", "crashed"]
    evidence = failed(folder)[0].evidence
    assert evidence is not None
    assert evidence.rank == 1
    assert "crashed: rank 1 on h200-" in said
    assert "SIGKILL" in said
    assert not (folder / "raw").exists()
    assert never_two_at_once(folder)
    assert no_ranks(folder)


@pytest.mark.long
def test_rank_that_hangs_is_found_among_all_nodes(place: Place) -> None:
    folder = place.run(ENDLESS, hang_timeout_s=5.0)
    launcher = place.launch(folder, trains=True)
    training(folder)[1].suspend()
    status, said = finish(launcher)
    assert status == 1
    (manifest,) = failed(folder)
    assert manifest.status == "hung"
    assert manifest.evidence is not None
    assert manifest.evidence.rank == 1
    assert manifest.evidence.host == manifest.nodes[1].host
    assert "rank 1 does not react to signals" in said
    wait_until(lambda: no_ranks(folder), "the ranks end", 20)


@pytest.mark.long
def test_job_over_its_time_is_given_more_once(place: Place) -> None:
    folder = place.run(ENDLESS, time_limit_s=300.0)
    launcher = place.launch(folder)
    training(folder)
    subprocess.run(["scontrol", "update", f"JobId={job_of(folder)}", "TimeLimit=1"], check=True)
    wait_until(lambda: len(list(folder.glob("attempts/*/nodes/begun0.json"))) == 2, "the second attempt starts")
    raw = sorted(folder.glob("attempts/*"))[1]
    assert json.loads((raw / "point.json").read_text())["limits"]["time_limit_s"] == 600.0
    asked = ["squeue", "-h", "-j", job_of(folder), "-o", "%l"]
    assert subprocess.run(asked, capture_output=True, text=True).stdout.strip() == "12:00"
    subprocess.run(["scancel", job_of(folder)], check=True)
    status, said = finish(launcher)
    assert status == 1
    assert [manifest.status for manifest in failed(folder)] == ["timeout", "cancelled"]
    assert "time limit is near; submitted again" in said


def test_cancelled_job_stays_cancelled(place: Place) -> None:
    place.with_site(retries=1)
    folder = place.run(ENDLESS)
    launcher = place.launch(folder)
    training(folder)
    subprocess.run(["scancel", job_of(folder)], check=True)
    status, said = finish(launcher)
    assert status == 1
    (manifest,) = failed(folder)
    assert manifest.status == "cancelled"
    assert manifest.job is not None
    assert manifest.job.state == "CANCELLED"
    assert "ended as CANCELLED on h200-" in said
    assert len(jobs_of(folder)) == 1


def test_dead_node_is_named_and_the_run_moves_on(place: Place, cluster: Cluster) -> None:
    folder = place.run(SHORT)
    launcher = place.launch(folder)
    ranks = held(folder)
    nodes = subprocess.run(["squeue", "-h", "-o", "%N"], capture_output=True, text=True).stdout.strip()
    assert nodes == "h200-[1-2]"
    cluster.kill_node("h200-2")
    let_go([rank for rank in ranks if rank.is_running()])
    status, said = finish(launcher)
    assert status == 0, said
    (manifest,) = failed(folder)
    assert manifest.status == "lost"
    assert manifest.evidence is not None
    assert manifest.evidence.host == "h200-2"
    assert "h200-2" not in [node.host for node in result(folder).nodes]
    assert never_two_at_once(folder)


def test_preempted_gang_is_submitted_again(place: Place) -> None:
    folder = place.run(SHORT)
    launcher = place.launch(folder)
    held(folder)
    urgent = ["sbatch", "--parsable", "-p", "urgent", "-N4", "--exclusive", "-o", "/dev/null", "--wrap", "sleep 1"]
    subprocess.run(urgent, check=True, capture_output=True)
    status, said = finish(launcher)
    assert status == 0, said
    assert [manifest.status for manifest in failed(folder)] == ["preempted"]
    assert len(jobs_of(folder, at_least=2)) == 2
    assert never_two_at_once(folder)


def test_controller_killed_meanwhile_costs_nothing(place: Place, cluster: Cluster) -> None:
    folder = place.run(SHORT)
    launcher = place.launch(folder)
    ranks = held(folder)
    # It saves what changed within five seconds; a job it has forgotten is lost, and submitted again.
    time.sleep(6)
    cluster.kill_controller()
    time.sleep(3)
    cluster.start_controller()
    let_go(ranks)
    status, said = finish(launcher)
    assert status == 0, said
    assert failed(folder) == []
    assert len(jobs_of(folder)) == 1


def test_submission_without_a_controller_is_tried_until_it_is_back(place: Place, cluster: Cluster) -> None:
    cluster.kill_controller()
    folder = place.run(SHORT)
    launcher = place.launch(folder)
    wait_until(lambda: list(folder.glob("attempts/*/submission.json")), "the launcher tries")
    time.sleep(3)
    cluster.start_controller()
    status, said = finish(launcher)
    assert status == 0, said
    assert len(jobs_of(folder)) == 1


@pytest.mark.long
def test_submission_without_munge_is_tried_until_it_is_back(place: Place, cluster: Cluster) -> None:
    cluster.stop_munge()
    folder = place.run(SHORT)
    launcher = place.launch(folder)
    hear(launcher, "Slurm does not answer")
    cluster.start_munge()
    status, said = finish(launcher)
    assert status == 0, said
    assert len(jobs_of(folder)) == 1


def test_held_job_waits_until_it_is_released(place: Place) -> None:
    place.with_site(sbatch={"hold": True})
    folder = place.run(SHORT)
    launcher = place.launch(folder)
    wait_until(lambda: list(folder.glob("attempts/*/submission.json")) and job_of(folder) != "None", "it is submitted")
    subprocess.run(["scontrol", "hold", job_of(folder)], check=True)  # by root: JobHeldAdmin
    time.sleep(4)  # the launcher asks every 3 s
    assert launcher.poll() is None
    subprocess.run(["scontrol", "release", job_of(folder)], check=True)
    status, said = finish(launcher)
    assert status == 0, said
    assert "is held (JobHeldAdmin); it waits for 'scontrol release" in said
    assert len(jobs_of(folder)) == 1


def test_request_slurm_refuses_is_one_line(place: Place) -> None:
    place.with_site(partition="no-such-partition")
    status, said = finish(place.launch(place.run(SHORT)))
    assert status == 2
    assert "invalid partition specified: no-such-partition" in said
    assert "Traceback" not in said


def test_job_that_can_never_start_is_one_line(place: Place) -> None:
    folder = place.run(SHORT, num_nodes=5)
    status, said = finish(place.launch(folder))
    assert status == 2, said
    assert "PartitionNodeLimit" in said or "More processors requested" in said or "not available" in said
    assert subprocess.run(["squeue", "-h"], capture_output=True, text=True).stdout == ""


@pytest.mark.long
def test_full_disk_is_one_line_and_leaves_nothing(place: Place, tmp_path: Path) -> None:
    place.results.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(place.results)], check=True)
    try:
        folder = place.run(ENDLESS)
        launcher = place.launch(folder)
        training(folder)
        subprocess.run(["dd", "if=/dev/zero", f"of={place.results}/filler", "bs=4k"], capture_output=True)
        status, said = finish(launcher)
        assert status == 2, said
        assert "no space left on the device" in said
        assert "Traceback" not in said
        wait_until(lambda: no_ranks(folder), "the ranks end", 30)
        assert not (folder / "raw").exists()
    finally:
        subprocess.run(["umount", "-l", str(place.results)], check=True)


@pytest.mark.long
def test_memory_limit_of_the_job_is_no_result(place: Place) -> None:
    place.with_site(mem="60M")
    folder = place.run(SHORT)
    status, said = finish(place.launch(folder, trains=True))
    assert status == 2, said
    assert "raise `mem` of gangs: h200x32 in " in said
    assert not (folder / "raw").exists()
    place.with_site(mem="4G")
    status, said = finish(place.launch(folder))
    assert status == 0, said
    assert result(folder).status == "ok"
