"""A gang as a Slurm job: submitted once, found again by whoever comes next, watched by its files and by Slurm."""

import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from triplepoint.config.plan import PlannedRun
from triplepoint.config.site import Gang as GangOptions
from triplepoint.errors import UserError
from triplepoint.launch import slurm
from triplepoint.launch.agent import run_node
from triplepoint.launch.attempt import (
    Submission,
    failed_nodes,
    note_intention,
    note_job,
    read_submission,
    tell_to_stop,
)
from triplepoint.launch.gang import CANCEL_S, POLL_S, stderr_to, time_limit_min
from triplepoint.launch.verdict import Account

QUERY_S = 3.0
"""Between two questions to Slurm; the end of a gang is seen from its files, at once."""
GONE_TIMES = 3
"""A job is given up as unknown to Slurm after so many answers in a row: a slurmctld that just started knows little."""
SUBMIT_S = 300.0
"""How long to go on submitting while slurmctld cannot be reached."""
RETRY_S = 5.0

_OUT_OF_REACH = (
    *("Unable to contact", "Socket timed out", "Connection refused", "temporarily unable", "try again"),
    *("Zero Bytes were transmitted", "Communication connection failure"),
    *("Munge encode failed", "Protocol authentication error", "Invalid authentication credential"),
)
"""What sbatch says where slurmctld or the authentication daemon is away, on this host or on slurmctld's, not where the
request is wrong. Source: Slurm 22.05, slurm_errno.c, and auth_munge.c for munge."""

Say = Callable[[str], None]


class SlurmGang:
    """One job of Slurm with an agent on each node; it goes on when its launcher goes."""

    def __init__(self, raw: Path, planned: PlannedRun, options: GangOptions, submission: Submission, say: Say) -> None:
        """Watch a job that was submitted.

        Args:
            raw: Folder of the attempt.
            planned: What was launched.
            options: How.
            submission: Name and number of the job.
            say: Told of the queue.
        """
        self.submission = submission
        self.was_cancelled = False
        """Whether we asked Slurm to end it."""
        self._raw, self._planned, self._options, self._say = raw, planned, options, say
        self._state: slurm.JobState | None = None
        self._next_query = 0.0
        self._num_gone = 0
        self._silent_since: float | None = None

    def is_over(self) -> bool:
        """Return whether nothing more is to be expected: all agents reported, or those that did not will not.

        Raises:
            UserError: If Slurm will never start the job.
        """
        try:
            num_reports = self._num_reports()
            has_failed = bool(num_reports and failed_nodes(self._raw))
        except OSError:  # out of reach for a moment; Slurm still says how the job stands
            num_reports, has_failed = 0, False
        if num_reports == self._num_nodes:
            return True
        self._ask_slurm()
        ended = self._state is not None and self._state.is_final and self._num_gone in (0, GONE_TIMES)
        if ended and self._state is not None and not self._state.nodes:
            return True  # it never started
        if ended or has_failed:
            # Other agents follow at once; what is silent still is dead, or its file has not come through.
            self._silent_since = self._silent_since or time.monotonic()
            return time.monotonic() - self._silent_since > self._options.file_lag_s
        return False

    def cancel(self) -> None:
        """End the job and wait for its agents, also where slurmctld is away: then they do it, told by a file."""
        tell_to_stop(self._raw)
        self.was_cancelled = True
        job_id = self.submission.job_id
        if job_id is None:
            job_id = _find(self.submission)
        if job_id is not None:
            slurm.cancel(job_id)
        deadline = time.monotonic() + CANCEL_S
        while self._num_reports() < self._num_begun() and time.monotonic() < deadline:
            time.sleep(POLL_S)

    def account(self) -> Account:
        """Return what Slurm says of the end of a gang that is over, and end what is left of it."""
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

    def _num_begun(self) -> int:
        return len(list(self._raw.glob("nodes/begun*.json")))

    def _ask_slurm(self) -> None:
        if time.monotonic() < self._next_query:
            return
        self._next_query = time.monotonic() + QUERY_S
        state = slurm.query(self._job_id, self.submission.comment)
        if state is None:
            return  # slurmctld is away; the gang goes on without it
        self._num_gone = min(self._num_gone + 1, GONE_TIMES) if state.state == slurm.GONE else 0
        too_large = state.reason == slurm.TOO_MANY_NODES and slurm.is_too_large(self._job_id, self._num_nodes)
        if state.waits_in_vain or too_large:
            raise UserError(
                f"{self._planned.run}: Slurm will never start job {self.submission.job_id} ({state.reason}); "
                f"{_request(self._planned, self._options)}; see the site's file, docs/cluster.md"
            )
        if self._state is None or (state.state, state.reason) != (self._state.state, self._state.reason):
            where = f" on {state.nodes}" if state.nodes else f" ({state.reason})"
            how = "held" if state.is_held else state.state.lower()
            until = f"; it waits for 'scontrol release {self._job_id}' or 'scancel {self._job_id}'"
            self._say(f"{self._planned.run}: job {self._job_id} is {how}{where}{until if state.is_held else ''}")
        self._state = state


