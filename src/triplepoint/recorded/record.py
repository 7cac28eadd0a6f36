"""Record a job with a sampler on each node: run its command, follow its process, or follow its Slurm job."""

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
"""Folder on the Python path of watched processes; its `sitecustomize` marks their steps."""
_POLL_S = 0.1
"""Time between two checks of a process. Unit: s."""
_LOG_POLL_S = 0.02
"""Time between two reads of a followed log, and so about the error of the steps that it marks. Unit: s."""
_TAIL_BYTES = 8192
"""Longest incomplete line that is kept. Unit: byte."""
_JUDGED_LINES = 200
"""Number of last lines of a log that decide the outcome; torchrun writes some 50 lines after the error of a rank."""
_MOST_QUOTED = 300
"""Number of last characters of srun's output that an error quotes."""


@dataclass(frozen=True)
class Watching:
    """Options of watching a job.

    Attributes:
        device: Device of its ranks: cpu, cuda or rocm.
        period_s: Time between samples. Unit: s.
        fast_period_s: Time between samples of the GPUs' fast sensors. Unit: s.
        steps: Source that may mark steps in its processes: a key of `marks.SOURCES`, `auto` or `none`.
        pattern: Framework or regular expression of the log lines that mark steps; None for none.
    """

    device: str
    period_s: float
    fast_period_s: float
    steps: str = "auto"
    pattern: str | None = None


def find_device() -> str:
    """Return the device of this node's ranks (cuda, rocm or cpu), by the installed driver."""
    if Path("/dev/nvidiactl").exists() or ctypes.util.find_library("nvidia-ml"):
        return "cuda"
    return "rocm" if Path("/dev/kfd").exists() else "cpu"


def record_command(session: Session, command: Sequence[str], watching: Watching, out: TextIO) -> int:
    """Run a command, record it, and return its exit status; of a signal 128 plus its number.

    Args:
        session: The recording, joined.
        command: Program and arguments.
        watching: Options of watching the job.
        out: Destination of its standard output.
    """
    steps = _log_steps(session, watching)
    with _NodeSampler(session, watching) as sampler:
        kills = count_host_kills()
        child = subprocess.Popen(
            list(command), stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=_environment(session, watching)
        )
        session.add_member(child.pid)  # the recording lasts as long as the job, even if this process is killed
        log = session.folder / "logs" / f"rank{rank_of()}-{os.getpid()}.log"
        streams = [_Tee(child.stdout, out, log, steps), _Tee(child.stderr, sys.stderr, log, steps)]
        ranks = _RankWatcher(session)
        with _passing_signals_on(child) as received:
            while (status := _wait_briefly(child)) is None:
                sampler.watch()
                ranks.watch()
        for stream in streams:
            stream.join(timeout=5.0)  # a child process of the command may keep the pipe open
        num_kills = count_host_kills() - kills
        told_by = next(iter(received), None)
        session.note_end(status, command, log_tail(log, _JUDGED_LINES), num_kills, told_by, ranks.first_failed)
    return status if status >= 0 else 128 - status


def record_process(session: Session, pid: int, watching: Watching, log: Path | None) -> None:
    """Record a running process until it ends.

    Args:
        session: The recording, joined.
        pid: Process on this node.
        watching: Options of watching the job.
        log: File that it writes, for steps by a pattern; None for none.
    """
    ticks = start_ticks(pid)
    session.add_member(pid)
    stopped = threading.Event()
    before = [signal.signal(number, lambda *_: stopped.set()) for number in (signal.SIGINT, signal.SIGTERM)]
    with _NodeSampler(session, watching) as sampler:
        _watch_until(
            stopped, sampler, _follow(session, watching, log), lambda: ticks is None or has_ended(pid, ticks) is True
        )
        session.note_end(None, [f"process {pid}"], log_tail(log) if log else ())
    for number, handler in zip((signal.SIGINT, signal.SIGTERM), before, strict=True):
        signal.signal(number, handler)


def _wait_briefly(child: "subprocess.Popen[bytes]") -> int | None:
    """Return the exit status of a command; None if it does not end within `_POLL_S`."""
    try:
        return child.wait(_POLL_S)
    except subprocess.TimeoutExpired:
        return None


