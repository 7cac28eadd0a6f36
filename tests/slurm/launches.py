"""Launches of runs on the test cluster, and their results."""

import json
import subprocess
import time
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

import psutil

from tests.launchers import have_steps, rank_processes, start, wait_until
from tests.points import planned, tiny_point, write_run
from triplepoint.config.point import Layout, PointCluster, Steps
from triplepoint.manifest import Manifest, read_manifest

SHORT = Steps(warmup=1, measured=2, profiled=1)
ENDLESS = Steps(warmup=1, measured=100_000, profiled=0)


@dataclass
class Workspace:
    """A folder for results, and the launchers started in it.

    Attributes:
        results: Folder for results.
        site: File of the site.
        launchers: Launchers that were started.
    """

    results: Path
    site: Path
    launchers: list[subprocess.Popen[str]] = field(default_factory=list)

    def run(
        self, steps: Steps, num_nodes: int = 2, cluster: str = "h200x32", name: str = "tiny", **limits: Any
    ) -> Path:
        """Write a run with one rank per node; return its folder.

        Args:
            steps: Steps of the run.
            num_nodes: Number of nodes.
            cluster: Name of the cluster.
            name: Name of the run.
            limits: Limits to change.
        """
        point = tiny_point(
            cluster=PointCluster(name=cluster, device="cpu", gpu=None, gpus_per_node=1),
            num_gpus=num_nodes,
            layout=Layout(dp=num_nodes),
            global_batch_size=num_nodes,
            steps=steps,
        )
        return write_run(self.results, planned(point, name, executor="slurm", **limits))

    def launch(self, folder: Path, trains: bool = False) -> subprocess.Popen[str]:
        """Start `triplepoint launch` of a run, with the stub engine unless it `trains`."""
        launcher = start(folder, trains=trains)
        self.launchers.append(launcher)
        return launcher

    def with_site(self, cluster: str = "h200x32", **gang: Any) -> None:
        """Change keys of the gangs on a cluster in the file of the site."""
        import yaml

        content = yaml.safe_load(self.site.read_text())
        content["gangs"][cluster] |= gang
        self.site.write_text(yaml.safe_dump(content))

    def end(self) -> None:
        """End launchers that a failed test leaves."""
        for launcher in self.launchers:
            if launcher.poll() is None:
                launcher.kill()
            launcher.communicate()


def wait_for_output(launcher: subprocess.Popen[str], words: str) -> None:
    """Wait until a launcher prints some words. `finish` then returns only the output after them."""
    assert launcher.stderr is not None
    output = ""
    for line in launcher.stderr:
        output += line
        if words in line:
            return
    raise AssertionError(f"never said: {words}; it said: {output}")


def wait_for_training(folder: Path, attempt: int = 0) -> dict[int, psutil.Process]:
    """Wait until both ranks of an attempt have finished two steps; return their processes by rank."""

    def ranks() -> dict[int, psutil.Process]:
        attempts = sorted(folder.glob("attempts/*"))
        if len(attempts) <= attempt or not have_steps(attempts[attempt], 2):
            return {}
        return rank_processes(attempts[attempt])

    processes: dict[int, psutil.Process] = wait_until(ranks, f"attempt {attempt} trains")
    return processes


def no_ranks(folder: Path) -> bool:
    """Return whether no rank of a run is left."""
    return not rank_processes(folder)


def job_id_of(folder: Path) -> str:
    """Return the job number of the newest attempt of a run."""
    raw = sorted(folder.glob("attempts/*"))[-1]
    return str(json.loads((raw / "submission.json").read_text())["job_id"])


def failed_attempts(folder: Path) -> list[Manifest]:
    """Return the manifests of the failed attempts of a run, in order."""
    return [read_manifest(path) for path in sorted(folder.glob("attempts/*/manifest.json"))]


def result_of(folder: Path) -> Manifest:
    """Return the manifest of the result of a run."""
    return read_manifest(folder / "raw" / "manifest.json")


ACCOUNTING_S = 20.0
"""Longest delay of the accounting. Unit: s."""


def jobs_of(folder: Path, at_least: int = 1) -> list[tuple[str, datetime, datetime]]:
    """Return number, start and end of all started jobs of a run.

    Waits until the accounting has `at_least` jobs and the start of all of them.
    """
    name = json.loads(next(folder.rglob("submission.json")).read_text())["name"]
    command = ["sacct", "-X", "-n", "-P", "--name", name, "-o", "JobIDRaw,Start,End", "-S", "now-1hour"]
    rows: list[list[str]] = []
    deadline = time.monotonic() + ACCOUNTING_S
    while (len(rows) < at_least or any(start == "Unknown" for _, start, _ in rows)) and time.monotonic() < deadline:
        rows = [line.split("|") for line in subprocess.run(command, capture_output=True, text=True).stdout.splitlines()]
        time.sleep(0.2)
    return [
        (job, datetime.fromisoformat(start), datetime.max if end == "Unknown" else datetime.fromisoformat(end))
        for job, start, end in rows
        if start not in ("Unknown", "None")
    ]


def never_two_at_once(folder: Path) -> bool:
    """Return whether no two jobs of a run ever ran at the same time."""
    jobs = sorted(jobs_of(folder), key=lambda job: job[1])
    return all(before[2] <= after[1] for before, after in zip(jobs, jobs[1:], strict=False))
