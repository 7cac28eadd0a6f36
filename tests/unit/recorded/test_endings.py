"""How a watched job ended, and what its recording lacks: said in one line and in the manifest."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from tests.launchers import wait_until
from tests.synthetic import CONFIG
from tests.unit.recorded.test_run import through
from triplepoint.aggregate.steps import explain
from triplepoint.cli import main
from triplepoint.manifest import Evidence, Manifest, read_manifest
from triplepoint.recorded.in_loop import record
from triplepoint.recorded.session import Session, ask_for_window
from triplepoint.recording import Part, Recorder
from triplepoint.status import Status

S = 1_000_000_000
LOST_PEER = "[rank0]: RuntimeError: [gloo/transport/tcp/pair.cc:537] Read error: Connection reset by peer."
KILLED = "killed by signal 9 (SIGKILL); the kernel's out-of-memory killer, or a person, ended it"
MEASURED = ("warmup", "measured", "measured", "measured")


def finished(results: Path, capfd: pytest.CaptureFixture[str], *words: str) -> tuple[Manifest, str]:
    """Return the manifest that `record --finish` writes of the only recording, and what it says."""
    assert main(["record", "--finish", "--results", str(results), "--config", str(CONFIG), *words]) == 0
    (path,) = results.glob("runs/*/raw/manifest.json")
    return read_manifest(path), capfd.readouterr().err


def left(results: Path, kinds: tuple[str, ...] = MEASURED, **setup: Any) -> Session:
    """Return a recording of one rank without samples, whose processes have gone."""
    session = Session.join(results, {"command": ["train"], "describe": {"name": "train"}, **setup}, None)
    session.begin_node("cpu")
    rows = [
        {"rank": 0, "step": step, "kind": kind, "by": "optimizer", "pid": 7}
        | {"t_start_ns": (step + 1) * S, "t_end_ns": (step + 2) * S}
        for step, kind in enumerate(kinds)
    ]
    (session.folder / "steps" / "rank0.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    for member in (session.folder / "members").iterdir():
        member.write_text(json.dumps(json.loads(member.read_text()) | {"ticks": 1}))
    return session


def test_log_of_a_recording_has_no_secret_and_is_private(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    session = left(tmp_path)
    assert (session.folder / "logs").stat().st_mode & 0o777 == 0o700
    (session.folder / "logs" / "rank0-7.log").write_text("login with hf_abcdefghijklmnopqrstuvwx\n")
    session.note_end(0, ["train"], [])
    finished(tmp_path, capfd)
    (log,) = tmp_path.glob("runs/*/raw/logs/rank0-7.log")
    assert (log.read_text(), log.stat().st_mode & 0o777) == ("login with [redacted]\n", 0o600)


@pytest.mark.parametrize(
    ("status", "told_by", "said", "kinds", "expected"),
    [
        (-signal.SIGINT, None, ["KeyboardInterrupt"], MEASURED, ("ok", "ended by hand: Ctrl-C (SIGINT)")),
        (1, signal.SIGINT, ["SignalException: got signal: 2"], MEASURED, ("ok", "ended by hand: Ctrl-C (SIGINT)")),
        (0, signal.SIGINT, ["saved a checkpoint"], MEASURED, ("ok", "ended by hand: Ctrl-C (SIGINT)")),
        (143, None, [], MEASURED, ("ok", "told to end: SIGTERM")),
        (1, signal.SIGHUP, [], MEASURED, ("ok", "told to end: its terminal was closed (SIGHUP)")),
        (1, signal.SIGINT, ["KeyboardInterrupt"], ("warmup",), ("cancelled", "ended by hand: Ctrl-C (SIGINT)")),
        (1, signal.SIGINT, ["CUDA out of memory."], MEASURED, ("oom", "CUDA out of memory.")),
        (1, None, ["ValueError: no such file"], MEASURED, ("crashed", "ValueError: no such file")),
    ],
)
def test_job_told_to_end_after_measured_steps_is_ok_and_says_so(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], status: int, told_by: int | None, said: list[str],
    kinds: tuple[str, ...], expected: tuple[str, str],
) -> None:  # fmt: skip
    left(tmp_path, kinds).note_end(status, ["train"], said, told_by=told_by)
    manifest, line = finished(tmp_path, capfd)
    assert (manifest.status, manifest.facts["ending"]) == expected
    assert expected[1] in line and manifest.facts["exit_status"] == status


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        # torchrun, torch 2.13: a script that fails to import, and one of two ranks that fails.
        (
            [
                "ModuleNotFoundError: No module named 'transformers'",
                "E1123 torch/distributed/elastic/multiprocessing/api.py:1002] failed (exitcode: 1) local_rank: 0",
                "    raise ChildFailedError(",
                "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: ",
            ],
            "ModuleNotFoundError: No module named 'transformers'",
        ),
        (
            [
                "[rank1]: ValueError: bad sample 17 in shard 3",
                "[rank0]: RuntimeError: [gloo/transport/tcp/pair.cc:547] Connection closed by peer [127.0.0.1]:4432",
                "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: ",
            ],
            "[rank1]: ValueError: bad sample 17 in shard 3",
        ),
        # `accelerate launch`, 1.15, around a script whose name is misspelt.
        (
            [
                "python: can't open file '/home/user/trian.py': [Errno 2] No such file or directory",
                "subprocess.CalledProcessError: Command '['python', 'trian.py']' returned non-zero exit status 2.",
            ],
            "python: can't open file '/home/user/trian.py': [Errno 2] No such file or directory",
        ),
        (
            ["usage: train.py [-h] [--steps N]", "train.py: error: unrecognized arguments: --stesp 3"],
            "train.py: error: unrecognized arguments: --stesp 3",
        ),
        (["RuntimeError: Connection reset by peer"], "RuntimeError: Connection reset by peer"),
        # torchrun, DeepSpeed 0.19, Open MPI 4.1 and srun 22.05 around a rank that SIGKILL ended; one that left with 5.
        (
            [LOST_PEER, "E1123 api.py:1002] failed (exitcode: -9) local_rank: 1 (pid: 29893) of binary: /bin/python"],
            f"local rank 1 {KILLED}",
        ),
        (
            [LOST_PEER, "[ERROR] ['python', '-u', 'train.py', '--local_rank=1', '--lr'] exits with return code = -9"],
            f"local rank 1 {KILLED}",
        ),
        (
            [LOST_PEER, "mpirun noticed that process rank 1 with PID 0 on node vm exited on signal 9 (Killed)."],
            f"rank 1 {KILLED}",
        ),
        ([LOST_PEER, "srun: error: n1: task 1: Killed"], f"rank 1 {KILLED}"),
        (
            [LOST_PEER, "srun: error: n1: task 3: Exited with exit code 5"],
            "rank 3 exited with status 5 and no message",
        ),
        (["train.sh: line 3: pyhton: command not found"], "train.sh: line 3: pyhton: command not found"),
        (["step 3", "give a data set"], "exited with status 1; its last line is: give a data set"),
        ([], "exited with status 1 and no message"),
    ],
)
def test_crash_is_said_by_the_rank_that_failed_and_not_by_its_launcher(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], said: list[str], expected: str
) -> None:
    left(tmp_path).note_end(1, ["torchrun"], said)
    manifest, line = finished(tmp_path, capfd)
    assert manifest.facts["ending"] == expected and expected in line


def test_rank_that_the_kernel_ended_for_want_of_memory_is_out_of_memory(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    said = [LOST_PEER, "E1123 api.py:1002] failed (exitcode: -9) local_rank: 1 (pid: 29893) of binary: /bin/python"]
    left(tmp_path).note_end(1, ["torchrun"], said, num_host_kills=1)
    manifest, line = finished(tmp_path, capfd)
    assert manifest.status == "oom"
    assert str(manifest.facts["ending"]).startswith("host memory: the kernel ended it; local rank 1 killed")


def test_rank_that_was_killed_is_the_cause_and_not_the_one_that_lost_it(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As under srun, where each rank has a watcher of its own."""
    session = left(tmp_path)
    session.note_end(1, ["train"], [LOST_PEER])
    monkeypatch.setattr(os, "getpid", lambda: 1)
    monkeypatch.setenv("RANK", "1")
    session.note_end(-9, ["train"], [])
    manifest, _ = finished(tmp_path, capfd)
    assert manifest.facts["ending"] == KILLED and manifest.evidence is not None and manifest.evidence.rank == 1


