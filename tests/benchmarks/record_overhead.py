"""Overhead of `triplepoint record` on a job, on and off in turn within one process.

`python -m tests.benchmarks.record_overhead [PAIRS]` runs a loop of equal steps under `triplepoint record`. In blocks of
steps, by turns of order, it marks its steps with the sampler and its watcher going on, or does neither with both of
them stopped (SIGSTOP). CPU time is compared, of the job and of what runs beside it: wall time of a shared machine is
off by 6 % from block to block. A last line has the job's wall time too.
"""

import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from triplepoint.metrics import robust_sigma
from triplepoint.recorded.marks import SESSION, Marks

ROOT = Path(__file__).parents[2]
STEPS, PAIRS = 5, 120
"""Steps of a block, and pairs of blocks."""
_SIZE, _PRODUCTS = 384, 24
"""Matrix products of a step: some 50 ms of one core."""


def cpu_s(pids: Sequence[int]) -> float:
    """Return the CPU time of processes without their ended children. Unit: s."""
    ticks = 0
    for pid in pids:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def beside() -> list[int]:
    """Return the processes of `triplepoint record`: its main process and the sampler."""
    parent = os.getppid()
    children = Path(f"/proc/{parent}/task/{parent}/children").read_text().split()
    return [parent, *(int(pid) for pid in children if int(pid) != os.getpid())]


def block(marks: Marks | None, pids: Sequence[int]) -> dict[str, float]:
    """Run one block; return its CPU time, its wall time, and the CPU time of the recording. Unit: s."""
    values = np.random.default_rng(1).standard_normal((_SIZE, _SIZE)) / _SIZE**0.5
    for pid in pids:
        os.kill(pid, signal.SIGCONT if marks is not None else signal.SIGSTOP)
    begun = time.process_time(), time.perf_counter(), cpu_s(pids)
    for _ in range(STEPS):
        product = values
        for _ in range(_PRODUCTS):
            product = product @ values
        if marks is not None:
            marks.mark("calls")
    ended = time.process_time(), time.perf_counter(), cpu_s(pids)
    return dict(
        zip(("job", "wall", "beside"), (end - start for start, end in zip(begun, ended, strict=True)), strict=True)
    )


def loop(pairs: int, out: Path) -> None:
    """Run pairs of blocks, with and without recording, and write their times."""
    pids = beside()
    if len(pids) < 2:
        raise SystemExit("no sampler runs beside the loop; start it with 'triplepoint record'")
    marks = Marks(Path(os.environ[SESSION]), 0, "calls")
    marks.begin()
    block(marks, pids)
    found = []
    for pair in range(pairs):
        order = (True, False) if pair % 2 else (False, True)
        found.append({"on" if is_on else "off": block(marks if is_on else None, pids) for is_on in order})
    for pid in pids:
        os.kill(pid, signal.SIGCONT)
    marks.end()
    out.write_text(json.dumps(found))


def mark_us(folder: Path, num: int = 10_000) -> float:
    """Return the time of one mark. Unit: us."""
    marks = Marks(folder, 0, "calls")
    marks.mark("calls")
    begun = time.perf_counter()
    for _ in range(num):
        marks.mark("calls")
    return (time.perf_counter() - begun) / num * 1e6


def measure(pairs: int) -> list[dict[str, dict[str, float]]]:
    """Return the blocks of a recorded loop, `on` and `off` of each pair."""
    with tempfile.TemporaryDirectory() as name:
        out = Path(name) / "blocks.json"
        watch = [sys.executable, "-m", "triplepoint", "record", "--steps", "calls", "--results", f"{name}/results"]
        job = [sys.executable, "-m", "tests.benchmarks.record_overhead", "--loop", str(pairs), str(out)]
        paths = os.pathsep.join([str(ROOT / "src"), str(ROOT), os.environ.get("PYTHONPATH", "")])
        one_core = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
        environment = os.environ | one_core | {"PYTHONPATH": paths}
        subprocess.run([*watch, "--", *job], check=True, capture_output=True, env=environment)
        found: list[dict[str, dict[str, float]]] = json.loads(out.read_text())
        return found


def main(pairs: int) -> None:
    """Print cost of a mark, and of the recording."""
    with tempfile.TemporaryDirectory() as name:
        print(f"a mark: {mark_us(Path(name)):.1f} us")
    blocks = measure(pairs)
    step_s = statistics.median(pair["off"]["job"] for pair in blocks) / STEPS
    print(f"{pairs} pairs of {STEPS} steps of {1e3 * step_s:.1f} ms CPU time, {os.cpu_count()} cores")
    for name in ("job", "wall"):
        values = [pair["on"][name] / pair["off"][name] - 1 for pair in blocks]
        # Of a median, by the median absolute deviation: a few blocks in which the machine was away do not count.
        error = 1.2533 * robust_sigma(values) / len(values) ** 0.5
        about = "CPU time of the job" if name == "job" else "wall time of the job"
        print(f"{about}: median of pairs {statistics.median(values):+.2%}, standard error {error:.2%}")
    # Of sums: a process's CPU time is counted in ticks of 10 ms, too coarse for one block.
    beside_s, wall_s = (sum(pair["on"][name] for pair in blocks) for name in ("beside", "wall"))
    print(f"sampler and watcher: {beside_s / wall_s:.2%} of one core")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--loop"]:
        loop(int(sys.argv[2]), Path(sys.argv[3]))
    else:
        main(int(sys.argv[1]) if sys.argv[1:] else PAIRS)
