"""CPU time and memory of `triplepoint trace` against decompression alone, HTA, and the loop of the published artifact.

Run from the repository: python -m tests.benchmarks.trace_compare --raw-gb 1

All run in turn on the same trace, synthetic unless one is given. HTA and ijson are installed into a virtual environment
of their own, thrown away with everything else unless `--work` names a folder to keep it in. `--times 10` measures the
command once more on a trace ten times as long: its memory must not grow.
"""

import argparse
import os
import subprocess
import sys
import sysconfig
import tempfile
import venv
from pathlib import Path
from typing import NamedTuple

OURS = "triplepoint trace"
UNPACK = """
import sys
from {module} import decompressobj
unpack = decompressobj(wbits=31)
with open(sys.argv[1], "rb") as file:
    while block := file.read(1 << 18):
        unpack.decompress(block)
"""
HTA = """
import sys
from hta.trace_analysis import TraceAnalysis
analysis = TraceAnalysis(trace_files={0: sys.argv[1]})
print(analysis.get_temporal_breakdown(visualize=False).to_string())
print(analysis.get_gpu_kernel_breakdown(visualize=False)[0].to_string())
print(analysis.get_comm_comp_overlap(visualize=False).to_string())
"""
LOOP = """
import gzip, sys
import ijson.backends.yajl2_c as ijson
totals = {}
with gzip.open(sys.argv[1]) as file:
    for event in ijson.items(file, "traceEvents.item"):
        if event.get("cat") == "kernel":
            count, total = totals.get(event["name"], (0, 0))
            totals[event["name"]] = (count + 1, total + event["dur"])
print(len(totals), sum(count for count, _ in totals.values()))
"""
"""Analysis of a trace as in the artifact of the paper, rewritten: count and time of each kernel name."""

OTHERS = ("HolisticTraceAnalysis==0.5.0", "ijson==3.6.0", "plotly==7.1.0", "narwhals", "networkx", "pydot")
"""Packages of the other tools that this environment does not have."""


class Cost(NamedTuple):
    """CPU time of a process and its children (s), and peak resident memory of the largest (MB)."""

    cpu_s: float
    peak_mb: float


def measure(command: list[str], log: Path) -> Cost:
    """Run a command that must succeed and return what it took.

    Raises:
        SystemExit: If it failed.
    """
    with log.open("wb") as file:
        # This process stays small on purpose: a child's peak starts at the memory of the one that started it.
        child = subprocess.Popen(
            command, stdout=file, stderr=subprocess.STDOUT, env=os.environ | {"HTA_DISABLE_NS_ROUNDING": "1"}
        )
        _, status, usage = os.wait4(child.pid, 0)
    if status:
        raise SystemExit(f"{' '.join(command)[:200]} failed, its last words:\n{log.read_text()[-2000:]}")
    return Cost(usage.ru_utime + usage.ru_stime, usage.ru_maxrss * 1024 / 1e6)


def make_environment(folder: Path) -> Path:
    """Return the interpreter of an environment that has HTA and ijson beside what this one has."""
    python = folder / "bin" / "python"
    if not python.is_file():
        venv.create(folder, with_pip=True)
        inside = next((folder / "lib").glob("python*")) / "site-packages"
        (inside / "ours.pth").write_text(sysconfig.get_path("purelib") + "\n")
        subprocess.run([python, "-m", "pip", "install", "--quiet", "--no-deps", *OTHERS], check=True)
    return python


def ours(trace: Path, work: Path) -> list[str]:
    """Return the command line of the command under test, with all its tables."""
    return [sys.executable, "-m", "triplepoint", "trace", str(trace), "--out", str(work / "tables"), "--csv"]


def synthesise(work: Path, raw_gb: float) -> Path:
    """Return a synthetic trace of a size."""
    path = work / f"rank0_{raw_gb:g}GB.json.gz"
    if not path.is_file():
        command = [sys.executable, "-m", "tests.benchmarks.trace_generate", "--raw-gb", str(raw_gb), str(path)]
        cost = measure(command, work / "log")
        print(f"{(work / 'log').read_text().strip()}, made in {cost.cpu_s:.0f} CPU s")
    return path


def compare(trace: Path, work: Path, skipped: list[str]) -> Cost:
    """Print what each takes for a trace, and return what ours took."""
    commands = {
        OURS: ours(trace, work),
        "gunzip, zlib": [sys.executable, "-c", UNPACK.format(module="zlib"), str(trace)],
        "gunzip, isal": [sys.executable, "-c", UNPACK.format(module="isal.isal_zlib"), str(trace)],
    }
    if {"hta", "loop"} - set(skipped):
        python = str(make_environment(work / "others"))
        commands["ijson loop"] = [python, "-c", LOOP, str(trace)]
        commands["HTA"] = [python, "-c", HTA, str(trace)]
    print(f"{'':16} {'CPU s':>8} {'to ours':>8} {'peak MB':>8} {'to ours':>8}")
    costs: dict[str, Cost] = {}
    for name, command in commands.items():
        if name.split()[-1].lower() not in skipped:
            costs[name] = cost = measure(command, work / "log")
            ratios = cost.cpu_s / costs[OURS].cpu_s, cost.peak_mb / costs[OURS].peak_mb
            print(f"{name:16} {cost.cpu_s:8.2f} {ratios[0]:8.2f} {cost.peak_mb:8.0f} {ratios[1]:8.2f}", flush=True)
    return costs[OURS]


def main() -> None:
    """Compare what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--raw-gb", type=float, default=1.0, help="size of the synthetic trace's text in 1e9 bytes")
    parser.add_argument("--trace", type=Path, help="a gzip trace to measure on instead")
    parser.add_argument("--skip", nargs="*", default=[], choices=["hta", "loop"], help="what to leave out")
    parser.add_argument("--times", type=float, help="measure the command also on a trace so many times as long")
    parser.add_argument("--work", type=Path, help="folder to work in, kept for the next time")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        work = arguments.work or Path(scratch)
        work.mkdir(parents=True, exist_ok=True)
        short = compare(arguments.trace or synthesise(work, arguments.raw_gb), work, arguments.skip)
        if arguments.times:
            long = measure(ours(synthesise(work, arguments.raw_gb * arguments.times), work), work / "log")
            growth = (long.cpu_s / short.cpu_s, long.peak_mb / short.peak_mb)
            print(
                f"{arguments.times:g} times as long: {long.cpu_s:.2f} CPU s ({growth[0]:.2f} times), "
                f"{long.peak_mb:.0f} MB ({growth[1]:.2f} times)"
            )


if __name__ == "__main__":
    main()
