"""Watch a job with the sampler beside it: run its command, follow its process, or follow its Slurm job on all nodes."""

import contextlib
import ctypes.util
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, TextIO

from triplepoint.errors import UserError
from triplepoint.launch.outcome import log_tail
from triplepoint.launch.slurm import count_host_kills
from triplepoint.launch.watch import Sampler
from triplepoint.processes import exit_status, has_ended, start_ticks
from triplepoint.recorded.marks import SESSION, STEPS_BY, rank_of
from triplepoint.recorded.patterns import LogMarks, step_pattern
from triplepoint.recorded.session import ENDING_SIGNALS, Session, job_key

HOOK = Path(__file__).parent / "hook"
_POLL_S = 0.1
_LOG_POLL_S = 0.02
"""Between two looks at a log that something else writes: steps it marks are known to about this."""
_TAIL_BYTES = 8192
_JUDGED_LINES = 200
"""Last lines of a log that an outcome is judged by: after the error of a rank torchrun writes some 50 of its own."""
_MOST_SAID = 300
"""Letters of srun's last words that an error quotes."""


@dataclass(frozen=True)
class Watching:
    """How a job is watched.

    Attributes:
        device: What its ranks compute on: cpu, cuda or rocm.
        period_s: Time between samples. Unit: s.
        fast_period_s: The same of the GPUs' fast sensors. Unit: s.
        steps: What may mark steps in its processes: a key of `marks.SOURCES`, `auto` or `none`.
        pattern: Name or regular expression of the lines that mark steps; None for none.
    """

    device: str
    period_s: float
    fast_period_s: float
    steps: str = "auto"
    pattern: str | None = None


def find_device() -> str:
    """Return what the ranks of this node compute on, by the driver that is there."""
    if Path("/dev/nvidiactl").exists() or ctypes.util.find_library("nvidia-ml"):
        return "cuda"
    return "rocm" if Path("/dev/kfd").exists() else "cpu"


def record_command(session: Session, command: Sequence[str], how: Watching, out: TextIO) -> int:
    """Run a command under watch and return its exit status, 128 and the signal where one ended it.

    Args:
        session: The recording, joined.
        command: Program and arguments.
        how: How it is watched.
        out: Where its standard output is passed on to.
    """
    marks = _log_marks(session, how)
    with _Beside(session, how) as beside:
        kills = count_host_kills()
        child = subprocess.Popen(
            list(command), stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=_environment(session, how)
        )
        session.join_as(child.pid)  # the recording is under way as long as the job is, even without its watcher
        log = session.folder / "logs" / f"rank{rank_of()}-{os.getpid()}.log"
        streams = [_Tee(child.stdout, out, log, marks), _Tee(child.stderr, sys.stderr, log, marks)]
        ranks = _Ranks(session)
        with _passing_on(child) as received:
            while (status := _ended(child)) is None:
                beside.watch()
                ranks.watch()
        for stream in streams:
            stream.join(timeout=5.0)  # a child of the command's own may hold the pipe open
        said = log_tail(log, _JUDGED_LINES)
        told_by = next(iter(received), None)
        session.leave_end(status, command, said, count_host_kills() - kills, told_by, ranks.first_failed)
    return status if status >= 0 else 128 - status


def record_process(session: Session, pid: int, how: Watching, log: Path | None) -> None:
    """Follow a process that runs already until it ends.

    Args:
        session: The recording, joined.
        pid: Process of this node.
        how: How it is watched.
        log: File it writes, for steps by a pattern; None for none.
    """
    marks, ticks = _log_marks(session, how), start_ticks(pid)
    session.join_as(pid)
    stopped = threading.Event()
    before = [signal.signal(number, lambda *_: stopped.set()) for number in (signal.SIGINT, signal.SIGTERM)]
    with _Beside(session, how) as beside:
        follow = _Follow(log, marks) if log is not None and marks is not None else None
        while not stopped.wait(_LOG_POLL_S if follow else _POLL_S):
            beside.watch()
            if follow is not None:
                follow.read()
            if ticks is None or has_ended(pid, ticks) is True:
                break
        session.leave_end(None, [f"process {pid}"], log_tail(log) if log else ())
    for number, handler in zip((signal.SIGINT, signal.SIGTERM), before, strict=True):
        signal.signal(number, handler)


def _ended(child: "subprocess.Popen[bytes]") -> int | None:
    """Return the exit status of a command, None if it has not ended within a moment."""
    try:
        return child.wait(_POLL_S)
    except subprocess.TimeoutExpired:
        return None


