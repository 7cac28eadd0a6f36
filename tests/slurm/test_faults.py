"""Faults of clusters during gangs, some of which train for real, and the outcomes of the runs."""

import json
import subprocess
import time
from pathlib import Path

import pytest

from tests.launchers import finish, hold_ranks, resume, wait_until
from tests.slurm.cluster import Cluster
from tests.slurm.launches import (
    ENDLESS,
    SHORT,
    Workspace,
    failed_attempts,
    job_id_of,
    jobs_of,
    never_two_at_once,
    no_ranks,
    result_of,
    wait_for_output,
    wait_for_training,
)
from triplepoint.launch.slurm import usable_nodes

pytestmark = [pytest.mark.slurm, pytest.mark.timeout(300)]


def test_gang_records_where_it_ran(workspace: Workspace) -> None:
    folder = workspace.run(SHORT, num_nodes=4)
    status, output = finish(workspace.launch(folder, trains=True))
    assert status == 0, output
    manifest = result_of(folder)
    assert [node.host for node in manifest.nodes] == ["h200-1", "h200-2", "h200-3", "h200-4"]
    placements = [node.placement for node in manifest.nodes]
    assert [placement.switches for placement in placements if placement] == [
        "spine.leaf1.h200-1",
        "spine.leaf1.h200-2",
        "spine.leaf2.h200-3",
        "spine.leaf2.h200-4",
    ]
    assert all(placement and placement.devices == tuple("01234567") for placement in placements)
    assert all("shared memory" in [check.name for check in node.checks or ()] for node in manifest.nodes)
    assert manifest.job is not None
    assert [job for job, *_ in jobs_of(folder)] == [manifest.job.job_id]
    assert not (folder / "attempts").exists()


def test_gang_compares_the_clocks_of_its_nodes(workspace: Workspace) -> None:
    folder = workspace.run(SHORT, num_nodes=3)
    launcher = workspace.launch(folder)
    ranks = hold_ranks(folder, num_ranks=3)
    (meeting,) = folder.glob("attempts/*/rendezvous.json")
    assert meeting.stat().st_mode & 0o077 == 0, "the token of the clock is private"
    # Nodes of the test cluster reach each other through the loopback interface, so the clock listens only there.
    assert json.loads(meeting.read_text())["clock"]["address"] == "127.0.0.1"
    resume(ranks)
    status, output = finish(launcher)
    assert status == 0, output
    assert not (folder / "raw" / meeting.name).exists()
    first, *others = result_of(folder).nodes
    assert (first.clock, first.clock_absent) == (None, None)
    for node in others:
        # All nodes of the test cluster have the clock of one machine, so the true difference is zero.
        assert node.clock is not None, node.clock_absent
        ends_ns = node.clock.offset_ns, node.clock.offset_ns + node.clock.drift_ppm * 1e-6 * node.clock.duration_s * 1e9
        assert max(map(abs, ends_ns)) <= node.clock.uncertainty_ns + 1000
        # On a busy machine it is a few milliseconds, because the answering thread waits for a processor.
        assert node.clock.uncertainty_ns < 20_000_000
        assert node.clock.num_bursts >= 2
        assert node.clock.num_round_trips >= 64


def test_usable_nodes_are_those_that_take_jobs(cluster: Cluster) -> None:
    assert usable_nodes("mi250") == {"mi250-1", "mi250-2"}
    subprocess.run(["scontrol", "update", "NodeName=h200-3", "State=DRAIN", "Reason=test"], check=True)
    assert usable_nodes("h200") == usable_nodes(None) == {"h200-1", "h200-2", "h200-4"}
    assert usable_nodes("no-such-partition") == frozenset()


def test_gang_of_the_other_kind_of_node(workspace: Workspace) -> None:
    folder = workspace.run(SHORT, cluster="mi250x32")
    status, output = finish(workspace.launch(folder))
    assert status == 0, output
    assert [node.host for node in result_of(folder).nodes] == ["mi250-1", "mi250-2"]


