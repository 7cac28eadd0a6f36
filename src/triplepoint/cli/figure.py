"""`triplepoint figure NAME` and `triplepoint figure STUDY/NAME`."""

import argparse
import re
from pathlib import Path

from triplepoint.cli.answer import Answer
from triplepoint.cli.arguments import add_results, make_parser, out_folder
from triplepoint.config.base import NAME_PATTERN
from triplepoint.errors import UserError
from triplepoint.figures import NAMES, spec_of


def parser() -> argparse.ArgumentParser:
    """Return the subcommand's parser."""
    parser = make_parser(
        "figure",
        "Draw one figure from RESULTS/tables as PDF, SVG and PNG, and its numbers as CSV.",
        ["triplepoint figure microbatch_power", "triplepoint figure mine/timeline --out figs/mine"],
        answer={"files": "files that were written"},
    )
    parser.add_argument("name", metavar="[STUDY/]NAME", help=f"of its studies, or of one study: {', '.join(NAMES)}")
    parser.add_argument("--out", type=out_folder, default=Path("figs"), metavar="DIR", help="folder for the figure")
    add_results(parser)
    return parser


def run(arguments: argparse.Namespace) -> Answer:
    """Draw the figure."""
    spec_of(arguments.name)
    study, slash, _ = arguments.name.rpartition("/")
    if slash and not re.fullmatch(NAME_PATTERN, study):
        raise UserError(f"figure: {study!r} is not the name of a study; expected STUDY/NAME, such as mine/timeline")
    from triplepoint.figures.write import write_figure

    write_figure(arguments.name, arguments.results, arguments.out)
    return Answer({"files": [arguments.out / f"{arguments.name}.{kind}" for kind in ("pdf", "svg", "png", "csv")]})
