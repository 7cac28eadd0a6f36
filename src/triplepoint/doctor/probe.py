"""Probes of nodes: each reads its node's facts, measures with the other nodes, and leaves a report in one folder.

Probes run in this process on one machine, and through submitit on a cluster.
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
"""Time of the ranks on top of their budget: starting torch, connecting, and finishing what they began. Unit: s."""

JOB_POLL_S = 0.2
REPORT_S = 60.0
"""How long reports may take to be seen here once the job has ended, see `file_lag_s` of a site. Unit: s."""
SECONDS_PER_MINUTE = 60

VENDORS: dict[str, tuple[Vendor, ...]] = {"cpu": (), "cuda": ("nvidia",), "rocm": ("amd",)}
"""Whose GPUs to look for on a kind of device."""


class ProbePlan(Strict):
    """Settings of the probes of all nodes: the content of `probe.json`."""

    num_nodes: int
    """Nodes that take part."""
    device: Literal["cpu", "cuda", "rocm", "any"]
    """What to look for and to measure on; any for what is there."""
    ranks_per_node: int
    """Ranks of the measurement on each node; 0 for one on each GPU, or two where there is none."""
    measure_s: float | None
    """Time for the collectives; None to measure nothing. Unit: s."""
    most_bytes: int
    """Largest size of a collective. Unit: byte."""


class Report(Strict):
    """What one node found."""

    facts: NodeFacts
    """What was read."""
    meeting: Meeting | None
    """What it found out with the others; None if it did not come to that."""
    problem: str
    """What went wrong; empty if nothing."""


def run_probe(folder: Path, dies_with_parent: bool = True) -> None:
    """Do this node's part and write `node<N>.json`: the task submitit runs on each node.

    Args:
        folder: Folder of the check, holding `probe.json`, shared by all nodes.
        dies_with_parent: Whether this process goes when the one that started it does.
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
    """Run this node's ranks.

    Raises:
        OSError: If one of them fails.
    """
    per_node = plan.ranks_per_node or len(facts.gpus) or 2
    address, port = _rendezvous(folder, facts.node, plan)
    common = {
        "MASTER_ADDR": address,
        "MASTER_PORT": str(port),
        "WORLD_SIZE": str(plan.num_nodes * per_node),
        "LOCAL_WORLD_SIZE": str(per_node),
        "OMP_NUM_THREADS": "1",
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",  # as NVML counts, so that a slow GPU has the number of the other checks
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
    """Wait for ranks; end them all when one fails, since the others would wait for it for ever."""
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
    """Return where ranks meet: node 0 chooses, the others read its choice."""
    path = folder / "rendezvous.json"
    if node == 0:
        write_json(path, {"address": _address(plan), "port": free_port()})
    return await_address(path)


Say = Callable[[str], None]


def probe_nodes(folder: Path, plan: ProbePlan, cluster: ClusterConfig | None, say: Say) -> None:
    """Have every node leave its report in `folder`.

    Args:
        folder: Empty folder, shared by all nodes.
        plan: What the probes do.
        cluster: Where; None for this machine.
        say: Told of progress.

    Raises:
        UserError: If Slurm refuses the job.
    """
    write_text(folder / "probe.json", plan.model_dump_json(indent=2))
    if cluster is None:
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
        # Named, not "auto": with srun on the PATH submitit would take Slurm for a run on this machine.
        pickles = private_folder(folder / "submitit")
        executor = submitit.AutoExecutor(pickles, cluster=cluster.executor, slurm_python=options.python)
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
    """Return what submitit is asked for.

    Args:
        plan: What the probes do.
        cluster: Where.
        options: Slurm options of the site.
    """
    limit_s = 2 * MARGIN_S + (plan.measure_s or 0.0)
    common = {
        "name": f"doctor-{cluster.name}",
        "nodes": plan.num_nodes,
        "tasks_per_node": 1,
        "timeout_min": math.ceil(limit_s / SECONDS_PER_MINUTE),
    }
    if cluster.executor == "local":
        return common
    slurm = options.job_parameters(cluster.gpus_per_node if cluster.device != "cpu" else 0)
    return common | {f"slurm_{key}": value for key, value in slurm.items()}


def _await_reports(folder: Path, num_nodes: int) -> None:
    """Wait for the reports of all nodes, as long as a network file system may hide them."""
    deadline = time.monotonic() + REPORT_S
    while len(list(folder.glob("node*.json"))) < num_nodes and time.monotonic() < deadline:
        if not any((folder / "submitit").glob("*_result.pkl")):
            return  # no task ended well: nothing is on its way
        time.sleep(JOB_POLL_S)


@contextlib.contextmanager
def _ending(job: Any) -> Iterator[None]:
    """Cancel the job when the block is left early."""
    try:
        yield
    except BaseException:
        job.cancel()
        raise
