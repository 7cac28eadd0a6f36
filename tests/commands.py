"""Subcommands called in processes forked from one that has imported them, since importing takes a second or two.

`python -m tests.commands SOCKET` listens; whoever connects sends folder, arguments and variables as JSON, with standard
input, output and error, and gets the exit status. The package is that of this repository.
"""

import atexit
import contextlib
import importlib
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from triplepoint.cli import COMMANDS, main

_LIBRARIES = ("pandas", "pyarrow.csv", "pyarrow.parquet", "scipy.optimize", "seaborn", "yaml")
_SUBPACKAGES = ("aggregate", "plan", "report", "simulate.artefacts.simulate_run", "trace.parsing", "verdicts.judge")

CLIENT = """\
import json, os, socket, sys
with socket.socket(socket.AF_UNIX) as server:
    server.connect(sys.argv[1])
    call = json.dumps([os.getcwd(), sys.argv[2:], dict(os.environ)]).encode()
    socket.send_fds(server, [call], [0, 1, 2])
    server.shutdown(socket.SHUT_WR)
    sys.exit(int(server.recv(8) or 1))
"""


def triplepoint(
    folder: Path, *words: str, stdin: str = "", environment: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Do what `triplepoint WORDS` does in `folder`."""
    call = [sys.executable, "-SIE", "-c", CLIENT, address(), *words]
    return subprocess.run(call, cwd=folder, env=environment, input=stdin, capture_output=True, text=True)


def shell_function() -> dict[str, str]:
    """Return variables with which `triplepoint` in bash is forked too, but for gangs, which are to be its children."""
    call = f"{sys.executable} -SIE -c '{CLIENT}' {address()}"
    body = f'if [ "$1" = launch ]; then command triplepoint "$@"; else {call} "$@"; fi'
    return {"BASH_FUNC_triplepoint%%": f"() {{ {body}\n}}"}


@cache
def address() -> str:
    """Start the process that imports subcommands, and return its socket."""
    place = tempfile.TemporaryDirectory()
    path = Path(place.name, "socket")
    server = subprocess.Popen([sys.executable, "-m", __name__, str(path)], cwd=Path(__file__).parents[1])
    atexit.register(place.cleanup)
    atexit.register(server.wait)
    atexit.register(server.terminate)
    while not path.exists():
        assert server.poll() is None, "it ended"
        time.sleep(0.05)
    return str(path)


def _serve(path: str) -> None:
    for name in (*_LIBRARIES, *(f"triplepoint.{name}" for name in _SUBPACKAGES)):
        importlib.import_module(name)
    for command in COMMANDS:
        importlib.import_module(f"triplepoint.cli.{command}")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(path + ".new")
        server.listen(64)
        server.settimeout(5)
        Path(path + ".new").rename(path)
        parent = os.getppid()
        while os.getppid() == parent:  # else the tests were killed
            with contextlib.suppress(ChildProcessError):
                while os.waitpid(-1, os.WNOHANG)[0]:
                    pass
            try:
                client, _ = server.accept()
            except TimeoutError:
                continue
            if os.fork() == 0:
                server.close()
                status = _call(client)
                client.send(str(status).encode())
                os._exit(status)
            client.close()


def _call(client: socket.socket) -> int:
    text, files, *_ = socket.recv_fds(client, 1 << 20, 3)
    while more := client.recv(1 << 20):
        text += more
    for number, file in enumerate(files):
        os.dup2(file, number)
        os.close(file)
    folder, words, variables = json.loads(text)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(variables)
    sys.argv = ["triplepoint", *words]
    try:
        status = main(words)
    except SystemExit as end:  # argparse, of words that it does not know
        status = end.code if isinstance(end.code, int) else 1
    except BaseException:
        traceback.print_exc()
        status = 1
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    return status


if __name__ == "__main__":
    _serve(sys.argv[1])
