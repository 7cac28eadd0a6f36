"""`triplepoint parse RUN FIRST-LAST`: parse the traces of some ranks, so that jobs share the ranks of a run."""

import argparse
import re
from pathlib import Path

from triplepoint.cli.answer import Answer
from triplepoint.cli.arguments import add_run, make_parser, run_folder, say, whole_number
from triplepoint.cli.progress import Progress
from triplepoint.errors import UserError
from triplepoint.trace.taxonomy import SCHEMES, Scheme, load_scheme


def add_rules(parser: argparse.ArgumentParser) -> None:
    """Add `--scheme` and `--rules`, which classify kernels."""
    parser.add_argument("--scheme", choices=SCHEMES, default="default", help="classes to sort kernels into")
    parser.add_argument(
        "--rules", type=Path, metavar="FILE", help="YAML file of rules tried before those of the scheme (default: none)"
    )


def add_steps(parser: argparse.ArgumentParser) -> None:
    """Add `--steps`, the pattern of annotations that are steps."""
    parser.add_argument(
        "--steps",
        type=_pattern,
        metavar="PATTERN",
        help="regular expression for the names of ranges (NVTX, ROCTX, record_function) that are steps; its "
        "group, if it has one, is the number of the step (default: ProfilerStep#N, else 'step N' or 'iteration N')",
    )


def _pattern(text: str) -> re.Pattern[str]:
    try:
        return re.compile(text)
    except re.error as error:
        raise argparse.ArgumentTypeError(f"{text!r} is not a regular expression: {error}") from None


def load_rules(arguments: argparse.Namespace) -> Scheme:
    """Return the classification of `--scheme` and `--rules`. Raises `UserError` if the file of rules is invalid."""
    return load_scheme(arguments.scheme, arguments.rules)


def parser() -> argparse.ArgumentParser:
    """Return the subcommand's parser."""
    parser = make_parser(
        "parse",
        "Parse the traces of some ranks of a run; `triplepoint trace --run` joins them.",
        ["triplepoint parse RUN 0-7"],
        answer={"folder": "folder with the tables of each rank"},
    )
    add_run(parser)
    parser.add_argument("part", metavar="FIRST-LAST", help="first and last of the ranks, such as 0-7")
    parser.add_argument(
        "--jobs", type=whole_number(), metavar="N", help="traces to parse at once (default: one per core)"
    )
    add_rules(parser)
    return parser


def run(arguments: argparse.Namespace) -> Answer:
    """Parse one part of a run's traces."""
    from triplepoint.trace.run_parts import PARTS, parse_part

    folder, ranks = run_folder(arguments), _ranks(arguments.part)
    with Progress(f"parsing traces of ranks {arguments.part}") as progress:
        parse_part(folder, ranks, load_rules(arguments), progress, arguments.jobs, note=say)
    return Answer({"folder": folder / PARTS / f"{ranks[0]}-{ranks[-1]}"})


def _ranks(part: str) -> range:
    match = re.fullmatch(r"(\d+)-(\d+)", part)
    ranks = range(int(match[1]), int(match[2]) + 1) if match else range(0)
    if not ranks:
        raise UserError(f"parse: ranks {part!r}: expected the first and the last, such as 0-7")
    return ranks
