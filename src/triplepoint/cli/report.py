"""`triplepoint report`."""

import argparse
from pathlib import Path

from triplepoint.cli.arguments import add_results, make_parser, out_file


def parser() -> argparse.ArgumentParser:
    """Return the subcommand's parser."""
    made = make_parser("report", "Write one self-contained page with figures, tables and provenance.")
    made.add_argument("--figs", type=Path, default=Path("figs"), metavar="DIR", help="folder of the figures")
    made.add_argument(
        "--captions", type=Path, default=Path("workflow/report"), metavar="DIR", help="captions, one .rst each"
    )
    made.add_argument("--out", type=out_file, default=Path("report.html"), metavar="FILE", help="page to write")
    add_results(made)
    return made


def run(arguments: argparse.Namespace) -> None:
    """Write the report."""
    from triplepoint.report import write_report

    write_report(arguments.results, arguments.figs, arguments.captions, arguments.out)
