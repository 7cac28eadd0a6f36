"""`triplepoint launch RUN`."""

import argparse
import contextlib
import io
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

from triplepoint.cli.answer import Answer, answer_of_run
from triplepoint.cli.arguments import RUN_ANSWER, add_config, add_run, make_parser, run_folder, say

STDERR = 2
WALL_MARGIN = 2.0
"""Wall time requested from the scheduler, over the upper end of the predicted wall time: more than the prediction,
which may be wrong, but no more than needed, since longer jobs wait longer."""
WALL_FLOOR_S = 900.0
"""Shortest wall time requested from the scheduler. Unit: s."""


def parser() -> argparse.ArgumentParser:
    """Return the subcommand's parser."""
    parser = make_parser(
        "launch",
        "Train one run as a gang, on this machine or through Slurm. A result that is already there is kept; a Slurm "
        "job whose launcher was killed is continued. "
        "Exit status 0: a result (ok, oom, invalid); 1: it crashed, hung or was lost; 2: an error you can correct.",
        ["triplepoint launch RUN"],
        answer=RUN_ANSWER,
    )
    add_run(parser)
    add_config(parser)
    parser.add_argument("--log", type=Path, metavar="FILE", help="file for the messages (default: standard error)")
    parser.add_argument("--force", action="store_true", help="launch again even if the result is there")
    return parser


def run(arguments: argparse.Namespace) -> Answer:
    """Launch the run; the exit status is 1 if it ended without a result."""
    sys.stderr = open_log(arguments.log)
    folder = run_folder(arguments)
    from triplepoint.launch.launch_run import LaunchFailed, launch

    try:
        manifest = launch(folder, say, arguments.force, _wall_s(folder, arguments.results, arguments.config))
    except LaunchFailed as error:
        print(f"triplepoint: {error}", file=sys.stderr)
        return Answer({"run": arguments.run, "folder": folder, "status": "failed", "evidence": str(error)}, status=1)
    return answer_of_run(folder, manifest)


class _RobustLog(io.RawIOBase):
    """A log that falls back to standard error and ignores failures of both, so that no launch fails because of it."""

    def __init__(self, log: int | None) -> None:
        self._log = log

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        return STDERR

    def write(self, text: "ReadableBuffer") -> int:
        """Write to the log, or else to standard error; ignore a full disk and a closed pipe."""
        for file in (self._log, STDERR):
            with contextlib.suppress(OSError):
                if file is not None and os.write(file, text):
                    break
        return len(memoryview(text))


def open_log(log: Path | None) -> TextIO:
    """Return a text stream to a log.

    Args:
        log: File to overwrite. None: standard error.
    """
    file = None
    if log is not None:
        with contextlib.suppress(OSError):
            log.parent.mkdir(parents=True, exist_ok=True)
            file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_CLOEXEC, 0o666)
    out = io.BufferedWriter(_RobustLog(file))
    return io.TextIOWrapper(out, encoding="utf-8", errors="backslashreplace", line_buffering=True)


def _wall_s(folder: Path, results: Path, config: Path) -> float | None:
    """Return the wall time to request from the scheduler; None without a scheduler or a prediction. Unit: s."""
    from triplepoint.config.plan import Plan, PlanEntry, read_planned_run

    planned = read_planned_run(folder / "point.json")
    if planned.limits.executor != "slurm" or planned.point.cluster.device == "cpu" or not config.is_dir():
        return None
    from triplepoint.plan_cost import plan_cost
    from triplepoint.status import PredictionStatus

    entry = PlanEntry(run=planned.run, studies=(), invalid_because=None, planned=planned)
    (cost,) = plan_cost(Plan(entries=(entry,)), results, config)
    if cost.prediction.status not in (PredictionStatus.OK, PredictionStatus.UNDECIDED):
        return None
    return max(WALL_MARGIN * cost.wall_hi_s, WALL_FLOOR_S)