def watch_node(session: Session, how: Watching, log: Path | None = None) -> None:
    """Sample this node until SIGTERM, which Slurm sends to every step of a job as it ends.

    Args:
        session: The recording.
        how: How the job is watched.
        log: File with the job's output, which the first node reads for steps by a pattern; None for none.
    """
    session.join_as(os.getpid())
    marks = _log_marks(session, how) if log is not None and rank_of() == 0 else None
    stopped = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGCONT):
        signal.signal(number, lambda number, _: stopped.set() if number != signal.SIGCONT else None)
    with _Beside(session, how) as beside:
        follow = _Follow(log, marks) if log is not None and marks is not None else None
        while not stopped.wait(_LOG_POLL_S if follow else _POLL_S):
            beside.watch()
            if follow is not None:
                follow.read()


class _Beside:
    """What runs beside a job on its node: the sampler, in the first process of the recording there."""

    def __init__(self, session: Session, how: Watching) -> None:
        self._session, self._how = session, how
        self._sampler: Sampler | None = None

    def __enter__(self) -> "_Beside":
        session, how = self._session, self._how
        if session.claim_node():
            self._sampler = Sampler(
                session.folder / "telemetry" / f"{session.host}.arrow",
                session.folder / "logs" / f"sampler-{session.host}.log",
                how.device,
                how.period_s,
                how.fast_period_s,
            )
            session.begin_node(how.device)
        return self

    def watch(self) -> None:
        """Start the sampler again where it ended by itself."""
        if self._sampler is not None:
            self._sampler.watch()

    def __exit__(self, *problem: object) -> None:
        if self._sampler is None:
            return
        self._session.wait_for_others()
        self._sampler.stop()
        self._session.end_node(self._sampler.ends)


class _Ranks:
    """Sees which rank of a command fails first: trainers that start ranks themselves may not say it."""

    def __init__(self, session: Session) -> None:
        self._folder, self._host = session.folder / "ranks", session.host
        self._is_needed = job_key() is None  # else the command is one rank
        self._pids: dict[str, tuple[int, int]] = {}
        self.first_failed: tuple[int, int] | None = None
        """Rank and exit status, a signal as a negative number; None for none."""

    def watch(self) -> None:
        """Look at every rank that has marked a step; one that its launcher told to end did not fail."""
        if not self._is_needed or self.first_failed is not None:
            return
        for path in self._folder.glob("rank*.json"):
            if path.name not in self._pids:
                with contextlib.suppress(ValueError):  # it is being written
                    rank = json.loads(path.read_text())
                    self._pids[path.name] = (rank["rank"], rank["pid"] if rank["host"] == self._host else 0)
        ended = [(rank, exit_status(pid)) for rank, pid in self._pids.values() if pid]
        failed = [(rank, status) for rank, status in ended if status not in (None, 0, -signal.SIGTERM)]
        self.first_failed = min(failed, key=lambda one: (one[1] > 0, one[0]), default=None)


def _environment(session: Session, how: Watching) -> dict[str, str]:
    """Return the environment of a watched command: its Python processes mark their steps."""
    paths = [str(HOOK), *filter(None, [os.environ.get("PYTHONPATH")])]
    return os.environ | {
        "PYTHONPATH": os.pathsep.join(paths),
        # Else the lines of a log that is a pipe come in blocks.
        "PYTHONUNBUFFERED": "1",
        SESSION: str(session.folder),
        STEPS_BY: how.steps,
    }


def _log_marks(session: Session, how: Watching) -> "_LogFile | None":
    return None if how.pattern is None else _LogFile(session, LogMarks(step_pattern(how.pattern), rank_of()))


class _LogFile:
    """Writes the steps that a log marks; lines come from two threads."""

    def __init__(self, session: Session, marks: LogMarks) -> None:
        self._path, self._marks = session.folder / "steps" / f"log{rank_of()}.jsonl", marks
        self._lock = threading.Lock()

    def read(self, line: str, t_ns: int) -> None:
        with self._lock:
            rows = self._marks.read(line, t_ns)
            if rows:
                with self._path.open("a") as file:
                    file.writelines(json.dumps(row) + "\n" for row in rows)


class _Tee(threading.Thread):
    """Passes a stream of a command on, as it comes, and keeps it."""

    def __init__(self, source: IO[bytes] | None, sink: Any, log: Path, marks: _LogFile | None) -> None:
        super().__init__(daemon=True)
        assert source is not None
        self._source, self._sink, self._log, self._marks = source, sink, log, marks
        self.start()

    def run(self) -> None:
        """Read until the stream ends; a reader of ours that has gone, or a full disk, does not end the command."""
        lines = _Lines(self._marks)
        with contextlib.suppress(OSError), self._log.open("ab", buffering=0) as log:
            while block := os.read(self._source.fileno(), 1 << 16):
                t_ns = time.monotonic_ns()
                for write in (self._pass_on, log.write):
                    with contextlib.suppress(OSError, ValueError):
                        write(block)
                lines.read(block, t_ns)

    def _pass_on(self, block: bytes) -> None:
        os.write(self._sink.fileno(), block)


