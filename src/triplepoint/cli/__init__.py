"""Command line: dispatch to one module per subcommand, imported only when called, since Snakemake calls thousands."""

import contextlib
import importlib
import io
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from triplepoint import __version__
from triplepoint.errors import USER_ERROR, UserError, explain_os_error, nearest

if TYPE_CHECKING:
    import argparse

    from triplepoint.cli.answer import Answer

GROUPS = {
    "Your own jobs and recordings": {
        "record": "record a job of your own: step times, power, heat, and a trace on request",
        "import": "make a run of recordings by other tools: telemetry, traces",
        "trace": "analyse traces of PyTorch, Nsight Systems or rocprof: where each rank's time went",
        "why": "say why a job is slow: which GPUs, for what cause, what each costs a day, what to do",
        "compare": "say why one run or trace is slower or hotter than another; or judge a table of measured values",
        "recommend": "recommend where pipeline stages run and how many layers they have, hardware faults first",
    },
    "Before GPU hours are spent": {
        "predict": "predict step time, memory, power and heat of configurations",
        "search": "find the configuration to train with, and the few that are worth measuring",
        "whatif": "say what each factor costs a point, or makes of the difference of two points",
        "project": "say what a job would be on 1,000 to 100,000 GPUs: time, power, heat, failures",
        "swings": "say how far and how fast power swings, whether that is allowed, and what would help",
        "frontier": "choose clocks of pipeline stages that save energy, for the time or power there is",
    },
    "Machines": {
        "doctor": "check a machine, or all nodes of a cluster",
        "calibrate": "fit the models to measurements of your own",
        "characterise": "measure what the power sensors of a GPU show, and write a sensor card",
        "overhead": "measure what sampling costs the training it watches",
    },
    "Studies: the stages that Snakemake calls, in their order": {
        "plan": "show the points of studies: which can run, what they will cost; write point.json of each run",
        "launch": "train one run on its nodes, with telemetry and traces",
        "simulate": "simulate one run in place of a launch",
        "telemetry": "align the telemetry of a run: clocks, steps, gaps",
        "parse": "parse the traces of some ranks of a run",
        "aggregate": "join the runs of each study into tables",
        "claims": "judge what is published by the tables",
        "figure": "draw one figure from the tables",
        "report": "write the self-contained report",
    },
    "Elsewhere": {
        "export": "write the runs of a study for MLflow, W&B, Prometheus or Chakra",
        "completion": "print a script that completes commands and names in bash, zsh or fish",
    },
}
"""Subcommands by purpose, with their line in `--help`."""
COMMANDS = {name: about for commands in GROUPS.values() for name, about in commands.items()}

_INTERNAL = ("sample", "serve")
"""Subcommands that only Triplepoint itself calls."""

_WITHOUT_PANDAS = (
    *("record", "launch", "simulate", "import", "telemetry", "parse", "trace", "aggregate", "claims", "why"),
)
"""Subcommands that run without pandas, to start faster: those called for every run or reading all runs."""

_WITHOUT_TICKER = ("record", "launch", "doctor", "overhead", "characterise", "completion")
"""Subcommands without the line `working`: they pass on the output of a job, or report their progress themselves."""
_NEED_CONFIG = ("plan", "predict", "search", "whatif", "frontier", "project", "calibrate")
"""Subcommands that need the folder of the configuration."""
_SERVER = "TRIPLEPOINT_FORKS"
"""Same as `ask_forks.SERVER`, which is imported only where it is set, so that other commands start faster."""
_EXTENSIONS = ("_scanner", "_stretches", "_sweep")
"""Extension modules in C, which exist after installation."""
_NO_MEMORY = "not enough memory; free some, raise the limit (ulimit -v, or that of the job), or give it less to read"
_NOT_MAPPED = "failed to map segment"
"""Message of the dynamic loader for a library that the memory has no room for."""
_INTERRUPTED = 130
"""Exit status after Ctrl-C."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one subcommand and return its exit status: 0, 1 for a failure, 2 for a user error, 130 for Ctrl-C.

    Args:
        arguments: Command line after the program. None: that of this process.
    """
    if "_ARGCOMPLETE" in os.environ and arguments is None:
        from triplepoint.cli.completion import complete

        complete(COMMANDS)
    words = list(sys.argv[1:] if arguments is None else arguments)
    if not words or words[0] in ("-h", "--help", "help"):
        print(_help())
        return 0 if words else USER_ERROR
    if words[0] == "--version":
        print(f"triplepoint {__version__}")
        return 0
    if words[0] not in (*COMMANDS, *_INTERNAL):
        return _fail(f"unknown subcommand {words[0]!r}{nearest(words[0], COMMANDS)}", USER_ERROR)
    status = _run_in_server(words) if arguments is None and _SERVER in os.environ else None
    return _run(words[0], words[1:]) if status is None else status


