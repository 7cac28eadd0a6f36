"""Starts launchers on this machine, and finds the processes of their gangs."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import psutil

from triplepoint.config.point import Steps

WAIT_S = 150.0
LONG = Steps(warmup=1, measured=10_000, profiled=0)
STUB_ENGINE = str(Path(__file__).with_name("stub_engine"))
"""Folder that, first in PYTHONPATH, makes ranks use the stub engine, which writes steps without training."""


def start(folder: Path, *options: str, trains: bool = False, **variables: str) -> subprocess.Popen[str]:
    """Start `triplepoint launch`.

    Args:
        folder: Folder of the run.
        options: Further options of the command.
        trains: Whether ranks train. If not, they use the stub engine.
        variables: Environment variables to change.
    """
    words = [sys.executable, "-m", "triplepoint", "launch", folder.name, "--results", str(folder.parents[1])]
    return subprocess.Popen(
        [*words, *options],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(trains, variables),
        # CI can be a background job of a shell, whose children ignore SIGINT.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )


def environment(trains: bool, variables: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the environment variables of a launcher. Arguments as for `start`."""
    changed = os.environ | (variables or {})
    path = [*([] if trains else [STUB_ENGINE]), *filter(None, [changed.get("PYTHONPATH")])]
    return changed | {"PYTHONPATH": os.pathsep.join(path)} if path else dict(changed)


def finish(launcher: subprocess.Popen[str], timeout_s: float = WAIT_S) -> tuple[int, str]:
    """Wait for the end of a launcher; return its exit status and standard error."""
    _, output = launcher.communicate(timeout=timeout_s)
    return launcher.returncode, output


def wait_until(condition: Callable[[], Any], what: str, timeout_s: float = WAIT_S) -> Any:
    """Wait until a condition returns something true; return that.

    Args:
        condition: The condition.
        what: Description of the condition, for the message of a failure.
        timeout_s: Longest wait. Unit: s.
    """
    deadline = time.monotonic() + timeout_s
    while not (result := condition()):
        assert time.monotonic() < deadline, f"never: {what}"
        time.sleep(0.05)
    return result


def rank_processes(folder: Path) -> dict[int, psutil.Process]:
    """Return the running processes of ranks, by rank.

    Args:
        folder: Folder of a run, or of one of its attempts.
    """
    ranks: dict[int, psutil.Process] = {}
    for process in psutil.process_iter(["cmdline", "name", "ppid"]):
        words, name = process.info["cmdline"] or [], process.info["name"]
        if "triplepoint.launch.rank" in words and Path(words[-1]).is_relative_to(folder) and name.startswith("rank"):
            rank = int(name.removeprefix("rank"))
            # A child of a rank has its parent's command line until it executes another program.
            if rank not in ranks or ranks[rank].info["ppid"] == process.pid:
                ranks[rank] = process
    return ranks


def hold_ranks(folder: Path, num_ranks: int = 2) -> list[psutil.Process]:
    """Make the ranks of a run, which use the stub engine, stop before their first step; return their processes."""
    hold = folder / "hold"

    def stopped_ranks() -> list[psutil.Process]:
        stopped = [rank for rank in rank_processes(folder).values() if rank.status() == psutil.STATUS_STOPPED]
        return stopped if len(stopped) == num_ranks else []

    hold.touch()
    ranks: list[psutil.Process] = wait_until(stopped_ranks, "ranks stop")
    hold.unlink()
    return ranks


def resume(ranks: list[psutil.Process]) -> None:
    """Resume stopped ranks."""
    for process in ranks:
        process.resume()


def have_steps(attempt: Path, num_ranks: int) -> bool:
    """Return whether all ranks of an attempt have finished two steps."""
    files = list(attempt.glob("steps/rank*.jsonl"))
    return len(files) == num_ranks and all(file.read_bytes().count(b"\n") >= 2 for file in files)


def wait_for_training(folder: Path) -> dict[int, psutil.Process]:
    """Wait until both ranks of a run have finished two steps; return their processes by rank."""
    wait_until(lambda: any(have_steps(attempt, 2) for attempt in folder.glob("attempts/*")), "both ranks train")
    return rank_processes(folder)


def sampler_process(folder: Path) -> psutil.Process | None:
    """Return the process of the sampler of a run, None if it does not run."""
    for process in psutil.process_iter(["cmdline"]):
        words = process.info["cmdline"] or []
        if "sample" in words and any(word.startswith(str(folder)) for word in words):
            return process
    return None