class _Lines:
    """Cuts blocks into lines; a bar that is drawn over itself ends lines with a carriage return."""

    def __init__(self, marks: _LogFile | None) -> None:
        self._marks, self._rest = marks, b""

    def read(self, block: bytes, t_ns: int) -> None:
        if self._marks is None:
            return
        *lines, self._rest = (self._rest + block).replace(b"\r", b"\n").split(b"\n")
        self._rest = self._rest[-_TAIL_BYTES:]
        for line in lines:
            self._marks.read(line.decode(errors="replace"), t_ns)


class _Follow:
    """Reads what is added to a log that something else writes."""

    def __init__(self, path: Path, marks: _LogFile) -> None:
        self._path, self._lines = path, _Lines(marks)
        self._offset = path.stat().st_size if path.is_file() else 0

    def read(self) -> None:
        """Read what is new; a log that became shorter was begun anew."""
        with contextlib.suppress(OSError):
            size = self._path.stat().st_size
            self._offset = 0 if size < self._offset else self._offset
            if size > self._offset:
                with self._path.open("rb") as log:
                    log.seek(self._offset)
                    block = log.read()
                self._offset += len(block)
                self._lines.read(block, time.monotonic_ns())


@contextlib.contextmanager
def _passing_on(child: "subprocess.Popen[bytes]") -> Iterator[list[int]]:
    """Pass signals on to a command; Ctrl-C reaches it from the terminal, and it is waited for.

    Yields:
        Signals received so far that tell a job to end: SIGINT, SIGTERM, SIGHUP.
    """
    received: list[int] = []

    def send(number: int, frame: object) -> None:
        if number in ENDING_SIGNALS:
            received.append(number)
        if number != signal.SIGINT:
            with contextlib.suppress(ProcessLookupError):
                child.send_signal(number)

    numbers = (*ENDING_SIGNALS, signal.SIGUSR1, signal.SIGUSR2)
    before = [(number, signal.signal(number, send)) for number in numbers]
    try:
        yield received
    finally:
        for number, handler in before:
            signal.signal(number, handler)


def record_job(
    job_id: str,
    results: Path,
    setup: Mapping[str, Any],
    how: Watching,
    log: Path | None,
    finish: Callable[[Session], None],
) -> int:
    """Watch every node of a job until the job ends, then make a run of it.

    The watchers are a step of the job that overlaps with its others (srun --overlap), so Slurm ends them with the job.
    Source: srun(1) of Slurm 22.05, --jobid, --overlap.

    Args:
        job_id: Its number.
        results: Folder of results, on a file system that all nodes share.
        setup: What the command line says.
        how: How it is watched.
        log: File with the job's output, for steps by a pattern; None for none.
        finish: Makes a run of a recording.

    Raises:
        UserError: If there is no srun, or no such job runs.
    """
    if not re.fullmatch(r"\d+(_\d+)?", job_id):
        raise UserError(f"record: --job {job_id!r}: expected the number of a job of Slurm, such as 4711")
    if shutil.which("srun") is None:
        raise UserError("record: --job: no srun on this machine; run it where jobs are submitted from")
    num_nodes = _num_nodes(job_id)
    session = Session.join(results, {**setup, "command": [f"Slurm job {job_id}"]}, None)
    watcher = [sys.executable, "-m", "triplepoint.recorded.record", str(session.folder), json.dumps(vars(how))]
    watcher += [str(log.resolve())] if log is not None else []
    command = [
        "srun",
        f"--jobid={job_id}",
        "--overlap",
        f"--nodes={num_nodes}",
        "--ntasks-per-node=1",
        "--cpus-per-task=1",
        *watcher,
    ]
    # srun tells of the watchers, which end with the job, as of a failure.
    ended = subprocess.run(command, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, check=False)
    if not session.nodes():
        shutil.rmtree(session.folder, ignore_errors=True)
        said = " ".join(ended.stderr.split())[-_MOST_SAID:] or f"exit status {ended.returncode}"
        raise UserError(f"record: --job {job_id}: srun started no watcher in the job: {said}")
    session.leave_end(None, [f"Slurm job {job_id}"], ())
    if session.claim_finish():
        finish(session)
    return 0


def _num_nodes(job_id: str) -> int:
    """Return how many nodes a running job has. Raises `UserError` if there is no such job, or it does not run."""
    command = ["squeue", "--noheader", f"--jobs={job_id}", "--states=all", "--format=%T %D"]
    state, _, number = (
        subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip().partition(" ")
    )
    if not number.isdigit():
        raise UserError(f"record: --job {job_id}: squeue knows no such job; give the number of a job that runs")
    if state != "RUNNING":
        raise UserError(f"record: --job {job_id}: the job is {state}; a job can be recorded while it is RUNNING")
    return int(number)


if __name__ == "__main__":
    watch_node(Session(Path(sys.argv[1])), Watching(**json.loads(sys.argv[2])), *map(Path, sys.argv[3:]))
