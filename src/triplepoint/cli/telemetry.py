"""`triplepoint telemetry RUN`."""

import argparse

from triplepoint.cli.answer import Answer
from triplepoint.cli.arguments import add_run, make_parser, run_folder


def parser() -> argparse.ArgumentParser:
    """Return the subcommand's parser."""
    parser = make_parser(
        "telemetry",
        "Write a run's telemetry.parquet: all nodes on one clock, steps and gaps marked.",
        ["triplepoint telemetry RUN"],
        answer={"file": "file that was written"},
    )
    add_run(parser)
    return parser


def run(arguments: argparse.Namespace) -> Answer:
    """Align the run's recordings."""
    folder = run_folder(arguments)
    from triplepoint.telemetry.align import align_run

    align_run(folder / "raw", folder / "telemetry.parquet")
    return Answer({"file": folder / "telemetry.parquet"})
