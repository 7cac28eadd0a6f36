"""What a launcher makes of Slurm's answers and of signals; Slurm is four small programs on the PATH."""

import errno
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.points import planned, tiny_point, write_run
from triplepoint.config.plan import PlannedRun
from triplepoint.config.point import Layout, PointCluster
from triplepoint.config.site import Gang
from triplepoint.errors import UserError
from triplepoint.launch.attempt import Submission, new_attempt
from triplepoint.launch.gang import SlurmGang, submit

MUNGE_AWAY = """\
sbatch: error: If munged is up, restart with --num-threads=10
sbatch: error: Munge encode failed: Failed to access "/run/munge/munge.socket.2": No such file or directory
sbatch: error: slurm_send_node_msg: auth_g_create: REQUEST_SUBMIT_BATCH_JOB has authentication error
sbatch: error: Batch job submission failed: Protocol authentication error
"""
"""What Slurm 22.05 says where munged does not run."""


@dataclass
class FakeSlurm:
    """Programs that answer what stands in files, and note how they were called."""

    folder: Path

    def answers(self, program: str, text: str, status: int = 0, stderr: str = "") -> None:
        """Let a program print something from now on."""
        here = f'"{self.folder}"'
        script = (
            f'#!/bin/sh\necho "$@" >> {here}/{program}.calls\ncat {here}/{program}.out\n'
            f"cat {here}/{program}.err >&2\nexit {status}\n"
        )
        # A launcher may run the present program meanwhile, and a file that runs cannot be written.
        for name, content in ((f"{program}.out", text), (f"{program}.err", stderr), (program, script)):
            new = self.folder / f"{name}.new"
            new.write_text(content)
            new.chmod(0o755)
            new.replace(self.folder / name)

    def calls(self, program: str) -> list[str]:
        """Return the arguments of each call of a program."""
        path = self.folder / f"{program}.calls"
        return path.read_text().splitlines() if path.exists() else []


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeSlurm:
    folder = tmp_path / "bin"
    folder.mkdir()
    fake = FakeSlurm(folder)
    for program in ("srun", "squeue", "scancel", "sinfo", "sacct", "scontrol"):
        fake.answers(program, "")
    fake.answers("sbatch", "Submitted batch job 7\n")
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("TRIPLEPOINT_SITE", str(tmp_path / "site.yaml"))
    (tmp_path / "site.yaml").write_text("gangs: {}\n")
    return fake


def slurm_run() -> PlannedRun:
    cluster = PointCluster(name="h200x32", device="cpu", gpu=None, gpus_per_node=1)
    return planned(tiny_point(cluster=cluster, num_gpus=2, layout=Layout(dp=2)), executor="slurm")


def watch(raw: Path, said: list[str]) -> SlurmGang:
    submission = Submission("tiny.1", "triplepoint:x", "2026-01-01T00:00:00+00:00", "7")
    return SlurmGang(raw, slurm_run(), Gang(), submission, said.append)


@pytest.mark.parametrize("reason", ["JobHeldAdmin", "JobHeldUser", "launch failed requeued held"])
def test_gang_that_is_held_is_waited_for(slurm: FakeSlurm, tmp_path: Path, reason: str) -> None:
    slurm.answers("squeue", f"PENDING||triplepoint:x|{reason}\n")
    said: list[str] = []
    gang = watch(tmp_path, said)
    assert not gang.is_over()
    assert said == [
        f"tiny: job 7 is held ({reason}); it waits for 'scontrol release 7' or 'scancel 7'",
    ]


def test_gang_whose_folder_is_out_of_reach_for_a_moment_goes_on(
    slurm: FakeSlurm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slurm.answers("squeue", "RUNNING|n[1-2]|triplepoint:x|None\n")
    said: list[str] = []
    gang = watch(tmp_path, said)

    def stale(path: Path, pattern: str) -> list[Path]:
        raise OSError(errno.ESTALE, os.strerror(errno.ESTALE), str(path))

    monkeypatch.setattr(Path, "glob", stale)
    assert not gang.is_over()
    assert said == ["tiny: job 7 is running on n[1-2]"]


def test_gang_that_can_never_start_is_an_error(slurm: FakeSlurm, tmp_path: Path) -> None:
    slurm.answers("squeue", "PENDING||triplepoint:x|BadConstraints\n")
    with pytest.raises(UserError, match="Slurm will never start job 7"):
        watch(tmp_path, []).is_over()


def test_submit_while_munge_is_away_tries_until_it_is_back(
    slurm: FakeSlurm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slurm.answers("sbatch", "", status=1, stderr=MUNGE_AWAY)
    slurm.answers("squeue", "", status=1, stderr="slurm_load_jobs error: Protocol authentication error\n")
    slept: list[float] = []

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        if len(slept) == 2:
            slurm.answers("squeue", "")
        if len(slept) == 3:
            slurm.answers("sbatch", "Submitted batch job 7\n")

    monkeypatch.setattr("triplepoint.launch.gang.time", SimpleNamespace(sleep=sleep, monotonic=time.monotonic))
    run = slurm_run()
    said: list[str] = []
    gang = submit(new_attempt(tmp_path / "runs" / run.run, run, 1), run, Gang(), frozenset(), said.append)
    assert gang.submission.job_id == "7"
    assert len(said) == 3
    assert all("Slurm does not answer" in line and "Munge encode failed" in line for line in said)
    # A second job might be one too many for as long as Slurm does not say that the first is not there.
    assert len(slurm.calls("sbatch")) == 2


def test_submit_what_slurm_refuses_is_not_tried_again(slurm: FakeSlurm, tmp_path: Path) -> None:
    slurm.answers("sbatch", "", status=1, stderr="sbatch: error: invalid partition specified: x\n")
    run = slurm_run()
    with pytest.raises(UserError, match="invalid partition specified: x"):
        submit(new_attempt(tmp_path / "runs" / run.run, run, 1), run, Gang(), frozenset(), lambda line: None)
    assert len(slurm.calls("sbatch")) == 1


def launcher_of_running_job(slurm: FakeSlurm, folder: Path) -> "subprocess.Popen[str]":
    """Return a launcher whose job runs."""
    command = [sys.executable, "-m", "triplepoint", "launch", folder.name, "--results", str(folder.parents[1])]
    process = subprocess.Popen(
        command,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    deadline = time.monotonic() + 60
    while not (notes := list(folder.glob("attempts/*/submission.json"))) or '"7"' not in notes[0].read_text():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.05)
    slurm.answers("squeue", f"RUNNING|n[1-2]|triplepoint:{notes[0].parent.name}|None\n")
    return process


def test_launcher_ended_by_sigterm_leaves_its_job(slurm: FakeSlurm, tmp_path: Path) -> None:
    folder = write_run(tmp_path, slurm_run())
    process = launcher_of_running_job(slurm, folder)
    process.terminate()
    _, said = process.communicate(timeout=60)
    assert process.returncode not in (0, 1, 2)
    assert "job 7 goes on, and the next launch of this run goes on with it" in said
    assert slurm.calls("scancel") == []
    (raw,) = folder.glob("attempts/*")
    assert not (raw / "stop").exists()


def test_launcher_interrupted_by_the_user_cancels_its_job(slurm: FakeSlurm, tmp_path: Path) -> None:
    folder = write_run(tmp_path, slurm_run())
    process = launcher_of_running_job(slurm, folder)
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=60)
    assert process.returncode == 130
    assert slurm.calls("scancel") == ["7"]
    assert not list(folder.glob("attempts/*"))
