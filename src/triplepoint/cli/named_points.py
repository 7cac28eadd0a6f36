"""Points named by an argument: all or one of a file, or that of a run."""

import argparse
from pathlib import Path

from triplepoint.cli.arguments import is_run_folder, run_folder
from triplepoint.config.base import read_json
from triplepoint.config.plan import PlannedRun
from triplepoint.errors import UserError, nearest
from triplepoint.predictions import SUFFIXES, Request, read_points


def named_points(text: str, arguments: argparse.Namespace, most: int) -> list[Request]:
    """Return the points that an argument names: `FILE` all of a file, `FILE:ID` one of them, `RUN` that of a run.

    Args:
        text: The argument.
        arguments: Command line, with `results` and `config`.
        most: Maximum number of points.

    Raises:
        UserError: If there is no such file, id or run, or there are too many.
    """
    name, _, key = text.rpartition(":")
    if not Path(text).is_file() and Path(name).suffix in SUFFIXES:
        known = {request.id: request for request in read_points(Path(name), arguments.config)}
        if key not in known:
            raise UserError(f"{name}: no configuration with id {key!r}{nearest(key, known)}")
        return [known[key]]
    if is_run_folder(text) or not Path(text).exists() and Path(text).suffix not in SUFFIXES:
        return [_point_of_run(text, arguments)]
    requests = read_points(Path(text), arguments.config)
    if len(requests) > most:
        raise UserError(f"{text}: {len(requests)} points, at most {most} at once; name one as {text}:ID")
    return requests


def _point_of_run(run: str, arguments: argparse.Namespace) -> Request:
    """Return the point of a run. Raises `UserError` if a recorded job is not described well enough."""
    run_arguments = argparse.Namespace(run=run, results=arguments.results)
    folder = run_folder(run_arguments)
    planned = read_json(PlannedRun, folder / "point.json", "plan the run again")
    if not planned.point.knows("model", "tp", "pp", "dp", "global_batch_size", "micro_batch_size"):
        raise UserError(
            f"{run}: the model, layout or batch of the recorded job is unknown; describe the job in a job.yaml, see "
            "docs/own_job.md"
        )
    return Request(run_arguments.run, folder, planned.point, None, None)
