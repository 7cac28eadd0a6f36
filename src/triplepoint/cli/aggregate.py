"""`triplepoint aggregate`."""

import argparse

from triplepoint.cli.arguments import add_config, add_results, make_parser, say, whole_number


def parser() -> argparse.ArgumentParser:
    """Return the subcommand's parser."""
    made = make_parser("aggregate", "Join all runs of RESULTS/plan.json into RESULTS/tables; refuse incomplete ones.")
    add_config(made)
    made.add_argument("--plan", metavar="DIGEST", help="refuse a RESULTS/plan.json with another digest")
    made.add_argument("--jobs", type=whole_number(), default=1, metavar="N", help="runs to read at once")
    add_results(made)
    return made


def run(arguments: argparse.Namespace) -> None:
    """Write the tables."""
    from triplepoint.aggregate import aggregate
    from triplepoint.claims import claim_results
    from triplepoint.config.plan import read_plan
    from triplepoint.errors import UserError

    path = arguments.results / "plan.json"
    plan = read_plan(path)
    if arguments.plan not in (None, plan.digest()):
        raise UserError(
            f"{path}: holds another plan than the tables are asked for (digest {plan.digest()[:12]}, expected "
            f"{arguments.plan[:12]}); something else wrote it meanwhile, run snakemake again"
        )
    with claim_results(arguments.results).acquire_or_refuse():
        aggregate(plan, arguments.results, arguments.config, say, arguments.jobs)