def submit(raw: Path, planned: PlannedRun, options: GangOptions, exclude: frozenset[str], say: Say) -> SlurmGang:
    """Submit a gang, never twice: an answer that got lost is looked up before another try.

    Args:
        raw: Folder of the attempt, holding `point.json`.
        planned: What to launch.
        options: How to ask for it.
        exclude: Nodes not to use, besides those the options name.
        say: Told of progress.

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
        # A job may be there though the answer got lost: nothing is submitted again until Slurm says that there is none.
        jobs = slurm.find_jobs(submission.name)
        may_submit = jobs is not None and submission.comment not in jobs.values()
        if not any(text in problem for text in _OUT_OF_REACH) or time.monotonic() > deadline:
            raise UserError(
                f"{planned.run}: sbatch: {problem}; asked for {_request(planned, options, exclude)}; "
                "partition, account and the like are in the site's file, see docs/cluster.md"
            )
        say(f"{planned.run}: Slurm is out of reach ({problem}); trying again")
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
    """Return what submitit is asked for."""
    gpus = planned.point.cluster.gpus_per_node if planned.point.cluster.device != "cpu" else None
    further: dict[str, Any] = {
        # A gang that lost a node is launched anew in a folder of its own, not started again among its own leavings.
        "no-requeue": True,
        "switches": options.switches,
        **options.sbatch,
    }
    parameters = {
        "job_name": submission.name,
        "comment": submission.comment,
        "dependency": "singleton",
        "nodes": planned.point.num_nodes,
        "ntasks_per_node": 1,
        "time": time_limit_min(planned),
        "partition": options.partition,
        "account": options.account,
        "qos": options.qos,
        "constraint": options.constraint,
        "exclude": ",".join(sorted({*options.exclude, *exclude})) or None,
        "exclusive": options.exclusive or None,
        "gres": options.gres or (f"gpu:{gpus}" if gpus else None),
        "cpus_per_task": options.cpus,
        "mem": options.mem,
        "setup": list(options.setup) or None,
        "additional_parameters": {key: value for key, value in further.items() if value is not None},
        "srun_args": ["--kill-on-bad-exit=1", *([f"--cpus-per-task={options.cpus}"] if options.cpus else [])],
    }
    return {key: value for key, value in parameters.items() if value is not None}


def _try_to_submit(
    raw: Path, planned: PlannedRun, options: GangOptions, exclude: frozenset[str], submission: Submission
) -> str | None:
    """Submit once; return None, or what sbatch said against it."""
    import submitit
    from submitit.core.utils import FailedJobError, FailedSubmissionError

    if shutil.which("srun") is None:
        return "no Slurm here, there is no srun on the PATH"
    executor = submitit.SlurmExecutor(raw / "submitit", python=options.python)
    executor.update_parameters(**sbatch_parameters(planned, options, exclude, submission))
    try:
        with stderr_to(raw / "submitit.log"):
            job = executor.submit(run_node, raw, None)
    except (FailedJobError, FailedSubmissionError) as error:
        said = [line.partition("error: ")[2] for line in str(error).splitlines() if "error: " in line]
        return "; ".join(said) or " ".join(str(error).split()) or "no word"
    note_job(raw, submission, job.job_id)
    return None


def _find(submission: Submission) -> str | None:
    """Return the number of the job with this note's comment, if Slurm knows one that has not ended."""
    jobs = slurm.find_jobs(submission.name) or {}
    return next((job_id for job_id, comment in jobs.items() if comment == submission.comment), None)


def _request(planned: PlannedRun, options: GangOptions, exclude: frozenset[str] = frozenset()) -> str:
    parts = [f"{planned.point.num_nodes} nodes"]
    parts += [
        f"{key} {value}" for key in ("partition", "account", "constraint", "gres") if (value := getattr(options, key))
    ]
    left_out = sorted({*options.exclude, *exclude})
    return ", ".join([*parts, *([f"without {', '.join(left_out)}"] if left_out else [])])
