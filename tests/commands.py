"""Subcommands called in processes forked from one that has imported them, since importing takes most of a second."""

import atexit
import importlib
import json
import os
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from triplepoint.cli import COMMANDS, main

_LIBRARIES = ("matplotlib.pyplot", "pandas", "pyarrow.csv", "pyarrow.parquet", "pydantic", "scipy.optimize", "yaml")
_SUBPACKAGES = ("aggregate", "plan", "report", "simulate.artefacts.simulate_run", "trace.parsing", "verdicts.judge")


def triplepoint(
    folder: Path, *words: str, stdin: str = "", environment: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Do what `triplepoint WORDS` does in `folder`; the package is that of this repository."""
    with tempfile.TemporaryDirectory() as place:
        files = [Path(place, name) for name in ("in", "out", "err")]
        for file in files:
            file.write_text(stdin if file.name == "in" else "")
        variables = dict(os.environ if environment is None else environment)
        server = _server()
        assert server.stdin is not None and server.stdout is not None
        server.stdin.write(json.dumps([str(folder), words, variables, list(map(str, files))]) + "\n")
        server.stdin.flush()
        status = int(server.stdout.readline())
        return subprocess.CompletedProcess(words, status, *(file.read_text() for file in files[1:]))


@cache
def _server() -> subprocess.Popen[str]:
    root = Path(__file__).parents[1]
    command = [sys.executable, "-m", __name__]
    return subprocess.Popen(command, cwd=root, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def _serve() -> None:
    for name in _LIBRARIES:
        importlib.import_module(name)
    for name in (*_SUBPACKAGES, *(f"cli.{command}" for command in COMMANDS)):
        importlib.import_module(f"triplepoint.{name}")
    while request := sys.stdin.readline():
        process = os.fork()
        if process == 0:
            os._exit(_call(*json.loads(request)))
        print(os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]), flush=True)


def _call(folder: str, words: list[str], variables: dict[str, str], files: list[str]) -> int:
    for number, file in enumerate(files):
        os.dup2(os.open(file, os.O_RDWR), number)
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
    _serve()
