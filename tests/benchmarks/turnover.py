"""A study of many points: time of its dry run, and runs per second if no stage does anything.

`python -m tests.benchmarks.turnover --points 1000 --runs 100`. Stages are a shell script that only touches what each
would write, see `dag.py`: what is left is Snakemake and its bookkeeping.
"""

import argparse
import os
import re
import shutil
import sys
import tempfile
from pathlib import Path

from tests.benchmarks.dag import NOTHING, PARTS, ROOT, measure

STUDY = """\
description: Many points that differ in their seed alone.
defaults: {{cluster: {cluster}, engine: native, model: tiny-llama, num_gpus: {gpus}, global_batch_size: 32,
           precision: fp32, steps: {{warmup: 0, measured: 1, profiled: 1}}}}
sweeps:
  - axes:
      seed: [{seeds}]
"""


def make_project(folder: Path, num_points: int, cluster: str, gpus: int) -> dict[str, str]:
    """Copy the project with one study of a number of points, and return the environment for it."""
    folder.mkdir()
    for part in PARTS:
        source = ROOT / part
        (shutil.copytree if source.is_dir() else shutil.copy2)(source, folder / part)
    for study in (folder / "config/studies").glob("*.yaml"):
        study.unlink()
    seeds = ", ".join(map(str, range(num_points)))
    (folder / "config/studies/many.yaml").write_text(STUDY.format(cluster=cluster, gpus=gpus, seeds=seeds))
    fake = folder / "bin/triplepoint"
    fake.parent.mkdir()
    fake.write_text(NOTHING)
    fake.chmod(0o755)
    # The rules put the interpreter's folder first on the PATH: give them one that holds the script.
    fake.with_name("python").symlink_to(sys.executable)
    return os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}


def dry_run(num_points: int) -> None:
    """Print the time of a dry run with the profile of a cluster."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "project"
        environment = make_project(folder, num_points, "h200x32", 32)
        command = [sys.executable, "-m", "snakemake", "--profile", "profiles/slurm-h200", "-n", "all"]
        wall, cpu, output = measure([*command, "--quiet", "rules"], folder, environment)
        jobs = re.search(r"^total\s+(\d+)", output, re.MULTILINE)
        print(f"dry run of {num_points} points: {jobs[1] if jobs else '?'} jobs, {wall:.1f} s wall, {cpu:.1f} CPU s")


def turn_over(num_runs: int) -> None:
    """Print the runs per second through all stages."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "project"
        environment = make_project(folder, num_runs, "cpu-local", 2)
        code = "from triplepoint.plan import select; from pathlib import Path;"
        code += "print(*(e.run for e in select(Path('config'), ['many']).valid))"
        _, _, runs = measure([sys.executable, "-c", code], folder, environment)
        command = [str(folder / "bin/python"), "-m", "snakemake", "all", "--quiet", "rules"]
        wall, cpu, _ = measure(command, folder, environment | {"RUNS": runs.strip()})
        print(f"{num_runs} runs that do nothing: {wall:.1f} s wall, {cpu:.1f} CPU s")
        print(f"    {num_runs / wall:.2f} runs/s; {2 * num_runs / cpu:.2f} if both of 2 cores were kept busy")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--points", type=int, default=1000, help="points of the dry run; 0 for none")
    parser.add_argument("--runs", type=int, default=100, help="runs to turn over; 0 for none")
    arguments = parser.parse_args()
    if arguments.points:
        dry_run(arguments.points)
    if arguments.runs:
        turn_over(arguments.runs)
