"""`triplepoint aggregate`."""

import argparse
from pathlib import Path

from triplepoint.cli.arguments import add_results, make_parser, say


def parser() -> argparse.ArgumentParser:
    """Return the subcommand's parser."""
    made = make_parser("aggregate", "Join all runs of RESULTS/plan.json into RESULTS/tables; refuse incomplete ones.")
    made.add_argument("--config", type=Path, default=Path("config"), metavar="DIR", help="folder of the configuration")
    add_results(made)
    return made


def run(arguments: argparse.Namespace) -> None:
    """Write the tables."""
    from triplepoint.aggregate import aggregate
    from triplepoint.config.plan import read_plan

    aggregate(read_plan(arguments.results / "plan.json"), arguments.results, arguments.config, say)
