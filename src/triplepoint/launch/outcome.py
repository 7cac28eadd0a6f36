"""Judge the outcome of a launch from evidence: messages, exits and logs of ranks, reports of agents, state in Slurm."""

import errno
import os
import re
import shutil
import signal
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from triplepoint.config.plan import PlannedRun
from triplepoint.config.site import site_file
from triplepoint.errors import UserError
from triplepoint.launch.attempt import read_beginnings, read_submission
from triplepoint.launch.slurm import GONE, JobState, MemoryLimit, hosts, node_state
from triplepoint.manifest import Evidence, Suspect
from triplepoint.status import Status
from triplepoint.units import MIB

_STATES: dict[str, Status] = {
    "PREEMPTED": Status.PREEMPTED,
    "NODE_FAIL": Status.LOST,
    "BOOT_FAIL": Status.LOST,
    GONE: Status.LOST,
    "TIMEOUT": Status.TIMEOUT,
    "DEADLINE": Status.TIMEOUT,
    "OUT_OF_MEMORY": Status.OOM,
    "CANCELLED": Status.CANCELLED,
    "REVOKED": Status.CANCELLED,
}
"""Outcome by the state of a job that was ended from outside. Source: squeue(1), job state codes."""

_MAY_BE_A_DEVICE = frozenset({Status.OK, Status.CRASHED, Status.COLLECTIVE, Status.HUNG, Status.LOST})
"""Outcomes that a broken GPU may explain, or make worthless."""
LOG_TAIL_LINES = 15
HOST_MEMORY = "host memory"
"""Begin of the message if the memory of the host ran out, and not that of a device."""

_HOST_OUT_OF_MEMORY = re.compile(r"exceeded (job |step )?memory limit|oom[-_ ]?kill|Out Of Memory", re.IGNORECASE)
"""Messages of Slurm in a job's log if host memory ran out. Source: Slurm 22.05, slurmstepd and task/cgroup."""

_AFTERSHOCK = re.compile(
    r"Connection (closed|reset|refused)|Broken pipe|\bsocket|Timed out waiting|timeout.*waiting"
    r"|NCCL (remote|communicator)|ncclRemoteError|application has timed out|\bpeer|told to end|SIGTERM",
    re.IGNORECASE,
)
"""Messages and exits of a healthy rank after another rank has failed, or the scheduler has ended the job."""


_MAY_FOLLOW = frozenset({Status.CRASHED, Status.COLLECTIVE, Status.CANCELLED})
"""Outcomes of a rank that may only follow from the failure of another."""


@dataclass(frozen=True)
class Failure:
    """Failure of one rank, as seen by its agent."""

    rank: int
    status: Status
    message: str
    t_wall_ns: int
    is_user_error: bool = False

    @property
    def is_aftershock(self) -> bool:
        """Whether this failure only follows from that of another rank, or from the end of the job."""
        return self.status in _MAY_FOLLOW and is_aftershock(self.message)


def is_aftershock(message: str) -> bool:
    """Return whether a message only follows from the failure of another rank, or from the end of the job."""
    return _AFTERSHOCK.search(message) is not None


def judge_kill(failure: Failure, num_host_kills: int) -> Failure:
    """Return the failure as out of memory if the rank was killed and the kernel's out-of-memory killer was active.

    Args:
        failure: Failure of a rank.
        num_host_kills: Processes that the out-of-memory killer ended during the launch.
    """
    if num_host_kills <= 0 or "SIGKILL" not in failure.message:
        return failure
    return replace(failure, status=Status.OOM, message=f"{HOST_MEMORY}: the kernel ended the rank; {failure.message}")


def says_host_out_of_memory(lines: Iterable[str]) -> str | None:
    """Return the log line in which Slurm reports that host memory ran out, None if there is none."""
    return next((line for line in lines if _HOST_OUT_OF_MEMORY.search(line)), None)


def describe_exit(returncode: int) -> str:
    """Return a message for the exit status of a rank that left no message itself."""
    if returncode >= 0:
        return f"exited with status {returncode} and no message"
    try:
        name = signal.Signals(-returncode).name
    except ValueError:
        name = "unknown"
    hint = "; the kernel's out-of-memory killer, or a person, ended it" if name == "SIGKILL" else ""
    return f"killed by signal {-returncode} ({name}){hint}"


def root_cause(failures: Iterable[Failure]) -> Failure:
    """Return the failure that the others follow from.

    Aftershocks come last. Among the rest broken devices come first, then memory, then the earliest failure.
    """
    order = {Status.BAD_NODE: 0, Status.OOM: 1}
    return min(failures, key=lambda f: (f.is_aftershock, order.get(f.status, 2), f.t_wall_ns))