def test_pattern_that_no_line_matched_is_said(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    left(tmp_path, steps="log").note_end(0, ["train"], [])
    _, line = finished(tmp_path, capfd)
    assert "fewer than two lines of the log matched --step-pattern; steps are marked by steps of the optimizer" in line


def test_crash_of_one_rank_is_no_ending_by_hand_though_its_launcher_told_the_others(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    session = left(tmp_path)
    session.note_end(-15, ["train"], [], told_by=signal.SIGTERM)
    monkeypatch.setattr(os, "getpid", lambda: 1)
    session.note_end(1, ["train"], ["ZeroDivisionError: division by zero"])
    assert finished(tmp_path, capfd)[0].status == "crashed"


def test_command_that_ctrl_c_ends_with_a_status_of_its_own(tmp_path: Path) -> None:
    script = "trap 'exit 3' INT; for i in $(seq 9000); do echo iter $i; sleep 0.02; done"
    words = ["record", "--results", str(tmp_path), "--step-pattern", r"iter (?P<step>\d+)", "--", "bash", "-c", script]
    # Tests that run in the background have it ignored, which commands inherit.
    command = ["env", "--default-signal=INT", sys.executable, "-m", "triplepoint", *words]
    watcher = subprocess.Popen(command, start_new_session=True, stderr=-1)
    steps = "recorded/open/*/steps/log0.jsonl"
    wait_until(lambda: any(len(path.read_text()) > 1000 for path in tmp_path.glob(steps)), "steps", 60)
    os.killpg(watcher.pid, signal.SIGINT)
    line = watcher.communicate(timeout=180)[1].decode()
    assert watcher.returncode == 3 and "note: ended by hand: Ctrl-C (SIGINT)" in line
    (path,) = tmp_path.glob("runs/*/raw/manifest.json")
    assert read_manifest(path).status == "ok"


@pytest.mark.parametrize(
    ("error", "status"), [(KeyboardInterrupt(), -2), (SystemExit(0), None), (SystemExit(3), 1), (ValueError("x"), 1)]
)
def test_loop_that_is_left_by_ctrl_c_or_exit_did_not_crash(
    tmp_path: Path, error: BaseException, status: int | None
) -> None:
    recorder = record(tmp_path, CONFIG)
    session = recorder._session = Session.join(tmp_path, {}, None)
    recorder.__exit__(type(error), error, None)
    (end,) = session.folder.glob("ends/*.json")
    assert json.loads(end.read_text())["status"] == status


@pytest.mark.parametrize(
    ("kinds", "steps", "expected"),
    [
        ((), "none", ("ok", "no step was seen: the whole recording counts as one window")),
        (
            ("warmup", "warmup"),
            "auto",
            ("cancelled", "all 2 steps are warm-up or profiled: the whole"),
        ),
    ],
)
def test_window_is_called_no_step(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], kinds: tuple[str, ...], steps: str, expected: tuple[str, str]
) -> None:
    session = left(tmp_path, kinds, steps=steps)
    if not kinds:  # the file of a sampler in its place: a window needs samples
        t_ns = np.arange(1, 20) * S
        recorder = Recorder(session.folder / "telemetry" / f"{session.host}.arrow", 1.0, {})
        recorder.write([Part("host", t_ns, np.zeros(19, int), ("cpu_utilisation",), np.full((19, 1), 0.5))])
        recorder.close()
    session.note_end(-2, ["train"], [])
    manifest, line = finished(tmp_path, capfd)
    assert manifest.status == expected[0] and expected[1] in line
    assert expected[1] in str(manifest.facts["no_measured_step"])
    if not kinds:
        row = through(tmp_path, manifest.run)
        assert (row["num_measured_steps"], row["step_time_s"]) == (None, None)
        assert "no step was seen" in str(row["step_notes"])


@pytest.mark.parametrize(
    ("window", "kinds", "expected"),
    [
        ((20, 22), MEASURED, "steps 20 to 21 were not profiled: the job ended after 4 steps, counted from 0"),
        ((2, 3), MEASURED, "steps 2 to 2 were not profiled: no rank wrote a trace; ranks need torch, NVTX or ROCTX"),
    ],
)
def test_profile_that_did_not_happen_is_said(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], window: tuple[int, int], kinds: tuple[str, ...], expected: str
) -> None:
    session = left(tmp_path, kinds)
    ask_for_window(session.folder, *window)
    session.note_end(0, ["train"], [])
    manifest, line = finished(tmp_path, capfd)
    assert expected in line and str(manifest.facts["not_profiled"]).startswith(expected)


