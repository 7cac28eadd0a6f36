"""What runs on each node: reads it, meets the other nodes, and measures. Everything is left as files in one folder."""

import os
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Literal

from triplepoint.config.base import Strict, read_json
from triplepoint.doctor.facts import NodeFacts
from triplepoint.doctor.node import Vendor, read_node
from triplepoint.doctor.peers import PATIENCE_S, Meeting, meet
from triplepoint.files import write_json, write_text
from triplepoint.processes import die_with_parent

MARGIN_S = 300.0
"""What the ranks have beside their budget: starting torch, connecting, and finishing what they began. Unit: s."""

VENDORS: dict[str, tuple[Vendor, ...]] = {"cpu": (), "cuda": ("nvidia",), "rocm": ("amd",)}
"""Whose GPUs to look for on a kind of device."""


class ProbePlan(Strict):
    """What the probes of all nodes do: the content of `probe.json`."""

    num_nodes: int
    """Nodes that take part."""
    device: Literal["cpu", "cuda", "rocm", "any"]
    """What to look for and to measure on; any for what is there."""
    ranks_per_node: int
    """Ranks of the measurement on each node; 0 for one on each GPU, or two where there is none."""
    measure_s: float | None
    """Time for the collectives; None to measure nothing. Unit: s."""
    most_bytes: int
    """Largest message. Unit: byte."""


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
        command = [sys.executable, "-m", "triplepoint.doctor.measure_ranks", str(folder)]
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
                raise OSError(f"rank {failed[0]} of the measurement failed: {log[-1] if log else 'it said nothing'}")
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
        with socket.socket() as probe:
            probe.bind(("", 0))
            write_json(path, {"address": _address(plan), "port": probe.getsockname()[1]})
    deadline = time.monotonic() + PATIENCE_S
    while not path.exists():
        if time.monotonic() > deadline:
            raise OSError(f"{path} of node 0 was not seen here within {PATIENCE_S:.0f} s")
        time.sleep(0.05)
    place = read_json(_Place, path, "start the check again")
    return place.address, place.port


class _Place(Strict):
    """Where ranks meet."""

    address: str
    """Host name or address of node 0."""
    port: int
    """TCP port."""
