"""`triplepoint aggregate`."""

import argparse

from triplepoint.cli.arguments import add_config, add_results, make_parser, say, whole_number


def parser() -> argparse.ArgumentParser:
    """Return the subcommand's parser."""
    made = make_parser("aggregate", "Join all runs of RESULTS/plan.json into RESULTS/tables; refuse incomplete ones.")
    add_config(made)
    made.add_argument("--jobs", type=whole_number(), default=1, metavar="N", help="runs to read at once")
    add_results(made)
    return made


def run(arguments: argparse.Namespace) -> None:
    """Write the tables."""
    from triplepoint.aggregate import aggregate
    from triplepoint.config.plan import read_plan

    aggregate(read_plan(arguments.results / "plan.json"), arguments.results, arguments.config, say, arguments.jobs)
