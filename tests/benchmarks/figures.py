"""CPU time of figures: each in a process of its own, and a missing one that Snakemake redraws.

Run from the repository: python -m tests.benchmarks.figures RESULTS [NAME ...]

RESULTS is a folder of runs and tables, such as that of the whole grid; figures whose studies it lacks are named and
left out. The second measurement copies the project, simulates study `throttling` and redraws one of its figures.
"""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.benchmarks.dag import PARTS, ROOT, measure
from triplepoint.figures import NAMES

REDRAWN = "figs/throttling.pdf"


def draw(name: str, results: Path, out: Path) -> tuple[float, int] | None:
    """Return CPU time (s) and peak memory (bytes) of the process that draws a figure; None if it fails."""
    command = [sys.executable, "-m", "triplepoint", "figure", name, "--results", str(results), "--out", str(out)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    return None if process.returncode else (usage.ru_utime + usage.ru_stime, usage.ru_maxrss * 1024)


def draw_all(results: Path, names: list[str]) -> None:
    """Print CPU time and memory of each figure, and their sum."""
    total_s, most = 0.0, 0
    with tempfile.TemporaryDirectory() as out:
        for name in names:
            cost = draw(name, results, Path(out))
            if cost is None:
                print(f"{name:24} not drawn")
                continue
            total_s, most = total_s + cost[0], max(most, cost[1])
            print(f"{name:24} {cost[0]:6.2f} CPU s {cost[1] / 1e6:6.0f} MB", flush=True)
    print(f"{'all':24} {total_s:6.1f} CPU s {most / 1e6:6.0f} MB at most")


def redraw() -> None:
    """Print the time of `snakemake` for one missing figure of existing results."""
    with tempfile.TemporaryDirectory() as scratch:
        for part in PARTS:
            subprocess.run(["cp", "-r", ROOT / part, scratch], check=True)
        python_path = os.pathsep.join(filter(None, sys.path))
        binaries = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
        environment = os.environ | {"PYTHONPATH": python_path, "PATH": binaries}
        command = [sys.executable, "-m", "snakemake", REDRAWN, "--config", "simulated=[h200x32]"]
        measure(command, Path(scratch), environment)
        for _ in range(3):
            (Path(scratch) / REDRAWN).unlink()
            wall_s, cpu_s, _ = measure(command, Path(scratch), environment)
            print(f"snakemake {REDRAWN}: {wall_s:.1f} s wall, {cpu_s:.1f} CPU s")


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    draw_all(Path(sys.argv[1]), sys.argv[2:] or list(NAMES))
    redraw()
