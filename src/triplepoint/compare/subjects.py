"""What a user names to compare: a run, the repeats of a study's point, or loose traces."""

import difflib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from triplepoint.config import RUN_PATTERN
from triplepoint.config.plan import PlanEntry, read_plan
from triplepoint.config.point import Point, settings_of
from triplepoint.errors import UserError, nearest, shown
from triplepoint.recorded.studies import read_recorded
from triplepoint.trace.pipes import STDIN
from triplepoint.trace.reader import read_parts

_TABLES = (".csv", ".tsv", ".xlsx", ".yaml", ".yml", ".txt")
"""Ends of files that are no traces, but for kernel traces in CSV."""
_MOST_NAMED = 4
"""Settings or runs that a message names."""


@dataclass(frozen=True)
class Subject:
    """One side of a comparison.

    Attributes:
        word: As the user named it.
        runs: Folders of the runs, repeats of one point; none for traces.
        traces: Loose traces, or folders of them; none for runs.
    """

    word: str
    runs: tuple[Path, ...] = ()
    traces: tuple[Path, ...] = ()

    @property
    def paths(self) -> set[Path]:
        """Return what it is read from, without links."""
        return {path.resolve() for path in (*self.runs, *self.traces)}


def find_subject(word: str, results: Path) -> Subject:
    """Return what a word means.

    Args:
        word: A run id or its beginning, a folder of a run, a trace or a pipe it comes through, a folder of traces, or
            `STUDY:POINT`, where POINT is the beginning of run ids or settings such as `tp=8,pp=4`.
        results: Folder of the results.

    Raises:
        UserError: If it means nothing, or several points.
    """
    if not word.strip():
        raise UserError("an empty word names no run; expected a run id, a folder, a trace or STUDY:POINT")
    path = Path(word)
    if path == STDIN or path.exists():
        return _of_path(word, path)
    study, has_colon, point = word.partition(":")
    if has_colon and "/" not in study:
        return Subject(word, _of_study(study, point, results))
    return Subject(word, _of_run(word, results))


def one_run(subject: Subject) -> Path:
    """Return the folder of the one run that is meant.

    Raises:
        UserError: If there are several.
    """
    if len(subject.runs) != 1:
        names = _listed([folder.name for folder in subject.runs])
        raise UserError(f"{shown(subject.word)}: {len(subject.runs)} repeats match: {names}; name one of them")
    return subject.runs[0]


def check_apart(first: Subject, other: Subject) -> None:
    """Refuse two sides that have something in common.

    Raises:
        UserError: Naming what is on both.
    """
    if both := first.paths & other.paths:
        name = min(path.name for path in both)
        raise UserError(f"{shown(first.word)} and {shown(other.word)} both name {name}; name two different runs")


def _of_path(word: str, path: Path) -> Subject:
    if path.is_file():
        if path.name.endswith(_TABLES) and not read_parts(path):
            raise UserError(f"{path}: a table is compared alone: 'triplepoint compare {path}'; expected a run or trace")
        return Subject(word, traces=(path,))
    if not path.is_dir():  # a pipe
        return Subject(word, traces=(path,))
    folder = path.parent if path.resolve().name == "raw" else path
    if (folder / "point.json").is_file():
        return Subject(word, (folder,))
    if (path / "manifest.json").is_file() or (path / "raw" / "manifest.json").is_file():
        raise UserError(
            f"{folder / 'point.json'}: no such file, and a run needs it; copy it from the run, or name the folder of "
            "traces"
        )
    if (path / "intervals.parquet").is_file():
        raise UserError(
            f"{path}: holds tables of 'triplepoint trace'; expected a run, or the traces the tables were made from"
        )
    return Subject(word, traces=(path,))


def _of_run(word: str, results: Path) -> tuple[Path, ...]:
    """Return the folder of the one run that a word begins, or those of all repeats of one point."""
    known = sorted(path.parent.name for path in results.glob("runs/*/point.json"))
    if word in known:
        return (results / "runs" / word,)
    begun = [name for name in known if word and name.startswith(word)]
    if not begun:
        raise UserError(f"{shown(word)}: no such run, trace or folder{_near(word, known, results)}")
    folders = [results / "runs" / name for name in begun]
    labels = {_without_repeat(name) for name in begun}
    if len(labels) > 1:
        raise UserError(f"{shown(word)}: {len(begun)} runs begin like this: {_listed(begun)}; type more of the name")
    return tuple(folders)