def test_rank_that_exits_fails_the_launch_and_is_tried_again(workspace: Workspace) -> None:
    workspace.with_site(retries=1)
    folder = workspace.run(ENDLESS)
    launcher = workspace.launch(folder)
    for attempt in (0, 1):
        wait_for_training(folder, attempt=attempt)[1].kill()
        wait_until(lambda n=attempt: len(failed_attempts(folder)) > n, "the attempt is judged")
    status, output = finish(launcher)
    assert status == 1
    assert [manifest.status for manifest in failed_attempts(folder)] == ["crashed", "crashed"]
    evidence = failed_attempts(folder)[0].evidence
    assert evidence is not None
    assert evidence.rank == 1
    assert "crashed: rank 1 on h200-" in output
    assert "SIGKILL" in output
    assert not (folder / "raw").exists()
    assert never_two_at_once(folder)
    assert no_ranks(folder)


@pytest.mark.long
def test_rank_that_hangs_is_found_among_all_nodes(workspace: Workspace) -> None:
    folder = workspace.run(ENDLESS, hang_timeout_s=5.0)
    launcher = workspace.launch(folder, trains=True)
    wait_for_training(folder)[1].suspend()
    status, output = finish(launcher)
    assert status == 1
    (manifest,) = failed_attempts(folder)
    assert manifest.status == "hung"
    assert manifest.evidence is not None
    assert manifest.evidence.rank == 1
    assert manifest.evidence.host == manifest.nodes[1].host
    assert "rank 1 does not react to signals" in output
    wait_until(lambda: no_ranks(folder), "the ranks end", 20)


@pytest.mark.long
def test_job_over_its_time_is_given_more_once(workspace: Workspace) -> None:
    folder = workspace.run(ENDLESS, time_limit_s=300.0)
    launcher = workspace.launch(folder)
    wait_for_training(folder)
    subprocess.run(["scontrol", "update", f"JobId={job_id_of(folder)}", "TimeLimit=1"], check=True)
    wait_until(lambda: len(list(folder.glob("attempts/*/nodes/begun0.json"))) == 2, "the second attempt starts")
    raw = sorted(folder.glob("attempts/*"))[1]
    assert json.loads((raw / "point.json").read_text())["limits"]["time_limit_s"] == 600.0
    asked = ["squeue", "-h", "-j", job_id_of(folder), "-o", "%l"]
    assert subprocess.run(asked, capture_output=True, text=True).stdout.strip() == "12:00"
    subprocess.run(["scancel", job_id_of(folder)], check=True)
    status, output = finish(launcher)
    assert status == 1
    assert [manifest.status for manifest in failed_attempts(folder)] == ["timeout", "cancelled"]
    assert "time limit is near; submitted again" in output


def test_cancelled_job_stays_cancelled(workspace: Workspace) -> None:
    workspace.with_site(retries=1)
    folder = workspace.run(ENDLESS)
    launcher = workspace.launch(folder)
    wait_for_training(folder)
    subprocess.run(["scancel", job_id_of(folder)], check=True)
    status, output = finish(launcher)
    assert status == 1
    (manifest,) = failed_attempts(folder)
    assert manifest.status == "cancelled"
    assert manifest.job is not None
    assert manifest.job.state == "CANCELLED"
    assert "ended as CANCELLED on h200-" in output
    assert len(jobs_of(folder)) == 1


def test_dead_node_is_named_and_the_run_moves_on(workspace: Workspace, cluster: Cluster) -> None:
    folder = workspace.run(SHORT)
    launcher = workspace.launch(folder)
    ranks = hold_ranks(folder)
    nodes = subprocess.run(["squeue", "-h", "-o", "%N"], capture_output=True, text=True).stdout.strip()
    assert nodes == "h200-[1-2]"
    cluster.kill_node("h200-2")
    resume([rank for rank in ranks if rank.is_running()])
    status, output = finish(launcher)
    assert status == 0, output
    (manifest,) = failed_attempts(folder)
    assert manifest.status == "lost"
    assert manifest.evidence is not None
    assert manifest.evidence.host == "h200-2"
    assert "h200-2" not in [node.host for node in result_of(folder).nodes]
    assert never_two_at_once(folder)


def test_preempted_gang_is_submitted_again(workspace: Workspace) -> None:
    folder = workspace.run(SHORT)
    launcher = workspace.launch(folder)
    hold_ranks(folder)
    urgent = ["sbatch", "--parsable", "-p", "urgent", "-N4", "--exclusive", "-o", "/dev/null", "--wrap", "sleep 1"]
    subprocess.run(urgent, check=True, capture_output=True)
    status, output = finish(launcher)
    assert status == 0, output
    assert [manifest.status for manifest in failed_attempts(folder)] == ["preempted"]
    assert len(jobs_of(folder, at_least=2)) == 2
    assert never_two_at_once(folder)


