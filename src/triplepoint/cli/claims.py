"""`triplepoint claims [STUDY...]`."""

import argparse

from triplepoint.cli.arguments import add_config, add_results, make_parser, say


def parser() -> argparse.ArgumentParser:
    """Return the subcommand's parser."""
    made = make_parser("claims", "Judge the published claims by the tables of studies: RESULTS/tables/claims.parquet.")
    made.add_argument("studies", nargs="*", metavar="STUDY", help="studies of RESULTS/plan.json (default: all)")
    add_config(made)
    add_results(made)
    return made


def run(arguments: argparse.Namespace) -> None:
    """Write the table of claims."""
    from triplepoint.claims import claim_results
    from triplepoint.tables.studies import planned_studies, require_tables
    from triplepoint.verdicts.judge import write_claims

    studies = tuple(arguments.studies) or planned_studies(arguments.results)
    require_tables(arguments.results, studies, "claims", "snakemake results/tables/claims.parquet")
    with claim_results(arguments.results).acquire_or_refuse():
        num_rows = write_claims(arguments.results, studies, arguments.config)
    say(f"claims: {num_rows} rows")