def watch_node(session: Session, watching: Watching, log: Path | None = None) -> None:
    """Sample this node until SIGTERM, which Slurm sends to every step of a job when the job ends.

    Args:
        session: The recording.
        watching: Options of watching the job.
        log: File with the job's output, which the first node reads for steps by a pattern; None for none.
    """
    session.add_member(os.getpid())
    stopped = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGCONT):
        signal.signal(number, lambda number, _: stopped.set() if number != signal.SIGCONT else None)
    with _NodeSampler(session, watching) as sampler:
        log_reader = _follow(session, watching, log) if rank_of() == 0 else None
        _watch_until(stopped, sampler, log_reader, lambda: False)


def _watch_until(
    stopped: threading.Event, sampler: "_NodeSampler", log_reader: "_LogReader | None", is_over: Callable[[], bool]
) -> None:
    """Watch the sampler and read the log until an event is set or a condition holds."""
    while not stopped.wait(_LOG_POLL_S if log_reader else _POLL_S):
        sampler.watch()
        if log_reader is not None:
            log_reader.read()
        if is_over():
            break


class _NodeSampler:
    """Context in which the first process of a recording on a node runs the sampler; other processes do nothing."""

    def __init__(self, session: Session, watching: Watching) -> None:
        self._session, self._watching = session, watching
        self._sampler: Sampler | None = None

    def __enter__(self) -> "_NodeSampler":
        session, watching = self._session, self._watching
        if session.claim_node():
            self._sampler = Sampler(
                session.folder / "telemetry" / f"{session.host}.arrow",
                session.folder / "logs" / f"sampler-{session.host}.log",
                watching.device,
                watching.period_s,
                watching.fast_period_s,
            )
            session.begin_node(watching.device)
        return self

    def watch(self) -> None:
        """Start the sampler again if it has ended by itself."""
        if self._sampler is not None:
            self._sampler.watch()

    def __exit__(self, *problem: object) -> None:
        if self._sampler is None:
            return
        self._session.wait_for_others()
        self._sampler.stop()
        self._session.end_node(self._sampler.ends)


class _RankWatcher:
    """Finds the rank of a command that fails first; trainers that start ranks themselves may not report it."""

    def __init__(self, session: Session) -> None:
        self._folder, self._host = session.folder / "ranks", session.host
        self._is_needed = job_key() is None  # else the command is a single rank
        self._pids: dict[str, tuple[int, int]] = {}
        self.first_failed: tuple[int, int] | None = None
        """Rank and exit status, a signal as a negative number; None for none."""

    def watch(self) -> None:
        """Check every rank that has marked a step. A rank that was ended by SIGTERM did not fail."""
        if not self._is_needed or self.first_failed is not None:
            return
        for path in self._folder.glob("rank*.json"):
            if path.name not in self._pids:
                with contextlib.suppress(ValueError):  # it is being written
                    rank = json.loads(path.read_text())
                    self._pids[path.name] = (rank["rank"], rank["pid"] if rank["host"] == self._host else 0)
        ended = [(rank, exit_status(pid)) for rank, pid in self._pids.values() if pid]
        failed = [(rank, status) for rank, status in ended if status not in (None, 0, -signal.SIGTERM)]
        self.first_failed = min(failed, key=lambda failure: (failure[1] > 0, failure[0]), default=None)


def _environment(session: Session, watching: Watching) -> dict[str, str]:
    """Return the environment of a watched command, in which its Python processes mark their steps."""
    paths = [str(HOOK), *filter(None, [os.environ.get("PYTHONPATH")])]
    return os.environ | {
        "PYTHONPATH": os.pathsep.join(paths),
        # Else the lines of a log that is a pipe come in blocks.
        "PYTHONUNBUFFERED": "1",
        SESSION: str(session.folder),
        STEPS_BY: watching.steps,
    }


def _log_steps(session: Session, watching: Watching) -> "_LogSteps | None":
    """Return the writer of steps that log lines mark; None without a pattern."""
    if watching.pattern is None:
        return None
    return _LogSteps(session, LogMarks(step_pattern(watching.pattern), rank_of()))


def _follow(session: Session, watching: Watching, log: Path | None) -> "_LogReader | None":
    """Return the reader of a log that another process writes; None without a log or a pattern."""
    steps = _log_steps(session, watching)
    return _LogReader(log, steps) if log is not None and steps is not None else None


