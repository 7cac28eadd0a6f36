"""Launching real gangs, some of real training, and everything that can go wrong with them."""

import gzip
import json
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.commands import triplepoint
from tests.launchers import LONG, environment, finish, rank_processes, start, wait_for_training, wait_until
from tests.mounts import needs_mounts
from tests.points import TINY, planned, tiny_point, write_run
from triplepoint.config.contents import Digests, with_contents
from triplepoint.config.point import PointCluster
from triplepoint.launch import agent
from triplepoint.launch.agent import find_obstacle, find_place
from triplepoint.launch.attempt import new_attempt, note_contents
from triplepoint.manifest import read_manifest
from triplepoint.metrics import flops_per_token
from triplepoint.recording import read_recording
from triplepoint.tables import STEPS


def failed_manifest(folder: Path) -> Any:
    (path,) = folder.glob("attempts/*/manifest.json")
    return read_manifest(path)


def test_launch_leaves_complete_artefacts_and_keeps_them(tmp_path: Path) -> None:
    folder = write_run(tmp_path, planned(tiny_point()))
    status, said = finish(start(folder, trains=True))
    if "stood still" in said:  # the machine itself stopped for seconds, and the launch rightly failed: once more
        status, said = finish(start(folder, trains=True))
    assert status == 0, said
    raw = folder / "raw"
    manifest = read_manifest(raw / "manifest.json")
    assert (manifest.status, manifest.origin, manifest.engine) == ("ok", "measured", "native")
    assert [device.rank for device in manifest.nodes[0].devices] == [0, 1]
    steps = STEPS.read(raw / "steps.parquet").to_pydict()
    assert steps["rank"] == [0] * 4 + [1] * 4
    assert steps["kind"] == ["warmup", "measured", "measured", "profiled"] * 2
    assert all(end > begin for begin, end in zip(steps["t_start_ns"], steps["t_end_ns"], strict=True))
    for rank in (0, 1):
        with gzip.open(raw / "traces" / f"rank{rank}.json.gz") as trace:
            assert json.load(trace)["traceEvents"]
    telemetry = manifest.nodes[0].telemetry
    assert telemetry is not None
    assert telemetry.num_samples == read_recording(raw / "telemetry" / "node0.arrow").samples.num_rows > 0
    assert not (folder / "attempts").exists()
    facts = manifest.facts
    # See `test_flops.py` and `test_metrics.py` for the count itself.
    assert facts["flops_per_token"] == flops_per_token(TINY, 32)
    assert "arXiv:2204.02311" in str(facts["flops_formula"])
    assert facts["num_parameters"] == facts["num_parameters_model"] == TINY.num_parameters
    assert facts["num_steps_finished"] == 4
    assert (facts["samples"], facts["tokenizer"]) == ("packed", "none")
    assert facts["collective_settings"]
    assert facts["peak_memory_bytes"] > 0

    before = {path: path.stat().st_mtime_ns for path in raw.rglob("*")}
    status, said = finish(start(folder, trains=True))
    assert status == 0
    assert "already measured" in said
    assert before == {path: path.stat().st_mtime_ns for path in raw.rglob("*")}


def test_launch_changed_point_is_measured_again(tmp_path: Path) -> None:
    folder = write_run(tmp_path, planned(tiny_point()))
    assert finish(start(folder))[0] == 0
    changed = planned(tiny_point(micro_batch_size=2))
    write_run(tmp_path, changed)
    status, said = finish(start(folder))
    assert status == 0, said
    assert read_manifest(folder / "raw" / "manifest.json").digest == changed.digest


def test_launch_rank_killed_ends_gang_and_names_it(tmp_path: Path) -> None:
    folder = write_run(tmp_path, planned(tiny_point(steps=LONG)))
    launch = start(folder)
    ranks = wait_for_training(folder)
    ranks[1].kill()
    killed_at = time.monotonic()
    status, said = finish(launch)
    assert time.monotonic() - killed_at < 10
    assert status == 1
    assert "crashed: rank 1 on" in said
    assert "SIGKILL" in said
    evidence = failed_manifest(folder).evidence
    assert evidence.rank == 1
    assert not (folder / "raw" / "manifest.json").exists()
    assert rank_processes(folder) == {}