def _run_in_server(words: Sequence[str]) -> int | None:
    """Run a command in Snakemake's fork server and return its status; None if this process has to run it."""
    from triplepoint.ask_forks import SERVED, ask

    address = os.environ[_SERVER]
    return next((ask(address, family, words) for family, commands in SERVED.items() if words[0] in commands), None)


def _run(command: str, words: list[str]) -> int:
    """Run a subcommand in this process; return its exit status, with one line on standard error for a user error."""
    # No stage does linear algebra, and the threads of numpy's BLAS cost each process 0.1 s of CPU.
    os.environ["OPENBLAS_NUM_THREADS"] = "1"
    try:
        with without_pandas() if command in _WITHOUT_PANDAS else contextlib.nullcontext():
            module = importlib.import_module(f"triplepoint.cli.{command}")
            return _answer(command, module.run, module.parser().read(words))
    except UserError as error:
        return _fail(str(error), USER_ERROR)
    except MemoryError:
        return _fail(_NO_MEMORY, USER_ERROR)
    except ImportError as error:
        if _NOT_MAPPED in str(error):
            return _fail(_NO_MEMORY, USER_ERROR)
        if not any(name in str(error) for name in _EXTENSIONS):
            raise
        return _fail(f"{error}: it is compiled; run `make env` in the clone, or `pip install .`", USER_ERROR)
    except BrokenPipeError:  # the reader has closed the pipe: `triplepoint plan | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as error:
        line = explain_os_error(error)
        if line is None:
            raise
        return _fail(line, USER_ERROR)
    except KeyboardInterrupt:
        return _fail("interrupted", _INTERRUPTED)


def _answer(
    command: str, run: "Callable[[argparse.Namespace], Answer | int | None]", words: "argparse.Namespace"
) -> int:
    """Run a subcommand, print its answer as text or as one JSON object, and return its exit status."""
    from triplepoint.cli.answer import Answer

    if command in _NEED_CONFIG and not words.config.is_dir():
        raise UserError(
            f"{words.config}: no such folder, and {command} needs models and clusters; run it in Triplepoint's clone, "
            "or name the folder with --config CLONE/config"
        )
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed) if words.json else contextlib.nullcontext(), _ticker(command):
        result = run(words)
    if words.json:
        answer = result if isinstance(result, Answer) else Answer.of_printed(printed.getvalue(), result or 0)
        print(answer.as_json(command))
        return answer.status
    if not isinstance(result, Answer):
        return result or 0
    if result.text:
        sys.stdout.write(result.text if result.text.endswith("\n") else f"{result.text}\n")
    return result.status


def _ticker(command: str) -> contextlib.AbstractContextManager[object]:
    """Return a context that shows on a terminal, from the first second on, that a command works."""
    if command in (*_WITHOUT_TICKER, *_INTERNAL) or not sys.stderr.isatty():
        return contextlib.nullcontext()
    from triplepoint.cli.progress import Progress

    return Progress(f"{command}: working")


@contextlib.contextmanager
def without_pandas() -> Iterator[None]:
    """Make `import pandas` fail in a block, in this process and its forks."""
    finder = _NoPandas()
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)


class _NoPandas:
    """Import hook that hides pandas: pyarrow imports it with the first array, for 0.3 s of CPU."""

    def find_spec(self, fullname: str, path: object = None, target: object = None) -> None:
        """Raise `ModuleNotFoundError` for pandas; return None for other modules, so that the next finder is asked."""
        if fullname == "pandas":
            raise ModuleNotFoundError("pandas is not used here", name="pandas")


def _fail(line: str, status: int) -> int:
    """Print one line to standard error and return the exit status."""
    one_line = line.replace("\n", "\\n").replace("\r", "\\r")  # file names may contain line breaks
    print(f"triplepoint: {one_line}", file=sys.stderr)
    return status


def _help() -> str:
    """Return the text of `triplepoint --help`."""
    width = max(map(len, COMMANDS))
    lines = ["usage: triplepoint SUBCOMMAND [ARGUMENTS]", ""]
    lines += ["What a distributed LLM training run costs in time, power and heat, and why.", ""]
    for group, commands in GROUPS.items():
        lines += [group, *(f"  {name:<{width}}  {about}" for name, about in commands.items()), ""]
    lines.append(
        "triplepoint SUBCOMMAND --help tells more. Exit status: 0 done, 1 failed, 2 something you can correct."
    )
    return "\n".join(lines)
