"""`triplepoint launch RUN`."""

import argparse
import sys

from triplepoint.cli.arguments import add_run, make_parser, run_folder, say


def parser() -> argparse.ArgumentParser:
    """Return the subcommand's parser."""
    made = make_parser(
        "launch",
        "Train one run as a gang through submitit. A result that is already there is kept. "
        "Exit status 0: a result (ok, oom, invalid); 1: it crashed, hung or was lost; 2: something you can mend.",
    )
    add_run(made)
    made.add_argument("--force", action="store_true", help="launch again even if the result is there")
    return made


def run(arguments: argparse.Namespace) -> int:
    """Launch the run; return 1 if it ended without a result."""
    folder = run_folder(arguments)
    from triplepoint.launch.run import LaunchFailed, launch

    try:
        launch(folder, say, arguments.force)
    except LaunchFailed as error:
        print(f"triplepoint: {error}", file=sys.stderr)
        return 1
    return 0