def test_description_that_does_not_fit_says_what_tp_has_to_divide_and_is_mended(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    session = left(tmp_path)
    (session.folder / "session.json").write_text('{"describe": {"tp": 3}}')
    session.note_end(0, ["train"], [])
    assert main(["record", "--finish", "--results", str(tmp_path), "--config", str(CONFIG)]) == 1
    line = capfd.readouterr().err
    assert "tp*pp*cp = 3*1*1 = 3, which does not divide the 1 rank of the recording" in line and line.count("\n") == 1
    assert main(["record", "--finish", "--results", str(tmp_path), "--config", str(CONFIG), "--set", "tq=1"]) == 2
    assert "tq" in capfd.readouterr().err
    assert finished(tmp_path, capfd, "--set", "tp=1")[0].status == "ok"


def test_job_too_short_for_a_sample_leaves_nothing(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    left(tmp_path, ()).note_end(0, ["true"], [])
    assert main(["record", "--finish", "--results", str(tmp_path), "--config", str(CONFIG)]) == 0
    assert "the job ended before its first sample and step" in capfd.readouterr().err
    assert not list(tmp_path.glob("recorded/open/*"))


def test_job_that_fails_before_its_first_sample_says_why(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "triplepoint", "record", "--results", str(tmp_path), "--", sys.executable, "trian.py"],
        capture_output=True, text=True, timeout=120, cwd=tmp_path,
    )  # fmt: skip
    own, ours = done.stderr.splitlines()
    assert done.returncode == 2 and "can't open file" in own
    assert ours == (
        f"triplepoint: record: {Status.CRASHED.label}: {own} (exit status 2); the job ended before its first sample "
        "and step, so no run is written"
    )
    assert not list(tmp_path.glob("runs/*")) and not list(tmp_path.glob("recorded/open/*"))


def test_what_became_of_a_job_names_the_job_or_the_rank() -> None:
    for rank, who in ((None, "the job on vm"), (3, "rank 3 on vm")):
        evidence = Evidence(rank=rank, host="vm", message="ended by hand: Ctrl-C (SIGINT)", log_tail=())
        manifest = cast(Manifest, SimpleNamespace(evidence=evidence, status="cancelled"))
        assert explain(manifest) == f"{who}: ended by hand: Ctrl-C (SIGINT)"
