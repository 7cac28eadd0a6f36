"""Launching runs on the test cluster, hurting them, and reading what became of them."""

import json
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

import psutil

from tests.launchers import environment, rank_processes, wait_until
from tests.points import planned, tiny_point, write_run
from triplepoint.config.point import Layout, PointCluster, Steps
from triplepoint.manifest import Manifest, read_manifest

SHORT = Steps(warmup=1, measured=2, profiled=1)
ENDLESS = Steps(warmup=1, measured=100_000, profiled=0)


@dataclass
class Place:
    """A results folder, and the launchers started in it."""

    results: Path
    site: Path
    launchers: list[subprocess.Popen[str]] = field(default_factory=list)

    def run(
        self, steps: Steps, num_nodes: int = 2, cluster: str = "h200x32", name: str = "tiny", **limits: Any
    ) -> Path:
        """Write a run of one rank per node and return its folder."""
        point = tiny_point(
            cluster=PointCluster(name=cluster, device="cpu", gpu=None, gpus_per_node=1),
            num_gpus=num_nodes,
            layout=Layout(dp=num_nodes),
            global_batch_size=num_nodes,
            steps=steps,
        )
        return write_run(self.results, planned(point, name, executor="slurm", **limits))

    def launch(self, folder: Path, trains: bool = False) -> subprocess.Popen[str]:
        """Start `triplepoint launch`, with the stub engine unless it `trains`."""
        command = [sys.executable, "-m", "triplepoint", "launch", folder.name, "--results", str(self.results)]
        launcher = subprocess.Popen(
            command,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            env=environment(trains),
            preexec_fn=_hear_interrupts,
        )
        self.launchers.append(launcher)
        return launcher

    def with_site(self, cluster: str = "h200x32", **gang: Any) -> None:
        """Change keys of the gangs on a cluster in the site's file."""
        import yaml

        content = yaml.safe_load(self.site.read_text())
        content["gangs"][cluster] |= gang
        self.site.write_text(yaml.safe_dump(content))

    def end(self) -> None:
        """End launchers a failed test leaves."""
        for launcher in self.launchers:
            if launcher.poll() is None:
                launcher.kill()
            launcher.communicate()


def _hear_interrupts() -> None:
    # A shell starts background jobs with SIGINT ignored, and all their children inherit that: CI may be one.
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def hear(launcher: subprocess.Popen[str], words: str) -> None:
    """Wait until a launcher says some words; `finish` returns what it says afterwards."""
    assert launcher.stderr is not None
    said = ""
    for line in launcher.stderr:
        said += line
        if words in line:
            return
    raise AssertionError(f"never said: {words}; it said: {said}")


def training(folder: Path, num_ranks: int = 2, attempt: int = 0) -> dict[int, psutil.Process]:
    """Wait until all ranks of an attempt have finished steps; return the newest attempt's processes by rank."""

    def ranks() -> dict[int, psutil.Process]:
        attempts = sorted(folder.glob("attempts/*"))
        if len(attempts) <= attempt:
            return {}
        raw = attempts[attempt]
        steps = list(raw.glob("steps/rank*.jsonl"))
        stepping = len(steps) == num_ranks and all(file.read_bytes().count(b"\n") >= 2 for file in steps)
        return rank_processes(raw) if stepping else {}

    found: dict[int, psutil.Process] = wait_until(ranks, f"attempt {attempt} trains")
    return found


def no_ranks(folder: Path) -> bool:
    """Return whether no rank of a run is left."""
    return not rank_processes(folder)


def job_of(folder: Path, attempt: int = -1) -> str:
    """Return the number of an attempt's job."""
    raw = sorted(folder.glob("attempts/*"))[attempt]
    return str(json.loads((raw / "submission.json").read_text())["job_id"])


def failed(folder: Path) -> list[Manifest]:
    """Return the manifests of the attempts that failed, in order."""
    return [read_manifest(path) for path in sorted(folder.glob("attempts/*/manifest.json"))]


def result(folder: Path) -> Manifest:
    """Return the manifest of the result."""
    return read_manifest(folder / "raw" / "manifest.json")


ACCOUNTING_S = 20.0
"""How far the accounting may be behind the jobs. Unit: s."""


def jobs_of(folder: Path, at_least: int = 1) -> list[tuple[str, datetime, datetime]]:
    """Return number, start and end of all jobs of a run that ran, from the accounting once it has so many."""
    name = json.loads(next(folder.rglob("submission.json")).read_text())["name"]
    command = ["sacct", "-X", "-n", "-P", "--name", name, "-o", "JobIDRaw,Start,End", "-S", "now-1hour"]
    rows: list[list[str]] = []
    deadline = time.monotonic() + ACCOUNTING_S
    while (len(rows) < at_least or any(start == "Unknown" for _, start, _ in rows)) and time.monotonic() < deadline:
        rows = [line.split("|") for line in subprocess.run(command, capture_output=True, text=True).stdout.splitlines()]
        time.sleep(0.2)
    far = datetime.max.isoformat()
    return [
        (job, datetime.fromisoformat(start), datetime.fromisoformat(far if end == "Unknown" else end))
        for job, start, end in rows
        if start not in ("Unknown", "None")
    ]


def never_two_at_once(folder: Path) -> bool:
    """Return whether no two jobs of a run ever ran at the same time."""
    jobs = sorted(jobs_of(folder), key=lambda job: job[1])
    return all(before[2] <= after[1] for before, after in zip(jobs, jobs[1:], strict=False))
