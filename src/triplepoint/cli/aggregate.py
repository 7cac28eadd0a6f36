"""`triplepoint aggregate [STUDY...]`."""

import argparse

from triplepoint.cli.answer import Answer
from triplepoint.cli.arguments import add_config, add_results, make_parser, say, whole_number
from triplepoint.errors import UserError, nearest


def parser() -> argparse.ArgumentParser:
    """Return the subcommand's parser."""
    parser = make_parser(
        "aggregate",
        "Join the runs of each study into RESULTS/tables/STUDY; refuse incomplete ones.",
        ["triplepoint aggregate smoke --jobs 4"],
        answer={"studies": "folder of tables by study"},
    )
    parser.add_argument("studies", nargs="*", metavar="STUDY", help="studies of RESULTS/plan.json (default: all)")
    add_config(parser)
    parser.add_argument(
        "--plan", metavar="DIGEST", help="refuse a plan of the study with another digest (default: accept any)"
    )
    parser.add_argument("--jobs", type=whole_number(), default=1, metavar="N", help="runs to read at once")
    add_results(parser)
    return parser


def run(arguments: argparse.Namespace) -> Answer:
    """Write the tables."""
    from triplepoint.aggregate import aggregate_study
    from triplepoint.claims import claim_results
    from triplepoint.config.plan import read_plan
    from triplepoint.tables.studies import tables_folder

    path = arguments.results / "plan.json"
    plan = read_plan(path)
    plans = {study: plan.of_study(study) for study in arguments.studies or plan.studies}
    for study, study_plan in plans.items():
        if study not in plan.studies:
            raise UserError(f"{path}: no study {study!r}{nearest(study, plan.studies)}")
        if arguments.plan not in (None, study_plan.digest()):
            raise UserError(
                f"{path}: holds another plan of study {study} than the tables are asked for (digest "
                f"{study_plan.digest()[:12]}, expected {arguments.plan[:12]}); another command changed it since, so "
                "run snakemake again"
            )
    with claim_results(arguments.results).acquire_or_refuse():
        for study, study_plan in plans.items():
            aggregate_study(study_plan, study, arguments.results, arguments.config, say, arguments.jobs)
    return Answer({"studies": {study: tables_folder(arguments.results, study) for study in plans}})