def _without_repeat(name: str) -> str:
    """Return the label of a run without repeat and digest, which repeats of one point share."""
    return re.sub(r"_r\d+(_[0-9a-f]+)?$", "", name)


def _near(word: str, known: Sequence[str], results: Path) -> str:
    if not known:
        return f"; {results / 'runs'} has no runs"
    if not re.fullmatch(RUN_PATTERN, word):
        return "; expected a run id, a folder, a trace or STUDY:POINT"
    by_beginning = {name[: len(word)]: name for name in reversed(known)}
    close = difflib.get_close_matches(word, by_beginning, n=1)
    return f" (did you mean {by_beginning[close[0]]!r}?)" if close else f"; {results / 'runs'} has {len(known)} others"


def _of_study(study: str, point: str, results: Path) -> tuple[Path, ...]:
    """Return the folders of all repeats of one point of a study."""
    plan = read_recorded(results)
    if study not in plan.studies:
        plan = read_plan(results / "plan.json")
    if study not in plan.studies:
        raise UserError(f"{shown(study)}: no such study in {results / 'plan.json'}{nearest(study, plan.studies)}")
    entries = plan.of_study(study).entries
    wanted = _read_settings(study, point, entries)
    meant = [entry for entry in entries if _is_meant(entry, point, wanted)]
    if not meant:
        what = "these settings" if wanted is not None else f"a name that begins with {shown(point)}"
        raise UserError(f"{study}: no point has {what}; it has {len(entries)}, such as {_listed([entries[0].run])}")
    groups: dict[str, list[PlanEntry]] = {}
    for entry in meant:
        groups.setdefault(entry.planned.point.model_copy(update={"repeat": 1}).digest(), []).append(entry)
    if len(groups) > 1:
        raise UserError(f"{study}: {len(groups)} points match {shown(point)}; {_apart(meant)}")
    for entry in meant:
        if entry.invalid_because:
            raise UserError(f"{entry.run}: cannot run: {entry.invalid_because}; name another point")
    return tuple(results / "runs" / entry.run for entry in meant)


def _read_settings(study: str, point: str, entries: Sequence[PlanEntry]) -> dict[str, str] | None:
    """Return wanted settings, as text; None where the point is named by its runs."""
    if "=" not in point:
        return None
    wanted = {}
    for pair in point.split(","):
        name, has_value, value = (part.strip() for part in pair.partition("="))
        known = _values(entries[0].planned.point)
        if name not in known or not has_value:
            hint = nearest(name, known)
            raise UserError(f"{study}: {shown(pair)}: expected SETTING=VALUE{hint if len(hint) < 60 else ''}")
        wanted[name] = value.lower()
    return wanted


def _is_meant(entry: PlanEntry, point: str, wanted: Mapping[str, str] | None) -> bool:
    if wanted is None:
        return entry.run.startswith(point)
    values = _values(entry.planned.point)
    return all(setting_text(values[name]).lower() == value for name, value in wanted.items())


def _values(point: Point) -> dict[str, Any]:
    names = {"model": point.model.name, "cluster": point.cluster.name, "num_gpus": point.num_gpus}
    return names | settings_of(point)


def setting_text(value: Any) -> str:
    """Return a setting's value as users write and read it: `none`, `yes`, `grad+param`, `8`."""
    if value is None or value == () or value == []:
        return "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, (tuple, list)):
        return "+".join(setting_text(one) for one in value)
    return f"{value:g}" if isinstance(value, float) else str(value)


def _apart(entries: Sequence[PlanEntry]) -> str:
    """Return what would have to be said to mean one of several points."""
    all_values = [_values(entry.planned.point) for entry in entries]
    for name in all_values[0]:
        found = list(dict.fromkeys(setting_text(values[name]) for values in all_values))
        if len(found) > 1:
            return f"add {name}={' or '.join(found[:_MOST_NAMED])}"
    return f"name one run: {_listed([entry.run for entry in entries])}"


def _listed(names: Sequence[str]) -> str:
    rest = f" and {len(names) - _MOST_NAMED} more" if len(names) > _MOST_NAMED else ""
    return ", ".join(names[:_MOST_NAMED]) + rest