def test_controller_killed_meanwhile_costs_nothing(workspace: Workspace, cluster: Cluster) -> None:
    folder = workspace.run(SHORT)
    launcher = workspace.launch(folder)
    ranks = hold_ranks(folder)
    # The controller saves changes within five seconds. A job that it has not saved is lost and submitted again.
    time.sleep(6)
    cluster.kill_controller()
    time.sleep(3)
    cluster.start_controller()
    resume(ranks)
    status, output = finish(launcher)
    assert status == 0, output
    assert failed_attempts(folder) == []
    assert len(jobs_of(folder)) == 1


def test_submission_without_a_controller_is_tried_until_it_is_back(workspace: Workspace, cluster: Cluster) -> None:
    cluster.kill_controller()
    folder = workspace.run(SHORT)
    launcher = workspace.launch(folder)
    wait_until(lambda: list(folder.glob("attempts/*/submission.json")), "the launcher tries")
    time.sleep(3)
    cluster.start_controller()
    status, output = finish(launcher)
    assert status == 0, output
    assert len(jobs_of(folder)) == 1


@pytest.mark.long
def test_submission_without_munge_is_tried_until_it_is_back(workspace: Workspace, cluster: Cluster) -> None:
    cluster.stop_munge()
    folder = workspace.run(SHORT)
    launcher = workspace.launch(folder)
    wait_for_output(launcher, "Slurm does not answer")
    cluster.start_munge()
    status, output = finish(launcher)
    assert status == 0, output
    assert len(jobs_of(folder)) == 1


def test_held_job_waits_until_it_is_released(workspace: Workspace) -> None:
    workspace.with_site(sbatch={"hold": True})
    folder = workspace.run(SHORT)
    launcher = workspace.launch(folder)
    wait_until(
        lambda: list(folder.glob("attempts/*/submission.json")) and job_id_of(folder) != "None", "it is submitted"
    )
    subprocess.run(["scontrol", "hold", job_id_of(folder)], check=True)  # root holds it, so the reason is JobHeldAdmin
    time.sleep(4)  # longer than the launcher's period of 3 s
    assert launcher.poll() is None
    subprocess.run(["scontrol", "release", job_id_of(folder)], check=True)
    status, output = finish(launcher)
    assert status == 0, output
    assert "is held (JobHeldAdmin); it waits for 'scontrol release" in output
    assert len(jobs_of(folder)) == 1


def test_request_slurm_refuses_is_one_line(workspace: Workspace) -> None:
    workspace.with_site(partition="no-such-partition")
    status, output = finish(workspace.launch(workspace.run(SHORT)))
    assert status == 2
    assert "invalid partition specified: no-such-partition" in output
    assert "Traceback" not in output


def test_job_that_can_never_start_is_one_line(workspace: Workspace) -> None:
    folder = workspace.run(SHORT, num_nodes=5)
    status, output = finish(workspace.launch(folder))
    assert status == 2, output
    assert "PartitionNodeLimit" in output or "More processors requested" in output or "not available" in output
    assert subprocess.run(["squeue", "-h"], capture_output=True, text=True).stdout == ""


@pytest.mark.long
def test_full_disk_is_one_line_and_leaves_nothing(workspace: Workspace, tmp_path: Path) -> None:
    workspace.results.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(workspace.results)], check=True)
    try:
        folder = workspace.run(ENDLESS)
        launcher = workspace.launch(folder)
        wait_for_training(folder)
        subprocess.run(["dd", "if=/dev/zero", f"of={workspace.results}/filler", "bs=4k"], capture_output=True)
        status, output = finish(launcher)
        assert status == 2, output
        assert "no space left on the device" in output
        assert "Traceback" not in output
        wait_until(lambda: no_ranks(folder), "the ranks end", 30)
        assert not (folder / "raw").exists()
    finally:
        subprocess.run(["umount", "-l", str(workspace.results)], check=True)


@pytest.mark.long
def test_memory_limit_of_the_job_is_no_result(workspace: Workspace) -> None:
    workspace.with_site(mem="60M")
    folder = workspace.run(SHORT)
    status, output = finish(workspace.launch(folder, trains=True))
    assert status == 2, output
    assert "raise `mem` of gangs: h200x32 in " in output
    assert not (folder / "raw").exists()
    workspace.with_site(mem="4G")
    status, output = finish(workspace.launch(folder))
    assert status == 0, output
    assert result_of(folder).status == "ok"
