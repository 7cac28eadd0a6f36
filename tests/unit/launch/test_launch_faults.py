"""Real launches with faults around the gang: no locks, no listener, no sampler, a second gang on the machine."""

import os
from pathlib import Path

import pytest

from tests.benchmarks.fault_campaign import disk_in_launch
from tests.commands import triplepoint
from tests.launchers import STUB_ENGINE, finish, hold_ranks, resume, sampler_process, start, wait_until
from tests.mounts import needs_mounts
from tests.points import planned, tiny_point, write_run
from triplepoint.config.point import Steps
from triplepoint.manifest import read_manifest
from triplepoint.recording import read_recording
from triplepoint.tables import STEPS, TELEMETRY

NO_FLOCK = {
    "excludes nobody": "import fcntl\nfcntl.flock = lambda *_: None\n",
    "refused": "import errno, fcntl\ndef flock(*_): raise OSError(errno.ENOSYS, 'Function not implemented')\n"
    "fcntl.flock = flock\n",
}


@pytest.mark.parametrize("kind", NO_FLOCK)
def test_launch_twice_without_flock_measures_once(tmp_path: Path, kind: str) -> None:
    stub = Path(STUB_ENGINE, "sitecustomize.py").read_text()  # of two sitecustomize Python imports one
    (tmp_path / "sitecustomize.py").write_text(NO_FLOCK[kind] + stub)
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    folder = write_run(tmp_path, planned(tiny_point()))
    launchers = [
        start(folder, trains=True, PYTHONPATH=path, TRIPLEPOINT_MACHINE=f"{os.getpid()}-{number}") for number in (1, 2)
    ]
    said = [finish(launcher) for launcher in launchers]
    assert [status for status, _ in said] == [0, 0], said
    assert sum("started 2 ranks" in text for _, text in said) == 1
    assert sum("has it; waiting" in text and "already measured" in text for _, text in said) == 1
    assert STEPS.read(folder / "raw" / "steps.parquet").num_rows == 8
    assert sorted(path.name for path in folder.iterdir()) == ["point.json", "raw"]


def test_launch_two_runs_at_once_one_after_the_other(tmp_path: Path) -> None:
    folders = [write_run(tmp_path, planned(tiny_point(), name)) for name in ("one", "two")]
    said = [finish(launcher) for launcher in [start(folder) for folder in folders]]
    assert [status for status, _ in said] == [0, 0], said
    assert sum("measures on this machine; waiting" in text for _, text in said) == 1
    spans = []
    for folder in folders:
        steps = STEPS.read(folder / "raw" / "steps.parquet").to_pydict()
        spans.append((min(steps["t_start_ns"]), max(steps["t_end_ns"])))
    first, second = sorted(spans)
    assert first[1] < second[0]


def test_launch_without_listener_and_log_goes_on(tmp_path: Path) -> None:
    folder = write_run(tmp_path, planned(tiny_point()))
    launcher = start(folder, "--log", "/dev/full")
    assert launcher.stderr is not None
    launcher.stderr.close()
    assert launcher.wait(90) == 0
    assert read_manifest(folder / "raw" / "manifest.json").status == "ok"


@needs_mounts
def test_launch_on_a_disk_that_turns_read_only_ends_in_one_line_and_the_next_is_whole() -> None:
    assert disk_in_launch(seed=7) is None


def test_launch_log_holds_what_was_said(tmp_path: Path) -> None:
    log = tmp_path / "logs" / "launch" / "tiny.log"
    folder = write_run(tmp_path, planned(tiny_point()))
    (folder / "point.json").write_text("{")
    status, said = finish(start(folder, "--log", str(log)))
    assert status == 2
    assert said == ""
    assert "point.json" in log.read_text()


def test_launch_sampler_killed_is_started_again_and_said(tmp_path: Path) -> None:
    folder = write_run(tmp_path, planned(tiny_point(steps=Steps(warmup=1, measured=3, profiled=0))))
    launcher = start(folder)
    ranks = hold_ranks(folder)
    first = sampler_process(folder)
    assert first is not None
    wait_until(lambda: _has_samples(folder, "node0.arrow"), "samples")
    first.kill()
    wait_until(lambda: _has_samples(folder, "node0.again.arrow"), "samples of a second one")
    resume(ranks)
    status, said = finish(launcher)
    assert status == 0, said
    assert "SIGKILL" in said
    assert "started again" in said
    (node,) = read_manifest(folder / "raw" / "manifest.json").nodes
    (end,) = node.sampler_ends
    assert end.was_restarted
    assert triplepoint(tmp_path, "telemetry", "tiny", "--results", str(tmp_path)).returncode == 0
    t_ns = TELEMETRY.read(folder / "telemetry.parquet")["t_ns"].to_pylist()
    assert min(t_ns) < end.t_ns < max(t_ns)


def _has_samples(folder: Path, name: str) -> bool:
    paths = list(folder.glob(f"attempts/*/telemetry/{name}"))
    return bool(paths) and paths[0].stat().st_size > 0 and read_recording(paths[0]).samples.num_rows > 0
