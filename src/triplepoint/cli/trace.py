"""`triplepoint trace FILES|FOLDER --out DIR`."""

import argparse
from pathlib import Path

from triplepoint.cli.arguments import make_parser, say


def parser() -> argparse.ArgumentParser:
    """Return the subcommand's parser."""
    made = make_parser("trace", "Parse Kineto traces, one per rank: kernels, intervals and a timeline.")
    made.add_argument("traces", nargs="+", type=Path, metavar="FILE|FOLDER", help="traces, or a run's raw folder")
    made.add_argument("--out", type=Path, required=True, metavar="DIR", help="folder for the tables")
    return made


def run(arguments: argparse.Namespace) -> None:
