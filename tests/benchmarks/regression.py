"""Whether a change made the tool slower: CPU time of commands before and after it, in turn on one machine.

Run from the repository: python -m tests.benchmarks.regression [--base REVISION] [--rounds 5]

The working tree is compared with a revision of the repository. Prints the median ratio of each command; the exit
status is 1 if a command takes a fifth more than before in the median round and in four rounds of five.
"""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tests.benchmarks.startup import GRID, ROOT, cpu_s, keep_runs
from tests.benchmarks.trace_generate import write_trace

SLOWER = 1.2
"""Ratio of CPU times from which a command counts as slower."""
SHARE_OF_ROUNDS = 0.8
TRACE_GB = 0.1
SEARCH = ("search", "llama3-70b", "h200x32", "--batch", "128", "--set", "tp=4,8", "--set", "pp=2,4", "--set", "vp=1")


class Tree:
    """A state of the sources, and a folder in which its commands run.

    Attributes:
        environment: Environment in which Python imports these sources.
        folder: Working directory of the commands.
        run: A simulated run of its plan.
    """

    def __init__(self, sources: Path, folder: Path) -> None:
        self.environment = {**os.environ, "PYTHONPATH": str(sources / "src")}
        self.folder = folder
        folder.mkdir()
        for name in ("config", "workflow"):
            (folder / name).symlink_to(sources / name)
        self.cpu_s(("plan", *GRID, "--write"))
        (self.run,) = keep_runs(folder / "results" / "plan.json", 1)

    def cpu_s(self, words: Sequence[str]) -> float:
        """Return the CPU time of `triplepoint WORDS`. Unit: s."""
        return cpu_s(["-m", "triplepoint", *words], self.folder, self.environment)

    def commands(self, trace: Path) -> dict[str, tuple[str, ...]]:
        """Return the commands that are timed, in the order in which they need each other."""
        return {
            "--help": ("--help",),
            "plan of the grid": ("plan", *GRID),
            "predict": ("predict", "config/studies/parallelism.yaml"),
            "search": SEARCH,
            "simulate": ("simulate", self.run),
            "telemetry": ("telemetry", self.run),
            "trace of the run": ("trace", "--run", self.run, "--parse", "--jobs", "1"),
            "aggregate": ("aggregate",),
            f"trace of {1000 * TRACE_GB:.0f} MB": ("trace", str(trace), "--out", "parsed"),
        }


def check_out(revision: str, folder: Path) -> Path:
    """Write the sources of a revision into a new folder and compile their extensions; return the folder."""
    folder.mkdir()
    archive = subprocess.run(["git", "archive", revision], cwd=ROOT, check=True, stdout=subprocess.PIPE).stdout
    subprocess.run(["tar", "-x", "-C", str(folder)], input=archive, check=True)
    build = [sys.executable, "-c", "import setuptools; setuptools.setup()", "-q", "build_ext", "--inplace"]
    subprocess.run(build, cwd=folder, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return folder


def compare(before: Tree, after: Tree, trace: Path, rounds: int) -> list[str]:
    """Print the ratio of each command; return those that became slower."""
    slower = []
    for name, words in after.commands(trace).items():
        pair = [(before, before.commands(trace)[name]), (after, words)]
        for tree, command in pair:
            tree.cpu_s(command)  # once uncounted: byte code is compiled, files are cached
        ratios = []
        for number in range(rounds):
            taken = {tree: tree.cpu_s(command) for tree, command in pair[:: 1 if number % 2 else -1]}
            ratios.append(taken[after] / taken[before])
        is_slower = statistics.median(ratios) > SLOWER
        is_slower &= sum(ratio > SLOWER for ratio in ratios) >= SHARE_OF_ROUNDS * rounds
        slower += [name] * is_slower
        told = f"{name:20} {statistics.median(ratios):5.2f} times the CPU time"
        print(f"{told} ({min(ratios):.2f} to {max(ratios):.2f}){'   slower' * is_slower}", flush=True)
    return slower


def main() -> int:
    """Compare the working tree with a revision."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--base", default="HEAD~1", metavar="REVISION", help="what to compare with (default: HEAD~1)")
    parser.add_argument("--rounds", type=int, default=5, help="timings of each command and side (default: 5)")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        scratch = Path(name)
        trace = scratch / "trace.json.gz"
        write_trace(trace, TRACE_GB)
        before = Tree(check_out(arguments.base, scratch / "sources"), scratch / "before")
        slower = compare(before, Tree(ROOT, scratch / "after"), trace, arguments.rounds)
    print(f"slower than {arguments.base}: {', '.join(slower) or 'nothing'}")
    return 1 if slower else 0


if __name__ == "__main__":
    sys.exit(main())