def test_launch_rank_raises_is_told_with_its_log(tmp_path: Path) -> None:
    folder = write_run(tmp_path, planned(tiny_point(steps=LONG)))
    launch = start(folder)
    wait_for_training(folder)[1].send_signal(signal.SIGINT)
    status, _ = finish(launch)
    assert status == 1
    manifest = failed_manifest(folder)
    assert manifest.status == "crashed"
    assert manifest.evidence.rank == 1
    assert "KeyboardInterrupt" in manifest.evidence.message
    assert any("Traceback" in line or "KeyboardInterrupt" in line for line in manifest.evidence.log_tail)


def test_launch_rank_hangs_is_ended_and_named(tmp_path: Path) -> None:
    folder = write_run(tmp_path, planned(tiny_point(steps=LONG), hang_timeout_s=6.0))
    launch = start(folder)
    wait_for_training(folder)[1].suspend()
    status, said = finish(launch)
    assert status == 1
    manifest = failed_manifest(folder)
    assert manifest.status == "hung"
    assert manifest.evidence.rank == 1
    assert "rank 1 does not react to signals" in said
    assert rank_processes(folder) == {}


def test_launch_time_limit_ends_gang(tmp_path: Path) -> None:
    folder = write_run(tmp_path, planned(tiny_point(steps=LONG), time_limit_s=4.0))
    status, said = finish(start(folder))
    assert status == 1
    assert "timeout" in said
    assert "time limit of 4 s reached" in said


def test_launch_out_of_memory_is_a_result(tmp_path: Path) -> None:
    huge = TINY.model_copy(update={"ffn_hidden_size": (1 << 31) - 1})
    folder = write_run(tmp_path, planned(tiny_point(model=huge)))
    status, said = finish(start(folder, trains=True))
    assert status == 0, said
    manifest = read_manifest(folder / "raw" / "manifest.json")
    assert manifest.status == "oom"
    assert "allocate" in manifest.evidence.message
    assert manifest.evidence.log_tail
    last = said.strip().splitlines()[-1]
    assert ": oom after" in last and manifest.evidence.message in last and "recompute: full" in last
    # What the rank had by then, and that it had not finished a step.
    assert manifest.facts["peak_memory_bytes"] > 0
    assert manifest.facts["num_steps_finished"] == 0


def test_launch_missing_corpus_is_one_line(tmp_path: Path) -> None:
    folder = write_run(tmp_path, planned(tiny_point(corpus=str(tmp_path / "no such text.txt"))))
    status, said = finish(start(folder, trains=True))
    assert status == 2
    errors = [line for line in said.splitlines() if line.startswith("triplepoint: ")]
    assert len(errors) == 1
    assert "no such text.txt" in errors[0]
    assert "Traceback" not in said
    assert not (folder / "raw").exists()


def test_launch_launcher_killed_takes_gang_along_and_can_start_again(tmp_path: Path) -> None:
    folder = write_run(tmp_path, planned(tiny_point(steps=LONG)))
    launch = start(folder)
    wait_for_training(folder)
    launch.kill()
    launch.wait()
    wait_until(lambda: not rank_processes(folder), "the gang ends after its launcher", 15)
    write_run(tmp_path, planned(tiny_point()))
    status, said = finish(start(folder))
    assert status == 0, said


def test_launch_terminated_ends_gang_at_once(tmp_path: Path) -> None:
    folder = write_run(tmp_path, planned(tiny_point(steps=LONG)))
    launch = start(folder)
    wait_for_training(folder)
    launch.terminate()
    status, said = finish(launch, 15)
    assert status == 130
    assert "Traceback" not in said
    wait_until(lambda: not rank_processes(folder), "the gang ends", 10)


def test_launch_twice_at_once_measures_once(tmp_path: Path) -> None:
    folder = write_run(tmp_path, planned(tiny_point()))
    first, second = start(folder), start(folder)
    said = [finish(launch) for launch in (first, second)]
    assert [status for status, _ in said] == [0, 0]
    assert sum("started 2 ranks" in text for _, text in said) == 1
    assert sum("already measured" in text for _, text in said) == 1


