"""`triplepoint serve SOCKET`: the fork server that Snakemake starts, so that jobs of cheap stages import nothing."""

import argparse
import contextlib
import importlib
from functools import cache
from pathlib import Path

from triplepoint.ask_forks import SERVED
from triplepoint.cli import main, without_pandas
from triplepoint.cli.arguments import make_parser
from triplepoint.config.base import Strict
from triplepoint.errors import UserError
from triplepoint.forks import serve

_LATE_IMPORTS = {
    "simulate": ("triplepoint.simulate.artefacts.simulate_run", "numpy.random"),
    "telemetry": ("triplepoint.telemetry.align",),
    "trace": ("triplepoint.slow_nodes", "triplepoint.trace.join"),
    "aggregate": ("triplepoint.aggregate",),
    "figure": (
        "triplepoint.figures.write",
        "fontTools.subset",
        "matplotlib.backends.backend_pdf",
        "matplotlib.backends.backend_svg",
        "matplotlib.pyplot",
    ),
}
"""Modules that each command imports only after it has read its arguments. None of them starts a thread, which a fork
would not have."""
_LATE_IMPORTS_OF_ALL = ("dateutil.relativedelta", "numpy.ma", "pyarrow.compute", "pyarrow.parquet")


def parser() -> argparse.ArgumentParser:
    """Return the subcommand's parser."""
    parser = make_parser(
        "serve",
        "Fork a child for each job that asks on a socket, until standard input ends.",
        ["triplepoint serve /tmp/triplepoint/lean"],
    )
    parser.add_argument(
        "socket", type=Path, metavar="SOCKET", help="socket to listen on; its name is the family of jobs"
    )
    return parser


def run(arguments: argparse.Namespace) -> None:
    """Serve the commands of one family."""
    family = arguments.socket.name
    if family not in SERVED:
        raise UserError(f"{arguments.socket}: no family of jobs {family!r}; expected {' or '.join(SERVED)}")
    with without_pandas() if family == "lean" else contextlib.nullcontext():
        serve(arguments.socket, _prepare, main)


def _prepare(command: str, folder: Path) -> bool:
    """Prepare for a command; return whether jobs in the folder can be forks of this process."""
    # Caches hold the configuration of the current folder.
    if folder != Path.cwd():
        return False
    _load(command)
    return True


@cache
def _load(command: str) -> None:
    """Import the modules of a command, read its configuration, and build the pydantic validators."""
    for module in (f"triplepoint.cli.{command}", *_LATE_IMPORTS[command], *_LATE_IMPORTS_OF_ALL):
        importlib.import_module(module)
    models = [Strict]
    for model in models:
        models += model.__subclasses__()
        model.model_rebuild(raise_errors=False)
    # A job that reads an invalid file reports the error itself.
    with contextlib.suppress(UserError, OSError):
        _read_ahead(command)


def _read_ahead(command: str) -> None:
    """Read the configuration of a command into caches that the forks inherit."""
    if command == "simulate":
        from triplepoint.simulate.artefacts.simulate_run import read_ahead

        read_ahead(Path("config"))
    elif command == "trace":
        from triplepoint.trace.taxonomy import load_scheme

        load_scheme()
