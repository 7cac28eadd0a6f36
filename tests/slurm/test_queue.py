"""What operators and strangers do to queue and accounting while a gang waits or trains."""

import json
import subprocess

import pytest

from tests.launchers import finish, hold_ranks, resume, wait_until
from tests.slurm.cluster import Cluster
from tests.slurm.launches import (
    SHORT,
    Workspace,
    failed_attempts,
    job_id_of,
    jobs_of,
    wait_for_output,
)

pytestmark = [pytest.mark.slurm, pytest.mark.timeout(300)]

NUM_JOBS_OF_A_STRANGER = 1000


def test_accounting_killed_meanwhile_costs_nothing(workspace: Workspace, cluster: Cluster) -> None:
    folder = workspace.run(SHORT)
    launcher = workspace.launch(folder)
    ranks = hold_ranks(folder)
    # slurmdbd acknowledges the start of a job a second before it is stored (CommitDelay), and it is not sent again.
    assert len(jobs_of(folder)) == 1
    cluster.kill_accounting()
    resume(ranks)
    status, output = finish(launcher)
    assert status == 0, output
    cluster.start_accounting()
    assert failed_attempts(folder) == []
    assert len(jobs_of(folder)) == 1


def test_gang_waits_until_drained_nodes_are_back(workspace: Workspace) -> None:
    nodes = "NodeName=h200-[1-4]"
    subprocess.run(["scontrol", "update", nodes, "State=DRAIN", "Reason=test"], check=True)
    folder = workspace.run(SHORT)
    launcher = workspace.launch(folder)
    wait_for_output(launcher, "DRAINED")
    assert launcher.poll() is None
    subprocess.run(["scontrol", "update", nodes, "State=RESUME"], check=True)
    status, output = finish(launcher)
    assert status == 0, output
    assert len(jobs_of(folder)) == 1


def test_operator_cannot_requeue_a_gang_into_its_own_files(workspace: Workspace) -> None:
    folder = workspace.run(SHORT)
    launcher = workspace.launch(folder)
    ranks = hold_ranks(folder)
    requeue = ["scontrol", "requeue", job_id_of(folder)]
    assert "disabled for job" in subprocess.run(requeue, capture_output=True, text=True).stderr
    resume(ranks)
    status, output = finish(launcher)
    assert status == 0, output
    assert len(jobs_of(folder)) == 1


def test_thousand_jobs_of_the_same_name_are_not_taken_for_the_gang(workspace: Workspace) -> None:
    folder = workspace.run(SHORT)
    first = workspace.launch(folder)
    ranks = hold_ranks(folder)
    first.kill()
    note = next(folder.glob("attempts/*/submission.json"))
    submission = json.loads(note.read_text())
    array = [
        "sbatch",
        "--parsable",
        "--hold",
        f"--array=0-{NUM_JOBS_OF_A_STRANGER - 1}",
        f"--job-name={submission['name']}",
    ]
    done = subprocess.run(
        [*array, "--comment=a|b", "-o", "/dev/null", "--wrap", "true"], check=True, capture_output=True
    )
    note.write_text(json.dumps(submission | {"job_id": None}))
    second = workspace.launch(folder)
    wait_until(lambda: json.loads(note.read_text())["job_id"], "the job is found")
    assert job_id_of(folder) == submission["job_id"]
    resume(ranks)
    status, output = finish(second)
    assert status == 0, output
    assert "continues with job" in output
    pending = subprocess.run(["squeue", "-hr", "-t", "PD", "-j", done.stdout.decode().strip()], capture_output=True)
    assert len(pending.stdout.splitlines()) == NUM_JOBS_OF_A_STRANGER