def log_tail(path: Path, num_lines: int = LOG_TAIL_LINES) -> tuple[str, ...]:
    """Return the last lines of a log that are not empty; none if there is no log."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - 64 * 1024))
            lines = file.read().decode("utf-8", "replace").splitlines()
    except OSError:
        return ()
    return tuple(line[:500] for line in lines if line.strip())[-num_lines:]


def find_hung(raw: Path, ranks: Sequence[int]) -> tuple[int, str]:
    """Return the rank that most likely holds up a hung gang, and why."""
    return judge_hung(
        {rank: _read_stack(raw, rank) for rank in ranks}, {rank: _count_steps(raw, rank) for rank in ranks}
    )


def judge_hung(stacks: dict[int, str], last_step: dict[int, int]) -> tuple[int, str]:
    """Return the rank that most likely holds up a hung gang, and why.

    A rank inside a collective waits for others. The suspect is a rank that did not dump its stack when asked to, or one
    that is not in a collective. If there is none, it is the rank that finished the fewest steps.

    Args:
        stacks: Stack dump of each rank, empty if the rank did not answer.
        last_step: Number of finished steps of each rank.
    """
    silent = [rank for rank, stack in stacks.items() if not stack.strip()]
    if silent:
        return silent[0], "does not react to signals (stopped, or stuck in the kernel)"
    elsewhere = [rank for rank, stack in stacks.items() if "torch/distributed" not in _main_thread(stack)]
    if elsewhere and len(elsewhere) < len(stacks):
        return elsewhere[0], "is not in a collective while others wait in one"
    slowest = min(last_step, key=lambda rank: (last_step[rank], rank))
    return slowest, f"finished {last_step[slowest]} steps, the fewest"


def _read_stack(raw: Path, rank: int) -> str:
    path = raw / "logs" / f"rank{rank}.stack"
    return path.read_text() if path.exists() else ""


def _count_steps(raw: Path, rank: int) -> int:
    path = raw / "steps" / f"rank{rank}.jsonl"
    return path.read_bytes().count(b"\n") if path.exists() else 0


def _main_thread(stack: str) -> str:
    """Return the main thread's part of a faulthandler dump: after `Current thread`, the one that got the signal."""
    return stack.rpartition("Current thread")[2]


@dataclass(frozen=True)
class Account:
    """Slurm's account of how a job ended."""

    job_id: str
    state: JobState | None
    """Last state of the job; None if Slurm did not answer."""
    by_us: bool
    """Whether the launcher cancelled the job: then the state CANCELLED is no evidence."""

    @property
    def status(self) -> Status | None:
        """Outcome if the job was ended from outside, else None."""
        if self.state is None or (self.by_us and self.state.state == "CANCELLED"):
            return None
        return _STATES.get(self.state.state)


def judge(
    raw: Path, planned: PlannedRun, reports: list[dict[str, Any]], account: Account | None
) -> tuple[Status, Evidence | None]:
    """Return how a launch ended and the evidence for it.

    Evidence counts in this order: the failure of a rank that is no aftershock, the end of the job by Slurm, nodes
    without a report, aftershocks of healthy ranks.

    Args:
        raw: Folder of the attempt.
        planned: The launched run.
        reports: Reports of the agents.
        account: Slurm's account of the job; None for a local gang.

    Raises:
        UserError: If the user can remove the cause.
        OSError: If the disk is full.
    """
    failures = [Failure(**report["failure"]) for report in reports if report["failure"]]
    reported = {report["node"] for report in reports}
    silent = [node for node in range(planned.point.num_nodes) if node not in reported]
    if not failures and not silent:
        return Status.OK, None
    cause = root_cause(failures) if failures else None
    if cause is not None and cause.status == Status.OOM and cause.message.startswith(HOST_MEMORY):
        _refuse_limited(raw, planned, cause.message)
    if cause is not None and cause.is_user_error:
        raise UserError(cause.message)
    if shutil.disk_usage(raw).free < MIB:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(raw))
    if cause is not None and not cause.is_aftershock:
        return _judge_rank(raw, cause, reports)
    if account is not None and account.status is not None:
        if account.status == Status.OOM:
            _refuse_limited(raw, planned, f"{HOST_MEMORY}: job {account.job_id} ended as OUT_OF_MEMORY")
        return account.status, _slurm_evidence(raw, account, silent, planned.point.hosts)
    if silent:
        return _judge_silence(raw, planned, silent, account)
    assert cause is not None, "without silent nodes there is a failure"
    return _judge_rank(raw, cause, reports)


def with_suspects(
    status: Status, evidence: Evidence | None, suspects: Sequence[Suspect], can_spare: Callable[[frozenset[str]], bool]
) -> tuple[Status, Evidence | None]:
    """Return how a launch ended, given broken and slow GPUs in its telemetry.

    A broken GPU explains a failure, and makes the result of a successful gang worthless. A slow GPU makes it worthless
    only if the launch can be repeated without that GPU's host. Otherwise the result stands, with the suspects in the
    manifest.

    Args:
        status: Outcome without the telemetry.
        evidence: Evidence for that outcome.
        suspects: GPUs that are broken or slow.
        can_spare: Returns whether the launch could be repeated without these hosts.
    """
    broken = [suspect for suspect in suspects if suspect.is_broken]
    blamed: Sequence[Suspect] = broken if status in _MAY_BE_A_DEVICE else []
    if status == Status.OK and not broken and suspects and can_spare(frozenset(suspect.host for suspect in suspects)):
        blamed = suspects
    if not blamed:
        return status, evidence
    messages = [*map(str, blamed), *([evidence.message] if evidence is not None else [])]
    log_tail = evidence.log_tail if evidence is not None else ()
    blame = Evidence(rank=blamed[0].rank, host=blamed[0].host, message="; ".join(messages), log_tail=log_tail)
    return Status.BAD_NODE, blame


