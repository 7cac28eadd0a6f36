"""Injects random faults at random times of launches, and checks whether a run is lost or launched twice."""

import random
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import psutil

from tests.launchers import finish, wait_until
from tests.slurm.cluster import Cluster
from tests.slurm.launches import SHORT, Workspace, jobs_of, never_two_at_once, no_ranks, result_of

LATEST_S = 12.0
"""Latest time of a fault after the start of the launcher: before the job, during its start, or in training. Unit: s."""
MAX_LAUNCHERS = 6


@dataclass(frozen=True)
class Injection:
    """A fault of a run, and the outcome of the run.

    Attributes:
        seed: Seed of fault, time and node.
        fault: Name of the fault.
        after_s: Time of the fault after the start of the launcher. Unit: s.
        num_launchers: Number of launchers until there was a result.
        problems: Problems of the outcome; empty if the run was launched once and has its result.
    """

    seed: int
    fault: str
    after_s: float
    num_launchers: int
    problems: tuple[str, ...]

    def __str__(self) -> str:
        """Return one line."""
        outcome = "; ".join(self.problems) or "whole, once"
        return f"seed {self.seed}: {self.fault} after {self.after_s:.1f} s, {self.num_launchers} launchers: {outcome}"


def inject(cluster: Cluster, workspace: Workspace, seed: int) -> Injection:
    """Launch a run, inject a random fault, and launch the run again until there is a result; return the outcome.

    Args:
        cluster: The test cluster, intact.
        workspace: Folder for the run.
        seed: Seed of fault, time and node.
    """
    chance = random.Random(seed)
    fault = chance.choice(sorted(FAULTS))
    after_s = chance.uniform(0, LATEST_S)
    folder = workspace.run(SHORT, name=f"soak{seed}", hang_timeout_s=20.0)
    launcher = workspace.launch(folder)
    time.sleep(after_s)
    FAULTS[fault](cluster, folder, launcher, chance)
    status, output = finish(launcher)
    num_launchers = 1
    while status != 0 and num_launchers < MAX_LAUNCHERS:
        cluster.revive()
        status, output = finish(workspace.launch(folder))
        num_launchers += 1
    cluster.revive()
    return Injection(seed, fault, after_s, num_launchers, tuple(_find_problems(folder, status, output)))


def _find_problems(folder: Path, status: int, output: str) -> list[str]:
    problems = [] if status == 0 else [f"lost: {output.strip().splitlines()[-1:]}"]
    if status == 0 and result_of(folder).status != "ok":
        problems.append(f"ended as {result_of(folder).status}")
    if not never_two_at_once(folder):
        problems.append("two of its jobs ran at once")
    if status == 0:
        job = result_of(folder).job
        later = [number for number, *_ in jobs_of(folder) if job is not None and int(number) > int(job.job_id)]
        problems += [f"launched again after its result: {later}"] if later else []
    try:
        wait_until(lambda: no_ranks(folder), "no rank is left", 60)
    except AssertionError:
        problems.append("ranks were left behind")
    return problems


def _kill_launcher(cluster: Cluster, folder: Path, launcher: "subprocess.Popen[str]", chance: random.Random) -> None:
    launcher.kill()


def _interrupt_launcher(
    cluster: Cluster, folder: Path, launcher: "subprocess.Popen[str]", chance: random.Random
) -> None:
    launcher.terminate()


def _kill_rank(cluster: Cluster, folder: Path, launcher: "subprocess.Popen[str]", chance: random.Random) -> None:
    _kill_process("triplepoint.launch.rank", folder, chance)


def _kill_agent(cluster: Cluster, folder: Path, launcher: "subprocess.Popen[str]", chance: random.Random) -> None:
    _kill_process("submitit.core._submit", folder, chance)


def _kill_process(word: str, folder: Path, chance: random.Random) -> None:
    """Kill a random process of a run with a word in its command line."""
    commands = {process: process.info["cmdline"] or [] for process in psutil.process_iter(["cmdline"])}
    candidates = [process for process, words in commands.items() if word in words and str(folder) in words[-1]]
    if candidates:
        chance.choice(sorted(candidates, key=lambda process: process.pid)).kill()


def _cancel_job(cluster: Cluster, folder: Path, launcher: "subprocess.Popen[str]", chance: random.Random) -> None:
    subprocess.run(["sh", "-c", f"squeue -h -o '%A %j' | grep ' {folder.name}[.]' | cut -d' ' -f1 | xargs -r scancel"])


def _kill_node(cluster: Cluster, folder: Path, launcher: "subprocess.Popen[str]", chance: random.Random) -> None:
    cluster.kill_node(chance.choice(cluster.nodes[:2]))


def _kill_controller(cluster: Cluster, folder: Path, launcher: "subprocess.Popen[str]", chance: random.Random) -> None:
    cluster.kill_controller()
    time.sleep(chance.uniform(0, 5))
    cluster.start_controller()


def _kill_accounting(cluster: Cluster, folder: Path, launcher: "subprocess.Popen[str]", chance: random.Random) -> None:
    cluster.kill_accounting()
    time.sleep(chance.uniform(0, 5))
    cluster.start_accounting()


def _stop_munge(cluster: Cluster, folder: Path, launcher: "subprocess.Popen[str]", chance: random.Random) -> None:
    cluster.stop_munge()
    time.sleep(chance.uniform(0, 5))
    cluster.start_munge()


def _drain_nodes(cluster: Cluster, folder: Path, launcher: "subprocess.Popen[str]", chance: random.Random) -> None:
    nodes = "NodeName=h200-[1-4]"
    subprocess.run(["scontrol", "update", nodes, "State=DRAIN", "Reason=soak"], check=True)
    time.sleep(chance.uniform(0, 5))
    subprocess.run(["scontrol", "update", nodes, "State=RESUME"], check=True)


def _preempt(cluster: Cluster, folder: Path, launcher: "subprocess.Popen[str]", chance: random.Random) -> None:
    urgent = ["sbatch", "-p", "urgent", "-N4", "--exclusive", "-t", "1", "-o", "/dev/null", "--wrap", "sleep 3"]
    subprocess.run(urgent, capture_output=True)


Fault = Callable[[Cluster, Path, "subprocess.Popen[str]", random.Random], None]
FAULTS: dict[str, Fault] = {
    "launcher killed": _kill_launcher,
    "launcher interrupted": _interrupt_launcher,
    "rank killed": _kill_rank,
    "agent killed": _kill_agent,
    "job cancelled": _cancel_job,
    "node killed": _kill_node,
    "controller killed": _kill_controller,
    "accounting killed": _kill_accounting,
    "munge stopped": _stop_munge,
    "nodes drained": _drain_nodes,
    "preempted": _preempt,
}
