"""Calls Snakemake in a process forked from one that has imported it, since importing takes half of a dry run."""

import atexit
import multiprocessing
import os
import sys
from collections.abc import Mapping
from pathlib import Path

_PROCESSES = multiprocessing.get_context("forkserver")
_PROCESSES.set_forkserver_preload(["snakemake.cli"])


def call_snakemake(
    arguments: tuple[str, ...], folder: Path, environment: Mapping[str, str], log: Path, tells_cost: bool
) -> int:
    """Do what `python -m snakemake` would do in `folder`, and return its exit status.

    Args:
        arguments: Command line after the program.
        folder: Working directory; its `src` holds the package.
        environment: Environment variables, whole.
        log: File for standard output and standard error.
        tells_cost: Whether a dry run says what lies ahead.
    """
    process = _PROCESSES.Process(target=_main, args=(arguments, folder, dict(environment), log, tells_cost))
    process.start()
    process.join()
    assert process.exitcode is not None
    return process.exitcode


def _main(arguments: tuple[str, ...], folder: Path, environment: dict[str, str], log: Path, tells_cost: bool) -> None:
    with log.open("wb") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    sys.dont_write_bytecode = True
    from snakemake import cli  # type: ignore[import-untyped]

    assert not any(name.partition(".")[0] == "triplepoint" for name in sys.modules), "the package of `folder` counts"
    sys.path[:0] = [str(folder), str(folder / "src")]
    if not tells_cost:
        from triplepoint import workflow

        workflow.start_cost_summary = lambda arguments: None
    sys.argv = [str(Path(cli.__file__).with_name("__main__.py")), *arguments]
    try:
        cli.main()
    finally:
        atexit._run_exitfuncs()  # which this kind of process skips: what is claimed is given back
