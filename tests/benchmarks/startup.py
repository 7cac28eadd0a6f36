"""CPU time of `triplepoint` subcommands: before their first work, and of each stage for runs of the simulated grid.

Run: python tests/benchmarks/startup.py [REPEATS [RUNS]]

Launches are left out, since they train.
"""

import json
import resource
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from triplepoint.config.plan import read_plan
from triplepoint.figures.selection import fitting_figures

ROOT = Path(__file__).parents[2]
GRID = ["--cluster", "cpu-local", "--simulated", "h200x32", "--simulated", "h100x64", "--simulated", "mi250x32"]

CASES = {
    "bare interpreter": ["-c", "pass"],
    "triplepoint --help": ["-m", "triplepoint", "--help"],
    "triplepoint plan --help": ["-m", "triplepoint", "plan", "--help"],
    "triplepoint launch: imports": ["-c", "import triplepoint.cli.launch, triplepoint.launch.launch_run, submitit"],
    "triplepoint simulate: imports": [
        "-c",
        "import triplepoint.cli.simulate, triplepoint.simulate.artefacts.simulate_run",
    ],
    "triplepoint telemetry: imports": ["-c", "import triplepoint.cli.telemetry, triplepoint.telemetry.align"],
    "triplepoint trace: imports": [
        "-c",
        "import triplepoint.cli.trace, triplepoint.launch.attempt, triplepoint.trace.join",
    ],
    "triplepoint aggregate: imports": ["-c", "import triplepoint.cli.aggregate, triplepoint.aggregate"],
    "triplepoint figure: imports": ["-c", "import triplepoint.figures.write as w; w.load('timeline')"],
    "torch alone": ["-c", "import torch"],
}


def cpu_s(arguments: list[str], folder: Path = ROOT, environment: Mapping[str, str] | None = None) -> float:
    """Return user and system time of an interpreter run and its children. Unit: s."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    subprocess.run([sys.executable, *arguments], check=True, cwd=folder, env=environment, **quiet)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def starts(repeats: int) -> None:
    """Print the median of each case, and its ratio to the bare interpreter."""
    samples: dict[str, list[float]] = {name: [] for name in CASES}
    for arguments in CASES.values():
        cpu_s(arguments)  # once uncounted: byte code is compiled, files are cached
    for _ in range(repeats):
        for name, arguments in CASES.items():
            samples[name].append(cpu_s(arguments))
    medians = {name: sorted(values)[repeats // 2] for name, values in samples.items()}
    for name, median in medians.items():
        print(f"{name:32} {median:6.3f} CPU s   {median / medians['bare interpreter']:6.1f} x bare")


def stages(num_runs: int) -> None:
    """Print the CPU time of each stage for evenly spaced runs of the grid."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        for name in ("config", "workflow"):
            (folder / name).symlink_to(ROOT / name)

        def stage(*words: str) -> float:
            return cpu_s(["-m", "triplepoint", *words], folder)

        _show("plan", [stage("plan", *GRID, "--write")])
        runs = keep_runs(folder / "results" / "plan.json", num_runs)
        _show("simulate", [stage("simulate", run) for run in runs])
        _show("telemetry", [stage("telemetry", run) for run in runs])
        _show("trace", [stage("trace", "--run", run, "--parse", "--jobs", "1") for run in runs])
        _show(f"aggregate of {num_runs} runs", [stage("aggregate")])
        _show("claims", [stage("claims")])
        plan = read_plan(folder / "results" / "plan.json")
        _show(
            "figure",
            [stage("figure", f"{study}/{name}") for study in plan.studies for name in fitting_figures(study, plan)],
        )
        _show("report", [stage("report")])


def keep_runs(plan: Path, num_runs: int) -> list[str]:
    """Reduce a plan to a number of simulated, traced runs, and return them."""
    content = json.loads(plan.read_text())
    valid = [entry for entry in content["entries"] if entry["invalid_because"] is None]
    points = {entry["run"]: entry["planned"]["point"] for entry in valid}
    traced = {run for run, point in points.items() if point["engine"] == "simulated" and point["steps"]["profiled"]}
    simulated = [entry for entry in content["entries"] if entry["run"] in traced]
    kept = simulated[:: max(1, len(simulated) // num_runs)][:num_runs]
    plan.write_text(json.dumps(content | {"entries": kept}))
    return [entry["run"] for entry in kept]


def _show(name: str, costs: list[float]) -> None:
    spread = f"   from {min(costs):.3f} to {max(costs):.3f}" if len(costs) > 1 else ""
    print(f"{name:32} {statistics.mean(costs):6.3f} CPU s on average of {len(costs)}{spread}", flush=True)


if __name__ == "__main__":
    numbers = [int(word) for word in sys.argv[1:]]
    starts(numbers[0] if numbers else 5)
    stages(numbers[1] if len(numbers) > 1 else 12)
