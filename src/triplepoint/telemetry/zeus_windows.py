"""Zeus alongside the sampler: the energy of a node's GPUs during each kind of steps, as Zeus measures it.

A process of its own, `python -m triplepoint.telemetry.zeus_windows`: importing Zeus takes over a second, which no rank
is to wait for. It learns where the ranks are from the file in which one of them writes a line per step.

Zeus is asked for nothing but the difference of the driver's energy counters (`ZeusMonitor.begin_window`, `end_window`):
its power monitors drop equal samples, and spin where their period is not given.
"""

import argparse
import json
import os
import signal
import time
from collections.abc import Callable
from itertools import groupby
from pathlib import Path
from typing import Any

from triplepoint.files import write_json
from triplepoint.processes import Stop, die_with_parent

POLL_S = 0.02
"""Between two looks at the ranks' progress."""
VISIBILITY = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES")
"""Left aside: GPUs are numbered as the sampler numbers them, in the driver's order."""


def blocks(kinds: list[str]) -> list[tuple[str, int, int]]:
    """Return kind, first step and step after the last of each run of equal steps, warm-up left out."""
    found, at = [], 0
    for kind, group in groupby(kinds):
        length = len(list(group))
        if kind != "warmup":
            found.append((kind, at, at + length))
        at += length
    return found


def watch(out: Path, steps: Path, kinds: list[str], num_gpus: int) -> None:
    """Measure a window for each kind of steps and write all that ended to `out`.

    Args:
        out: JSON file: `windows`, each with its times on the monotonic clock and the energy of each GPU; `absent`, why
            there are none, or not all.
        steps: File to which a rank of this node appends a line after each step.
        kinds: Kind of each step.
        num_gpus: GPUs of this node to measure, in the driver's order.
    """
    stop, windows = Stop(signal.SIGTERM), []
    monitor, absent = _open_monitor(num_gpus)
    write_json(out, {"windows": [], "absent": absent})
    for kind, first, end in blocks(kinds) if monitor is not None else []:
        if _wait(steps, first, stop) >= end:
            absent = f"Zeus was not ready before the {kind} steps were over"
            continue
        try:
            start_ns, _ = _call(monitor.begin_window, kind)
            done = _wait(steps, end, stop)
            end_ns, found = _call(monitor.end_window, kind)
        except Exception as error:  # whatever Zeus meets, a GPU off the bus too, the manifest says so
            absent = f"Zeus failed in the {kind} steps ({_one_line(error)})"
            break
        energy_j = {f"gpu{gpu}": float(joules) for gpu, joules in found.gpu_energy.items()}
        if done >= end:
            windows.append({"kind": kind, "t_start_ns": start_ns, "t_end_ns": end_ns, "energy_j": energy_j})
            write_json(out, {"windows": windows, "absent": absent})
    write_json(out, {"windows": windows, "absent": absent})


def _wait(steps: Path, number: int, stop: Stop) -> int:
    """Wait until so many steps are done, or told to stop, and return how many are."""
    while (done := steps.read_bytes().count(b"\n") if steps.exists() else 0) < number and not stop.asked:
        time.sleep(POLL_S)
    return done


def _call(function: Callable[..., Any], kind: str) -> tuple[int, Any]:
    """Return the time in the middle of a call of Zeus, and what it returned. Unit: ns."""
    before_ns = time.monotonic_ns()
    found = function(kind, sync_execution=False)
    return (before_ns + time.monotonic_ns()) // 2, found


def _one_line(error: Exception) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())


def _open_monitor(num_gpus: int) -> tuple[Any, str | None]:
    """Return Zeus's monitor, or None and why there is none: a run does without rather than fail."""
    for name in VISIBILITY:
        os.environ.pop(name, None)
    try:
        from zeus.monitor import ZeusMonitor
    except ImportError as error:
        return None, f"Zeus is not installed ({error})"
    # Of two dies that share a sensor, Zeus takes the first only.
    problem = ""
    for every in (1, 2):
        try:
            return ZeusMonitor(gpu_indices=list(range(0, num_gpus, every)), cpu_indices=[]), None
        except Exception as error:  # whatever it is, training goes on and the manifest says so
            problem = problem or _one_line(error)
    return None, f"Zeus could not be started ({problem})"


if __name__ == "__main__":
    die_with_parent()
    parser = argparse.ArgumentParser()
    parser.add_argument("out", type=Path)
    parser.add_argument("steps", type=Path)
    parser.add_argument("kinds", type=json.loads)
    parser.add_argument("num_gpus", type=int)
    watch(**vars(parser.parse_args()))
