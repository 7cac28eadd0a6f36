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
"""The scheduler is asked for so many times the upper end of the predicted wall time: longer jobs wait longer to start,
and a prediction is no promise."""
WALL_FLOOR_S = 900.0
"""The least it is asked for, however short the steps are. Unit: s."""


def parser() -> argparse.ArgumentParser:
    """Return the subcommand's parser."""
    made = make_parser(
        "launch",
        "Train one run as a gang through submitit. A result that is already there is kept; a Slurm job whose "
        "launcher was killed is continued. "
        "Exit status 0: a result (ok, oom, invalid); 1: it crashed, hung or was lost; 2: an error you can correct.",
        ["triplepoint launch RUN"],
        answer=RUN_ANSWER,
    )
    add_run(made)
    add_config(made)
    made.add_argument("--log", type=Path, metavar="FILE", help="file for the messages (default: standard error)")
    made.add_argument("--force", action="store_true", help="launch again even if the result is there")
    return made


def run(arguments: argparse.Namespace) -> Answer:
    """Launch the run; the exit status is 1 if it ended without a result."""
    sys.stderr = tell(arguments.log)
    folder = run_folder(arguments)
    from triplepoint.launch.launch_run import LaunchFailed, launch

    try:
        manifest = launch(folder, say, arguments.force, _wall_s(folder, arguments.results, arguments.config))
    except LaunchFailed as error:
        print(f"triplepoint: {error}", file=sys.stderr)
        return Answer({"run": arguments.run, "folder": folder, "status": "failed", "evidence": str(error)}, status=1)
    return answer_of_run(folder, manifest)


class _Tell(io.RawIOBase):
    """A log, or standard error where it takes nothing: a launch does not fail for want of a listener."""

    def __init__(self, log: int | None) -> None:
        self._log = log

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        return STDERR

    def write(self, text: "ReadableBuffer") -> int:
        """Write to the log, or else to standard error; a full disk and a reader that has gone are borne."""
        for file in (self._log, STDERR):
            with contextlib.suppress(OSError):
                if file is not None and os.write(file, text):
                    break
        return len(memoryview(text))


def tell(log: Path | None) -> TextIO:
    """Return a text stream to a log.

    Args:
        log: The file, which is begun anew; None for standard error.
    """
    file = None
    if log is not None:
        with contextlib.suppress(OSError):
            log.parent.mkdir(parents=True, exist_ok=True)
            file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_CLOEXEC, 0o666)
    out = io.BufferedWriter(_Tell(file))
    return io.TextIOWrapper(out, encoding="utf-8", errors="backslashreplace", line_buffering=True)


def _wall_s(folder: Path, results: Path, config: Path) -> float | None:
    """Return the wall time to ask a scheduler for; None where there is none, or no prediction. Unit: s."""
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
