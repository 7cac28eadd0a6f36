"""Fork server: a process with all imports of a stage forks one child for each job, so that jobs start faster.

`triplepoint STAGE` connects to a socket that Snakemake names in its environment (`ask_forks`). It sends its arguments,
working directory, environment and standard streams, and ends with the child's exit status. Without an answer it does
the work itself. A job then costs 0.1 s of CPU time before its work instead of 1 s.
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

from triplepoint.ask_forks import LENGTH, PATIENCE_S


def serve(path: Path, prepare: Callable[[str, Path], bool], run: Callable[[list[str]], int]) -> None:
    """Fork a child for each job that connects, until standard input ends, which Snakemake holds open.

    Args:
        path: Path of the socket.
        prepare: Called with subcommand and folder of each job before the fork, to import modules. If it returns false,
            the client does the job itself.
        run: Runs a command line and returns its exit status.
    """
    # A signal to the whole group ends Snakemake, and its end then ends this server, which removes its folder.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGCHLD, lambda number, frame: None)
    with socket.socket(socket.AF_UNIX) as listener, selectors.DefaultSelector() as selector:
        new_path = path.with_name(f"{path.name}.new")
        listener.bind(str(new_path))
        listener.listen(64)
        new_path.rename(path)  # the socket appears only once the server listens
        selector.register(listener, selectors.EVENT_READ)
        selector.register(0, selectors.EVENT_READ)
        is_over = False
        while not is_over:
            ready = [key.fileobj for key, _ in selector.select()]
            is_over = 0 in ready
            if listener in ready and not is_over:
                _start_job(listener, prepare, run)
            _reap(os.WNOHANG)
    with contextlib.suppress(OSError):
        path.unlink()
        path.parent.rmdir()
    _reap(0)


def _start_job(listener: socket.socket, prepare: Callable[[str, Path], bool], run: Callable[[list[str]], int]) -> None:
    """Fork the job of one client, unless it disconnects or its request is incomplete."""
    connection, _ = listener.accept()
    with connection:
        try:
            connection.settimeout(PATIENCE_S)
            head, streams, _, _ = socket.recv_fds(connection, LENGTH.size, 3)
        except OSError:
            return
        try:
            (num_bytes,) = LENGTH.unpack(head)
            words, folder, environment = json.loads(_receive(connection, num_bytes))
            if not prepare(words[0], Path(folder)):
                return
            gc.freeze()
            connection.sendall(b"+")
        except (OSError, ValueError, struct.error):
            return
        else:
            if os.fork() == 0:
                listener.close()
                _run_child(connection, streams, lambda: _run_command(run, words, folder, environment))
        finally:
            for stream in streams:
                os.close(stream)


def _receive(connection: socket.socket, num_bytes: int) -> bytes:
    """Return the next bytes from a connection. Raises `ConnectionError` if it ends before."""
    parts, left = [], num_bytes
    while left:
        part = connection.recv(left)
        if not part:
            raise ConnectionError("cut off")
        parts.append(part)
        left -= len(part)
    return b"".join(parts)


def _run_child(connection: socket.socket, streams: Sequence[int], work: Callable[[], int]) -> None:
    """Work in the child with the client's streams, send the exit status and exit; end if the client ends."""
    status = 1
    try:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        for number, stream in enumerate(streams):
            os.dup2(stream, number)
        connection.settimeout(None)
        threading.Thread(target=_terminate_with_client, args=(connection,), daemon=True).start()
        status = work()
    finally:
        with contextlib.suppress(BaseException):
            connection.sendall(bytes([status & 255]))
        os._exit(status)


def _run_command(run: Callable[[list[str]], int], words: list[str], folder: str, environment: Mapping[str, str]) -> int:
    """Run a command in the client's directory and environment; return the status that a separate process would have."""
    os.environ.clear()
    os.environ.update(environment)
    try:
        os.chdir(folder)
        status = run(words)
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else 0 if end.code is None else 1
    except BaseException:
        traceback.print_exc()
        status = 1
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    return status


def _terminate_with_client(connection: socket.socket) -> None:
    """Wait until the client closes the connection, then terminate this process."""
    with contextlib.suppress(OSError):
        connection.recv(1)
    os.kill(os.getpid(), signal.SIGTERM)


def _reap(options: int) -> None:
    """Wait for children, so that their CPU time counts as Snakemake's.

    Args:
        options: Of `os.waitpid`: WNOHANG takes only children that have ended, 0 waits for all.
    """
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, options)[0]:
            pass
