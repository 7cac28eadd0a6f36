"""Asking Slurm: how a job stands, what it ended as, which jobs a launch has; and ending one.

Through squeue first, which slurmctld answers from memory and in plain words; through sacct once it has forgotten.
"""

import subprocess
import time
from dataclasses import dataclass

ANSWER_S = 30.0
"""slurmctld says nothing while it restarts; clients give up by themselves after MessageTimeout, 10 s by default."""
SETTLE_S = 30.0
SETTLE_POLL_S = 0.5

UNFINISHED = frozenset(
    {"PENDING", "CONFIGURING", "RUNNING", "COMPLETING", "SUSPENDED", "STAGE_OUT", "SIGNALING", "RESIZING", "REQUEUED"}
)
"""States after which another will come. Source: squeue(1), job state codes."""
GONE = "GONE"
"""Our word for a job that neither slurmctld nor the accounting knows."""
NEVER = frozenset(
    {"PartitionTimeLimit", "BadConstraints", "InvalidAccount", "InvalidQOS", "AccountNotAllowed"}
    | {"DependencyNeverSatisfied"}
)
"""Reasons for which a job waits in vain. Source: squeue(1), job reason codes."""
HELD = frozenset(
    {"JobHeldAdmin", "JobHeldUser", "JobHoldMaxRequeue", "launch_failed_requeued_held"} | {"job_requeued_in_held_state"}
)
"""Reasons for which a job waits until somebody releases it. Source: squeue(1), job reason codes."""
TOO_MANY_NODES = "PartitionNodeLimit"
"""A reason that is for ever where the partition is too small, and for a while where some of its nodes are down."""


@dataclass(frozen=True)
class JobState:
    """What Slurm says of a job."""

    state: str
    """State in capitals, as squeue spells it, or `GONE`."""
    reason: str = ""
    """Why it waits or why it ended, in Slurm's words."""
    nodes: str = ""
    """Nodes it has or had, as Slurm abbreviates them."""

    @property
    def is_final(self) -> bool:
        """Whether the job has ended."""
        return self.state not in UNFINISHED

    @property
    def waits_in_vain(self) -> bool:
        """Whether the job can never start."""
        return self.state == "PENDING" and self._reason_code in NEVER

    @property
    def is_held(self) -> bool:
        """Whether the job waits until its owner or an operator releases it."""
        return self.state == "PENDING" and self._reason_code in HELD

    @property
    def _reason_code(self) -> str:
        return self.reason.strip("()").replace(" ", "_")


def query(job_id: str, comment: str) -> JobState | None:
    """Return how a job stands, or None if Slurm does not answer.

    Args:
        job_id: Its number.
        comment: What it was submitted with. A slurmctld killed right after a submission forgets it and gives the
            number to another job, which must not be taken for ours.
    """
    answer = _ask("squeue", "--noheader", "--states=all", f"--jobs={job_id}", "--format=%T|%N|%k|%r")
    if answer is None:
        return None
    for line in answer.splitlines():
        state, nodes, found, reason = line.split("|", 3)
        return JobState(state, reason, nodes) if found == comment else JobState(GONE)
    return _from_accounting(job_id, comment)


def settled(job_id: str, comment: str) -> JobState | None:
    """Return what a job that is ending ends as; squeue shows a job as COMPLETING until its last node is clean."""
    deadline = time.monotonic() + SETTLE_S
    while True:
        state = query(job_id, comment)
        if (state is not None and state.is_final) or time.monotonic() > deadline:
            return state
        time.sleep(SETTLE_POLL_S)


def find_jobs(name: str) -> dict[str, str] | None:
    """Return the number of every unfinished job of that name, with its comment; None if Slurm does not answer."""
    answer = _ask("squeue", "--noheader", "--me", f"--name={name}", "--format=%A|%k")
    if answer is None:
        return None
    return dict(line.split("|", 1) for line in answer.splitlines())


def is_too_large(job_id: str, num_nodes: int) -> bool:
    """Return whether the partition of a job has fewer nodes than it needs, in whatever state they are."""
    partition = (_ask("squeue", "--noheader", f"--jobs={job_id}", "--format=%P") or "").strip()
    sizes = (_ask("sinfo", "--noheader", f"--partition={partition}", "--format=%D") or "").split() if partition else []
    return bool(sizes) and sum(map(int, sizes)) < num_nodes


def usable_nodes(partition: str | None) -> frozenset[str]:
    """Return the nodes of a partition that may take jobs, now or once others have ended; none if Slurm does not answer.

    Args:
        partition: Its name; None for the one that jobs go to unless they say otherwise.
    """
    lines = (_ask("sinfo", "--noheader", "--Node", "--format=%N %P %T") or "").splitlines()
    rows = [line.split() for line in lines]
    return frozenset(
        node
        for node, found, state in rows
        if (found.rstrip("*") == partition if partition else found.endswith("*"))
        and state in ("idle", "allocated", "mixed", "completing")
    )


def cancel(job_id: str) -> None:
    """Ask Slurm to end a job; nothing happens where it cannot be reached or knows no such job."""
    _ask("scancel", job_id)


def hosts(nodes: str) -> list[str]:
    """Return the nodes an abbreviation such as `h200-[1-4]` stands for, in its order; none if Slurm does not answer."""
    return (_ask("scontrol", "show", "hostnames", nodes) or "").split() if nodes else []


def node_state(node: str) -> str:
    """Return what Slurm says of a node's state, such as `down*`; empty if it says nothing."""
    lines = (_ask("sinfo", "--noheader", "--Node", f"--nodes={node}", "--format=%T") or "").split()
    return lines[0] if lines else ""


def _from_accounting(job_id: str, comment: str) -> JobState:
    fields = "--format=State,NodeList,Comment"
    answer = _ask("sacct", "--allocations", "--noheader", "--parsable2", f"--jobs={job_id}", fields) or ""
    for line in answer.splitlines():
        state, nodes, found = line.split("|", 2)
        if found in ("", comment):  # many sites do not store comments
            state = state.split()[0]  # "CANCELLED by 1000"
            # Accounting goes on calling a job pending or running that a killed slurmctld has forgotten.
            return JobState(state, "", nodes) if state not in UNFINISHED else JobState(GONE)
    return JobState(GONE)


def _ask(*command: str) -> str | None:
    """Return what a command of Slurm prints; None if slurmctld cannot be reached. An unknown job is an empty answer."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=ANSWER_S, stdin=subprocess.DEVNULL)
    except (subprocess.TimeoutExpired, OSError):
        return None
    if done.returncode and "Invalid job id" not in done.stderr:
        return None
    return done.stdout
