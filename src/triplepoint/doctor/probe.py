"""Probes of nodes: each reads the facts of its node, measures with the other nodes, and writes a report.

On this machine the probe runs in this process, on the nodes of a cluster through submitit.
"""

import contextlib
import math
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal

from triplepoint.config.base import Strict, read_json
from triplepoint.config.cluster import ClusterConfig
from triplepoint.config.site import Gang, gang_of, read_site
from triplepoint.doctor.check import NodeFacts
from triplepoint.doctor.node import Vendor, read_node
from triplepoint.doctor.peers import Meeting, await_address, meet
from triplepoint.errors import UserError
from triplepoint.files import private_folder, write_json, write_text
from triplepoint.processes import die_with_parent, free_port

MARGIN_S = 300.0
"""Time of the ranks beyond their budget, to import torch, connect, and finish the last measurement. Unit: s."""

JOB_POLL_S = 0.2
"""Time between two looks at a job. Unit: s."""
REPORT_S = 60.0
"""Time until reports are visible here after the end of the job, see `file_lag_s` of a site. Unit: s."""
SECONDS_PER_MINUTE = 60

VENDORS: dict[str, tuple[Vendor, ...]] = {"cpu": (), "cuda": ("nvidia",), "rocm": ("amd",)}
"""Vendors of GPUs by kind of device."""


class ProbePlan(Strict):
    """Settings of the probes of all nodes: the content of `probe.json`."""

    num_nodes: int
    """Number of nodes."""
    device: Literal["cpu", "cuda", "rocm", "any"]
    """Kind of device to look for and to measure; `any` for the one of the node."""
    ranks_per_node: int
    """Ranks of the measurement on each node; 0 for one per GPU, or two on a node without GPUs."""
    measure_s: float | None
    """Time for the collectives; None for no measurement. Unit: s."""
    most_bytes: int
    """Largest size of a collective. Unit: byte."""


class Report(Strict):
    """Report of one node."""

    facts: NodeFacts
    """Facts of the node."""
    meeting: Meeting | None
    """Measurements with the other nodes; None if they failed."""
    problem: str
    """Error of the probe; empty if there was none."""


def run_probe(folder: Path, dies_with_parent: bool = True) -> None:
    """Probe this node and write `node<N>.json`; the task of submitit on each node.

    Args:
        folder: Folder of the probes with `probe.json`, shared by all nodes.
        dies_with_parent: Whether this process ends with its parent.
    """
    if dies_with_parent:
        die_with_parent()
    plan = read_json(ProbePlan, folder / "probe.json", "start the check again")
    node = int(os.environ.get("SLURM_NODEID", "0"))
    facts = read_node(node, VENDORS.get(plan.device, ("nvidia", "amd")))
    meeting, problem = None, ""
    try:
        meeting = meet(folder, node, plan.num_nodes, _address(plan))
        if plan.measure_s is not None:
            _measure(folder, plan, facts, plan.measure_s)
    except (OSError, subprocess.SubprocessError) as error:
        problem = str(error) or type(error).__name__
    report = Report(facts=facts, meeting=meeting, problem=problem)
    write_text(folder / f"node{node}.json", report.model_dump_json(indent=2))


def _address(plan: ProbePlan) -> str:
    return socket.gethostname() if plan.num_nodes > 1 else "127.0.0.1"


def _measure(folder: Path, plan: ProbePlan, facts: NodeFacts, budget_s: float) -> None:
    """Run the ranks of this node.

    Raises:
        OSError: If a rank fails.
    """
    per_node = plan.ranks_per_node or len(facts.gpus) or 2
    address, port = _rendezvous(folder, facts.node, plan)
    common = {
        "MASTER_ADDR": address,
        "MASTER_PORT": str(port),
        "WORLD_SIZE": str(plan.num_nodes * per_node),
        "LOCAL_WORLD_SIZE": str(per_node),
        "OMP_NUM_THREADS": "1",
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",  # The order of NVML, so that GPUs have the same numbers in all checks.
    }
    ranks = []
    for local in range(per_node):
        rank = facts.node * per_node + local
        command = [sys.executable, "-m", "triplepoint.doctor.measure", str(folder)]
        command += ["gpu" if facts.gpus else "cpu", str(budget_s), str(plan.most_bytes)]
        with (folder / f"rank{rank}.log").open("wb") as log:
            environment = os.environ | common | {"RANK": str(rank), "LOCAL_RANK": str(local)}
            ranks.append(subprocess.Popen(command, env=environment, stdout=log, stderr=subprocess.STDOUT))
    _wait(ranks, facts.node * per_node, budget_s + MARGIN_S, folder)


