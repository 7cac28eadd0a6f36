"""Client of the fork server: `triplepoint STAGE` lets the server run its work, see `forks`.

Every job of Snakemake starts with it, so it imports little.
"""

import json
import os
import signal
import socket
import struct
import sys
from collections.abc import Sequence

SERVER = "TRIPLEPOINT_FORKS"
"""Environment variable with the address of the servers: process group of Snakemake and folder of the sockets."""
SERVED = {"lean": ("simulate", "telemetry", "trace", "aggregate"), "drawing": ("figure",)}
"""Subcommands by family; each family has a server. `lean` runs without pandas, `drawing` with it."""
KILLED = 137
"""Exit status of a job whose child ended without one, as in a shell after SIGKILL."""
LENGTH = struct.Struct("!I")
"""Head of a request: its length in bytes."""
PATIENCE_S = 300.0
"""Time limit of an answer. A server answers after the imports for the job, which take seconds on an idle machine."""


def ask(address: str, family: str, words: Sequence[str]) -> int | None:
    """Run `triplepoint WORDS` in a child of the server; return its exit status, or None without an answer.

    Args:
        address: Value of the variable `SERVER`. A job of another process group, which another scheduler started, gets
            no answer.
        family: Name of the server and of its socket.
        words: Arguments of the command.
    """
    group, _, folder = address.partition(":")
    if group != str(os.getpgrp()):
        return None
    with socket.socket(socket.AF_UNIX) as server:
        server.settimeout(PATIENCE_S)
        try:
            working_folder = os.getcwd()  # noqa: PTH109 - importing pathlib would take a tenth of this process
            request = json.dumps([list(words), working_folder, dict(os.environ)]).encode()
            server.connect(f"{folder}/{family}")
            # The streams go first, so that a truncated request starts no job.
            socket.send_fds(server, [LENGTH.pack(len(request))], [0, 1, 2])
            server.sendall(request)
            if server.recv(1) != b"+":
                return None
        except OSError:
            return None
        # The child is in the same process group, so an interrupt reaches it directly.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        server.settimeout(None)
        status = server.recv(1)
    if status:
        return status[0]
    print("triplepoint: the process of this job was killed, perhaps for lack of memory", file=sys.stderr)
    return KILLED
