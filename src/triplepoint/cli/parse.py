"""`triplepoint parse RUN PART`: the traces of some ranks of a run, so that ranks are parsed side by side."""

import argparse

from triplepoint.cli.arguments import add_rules, add_run, load_rules, make_parser, run_folder, say
from triplepoint.errors import UserError


def parser() -> argparse.ArgumentParser:
    """Return the subcommand's parser."""
    made = make_parser("parse", "Parse the Kineto traces of some ranks of a run; `triplepoint trace` joins them.")
    add_run(made)
    made.add_argument("part", type=int, metavar="PART", help="which part of the run's traces, from 0")
    made.add_argument("--ranks-per-part", type=int, default=8, metavar="N", help="traces of a part")
    add_rules(made)
    return made


def run(arguments: argparse.Namespace) -> None:
    """Parse one part of a run's traces."""
    from triplepoint.trace.runs import parse_run

    size, part = arguments.ranks_per_part, arguments.part
    if size < 1 or part < 0:
        raise UserError(f"parse: part {part} of {size} ranks each: expected a part from 0 on, of 1 rank or more")
    folder = run_folder(arguments)
    ranks = range(part * size, (part + 1) * size)
    parse_run(folder, ranks, folder / "ranks" / str(part), load_rules(arguments), say)