class _LogSteps:
    """Writes the steps that log lines mark; lines come from two threads."""

    def __init__(self, session: Session, marks: LogMarks) -> None:
        self._path, self._marks = session.folder / "steps" / f"log{rank_of()}.jsonl", marks
        self._lock = threading.Lock()

    def read(self, line: str, t_ns: int) -> None:
        """Write the steps that a line ends; `t_ns` is the monotonic clock when it was read."""
        with self._lock:
            rows = self._marks.read(line, t_ns)
            if rows:
                with self._path.open("a") as file:
                    file.writelines(json.dumps(row) + "\n" for row in rows)


class _Tee(threading.Thread):
    """Passes an output stream of a command on as it comes, and copies it to a log."""

    def __init__(self, source: IO[bytes] | None, sink: Any, log: Path, steps: _LogSteps | None) -> None:
        super().__init__(daemon=True)
        assert source is not None
        self._source, self._sink, self._log, self._steps = source, sink, log, steps
        self.start()

    def run(self) -> None:
        """Read until the stream ends; a closed output or a full disk does not end the command."""
        lines = _Lines(self._steps)
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
    """Splits blocks of a log into lines; lines of progress bars end with a carriage return."""

    def __init__(self, steps: _LogSteps | None) -> None:
        self._steps, self._rest = steps, b""

    def read(self, block: bytes, t_ns: int) -> None:
        """Read the complete lines of a block; the rest is kept for the next one."""
        if self._steps is None:
            return
        *lines, self._rest = (self._rest + block).replace(b"\r", b"\n").split(b"\n")
        self._rest = self._rest[-_TAIL_BYTES:]
        for line in lines:
            self._steps.read(line.decode(errors="replace"), t_ns)


class _LogReader:
    """Reads lines that another process adds to a log."""

    def __init__(self, path: Path, steps: _LogSteps) -> None:
        self._path, self._lines = path, _Lines(steps)
        self._offset = path.stat().st_size if path.is_file() else 0

    def read(self) -> None:
        """Read the new part of the log; a log that has become shorter was started again."""
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
def _passing_signals_on(child: "subprocess.Popen[bytes]") -> Iterator[list[int]]:
    """Pass signals on to a command during a block. SIGINT is not passed on: the terminal sends it to both.

    Yields:
        `ENDING_SIGNALS` received so far.
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
    watching: Watching,
    log: Path | None,
    finish: Callable[[Session], None],
) -> int:
    """Record a running Slurm job on all its nodes until it ends, then write the run.

    The watchers are a step of the job that overlaps with its other steps (srun --overlap), so Slurm ends them with the
    job.

    Args:
        job_id: Number of the job.
        results: Folder of results, on a file system that all nodes share.
        setup: Content of `session.json`.
        watching: Options of watching the job.
        log: File with the job's output, for steps by a pattern; None for none.
        finish: Writes the run of a recording.

    Raises:
        UserError: If there is no srun, or the job does not run.

    Source:
        srun(1) of Slurm 22.05, --jobid, --overlap.
    """
    if not re.fullmatch(r"\d+(_\d+)?", job_id):
        raise UserError(f"record: --job {job_id!r}: expected the number of a job of Slurm, such as 4711")
    if shutil.which("srun") is None:
        raise UserError("record: --job: no srun on this machine; run it where jobs are submitted from")
    num_nodes = _num_nodes(job_id)
    session = Session.join(results, {**setup, "command": [f"Slurm job {job_id}"]}, None)
    watcher = [sys.executable, "-m", "triplepoint.recorded.record", str(session.folder), json.dumps(vars(watching))]
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
    # The exit status is not checked: srun reports watchers that end with the job as failed.
    srun = subprocess.run(command, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, check=False)
    if not session.nodes():
        shutil.rmtree(session.folder, ignore_errors=True)
        output = " ".join(srun.stderr.split())[-_MOST_QUOTED:] or f"exit status {srun.returncode}"
        raise UserError(f"record: --job {job_id}: srun started no watcher in the job: {output}")
    session.note_end(None, [f"Slurm job {job_id}"], ())
    if session.claim_finish():
        finish(session)
    return 0


def _num_nodes(job_id: str) -> int:
    """Return the number of nodes of a running job. Raises `UserError` if there is no such job, or it does not run."""
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