@pytest.mark.parametrize(
    ("run", "problem"),
    [
        ("../escape", ": no such folder"), ("..", ": a folder without point.json"), ("a b", " is not a run id"),
        ("x;reboot", " is not a run id"), ("Ünïcode", " is not a run id"), ("-rf", " is not a run id"),
        ("", " is not a run id"),
    ],
)  # fmt: skip
def test_launch_odd_run_id_is_refused(tmp_path: Path, run: str, problem: str) -> None:
    done = triplepoint(tmp_path, "launch", "--results", str(tmp_path), "--", run)
    assert done.returncode == 2
    assert done.stderr.startswith(f"triplepoint: {run!r}{problem}")
    assert len(done.stderr.splitlines()) == 1
    assert list(tmp_path.iterdir()) == []


@needs_mounts
def test_launch_disk_full_is_one_line_and_leaves_nothing(tmp_path: Path) -> None:
    small = tmp_path / "small"
    small.mkdir()
    write_run(tmp_path / "kept", planned(tiny_point()))
    script = (
        f"mount -t tmpfs -o size=24k tmpfs {small} && cp -r {tmp_path}/kept/. {small} && "
        f"{sys.executable} -m triplepoint launch tiny --results {small}; status=$?; "
        f"find {small} -name raw -o -path '*attempts/*'; exit $status"
    )
    done = subprocess.run(
        ["unshare", "-rm", "sh", "-c", script], env=environment(trains=False), capture_output=True, text=True
    )
    assert done.returncode == 2, done.stderr
    assert "no space left on the device" in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""


def test_launch_corpus_changed_since_the_plan_is_one_line(tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_text("one text, long enough for a sequence\n" * 10)
    point = with_contents(tiny_point(corpus=str(text)), Digests(tmp_path / "cache.json"))
    folder = write_run(tmp_path, planned(point))
    text.write_text("another text, long enough for a sequence\n" * 10)
    status, said = finish(start(folder))
    assert status == 2
    assert f"corpus {text}: changed since the plan was made" in said
    assert not (folder / "raw").exists()


def test_a_node_takes_its_place_among_the_hosts_of_the_point(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "gethostname", lambda: "n3.site")
    monkeypatch.setenv("SLURM_NODEID", "0")
    assert find_place(()) == 0
    assert find_place(("n7", "n3")) == 1, "whatever number Slurm gave it"


def test_agent_refuses_other_hosts_and_other_power_limits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "gethostname", lambda: "n3")
    monkeypatch.setattr(agent, "missing_devices", lambda device, number: None)
    cluster = PointCluster(name="h200x32", device="cuda", gpu="h200", gpus_per_node=8)

    def refused(checks: list[dict[str, str]] | None, host: str = "n3") -> str:
        point = tiny_point(cluster=cluster, hosts=(host,), gpu_power_limits_w=(f"{host}.gpu1:650",))
        found = find_obstacle(tmp_path, range(2), planned(point), checks)
        assert found is None or found.is_user_error
        return found.message if found else ""

    told = "gpu1: 700 W, the run is to have 650 W"
    assert refused([{"name": "power limit", "status": "ok", "found": "gpu0: 700 W"}]) == ""
    assert told in refused([{"name": "power limit", "status": "fail", "found": told}])
    assert "cannot be read" in refused(None)
    assert "hosts names n9, this is n3" in refused([], "n9")


def test_agent_refuses_a_corpus_that_changed_while_it_was_in_the_queue(tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_text("one text")
    point = with_contents(tiny_point(corpus=str(text)), Digests(tmp_path / "cache.json"))
    run = planned(point)
    raw = new_attempt(write_run(tmp_path, run), run, 1)
    note_contents(raw, run)
    assert find_obstacle(raw, range(2), run, []) is None
    text.write_text("two text")
    obstacle = find_obstacle(raw, range(2), run, [])
    assert obstacle is not None and obstacle.is_user_error
    assert "changed since the plan was made" in obstacle.message
