"""`triplepoint serve SOCKET`: the process that Snakemake starts so that jobs of cheap stages import nothing."""

import argparse
from pathlib import Path

from triplepoint.cli import SERVED, hide_pandas, main
from triplepoint.cli.arguments import make_parser
from triplepoint.errors import UserError
from triplepoint.forks import serve

_BEHIND = {
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
"""By command, what it imports only once its arguments are read; none of it starts a thread that a fork would lack."""
_BEHIND_ALL = ("dateutil.relativedelta", "numpy.ma", "pyarrow.compute", "pyarrow.parquet")


def parser() -> argparse.ArgumentParser:
    """Return the subcommand's parser."""
    made = make_parser(
        "serve",
        "Fork a child for each job that asks on a socket, until standard input ends.",
        ["triplepoint serve /tmp/triplepoint/lean"],
    )
    made.add_argument("socket", type=Path, metavar="SOCKET", help="socket to listen on; its name is the family of jobs")
    return made


def run(arguments: argparse.Namespace) -> None:
    """Serve the commands of one family."""
    family = arguments.socket.name
    if family not in SERVED:
        raise UserError(f"{arguments.socket}: no family of jobs {family!r}; expected {' or '.join(SERVED)}")
    if family == "lean":
        hide_pandas()
    commands = SERVED[family]
    serve(
        arguments.socket, {name: (f"triplepoint.cli.{name}", *_BEHIND[name], *_BEHIND_ALL) for name in commands}, main
    )
