"""Starting launchers on this machine, and finding the processes of their gangs."""

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
"""First in PYTHONPATH it has ranks keep step and write steps, without training."""


def start(folder: Path, *options: str, trains: bool = False, **variables: str) -> subprocess.Popen[str]:
    """Start `triplepoint launch`, with the stub engine unless it `trains`."""
    command = [
        sys.executable,
        "-m",
        "triplepoint",
        "launch",
        folder.name,
        "--results",
        str(folder.parents[1]),
        *options,
    ]
    return subprocess.Popen(
        command,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(trains, variables),
        # A shell starts background jobs with SIGINT ignored, and all their children inherit that: CI may be one.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )


def environment(trains: bool, variables: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the variables of a launcher, changed by `variables`: with the stub engine unless it `trains`."""
    changed = os.environ | (variables or {})
    path = [*([] if trains else [STUB_ENGINE]), *filter(None, [changed.get("PYTHONPATH")])]
    return changed | {"PYTHONPATH": os.pathsep.join(path)} if path else dict(changed)


def finish(launcher: subprocess.Popen[str], timeout_s: float = WAIT_S) -> tuple[int, str]:
    """Wait for a launcher; return its exit status and what it said."""
    _, said = launcher.communicate(timeout=timeout_s)
    return launcher.returncode, said


def wait_until(holds: Callable[[], Any], what: str, timeout_s: float = WAIT_S) -> Any:
    """Return what `holds` returns once that is true."""
    deadline = time.monotonic() + timeout_s
    while not (found := holds()):
        assert time.monotonic() < deadline, f"never: {what}"
        time.sleep(0.05)
    return found


def rank_processes(folder: Path) -> dict[int, psutil.Process]:
    """Return the running ranks of a run or of one of its attempts, by rank."""
    found: dict[int, psutil.Process] = {}
    for process in psutil.process_iter(["cmdline", "environ", "ppid"]):
        words = process.info["cmdline"] or []
        if "triplepoint.launch.rank" in words and Path(words[-1]).is_relative_to(folder):
            rank = int((process.info["environ"] or {}).get("RANK", -1))
            # Before it becomes another program, a child of a rank has its parent's words.
            if rank not in found or found[rank].info["ppid"] == process.pid:
                found[rank] = process
    return found


def held(folder: Path, num_ranks: int = 2) -> list[psutil.Process]:
    """Have ranks of the stub engine stop before their first step; return them once all did."""
    hold = folder / "hold"

    def ranks() -> list[psutil.Process]:
        found = [rank for rank in rank_processes(folder).values() if rank.status() == psutil.STATUS_STOPPED]
        return found if len(found) == num_ranks else []

    hold.touch()
    found: list[psutil.Process] = wait_until(ranks, "ranks stop")
    hold.unlink()
    return found


def let_go(ranks: list[psutil.Process]) -> None:
    """Let stopped ranks go on."""
    for process in ranks:
        process.resume()


def training(folder: Path) -> dict[int, psutil.Process]:
    """Wait until both ranks have finished steps, and return their processes."""

    def stepping() -> bool:
        files = list(folder.glob("attempts/*/steps/rank*.jsonl"))
        return len(files) == 2 and all(file.read_bytes().count(b"\n") >= 2 for file in files)

    wait_until(stepping, "both ranks train")
    return rank_processes(folder)


def sampler_process(folder: Path) -> psutil.Process | None:
    """Return the running sampler of a run."""
    for process in psutil.process_iter(["cmdline"]):
        words = process.info["cmdline"] or []
        if "sample" in words and any(word.startswith(str(folder)) for word in words):
            return process
    return None
