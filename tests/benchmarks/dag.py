"""Overhead of the pipeline: a dry run of the whole grid, and Snakemake with stages that do nothing.

Run from the repository: python tests/benchmarks/dag.py

The second measurement copies the project, replaces `triplepoint` by a shell script that only touches the outputs of a
stage, and runs the smoke study and the simulated grid. What remains is the time of Snakemake and bash. The overhead of
a job also includes the start-up of a stage (startup.py).
"""

import os
import re
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from triplepoint.tables.results import RESULT_TABLES
from triplepoint.workflow import TRACE_TABLES

ROOT = Path(__file__).parents[2]
PARTS = ("Snakefile", "rules", "workflow", "profiles", "config", "envs")

NOTHING = f"""#!/bin/sh
# In place of `triplepoint`: only touches the outputs of the stage.
case $1 in
launch|simulate) touch results/runs/$2/raw/manifest.json;;
telemetry) touch results/runs/$2/telemetry.parquet;;
parse) mkdir results/runs/$2/ranks/$3;;
trace)
    while [ "$1" != --run ]; do shift; done
    cd results/runs/$2
    for t in {" ".join(TRACE_TABLES)}; do touch $t.parquet; done
    touch perfetto.json.gz;;
aggregate)
    mkdir -p results/tables/$2 && cd results/tables/$2 && touch plan.json
    for t in {" ".join(RESULT_TABLES)}; do touch $t.parquet $t.csv; done;;
claims) touch results/tables/claims.parquet results/tables/claims.csv;;
whatif) touch $4;;
figure) mkdir -p figs/$(dirname $2); for end in pdf svg png csv; do touch figs/$2.$end; done;;
report) mkdir -p ${{3%.html}}; touch $3;;
esac
"""


def measure(command: list[str], folder: Path, environment: dict[str, str]) -> tuple[float, float, str]:
    """Return wall time, CPU time (both in s) and output of a command that must succeed."""
    before, started = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    wall = time.monotonic() - started
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert done.returncode == 0, done.stderr[-2000:]
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return wall, cpu, done.stdout + done.stderr


def dry_run() -> None:
    """Print the time of a dry run of every study on every cluster."""
    command = [sys.executable, "-m", "snakemake", "--profile", "ci", "-n", "all"]
    wall, cpu, output = measure(command, ROOT, dict(os.environ))
    jobs = re.search(r"^total\s+(\d+)", output, re.MULTILINE)
    assert jobs is not None
    print(f"dry run of the whole grid: {jobs[1]} jobs, {wall:.1f} s wall, {cpu:.1f} CPU s")


def empty_run(name: str, simulated: list[str], studies: list[str] | None) -> None:
    """Print the time per job if no stage does anything.

    Args:
        name: Name of the measurement.
        simulated: Clusters to simulate.
        studies: Names of studies; None for all.
    """
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / "project"
        folder.mkdir()
        for part in PARTS:
            source = ROOT / part
            (shutil.copytree if source.is_dir() else shutil.copy2)(source, folder / part)
        fake = folder / "bin" / "triplepoint"
        fake.parent.mkdir()
        fake.write_text(NOTHING)
        fake.chmod(0o755)
        # The rules put the interpreter's folder first on the PATH: give them one that holds the script.
        python = fake.with_name("python")
        python.symlink_to(sys.executable)
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        code = "from triplepoint.plan import select; from pathlib import Path;"
        code += f"print(*(e.run for e in select(Path('config'), {studies}, ['cpu-local'], {simulated}).valid))"
        runs = subprocess.check_output([sys.executable, "-c", code], cwd=folder, text=True)
        environment["RUNS"] = runs.strip()
        command = [str(python), "-m", "snakemake", "all", "--config", f"simulated={simulated}"]
        command += [f"studies={studies}"] if studies else []
        wall, cpu, output = measure(command, folder, environment)
        (jobs,) = set(re.findall(r"^(\d+) of \1 jobs done", output, re.MULTILINE))
        print(f"empty {name}: {jobs} jobs, {wall:.1f} s wall, {cpu:.1f} CPU s, {cpu / int(jobs):.3f} CPU s per job")


if __name__ == "__main__":
    dry_run()
    empty_run("smoke study", [], ["smoke"])
    empty_run("grid, simulated", ["h200x32", "h100x64", "mi250x32"], None)
