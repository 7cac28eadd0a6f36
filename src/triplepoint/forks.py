"""Jobs as forks: a process that has imported what a stage needs forks one child for each job that asks it.

`triplepoint STAGE` asks over a socket that Snakemake names in its environment, hands over its arguments, folder,
environment and standard streams, and ends with the child's status. Where nobody answers it does the work itself.
"""

import atexit
import contextlib
import gc
import json
import os
import selectors
import signal
import socket
import struct
import sys
import threading
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

SERVER = "TRIPLEPOINT_FORKS"
"""Environment variable by which jobs of Snakemake find its servers: process group and folder of the sockets."""
SERVED = {"lean": ("simulate", "telemetry", "trace", "aggregate"), "drawing": ("figure",)}
"""Subcommands that Snakemake calls more than a few times, by the family of processes that has no pandas, or has it."""
KILLED = 137
"""Status of a job whose child ended without one, as of a shell's command that got SIGKILL."""
_LENGTH = struct.Struct("!I")
_PATIENCE_S = 300.0
"""A server answers once it has imported what the job needs: seconds, on a machine that is idle."""


def ask(address: str, family: str, words: Sequence[str]) -> int | None:
    """Let a child of the server do `triplepoint WORDS`; return its status, or None where nobody answers.

    Args:
        address: Process group and folder of the sockets: jobs that another scheduler starts are of another group.
        family: Which server: the name of its socket.
        words: Arguments of the command.
    """
    group, _, folder = address.partition(":")
    if group != str(os.getpgrp()):
        return None
    request = json.dumps([list(words), str(Path.cwd()), dict(os.environ)]).encode()
    with socket.socket(socket.AF_UNIX) as to:
        to.settimeout(_PATIENCE_S)
        try:
            to.connect(str(Path(folder, family)))
            # The streams go first: a request that is cut off starts no job.
            socket.send_fds(to, [_LENGTH.pack(len(request))], [0, 1, 2])
            to.sendall(request)
            if to.recv(1) != b"+":
                return None
        except OSError:
            return None
        # An interrupt reaches the child by itself, which is of the same process group.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        to.settimeout(None)
        status = to.recv(1)
    if status:
        return status[0]
    print("triplepoint: the process of this job was killed, perhaps for lack of memory", file=sys.stderr)
    return KILLED


def serve(path: Path, prepare: Callable[[str, Path], bool], do: Callable[[list[str]], int]) -> None:
    """Fork a child for each job that asks, until standard input ends, which Snakemake holds open.

    Args:
        path: The socket.
        prepare: Called with the command and folder of every job before it is forked: it imports modules. If it returns
            false, the client does the job itself.
        do: Does a command, and returns its status.
    """
    # A signal to the whole group ends Snakemake, whose end then ends this, which leaves no folder behind.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGCHLD, lambda number, frame: None)
    with socket.socket(socket.AF_UNIX) as listening, selectors.DefaultSelector() as waiting:
        ready_path = path.with_name(f"{path.name}.new")
        listening.bind(str(ready_path))
        listening.listen(64)
        ready_path.rename(path)  # there once somebody listens
        waiting.register(listening, selectors.EVENT_READ)
        waiting.register(0, selectors.EVENT_READ)
        is_over = False
        while not is_over:
            ready = [key.fileobj for key, _ in waiting.select()]
            is_over = 0 in ready
            if listening in ready and not is_over:
                _take(listening, prepare, do)
            _reap(os.WNOHANG)
    with contextlib.suppress(OSError):
        path.unlink()
        path.parent.rmdir()
    _reap(0)


def _take(listening: socket.socket, prepare: Callable[[str, Path], bool], do: Callable[[list[str]], int]) -> None:
    """Start the job of one client; one that goes meanwhile, or sends no whole request, gets none."""
    connection, _ = listening.accept()
    with connection:
        try:
            connection.settimeout(_PATIENCE_S)
            head, streams, _, _ = socket.recv_fds(connection, _LENGTH.size, 3)
        except OSError:
            return
        try:
            (length,) = _LENGTH.unpack(head)
            words, folder, environment = json.loads(_receive(connection, length))
            if not prepare(words[0], Path(folder)):
                return
            gc.freeze()
            connection.sendall(b"+")
        except (OSError, ValueError, struct.error):
            return
        else:
            if os.fork() == 0:
                listening.close()
                _be_job(connection, streams, lambda: _do(do, words, folder, environment))
        finally:
            for stream in streams:
                os.close(stream)


def _receive(connection: socket.socket, length: int) -> bytes:
    parts, left = [], length
    while left:
        part = connection.recv(left)
        if not part:
            raise ConnectionError("cut off")
        parts.append(part)
        left -= len(part)
    return b"".join(parts)


def _be_job(connection: socket.socket, streams: Sequence[int], work: Callable[[], int]) -> None:
    """Be the child: work on the client's streams, and leave with its status sent; with the client gone, be ended."""
    status = 1
    try:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        for number, stream in enumerate(streams):
            os.dup2(stream, number)
        connection.settimeout(None)
        threading.Thread(target=_end_with, args=(connection,), daemon=True).start()
        status = work()
    finally:
        with contextlib.suppress(BaseException):
            connection.sendall(bytes([status & 255]))
        os._exit(status)


def _do(do: Callable[[list[str]], int], words: list[str], folder: str, environment: Mapping[str, str]) -> int:
    """Return the status of a command as a process of its own would have it."""
    os.environ.clear()
    os.environ.update(environment)
    try:
        os.chdir(folder)
        status = do(words)
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else 0 if end.code is None else 1
    except BaseException:
        traceback.print_exc()
        status = 1
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    return status


def _end_with(connection: socket.socket) -> None:
    with contextlib.suppress(OSError):
        connection.recv(1)
    os.kill(os.getpid(), signal.SIGTERM)


def _reap(how: int) -> None:
    """Wait for children that have ended, so that their time counts as Snakemake's."""
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, how)[0]:
            pass
