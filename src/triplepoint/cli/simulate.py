"""`triplepoint simulate RUN`."""

import argparse

from triplepoint.cli.answer import Answer, answer_of_run
from triplepoint.cli.arguments import RUN_ANSWER, add_config, add_run, make_parser, run_folder, say
from triplepoint.errors import UserError


def parser() -> argparse.ArgumentParser:
    """Return the subcommand's parser."""
    parser = make_parser(
        "simulate",
        "Simulate one run: write the files that a launch would write, with step times and traces of the model.",
        ["triplepoint simulate RUN"],
        answer=RUN_ANSWER,
    )
    add_run(parser)
    add_config(parser)
    return parser


def run(arguments: argparse.Namespace) -> Answer:
    """Simulate the run; an existing result is replaced."""
    folder = run_folder(arguments)
    from triplepoint.config.plan import read_planned_run
    from triplepoint.files import atomic_folder
    from triplepoint.simulate.artefacts.simulate_run import simulate_run

    planned = read_planned_run(folder / "point.json")
    if planned.point.engine != "simulated":
        raise UserError(
            f"{planned.run}: the point has engine: {planned.point.engine}; launch it, or plan it with --simulated"
        )
    with atomic_folder(folder / "raw") as raw:
        manifest = simulate_run(planned, raw, arguments.config)
    say(f"{planned.run}: {manifest.status}")
    return answer_of_run(folder, manifest)