def _wait(ranks: list[subprocess.Popen[bytes]], first: int, patience_s: float, folder: Path) -> None:
    """Wait for ranks, and end all of them when one fails, since the others would wait for it."""
    deadline = time.monotonic() + patience_s
    try:
        while True:
            states = [rank.poll() for rank in ranks]
            failed = [number for number, state in enumerate(states, first) if state]
            if failed:
                log = (folder / f"rank{failed[0]}.log").read_text(errors="replace").strip().splitlines()
                raise OSError(f"rank {failed[0]} of the measurement failed: {log[-1] if log else 'it wrote nothing'}")
            if None not in states:
                return
            if time.monotonic() > deadline:
                raise OSError(f"the measurement took longer than {patience_s:.0f} s")
            time.sleep(0.1)
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()


def _rendezvous(folder: Path, node: int, plan: ProbePlan) -> tuple[str, int]:
    """Return the address and port at which ranks connect, chosen by node 0 and read by the other nodes."""
    path = folder / "rendezvous.json"
    if node == 0:
        write_json(path, {"address": _address(plan), "port": free_port()})
    return await_address(path)


Say = Callable[[str], None]


def probe_nodes(folder: Path, plan: ProbePlan, cluster: ClusterConfig | None, say: Say) -> None:
    """Probe all nodes, each of which writes its report to `folder`.

    Args:
        folder: Empty folder, shared by all nodes.
        plan: Settings of the probes.
        cluster: Cluster to probe; None for this machine.
        say: Called with a line of text on progress.

    Raises:
        UserError: If Slurm refuses the job, or a cluster without Slurm has several nodes.
    """
    is_here = cluster is None or cluster.executor == "local"
    if cluster and is_here and plan.num_nodes > 1:
        raise UserError(
            f"cluster {cluster.name} has executor: local, which is this machine, and {plan.num_nodes} nodes; use "
            "--nodes 1, or executor: slurm in the file of the cluster"
        )
    write_text(folder / "probe.json", plan.model_dump_json(indent=2))
    if cluster is None or is_here:
        run_probe(folder, dies_with_parent=False)
        return
    job = _submit(folder, plan, cluster)
    say(f"doctor: job {job.job_id} on {plan.num_nodes} {'node' if plan.num_nodes == 1 else 'nodes'}")
    with _ending(job):
        while not job.done():
            time.sleep(JOB_POLL_S)
    _await_reports(folder, plan.num_nodes)


def _submit(folder: Path, plan: ProbePlan, cluster: ClusterConfig) -> Any:
    import submitit

    options = gang_of(cluster.name, read_site())
    try:
        pickles = private_folder(folder / "submitit")
        executor = submitit.AutoExecutor(pickles, cluster="slurm", slurm_python=options.python)
    except RuntimeError as error:
        raise UserError(
            f"cluster {cluster.name} is reached through Slurm: {error}; run this on its login node"
        ) from None
    executor.update_parameters(**job_parameters(plan, cluster, options))
    try:
        return executor.submit(run_probe, folder)
    except submitit.core.utils.FailedJobError as error:
        line = (str(error).strip().splitlines() or ["failed"])[-1]
        raise UserError(f"cluster {cluster.name}: {line}; partition and account are in the site's file") from None


def job_parameters(plan: ProbePlan, cluster: ClusterConfig, options: Gang) -> dict[str, Any]:
    """Return the parameters of the job for submitit.

    Args:
        plan: Settings of the probes.
        cluster: Cluster to probe.
        options: Slurm options of the site.
    """
    limit_s = 2 * MARGIN_S + (plan.measure_s or 0.0)
    slurm = options.job_parameters(cluster.gpus_per_node if cluster.device != "cpu" else 0)
    return {
        "name": f"doctor-{cluster.name}",
        "nodes": plan.num_nodes,
        "tasks_per_node": 1,
        "timeout_min": math.ceil(limit_s / SECONDS_PER_MINUTE),
        **{f"slurm_{key}": value for key, value in slurm.items()},
    }


def _await_reports(folder: Path, num_nodes: int) -> None:
    """Wait until the reports of all nodes are visible, which a network file system may delay."""
    deadline = time.monotonic() + REPORT_S
    while len(list(folder.glob("node*.json"))) < num_nodes and time.monotonic() < deadline:
        if not any((folder / "submitit").glob("*_result.pkl")):
            return  # No task succeeded, so no report will come.
        time.sleep(JOB_POLL_S)


@contextlib.contextmanager
def _ending(job: Any) -> Iterator[None]:
    """Cancel the job when the block is left by an exception."""
    try:
        yield
    except BaseException:
        job.cancel()
        raise