def _judge_rank(raw: Path, cause: Failure, reports: list[dict[str, Any]]) -> tuple[Status, Evidence]:
    """Return the outcome by a rank's failure.

    If the gang hangs, every node reports that. The rank at fault is then searched among the ranks of all nodes.
    """
    message, rank = cause.message, cause.rank
    if cause.status == Status.HUNG:
        hanging = [report for report in reports if report["failure"] and report["failure"]["status"] == Status.HUNG]
        rank, because = find_hung(raw, [rank for report in hanging for rank in report["ranks"]])
        message = f"{message.partition(': rank')[0]}: rank {rank} {because}"
    report = next(report for report in reports if rank in report["ranks"])
    tail = log_tail(raw / "logs" / f"rank{rank}.log")
    return cause.status, Evidence(rank=rank, host=report["host"], message=message, log_tail=tail)


def _slurm_evidence(raw: Path, account: Account, silent: list[int], named: Sequence[str]) -> Evidence:
    assert account.state is not None, "Slurm gave a status"
    lost = _node_names(named, silent, account) if account.status == Status.LOST else []
    parts = [f"Slurm: job {account.job_id} ended as {account.state.state}"]
    parts += [f"on {account.state.nodes}"] if account.state.nodes else []
    parts += [f"({_describe_nodes(lost)})"] if lost else []
    host = lost[0] if len(lost) == 1 else ""
    return Evidence(rank=None, host=host, message=" ".join(parts), log_tail=_job_log(raw))


def _judge_silence(
    raw: Path, planned: PlannedRun, silent: list[int], account: Account | None
) -> tuple[Status, Evidence]:
    """Return the outcome of a gang with nodes that left no report."""
    log = _job_log(raw)
    if line := says_host_out_of_memory(log):
        _refuse_limited(raw, planned, f"{HOST_MEMORY}: {line}")
        return Status.OOM, Evidence(rank=None, host="", message=f"{HOST_MEMORY}: {line}", log_tail=log)
    names = _node_names(planned.point.hosts, silent, account)
    last = f"; its log ends: {log[-1]}" if log else ""
    message = f"no report from node {', '.join(map(str, silent))}: its agent was killed or could not start{last}"
    if account is None:
        return Status.CRASHED, Evidence(rank=None, host="", message=message, log_tail=log)
    begun = [node for node in silent if (raw / "nodes" / f"begun{node}.json").is_file()]
    if not begun and account.state is not None and account.state.state in ("FAILED", "COMPLETED"):
        # No agent ran at all: the set-up, container or Python is wrong, and other nodes would not help.
        return Status.CRASHED, Evidence(rank=None, host="", message=f"no agent started{last}", log_tail=log)
    host = names[0] if len(names) == 1 else ""
    return Status.LOST, Evidence(rank=None, host=host, message=f"{message} ({_describe_nodes(names)})", log_tail=log)


def _refuse_limited(raw: Path, planned: PlannedRun, message: str) -> None:
    """Refuse the outcome out of host memory if the launch could not use all memory of a node: the point might fit.

    Raises:
        UserError: If the launch had a memory limit.
    """
    submission, beginnings = read_submission(raw), read_beginnings(raw)
    limits = [MemoryLimit(**limit) for beginning in beginnings if (limit := beginning.get("memory_limit"))]
    allowed = str(min(limits, key=lambda limit: limit.limit_bytes)) if limits else ""
    advice = "start this where all memory of the machine may be used"
    if submission is not None:
        if not submission.mem.strip("kKmMgGtT0") or (beginnings and not limits):
            return
        allowed = allowed or submission.mem
        advice = f"raise `mem` of gangs: {planned.point.cluster.name} in {site_file()} ('0' is all)"
    if allowed:
        raise UserError(
            f"{planned.run}: {message}; the launch was allowed {allowed} of it, less than the node has, so this is "
            f"no result of the point; {advice}"
        )


def _node_names(named: Sequence[str], nodes: Iterable[int], account: Account | None) -> list[str]:
    """Return host names of nodes of the gang: from the point's `hosts`, else from Slurm, as far as it knows them."""
    known = named or (hosts(account.state.nodes) if account is not None and account.state is not None else ())
    return [known[node] for node in nodes if node < len(known)]


def _describe_nodes(names: list[str]) -> str:
    return ", ".join(f"{name} is {node_state(name) or 'unknown to Slurm'}" for name in names)


def _job_log(raw: Path) -> tuple[str, ...]:
    paths = [*sorted(raw.glob("submitit/*.err")), *raw.glob("logs/agent0.log")]
    lines = [line for path in paths for line in log_tail(path)]
    return tuple(lines[-30:])
