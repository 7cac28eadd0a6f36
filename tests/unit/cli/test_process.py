"""Commands that share a process, and processes that run out of memory."""

import argparse
import subprocess
import sys

import pytest

from triplepoint.cli import main, plan


def test_pandas_is_hidden_in_one_command_alone() -> None:
    code = "from triplepoint.cli import main; main(['why', 'missing']); import pandas; print('imported')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "imported\n"), done.stderr


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        ImportError("numpy failed\nOriginal error was: libopenblas.so: failed to map segment from shared object"),
    ],
)
def test_no_memory_is_one_line(
    error: Exception, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def run(arguments: argparse.Namespace) -> None:
        raise error

    monkeypatch.setattr(plan, "run", run)
    assert main(["plan"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("triplepoint: not enough memory; free some, raise the limit (ulimit -v")
