"""`triplepoint figure NAME`."""

import argparse
from pathlib import Path

from triplepoint.cli.arguments import add_results, make_parser, out_folder
from triplepoint.errors import UserError, nearest
from triplepoint.figures import NAMES


def parser() -> argparse.ArgumentParser:
    """Return the subcommand's parser."""
    made = make_parser("figure", "Draw one figure from RESULTS/tables as PDF and PNG, and its numbers as CSV.")
    made.add_argument("name", metavar="NAME", help=f"one of {', '.join(NAMES)}")
    made.add_argument("--out", type=out_folder, default=Path("figs"), metavar="DIR", help="folder for the figure")
    add_results(made)
    return made


def run(arguments: argparse.Namespace) -> None:
    """Draw the figure."""
    if arguments.name not in NAMES:
        raise UserError(f"no figure {arguments.name!r}{nearest(arguments.name, NAMES)}")
    from triplepoint.figures.write import write_figure

    write_figure(arguments.name, arguments.results / "tables", arguments.out)
