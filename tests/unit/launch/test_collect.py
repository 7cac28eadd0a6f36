"""Collecting what ranks left: whole, again after any interruption, and whatever clocks and samplers did."""

import errno
import os
import shutil
from pathlib import Path

import pytest

from tests.attempts import DURATION_S, START_NS, leave, tiny_run
from tests.recordings import SampleRecorder
from triplepoint.launch import collect
from triplepoint.launch.collect import conclude
from triplepoint.manifest import read_manifest
from triplepoint.recording import again_path
from triplepoint.tables import STEPS, TELEMETRY
from triplepoint.telemetry.align import align_run

RUN = tiny_run()


def test_conclude_removes_steps_last(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    raw = leave(tmp_path, RUN)
    seen: list[list[str]] = []

    rmtree = shutil.rmtree

    def look(path: Path, **_: object) -> None:
        seen.append([name for name in ("steps", "steps.parquet", "manifest.json") if (raw / name).exists()])
        rmtree(path)

    monkeypatch.setattr(collect.shutil, "rmtree", look)
    assert conclude(raw, RUN).status == "ok"
    assert seen == [["steps", "steps.parquet", "manifest.json"]]
    assert not (raw / "steps").exists()


def test_conclude_removes_secrets_from_logs(tmp_path: Path) -> None:
    raw = leave(tmp_path, RUN)
    (raw / "logs").mkdir(exist_ok=True)
    (raw / "logs" / "rank0.log").write_text("login with hf_abcdefghijklmnopqrstuvwx\n")
    conclude(raw, RUN)
    assert (raw / "logs" / "rank0.log").read_text() == "login with [redacted]\n"


def test_conclude_again_after_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    raw = leave(tmp_path, RUN)

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patched:
        patched.setattr(collect, "write_manifest", full)
        with pytest.raises(OSError, match="No space left"):
            conclude(raw, RUN)
    assert conclude(raw, RUN).status == "ok"
    assert STEPS.read(raw / "steps.parquet").num_rows == 8


def test_conclude_from_steps_parquet_alone(tmp_path: Path) -> None:
    raw = leave(tmp_path, RUN)
    first = conclude(raw, RUN)
    (raw / "manifest.json").unlink()
    assert conclude(raw, RUN) == first
    assert read_manifest(raw / "manifest.json").facts["num_steps_finished"] == 4


def test_conclude_steps_half_removed(tmp_path: Path) -> None:
    raw = leave(tmp_path, RUN)
    conclude(raw, RUN)
    (raw / "manifest.json").unlink()
    (raw / "steps").mkdir()
    (raw / "steps" / "rank0.jsonl").touch()
    assert conclude(raw, RUN).status == "ok"
    assert STEPS.read(raw / "steps.parquet").num_rows == 8


def test_conclude_damaged_steps_parquet_is_made_again(tmp_path: Path) -> None:
    raw = leave(tmp_path, RUN)
    (raw / "steps.parquet").touch()
    assert conclude(raw, RUN).status == "ok"
    assert STEPS.read(raw / "steps.parquet").num_rows == 8


@pytest.mark.parametrize("wall_ns", [4_000_000_000 * 10**9, 1_000 * 10**9], ids=["set-back-since", "set-forward-since"])
def test_conclude_duration_is_no_difference_of_wall_clocks(tmp_path: Path, wall_ns: int) -> None:
    manifest = conclude(leave(tmp_path, RUN, wall_ns=wall_ns), RUN)
    assert manifest.duration_s == DURATION_S


@pytest.mark.parametrize("content", [None, b"", b"not Arrow"], ids=["missing", "empty", "damaged"])
def test_conclude_without_recording_says_why(tmp_path: Path, content: bytes | None) -> None:
    raw = leave(tmp_path, RUN)
    recording = raw / "telemetry" / "node0.arrow"
    if content is None:
        recording.unlink()
    else:
        recording.write_bytes(content)
    (node,) = conclude(raw, RUN).nodes
    assert node.telemetry is None
    assert node.telemetry_absent is not None
    assert node.telemetry_absent.startswith("node0.arrow: ")
    assert node.gaps == (f"here has no telemetry: {node.telemetry_absent}",)
    align_run(raw, tmp_path / "telemetry.parquet")
    assert TELEMETRY.read(tmp_path / "telemetry.parquet").num_rows == 0


def test_conclude_sampler_that_ended_is_named_and_both_lives_read(tmp_path: Path) -> None:
    end = {"t_ns": START_NS + 6 * 10**9, "message": "killed by signal 9 (SIGKILL)", "was_restarted": True}
    raw = leave(tmp_path, RUN, sampler_ends=[end])
    recorder = SampleRecorder(again_path(raw / "telemetry" / "node0.arrow"), 1.0, {})
    for second in (9, 10):
        recorder.add(START_NS + second * 10**9, 1, "host", {"cpu_utilisation": 0.25, "cpu_energy_j": 0.0})
    recorder.close()
    (node,) = conclude(raw, RUN).nodes
    assert node.telemetry is not None
    assert node.telemetry.num_samples == 8
    assert node.gaps == ("the sampler of here ended after 6.0 s: killed by signal 9 (SIGKILL); started again",)
    align_run(raw, tmp_path / "telemetry.parquet")
    rows = TELEMETRY.read(tmp_path / "telemetry.parquet").to_pydict()
    assert rows["cpu_utilisation"] == [0.5] * 6 + [0.25] * 2
    assert rows["is_gap"] == [False] * 6 + [True, False]
    # The second counts energy from 0 again, by an unknown amount later: of the two only the longer one is kept.
    assert rows["cpu_energy_j"] == [0.0, 40.0, 80.0, 120.0, 160.0, 200.0, None, None]
