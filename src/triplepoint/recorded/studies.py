"""Studies of recorded runs: the runs of each, in the order of recording, in `results/recorded/<study>.json`."""

import fcntl
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from triplepoint.config.base import NAME_EXPECTED, NAME_PATTERN
from triplepoint.config.plan import Plan, PlanEntry, read_planned_run
from triplepoint.errors import UserError
from triplepoint.files import load_json, write_json

RECORDED = "recorded"
"""Default study of recorded runs, and the folder of these studies."""


def read_recorded(results: Path) -> Plan:
    """Return the runs of all studies of recorded runs as a plan; runs whose folder was removed are left out.

    Args:
        results: Folder of results.

    Raises:
        UserError: If a file is damaged.
    """
    entries: dict[str, PlanEntry] = {}
    order: dict[str, tuple[str, ...]] = {}
    for path in sorted((results / RECORDED).glob("*.json")):
        for run in _runs_of(path):
            folder = results / "runs" / run
            if not ((folder / "point.json").is_file() and (folder / "raw" / "manifest.json").is_file()):
                continue
            planned = read_planned_run(folder / "point.json")
            studies = entries[run].studies if run in entries else ()
            entries[run] = PlanEntry(run=run, studies=(*studies, path.stem), invalid_because=None, planned=planned)
            order[path.stem] = (*order.get(path.stem, ()), run)
    return Plan(entries=tuple(entries.values()), order=order)


def add_to_study(results: Path, study: str, run: str) -> None:
    """Add a run to a study of recorded runs.

    Raises:
        UserError: If the name of the study is invalid, or its file is damaged.
    """
    check_study(study)
    path = results / RECORDED / f"{study}.json"
    with _locked(path.parent):
        runs = _runs_of(path) if path.is_file() else []
        if run not in runs:
            write_json(path, {"runs": [*runs, run]})


def check_study(study: str) -> None:
    """Raise `UserError` if the name of a study of recorded runs is invalid."""
    if not re.fullmatch(NAME_PATTERN, study):
        raise UserError(f"--study {study!r}: {NAME_EXPECTED}")


def _runs_of(path: Path) -> list[str]:
    """Return the runs in the file of a study. Raises `UserError` if it is damaged."""
    try:
        runs = load_json(path.read_text(encoding="utf-8"))["runs"]
        if not all(isinstance(run, str) for run in runs):
            raise ValueError
    except (OSError, ValueError, KeyError, TypeError):
        raise UserError(f'{path}: damaged; expected {{"runs": [RUN, ...]}}; correct it, or remove it') from None
    return list(dict.fromkeys(runs))


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Keep other processes from changing the files of a folder during a block."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
