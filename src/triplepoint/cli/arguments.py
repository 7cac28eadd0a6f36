"""Arguments that several subcommands share."""

import argparse
import re
import sys
from pathlib import Path

from triplepoint.config.names import RUN_PATTERN
from triplepoint.errors import UserError, nearest


def make_parser(command: str, about: str) -> argparse.ArgumentParser:
    """Return the parser of one subcommand."""
    return argparse.ArgumentParser(
        prog=f"triplepoint {command}", description=about, formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )


def add_results(parser: argparse.ArgumentParser) -> None:
    """Add `--results`, the folder runs and tables live in."""
    parser.add_argument(
        "--results", type=Path, default=Path("results"), metavar="DIR", help="folder of runs and tables"
    )


def add_run(parser: argparse.ArgumentParser) -> None:
    """Add `RUN` and `--results`."""
    parser.add_argument("run", metavar="RUN", help="run id, a folder in RESULTS/runs")
    add_results(parser)


def add_config(parser: argparse.ArgumentParser) -> None:
    """Add `--config`, the folder of the configuration."""
    parser.add_argument(
        "--config", type=Path, default=Path("config"), metavar="DIR", help="folder of the configuration"
    )


def run_folder(arguments: argparse.Namespace) -> Path:
    """Return the folder of the run that was named.

    Raises:
        UserError: If the name cannot be a run id, or there is no such run.
    """
    run: str = arguments.run
    if not re.fullmatch(RUN_PATTERN, run):
        raise UserError(f"{run!r} is not a run id: lower-case letters, digits, '.', '_' and '-' only")
    folder: Path = arguments.results / "runs" / run
    if not (folder / "point.json").is_file():
        known = [path.parent.name for path in arguments.results.glob("runs/*/point.json")]
        hint = nearest(run, known) if known else "; write it with 'triplepoint plan STUDY --write'"
        raise UserError(f"{folder}: no such run{hint if len(hint) < 200 else ''}")
    return folder


def say(line: str) -> None:
    """Tell the user about progress, at once."""
    print(line, file=sys.stderr, flush=True)
