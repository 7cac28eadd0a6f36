"""The agent of one node: starts the sampler and the node's ranks, watches them, and leaves a report.

One agent runs on each node as a task of the submitit job. It is the parent of the ranks, so it knows how each one
ended, which no launcher further away does.
"""

import json
import os
import socket
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import psutil

from triplepoint.config.plan import PlannedRun, read_planned_run
from triplepoint.files import write_json
from triplepoint.launch.outcome import Failure, log_tail, root_cause
from triplepoint.launch.watch import Ranks, read_status
from triplepoint.manifest import Evidence
from triplepoint.processes import die_with_parent

THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS")
"""Set for every rank to its share of the cores, whatever the caller has: Snakemake exports them for its own jobs, and
spinning threads of ranks that share cores make a step twenty times slower."""
RENDEZVOUS_S = 300.0
SAMPLER_STOP_S = 5.0


@dataclass(frozen=True)
class Launcher:
    """The process that submitted the gang; a gang on the same host does not outlive it."""

    host: str
    pid: int
    created: float

    @classmethod
    def this(cls) -> "Launcher":
        """Return the current process."""
        return cls(socket.gethostname(), os.getpid(), psutil.Process().create_time())

    def is_gone(self) -> bool:
        """Return whether the launcher ended; always False on another host, where that cannot be seen."""
        if self.host != socket.gethostname():
            return False
        try:
            return psutil.Process(self.pid).create_time() != self.created
        except psutil.NoSuchProcess:
            return True


def run_node(raw: Path, launcher: Launcher) -> None:
    """Run this node's share of the gang and write `nodes/node<N>.json`: the task submitit runs on each node.

    Args:
        raw: Folder of the attempt, holding `point.json`.
        launcher: Who waits for the gang.
    """
    die_with_parent()
    planned = read_planned_run(raw / "point.json")
    node = int(os.environ.get("SLURM_NODEID", "0"))
    report = _describe_node(node)
    for folder in ("logs", "steps", "status", "telemetry", "traces"):
        (raw / folder).mkdir(exist_ok=True)
    sampler = _start_sampler(raw, node, planned)
    try:
        ranks = _start_ranks(raw, node, planned)
        failures = ranks.wait(give_up=launcher.is_gone)
    finally:
        _stop_sampler(sampler)
    report["ranks"] = sorted(ranks.processes)
    report["failure"] = None
    if failures:
        cause = root_cause(failures)
        report["failure"] = asdict(cause) | {"evidence": _evidence(raw, cause).model_dump(mode="json")}
    else:
        report["facts"] = (read_status(raw, min(ranks.processes)) or {}).get("facts", {})
    write_json(raw / "nodes" / f"node{node}.json", report)


def _describe_node(node: int) -> dict[str, Any]:
    return {
        "node": node,
        "host": socket.gethostname(),
        "monotonic_ns": time.monotonic_ns(),
        "wall_ns": time.time_ns(),
        "num_cores": os.cpu_count() or 0,
        "memory_bytes": psutil.virtual_memory().total,
    }


def _start_ranks(raw: Path, node: int, planned: PlannedRun) -> Ranks:
    point = planned.point
    per_node = point.cluster.gpus_per_node
    first = node * per_node
    address, port = _rendezvous(raw, node)
    processes = {}
    ranks = range(first, min(first + per_node, point.num_gpus))
    for rank in ranks:
        environment = os.environ | {
            "RANK": str(rank),
            "WORLD_SIZE": str(point.num_gpus),
            "LOCAL_RANK": str(rank - first),
            "MASTER_ADDR": address,
            "MASTER_PORT": str(port),
            **dict.fromkeys(THREAD_VARIABLES, str(max(1, len(os.sched_getaffinity(0)) // len(ranks)))),
            "PYTHONUNBUFFERED": "1",
        }
        with (raw / "logs" / f"rank{rank}.log").open("wb") as log:
            processes[rank] = subprocess.Popen(
                [sys.executable, "-m", "triplepoint.launch.rank", str(raw)],
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )
    return Ranks(raw, processes, planned.limits.time_limit_s, planned.limits.hang_timeout_s)


def _rendezvous(raw: Path, node: int) -> tuple[str, int]:
    """Return address and port where the ranks meet: node 0 chooses them, the others read its choice."""
    path = raw / "rendezvous.json"
    if node == 0:
        several = int(os.environ.get("SLURM_NNODES", "1")) > 1
        address = socket.gethostname() if several else "127.0.0.1"
        with socket.socket() as probe:
            probe.bind(("", 0))
            port = probe.getsockname()[1]
        write_json(path, {"address": address, "port": port})
    deadline = time.monotonic() + RENDEZVOUS_S
    while not path.exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    meeting = json.loads(path.read_text())
    return meeting["address"], meeting["port"]


def _start_sampler(raw: Path, node: int, planned: PlannedRun) -> subprocess.Popen[bytes]:
    out = raw / "telemetry" / f"node{node}.arrow"
    command = [sys.executable, "-m", "triplepoint", "sample", str(out)]
    command += ["--device", planned.point.cluster.device, "--period", str(planned.point.telemetry_period_s)]
    with (raw / "logs" / f"sampler{node}.log").open("wb") as log:
        return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT)


def _stop_sampler(sampler: subprocess.Popen[bytes]) -> None:
    sampler.terminate()
    try:
        sampler.wait(SAMPLER_STOP_S)
    except subprocess.TimeoutExpired:
        sampler.kill()
        sampler.wait()


def _evidence(raw: Path, cause: Failure) -> Evidence:
    tail = log_tail(raw / "logs" / f"rank{cause.rank}.log")
    return Evidence(rank=cause.rank, host=socket.gethostname(), message=cause.message, log_tail=tail)
