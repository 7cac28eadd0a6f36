"""Ranks and nodes that stand still, and the steps that suffer from it."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.points import planned, tiny_point, write_run
from tests.unit.launch.test_launch import finish, rank_processes, start, wait_until
from triplepoint.config.point import Steps
from triplepoint.launch.standstill import MOST_NAMED, TICK_S, Watch, interruptions, is_stopped, slow_steps
from triplepoint.manifest import Interruption, Manifest, read_manifest

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
        now_s += TICK_S
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


def test_interruptions_spoil_the_step_in_which_others_wait() -> None:
    watch = Watch()
    look_until(watch, 20.0, {1: (5.0, 13.0)}, jump=(99, 99))
    rows = [row(rank, step, 13.3 + step, 13.4 + step) for rank in (0, 1) for step in range(1, 6)]
    # Rank 1 is stopped at the end of step 0, which rank 0 has finished: that waits in step 1.
    rows = [row(0, 0, 4.8, 4.9), row(0, 1, 4.9, 13.4), *rows[1:5], row(1, 0, 4.8, 13.2), *rows[5:]]
    (found,) = interruptions([report(watch, [0, 1])], rows)
    assert found.measured_steps == (0, 1)


def test_interruptions_before_the_first_step_spoil_none() -> None:
    watch = Watch()
    look_until(watch, 20.0, {}, jump=(1.0, 3.0))
    (found,) = interruptions([report(watch, [0])], [row(0, 0, 4.0, 4.9), row(0, 1, 4.9, 5.0)])
    assert str(found).endswith("or more outside of steps")


def test_slow_steps_names_step_and_rank() -> None:
    rows = [row(rank, step, step, step + 0.027) for step in range(10) for rank in (0, 1)]
    rows[-1] = row(1, 9, 9, 17)
    found = slow_steps(rows, frozenset())
    assert str(found) == (
        "1 of 10 measured steps took over 3 times the median of 0.027 s, longest 9 (8 s, rank 1); they count"
    )
    assert slow_steps(rows, frozenset({9})) is None


def test_slow_steps_of_a_machine_in_use_are_one_line() -> None:
    rows = [row(0, step, step, step + (0.5 if step % 3 == 0 else 0.03)) for step in range(300)]
    found = slow_steps(rows, frozenset())
    assert found is not None
    assert (found.num, len(found.longest)) == (100, MOST_NAMED)


def test_manifest_of_many_nodes_that_stood_still_says_it_in_few_lines() -> None:
    found = Interruption(host="n1", rank=None, duration_s=8.0, steps=(1,), measured_steps=(1,))
    notes = Manifest.model_construct(interruptions=(found,) * 100, slow_steps=None, facts={}).step_notes
    assert len(notes) == 9
    assert notes[-1] == "92 more interruptions"


@pytest.mark.long
def test_launch_stopped_rank_is_in_the_manifest_and_said(tmp_path: Path) -> None:
    steps = Steps(warmup=1, measured=80, profiled=0)
    folder = write_run(tmp_path, planned(tiny_point(steps=steps)))
    launch = start(folder, trains=True)
    ranks = wait_until(lambda: len(found := rank_processes(folder)) == 2 and found, "both ranks start")
    (raw,) = folder.glob("attempts/*")
    rows = raw / "steps" / "rank1.jsonl"
    while not rows.exists() or rows.read_bytes().count(b"\n") < 2:
        assert launch.poll() is None
        time.sleep(0.005)
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
