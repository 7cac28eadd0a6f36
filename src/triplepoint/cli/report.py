"""`triplepoint report`."""

import argparse
from pathlib import Path

from triplepoint.cli.answer import Answer
from triplepoint.cli.arguments import add_config, add_results, make_parser, out_file, whole_number


def parser() -> argparse.ArgumentParser:
    """Return the subcommand's parser."""
    parser = make_parser(
        "report",
        "Write a self-contained front page with findings, figures and runs, and a page for each run.",
        ["triplepoint report --jobs 4"],
        answer={"file": "front page", "folder": "pages of runs"},
    )
    parser.add_argument("--figs", type=Path, default=Path("figs"), metavar="DIR", help="folder of the figures")
    parser.add_argument(
        "--captions", type=Path, default=Path("workflow/report"), metavar="DIR", help="captions, one .rst each"
    )
    parser.add_argument(
        "--out",
        type=out_file,
        default=Path("report.html"),
        metavar="FILE",
        help="front page to write; pages of runs go into the folder beside it that has its name",
    )
    parser.add_argument(
        "--alone",
        action="store_true",
        help="the planned studies are some of all: judge the claims by them alone, leave out what is drawn of all",
    )
    add_config(parser)
    parser.add_argument("--jobs", type=whole_number(), default=1, metavar="N", help="pages of runs to write at once")
    add_results(parser)
    return parser


def run(arguments: argparse.Namespace) -> Answer:
    """Write the report."""
    from triplepoint.report import write_report

    write_report(
        arguments.results,
        arguments.figs,
        arguments.captions,
        arguments.out,
        num_jobs=arguments.jobs,
        judged_from=arguments.config if arguments.alone else None,
    )
    return Answer({"file": arguments.out, "folder": arguments.out.with_suffix("")})
