"""Energy of a node's GPUs over each kind of steps, measured by Zeus alongside the sampler.

This is a separate process, `python -m triplepoint.telemetry.zeus_windows`: importing Zeus takes over a second, for
which no rank should wait. It follows the progress of the ranks in a file to which one of them writes a line per step.

Only Zeus's differences of the driver's energy counters are used (`ZeusMonitor.begin_window`, `end_window`). Its power
monitors drop equal samples, and spin if their period is not given.
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
"""Period at which the progress of the ranks is checked."""
VISIBILITY = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES")
"""Variables that are removed, so that Zeus numbers GPUs in the driver's order like the sampler."""


def blocks(kinds: list[str]) -> list[tuple[str, int, int]]:
    """Return kind, first step and end of each block of consecutive steps of one kind, without warm-up."""
    spans, first = [], 0
    for kind, group in groupby(kinds):
        end = first + len(list(group))
        if kind != "warmup":
            spans.append((kind, first, end))
        first = end
    return spans


def watch(out: Path, steps: Path, kinds: list[str], num_gpus: int) -> None:
    """Measure the energy of each block of steps and write all completed ones to a file.

    Args:
        out: JSON file. `windows`: times on the monotonic clock and energy of each GPU; `absent`: why windows are
            missing.
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
            end_ns, measurement = _call(monitor.end_window, kind)
        except Exception as error:  # any failure of Zeus, even a GPU off the bus, goes to the manifest
            absent = f"Zeus failed in the {kind} steps ({_one_line(error)})"
            break
        energy_j = {f"gpu{gpu}": float(joules) for gpu, joules in measurement.gpu_energy.items()}
        if done >= end:
            windows.append({"kind": kind, "t_start_ns": start_ns, "t_end_ns": end_ns, "energy_j": energy_j})
            write_json(out, {"windows": windows, "absent": absent})
    write_json(out, {"windows": windows, "absent": absent})


def _wait(steps: Path, number: int, stop: Stop) -> int:
    """Wait until a number of steps is done, or a stop is requested; return the number done."""
    while (done := steps.read_bytes().count(b"\n") if steps.exists() else 0) < number and not stop.asked:
        time.sleep(POLL_S)
    return done


def _call(function: Callable[..., Any], kind: str) -> tuple[int, Any]:
    """Return the time in the middle of a call of Zeus, in ns, and its result."""
    before_ns = time.monotonic_ns()
    result = function(kind, sync_execution=False)
    return (before_ns + time.monotonic_ns()) // 2, result


def _one_line(error: Exception) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())


def _open_monitor(num_gpus: int) -> tuple[Any, str | None]:
    """Return Zeus's monitor, or None and the reason; a run without Zeus does not fail."""
    for name in VISIBILITY:
        os.environ.pop(name, None)
    try:
        from zeus.monitor import ZeusMonitor
    except ImportError as error:
        return None, f"Zeus is not installed ({error})"
    # If dies share a sensor in pairs, Zeus accepts only the first of each pair.
    problem = ""
    for every in (1, 2):
        try:
            return ZeusMonitor(gpu_indices=list(range(0, num_gpus, every)), cpu_indices=[]), None
        except Exception as error:  # training continues after any failure, and the reason goes to the manifest
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
