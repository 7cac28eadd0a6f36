"""Start a gang, as processes on this machine or, through submitit, as a Slurm job, and wait for its end.

A Slurm job is submitted once. Later launchers find it again. It is watched through its files and through Slurm.
"""

import contextlib
import math
import os
import pwd
import shutil
import signal
import socket
import struct
import sys
import time
from collections.abc import Callable, Iterator
from multiprocessing.context import ForkProcess
from pathlib import Path
from typing import Any, Protocol

from triplepoint.config.plan import PlannedRun
from triplepoint.config.site import Gang as GangOptions
from triplepoint.errors import UserError
from triplepoint.files import private_folder
from triplepoint.launch import slurm
from triplepoint.launch.agent import Launcher, run_node
from triplepoint.launch.attempt import (
    Submission,
    failed_nodes,
    note_intention,
    note_job,
    read_submission,
    tell_to_stop,
)
from triplepoint.launch.outcome import Account
from triplepoint.processes import name_process

QUERY_S = 3.0
"""Time between two queries of Slurm. The end of a gang is seen at once, in its files."""
GONE_TIMES = 3
"""Answers in a row without the job, after which it counts as gone: a slurmctld that just started knows few jobs."""
SUBMIT_S = 300.0
"""Time after which to stop trying to submit while slurmctld cannot be reached."""
RETRY_S = 5.0
"""Time between two tries to submit."""

_UNREACHABLE = (
    *("Unable to contact", "Socket timed out", "Connection refused", "temporarily unable", "try again"),
    *("Zero Bytes were transmitted", "Communication connection failure"),
    *("Munge encode failed", "Protocol authentication error", "Invalid authentication credential"),
)
"""Texts of sbatch if slurmctld or an authentication daemon, here or on slurmctld's host, is down; the request may be
right. Source: Slurm 22.05, slurm_errno.c, and auth_munge.c for munge."""

Say = Callable[[str], None]
SECONDS_PER_MINUTE = 60
MARGIN_MIN = 2
"""Added to the run's time limit for the scheduler: agents end the gang at its limit, and the scheduler only if they
fail to. Unit: minute."""
POLL_S = 0.2
CANCEL_S = 10.0
"""Time to wait for a cancelled gang to end."""
MACHINE = "TRIPLEPOINT_MACHINE"
"""Environment variable: name of the lock of local gangs, instead of `triplepoint-gang`."""
_MAX_WAITING = 128
"""Launchers that may queue for the name of the lock's owner."""


class Gang(Protocol):
    """A submitted gang: an agent with ranks on each node."""

    def is_over(self) -> bool:
        """Return whether the gang has ended, well or not. The agents' reports say how."""

    def cancel(self) -> None:
        """End the gang now."""


def wait(gang: Gang, poll: Callable[[], Any]) -> None:
    """Wait until a gang is over, and call `poll` while waiting."""
    while not gang.is_over():
        poll()
        time.sleep(POLL_S)


class LocalGang:
    """A gang of processes on this machine, which ends with its launcher."""

    def __init__(self, raw: Path) -> None:
        """Start the agent: a fork of this process, which has imported already what an agent needs.

        The one thread of this process, that of its claim, holds no lock which the fork would wait for.
        """
        log = private_folder(raw / "logs") / "agent0.log"
        self._agent = ForkProcess(target=_be_agent, args=(raw, Launcher.this(), log))
        self._agent.start()

    def is_over(self) -> bool:
        """Return whether the agent has ended, well or not."""
        return not self._agent.is_alive()

    def cancel(self) -> None:
        """End the gang now."""
        self._agent.terminate()
        self._agent.join(CANCEL_S)
        self._agent.kill()


def _be_agent(raw: Path, launcher: Launcher, log: Path) -> None:
    """Run the agent of a local gang in this process, with a log and signals of its own."""
    name_process("agent0")
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # as an exception, so that the sampler ends first
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    with log.open("ab") as out:
        os.dup2(out.fileno(), 1)
        os.dup2(out.fileno(), 2)
    sys.stdout = sys.stderr = os.fdopen(2, "w", buffering=1, closefd=False)
    run_node(raw, launcher)


@contextlib.contextmanager
def alone_on_machine(run: str, say: Callable[[str], None]) -> Iterator[None]:
    """Lock this machine for one local gang, whichever user started it: two at once would slow each other down.

    The lock is the name of an abstract Unix socket, which the kernel frees however the process ends.
    Source: Linux, unix(7).
    """
    name = "\0" + os.environ.get(MACHINE, "triplepoint-gang")
    with socket.socket(socket.AF_UNIX) as lock:
        reported = None
        while not _bind(lock, name):
            if (owner := _owner_of(name)) is not None and owner != reported:
                say(f"{run}: {owner} measures on this machine; waiting")
                reported = owner
            time.sleep(POLL_S)
        lock.listen(_MAX_WAITING)
        yield


def _bind(lock: socket.socket, name: str) -> bool:
    try:
        lock.bind(name)
    except OSError:
        return False
    return True


