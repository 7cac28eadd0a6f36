"""`triplepoint claims [STUDY...]`."""

import argparse

from triplepoint.cli.answer import Answer
from triplepoint.cli.arguments import add_config, add_results, make_parser, say


def parser() -> argparse.ArgumentParser:
    """Return the subcommand's parser."""
    parser = make_parser(
        "claims",
        "Judge the published claims by the tables of studies: RESULTS/tables/claims.parquet.",
        ["triplepoint claims parallelism"],
        answer={"num_rows": "rows of table claims", "table": "its file"},
    )
    parser.add_argument(
        "studies", nargs="*", metavar="STUDY", default=[], help="studies of RESULTS/plan.json (default: all)"
    )
    add_config(parser)
    add_results(parser)
    return parser


def run(arguments: argparse.Namespace) -> Answer:
    """Write the table of claims."""
    from triplepoint.claims import claim_results
    from triplepoint.errors import UserError, nearest
    from triplepoint.tables.studies import planned_studies, require_tables
    from triplepoint.verdicts.judge import write_claims

    planned = planned_studies(arguments.results)
    if unknown := [study for study in arguments.studies if study not in planned]:
        raise UserError(f"no study {unknown[0]!r} in {arguments.results / 'plan.json'}{nearest(unknown[0], planned)}")
    studies = tuple(arguments.studies) or planned
    require_tables(arguments.results, studies, "claims", "snakemake results/tables/claims.parquet")
    with claim_results(arguments.results).acquire_or_refuse():
        num_rows = write_claims(arguments.results, studies, arguments.config)
    say(f"claims: {num_rows} rows")
    return Answer({"num_rows": num_rows, "table": arguments.results / "tables" / "claims.parquet"})
