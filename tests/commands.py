"""Runs subcommands in processes forked from a server that has imported them, which saves one or two seconds each.

`python -m tests.commands SOCKET` is such a server, of `triplepoint.forks`, with the package of this repository.
"""

import atexit
import importlib
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from triplepoint.cli import COMMANDS, main
from triplepoint.forks import serve

_LIBRARIES = ("pandas", "pyarrow.csv", "pyarrow.parquet", "scipy.optimize", "seaborn", "yaml")
_SUBPACKAGES = ("aggregate", "plan", "report", "simulate.artefacts.simulate_run", "trace.run_traces", "verdicts.judge")
ROOT = Path(__file__).parents[1]

CLIENT = f"""\
import os, sys
sys.path.insert(0, "{ROOT}/src")
from triplepoint.ask_forks import ask
folder, _, name = sys.argv[1].rpartition("/")
status = ask(str(os.getpgrp()) + ":" + folder, name, sys.argv[2:])
sys.exit("no server" if status is None else status)
"""


def triplepoint(
    folder: Path, *words: str, stdin: str = "", environment: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run `triplepoint WORDS` in a folder.

    Args:
        folder: Working folder.
        words: Subcommand and its arguments.
        stdin: Standard input.
        environment: Environment variables; if None, those of this process.
    """
    call = [sys.executable, "-SIE", "-c", CLIENT, address(), *words]
    return subprocess.run(call, cwd=folder, env=environment, input=stdin, capture_output=True, text=True)


def shell_function() -> dict[str, str]:
    """Return variables with which bash also forks `triplepoint`. Launches are not forked: gangs are to be children."""
    call = f"{sys.executable} -SIE -c '{CLIENT}' {address()}"
    body = f'if [ "$1" = launch ]; then command triplepoint "$@"; else {call} "$@"; fi'
    return {"BASH_FUNC_triplepoint%%": f"() {{ {body}\n}}"}


@cache
def address() -> str:
    """Start the server and return the path of its socket."""
    path = Path(tempfile.mkdtemp(), "socket")
    # The server ends when its standard input closes, however the tests end, and removes the folder.
    server = subprocess.Popen([sys.executable, "-m", __name__, path], cwd=ROOT, stdin=subprocess.PIPE)
    atexit.register(server.communicate)
    while not path.exists():
        assert server.poll() is None, "it ended"
        time.sleep(0.05)
    return str(path)


def _serve(path: Path) -> None:
    commands = (f"triplepoint.cli.{command}" for command in COMMANDS)
    for name in (*_LIBRARIES, *(f"triplepoint.{name}" for name in _SUBPACKAGES), *commands):
        importlib.import_module(name)
    serve(path, lambda command, folder: True, main)


if __name__ == "__main__":
    _serve(Path(sys.argv[1]))