def _owner_of(name: str) -> str | None:
    """Return process and user that hold the lock; None if nobody does, or too many launchers ask."""
    with socket.socket(socket.AF_UNIX) as asking:
        asking.setblocking(False)
        try:
            asking.connect(name)
        except OSError:
            return None
        pid, uid, _ = struct.unpack("3i", asking.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    with contextlib.suppress(KeyError):
        return f"process {pid} of {pwd.getpwuid(uid).pw_name}"
    return f"process {pid} of user {uid}"


def time_limit_min(planned: PlannedRun) -> int:
    """Return the time limit for the scheduler. Unit: minute."""
    return math.ceil(planned.limits.time_limit_s / SECONDS_PER_MINUTE) + MARGIN_MIN


@contextlib.contextmanager
def stderr_to(path: Path) -> Iterator[None]:
    """Redirect stderr to a file, for submitit and the processes that it starts inside, such as sbatch."""
    original_fd = os.dup(sys.stderr.fileno())
    with path.open("ab") as log:
        os.dup2(log.fileno(), sys.stderr.fileno())
    try:
        yield
    finally:
        os.dup2(original_fd, sys.stderr.fileno())
        os.close(original_fd)


class SlurmGang:
    """A Slurm job with an agent on each node. It continues if its launcher ends."""

    def __init__(self, raw: Path, planned: PlannedRun, options: GangOptions, submission: Submission, say: Say) -> None:
        self.submission = submission
        self.was_cancelled = False
        """Whether this launcher asked Slurm to end the job."""
        self._raw, self._planned, self._options, self._say = raw, planned, options, say
        self._state: slurm.JobState | None = None
        self._next_query = 0.0
        self._num_gone = 0
        self._silent_since: float | None = None

    def is_over(self) -> bool:
        """Return whether all agents have reported, or no more reports are to be expected.

        Raises:
            UserError: If Slurm will never start the job.
        """
        try:
            num_reports = self._num_reports()
            has_failed = bool(num_reports and failed_nodes(self._raw))
        except OSError:  # the file system is unreachable for a moment; Slurm still has the state of the job
            num_reports, has_failed = 0, False
        if num_reports == self._num_nodes:
            return True
        self._ask_slurm()
        ended = self._state is not None and self._state.is_final and self._num_gone in (0, GONE_TIMES)
        if ended and self._state is not None and not self._state.nodes:
            return True  # the job never started
        if ended or has_failed:
            # The other agents end at once. One without a report is dead, or its file has not arrived yet.
            self._silent_since = self._silent_since or time.monotonic()
            return time.monotonic() - self._silent_since > self._options.file_lag_s
        return False

    def cancel(self) -> None:
        """End the job and wait for its agents. If slurmctld is down, a file tells the agents to end the job."""
        tell_to_stop(self._raw)
        self.was_cancelled = True
        job_id = self.submission.job_id
        if job_id is None:
            job_id = _find(self.submission)
        if job_id is not None:
            slurm.cancel(job_id)
        deadline = time.monotonic() + CANCEL_S
        while self._num_reports() < len(list(self._raw.glob("nodes/begun*.json"))) and time.monotonic() < deadline:
            time.sleep(POLL_S)

    def account(self) -> Account:
        """Return how Slurm saw the end of a gang that is over, and end what is left of the gang."""
        job_id, comment = self._job_id, self.submission.comment
        if self._num_reports() == self._num_nodes:
            state = slurm.settled(job_id, comment) if failed_nodes(self._raw) else None
            return Account(job_id, state, by_us=False)
        state = slurm.query(job_id, comment)
        if state is not None and state.state == "COMPLETING":
            state = slurm.settled(job_id, comment)
        if state is None or not state.is_final:
            self.cancel()
        tell_to_stop(self._raw)
        return Account(job_id, state, self.was_cancelled)

    @property
    def _job_id(self) -> str:
        assert self.submission.job_id is not None, "only jobs that were submitted are watched"
        return self.submission.job_id

    @property
    def _num_nodes(self) -> int:
        return self._planned.point.num_nodes

    def _num_reports(self) -> int:
        return len(list(self._raw.glob("nodes/node*.json")))

    def _ask_slurm(self) -> None:
        if time.monotonic() < self._next_query:
            return
        self._next_query = time.monotonic() + QUERY_S
        state = slurm.query(self._job_id, self.submission.comment)
        if state is None:
            return  # slurmctld is down; the gang continues
        self._num_gone = min(self._num_gone + 1, GONE_TIMES) if state.state == slurm.GONE else 0
        too_large = state.reason == slurm.TOO_MANY_NODES and slurm.is_too_large(self._job_id, self._num_nodes)
        if state.waits_in_vain or too_large:
            raise UserError(
                f"{self._planned.run}: Slurm will never start job {self.submission.job_id} ({state.reason}); "
                f"{_request(self._planned, self._options)}; see the site's file, docs/cluster.md"
            )
        if self._state is None or (state.state, state.reason) != (self._state.state, self._state.reason):
            where = f" on {state.nodes}" if state.nodes else f" ({state.reason})"
            condition = "held" if state.is_held else state.state.lower()
            way_out = f"; it waits for 'scontrol release {self._job_id}' or 'scancel {self._job_id}'"
            advice = way_out if state.is_held else ""
            self._say(f"{self._planned.run}: job {self._job_id} is {condition}{where}{advice}")
        self._state = state


def submit(raw: Path, planned: PlannedRun, options: GangOptions, exclude: frozenset[str], say: Say) -> SlurmGang:
    """Submit a gang exactly once: if the answer of sbatch got lost, look for the job before another try.

    Args:
        raw: Folder of the attempt, with `point.json`.
        planned: The run to launch.
        options: The site's options for gangs on this cluster.
        exclude: Nodes not to use, in addition to those in `options`.
        say: Receives progress, a line at a time.

    Raises:
        UserError: If Slurm refuses the request, or cannot be reached for long.
    """
    submission = note_intention(raw, options.mem)
    deadline = time.monotonic() + SUBMIT_S
    problem: str | None = None
    may_submit = True
    while True:
        if may_submit:
            problem = _try_to_submit(raw, planned, options, exclude, submission)
        gang = adopt(raw, planned, options, say)
        if gang is not None:
            return gang
        assert problem is not None, "a submission has a job or a problem"
        # There may be a job although the answer got lost: submit again only after Slurm says that there is none.
        jobs = slurm.find_jobs(submission.name)
        may_submit = jobs is not None and submission.comment not in jobs.values()
        if not any(text in problem for text in _UNREACHABLE) or time.monotonic() > deadline:
            raise UserError(
                f"{planned.run}: sbatch: {problem}; asked for {_request(planned, options, exclude)}; "
                "partition, account and the like are in the site's file, see docs/cluster.md"
            )
        say(f"{planned.run}: Slurm does not answer ({problem}); trying again")
        time.sleep(RETRY_S)


def adopt(raw: Path, planned: PlannedRun, options: GangOptions, say: Say) -> SlurmGang | None:
    """Return the gang of an attempt whose launcher was killed; None if it never became a job."""
    submission = read_submission(raw)
    if submission is None:
        return None
    if submission.job_id is None:
        job_id = _find(submission)
        if job_id is None:
            return None
        submission = note_job(raw, submission, job_id)
    return SlurmGang(raw, planned, options, submission, say)


def sbatch_parameters(
    planned: PlannedRun, options: GangOptions, exclude: frozenset[str], submission: Submission
) -> dict[str, Any]:
    """Return the parameters of the job, in submitit's names."""
    cluster = planned.point.cluster
    parameters = options.job_parameters(
        cluster.gpus_per_node if cluster.device != "cpu" else 0, exclude, srun_args=["--kill-on-bad-exit=1"]
    )
    # After the loss of a node the launcher starts a new attempt in a new folder. Slurm must not restart this job, whose
    # files would mix with those of its first run.
    additional = {"no-requeue": True} | parameters["additional_parameters"]
    if planned.point.hosts:
        additional["nodelist"] = ",".join(planned.point.hosts)
    return parameters | {
        "job_name": submission.name,
        "comment": submission.comment,
        "dependency": "singleton",
        "nodes": planned.point.num_nodes,
        "ntasks_per_node": 1,
        "time": time_limit_min(planned),
        "additional_parameters": additional,
    }


def _try_to_submit(
    raw: Path, planned: PlannedRun, options: GangOptions, exclude: frozenset[str], submission: Submission
) -> str | None:
    """Submit once; return None, or the error message of sbatch."""
    import submitit
    from submitit.core.utils import FailedJobError, FailedSubmissionError

    if shutil.which("srun") is None:
        return "no Slurm here, there is no srun on the PATH"
    executor = submitit.SlurmExecutor(private_folder(raw / "submitit"), python=options.python)
    executor.update_parameters(**sbatch_parameters(planned, options, exclude, submission))
    try:
        with stderr_to(raw / "submitit.log"):
            job = executor.submit(run_node, raw, None)
    except (FailedJobError, FailedSubmissionError) as error:
        messages = [line.partition("error: ")[2] for line in str(error).splitlines() if "error: " in line]
        return "; ".join(messages) or " ".join(str(error).split()) or "no word"
    note_job(raw, submission, job.job_id)
    return None


def _find(submission: Submission) -> str | None:
    """Return the number of the unfinished job with this submission's comment, None if Slurm knows none."""
    jobs = slurm.find_jobs(submission.name) or {}
    return next((job_id for job_id, comment in jobs.items() if comment == submission.comment), None)


def _request(planned: PlannedRun, options: GangOptions, exclude: frozenset[str] = frozenset()) -> str:
    """Return a description of the requested job, for error messages."""
    parts = [f"{planned.point.num_nodes} nodes"]
    parts += [
        f"{key} {value}" for key in ("partition", "account", "constraint", "gres") if (value := getattr(options, key))
    ]
    excluded = sorted({*options.exclude, *exclude})
    return ", ".join([*parts, *([f"without {', '.join(excluded)}"] if excluded else [])])
