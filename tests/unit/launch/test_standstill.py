"""Ranks and nodes that stand still, and the steps that suffer from it."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from tests.points import planned, tiny_point, write_run
from tests.unit.launch.test_launch import finish, start, training
from triplepoint.config.point import Steps
from triplepoint.launch import standstill
from triplepoint.launch.standstill import Watch, interruptions, is_stopped, slow_steps
from triplepoint.manifest import read_manifest

S = 1_000_000_000
MS = 1_000_000


def look_until(watch: Watch, end_s: float, stopped: dict[int, tuple[float, float]], jump: tuple[float, float]) -> None:
    """Let a watch look around in virtual time.

    Args:
        watch: The watch.
        end_s: When to end.
        stopped: By rank, from when to when it is stopped.
        jump: From when to when the watch itself does not run.
    """
    now_s = 0.0
    while now_s < end_s:
        ranks = {rank for rank, (begin, end) in stopped.items() if begin <= now_s < end}
        watch.look(round(now_s * S), round(now_s * S), ranks)
        now_s += standstill.TICK_S
        if jump[0] < now_s < jump[1]:
            now_s = jump[1]


def row(rank: int, step: int, start_s: float, end_s: float, kind: str = "measured") -> dict[str, Any]:
    return {"rank": rank, "step": step, "kind": kind, "t_start_ns": round(start_s * S), "t_end_ns": round(end_s * S)}


def report(watch: Watch, ranks: list[int]) -> dict[str, Any]:
    return {"host": "n1", "ranks": ranks, "standstills": [vars(found) for found in watch.found]}


def test_watch_sees_a_stopped_rank() -> None:
    watch = Watch()
    look_until(watch, 20.0, {1: (5.0, 13.0)}, jump=(99, 99))
    (found,) = watch.found
    assert found.rank == 1
    assert 5.0 <= found.from_ns / S < found.to_ns / S <= 13.0
    assert 7.5 < found.duration_s <= 8.0


def test_watch_sees_its_own_absence() -> None:
    watch = Watch()
    look_until(watch, 20.0, {}, jump=(5.0, 13.0))
    (found,) = watch.found
    assert found.rank is None
    assert 5.0 <= found.from_ns / S < found.to_ns / S <= 13.0
    assert 7.5 < found.duration_s <= 8.0


def test_watch_that_is_late_by_a_little_sees_nothing() -> None:
    watch = Watch()
    look_until(watch, 20.0, {}, jump=(5.0, 5.9))
    assert watch.found == []


def test_watch_sees_a_machine_that_slept() -> None:
    watch = Watch()
    watch.look(10 * S, 10 * S, [])
    watch.look(10 * S + 200 * MS, 3610 * S + 200 * MS, [])  # the monotonic clock slept too
    (found,) = watch.found
    assert found.duration_s == 3600.0
    assert found.from_ns <= found.to_ns == 10 * S + 200 * MS


def test_is_stopped_of_a_real_process() -> None:
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"]) as process:
        assert not is_stopped(process.pid)
        process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WNOWAIT)
        assert is_stopped(process.pid)
        process.kill()
    assert not is_stopped(process.pid)


def test_interruptions_names_the_steps_they_fell_into() -> None:
    watch = Watch()
    look_until(watch, 20.0, {1: (5.0, 13.0)}, jump=(99, 99))
    rows = [
        *(row(rank, 0, 4.0, 4.9, "warmup") for rank in (0, 1)),
        *(row(rank, 1, 4.9, 13.1) for rank in (0, 1)),
        *(row(rank, 2, 13.1, 14.0) for rank in (0, 1)),
    ]
    rows.sort(key=lambda row: (row["rank"], row["step"]))
    (found,) = interruptions([report(watch, [0, 1])], rows)
    assert (found.host, found.rank, found.steps, found.measured_steps) == ("n1", 1, (1,), (1,))
    seconds = f"{found.duration_s:.1f}"
    assert str(found) == f"rank 1 on n1 stood still for {seconds} s or more in step 1; measured step 1 left out"


def test_interruptions_between_two_steps_spoil_the_second() -> None:
    watch = Watch()
    look_until(watch, 20.0, {1: (5.0, 13.0)}, jump=(99, 99))
    rows = [row(1, 0, 4.0, 4.9, "warmup"), row(1, 1, 13.1, 13.2), row(1, 2, 13.2, 13.3)]
    (found,) = interruptions([report(watch, [0, 1])], rows)
    assert found.measured_steps == (1,)


def test_interruptions_before_the_first_step_spoil_none() -> None:
    watch = Watch()
    look_until(watch, 20.0, {}, jump=(1.0, 3.0))
    (found,) = interruptions([report(watch, [0])], [row(0, 0, 4.0, 4.9), row(0, 1, 4.9, 5.0)])
    assert str(found).endswith("or more outside of steps")


def test_slow_steps_names_step_and_rank() -> None:
    rows = [row(rank, step, step, step + 0.027) for step in range(10) for rank in (0, 1)]
    rows[-1] = row(1, 9, 9, 17)
    (found,) = slow_steps(rows, frozenset())
    assert (found.step, found.rank, found.time_s) == (9, 1, 8.0)
    assert found.median_s == 0.027
    assert slow_steps(rows, frozenset({9})) == ()


def test_launch_stopped_rank_is_in_the_manifest_and_said(tmp_path: Path) -> None:
    steps = Steps(warmup=1, measured=300, profiled=0)
    folder = write_run(tmp_path, planned(tiny_point(steps=steps)))
    launch = start(folder)
    ranks = training(folder)
    ranks[1].suspend()
    time.sleep(1.2)
    ranks[1].resume()
    status, said = finish(launch)
    assert status == 0, said
    manifest = read_manifest(folder / "raw" / "manifest.json")
    (found,) = manifest.interruptions
    assert found.rank == 1
    assert len(found.measured_steps) == 1
    assert manifest.interrupted_steps == frozenset(found.measured_steps)
    assert f"measured step {found.measured_steps[0]} left out" in said
