"""Subjects of a comparison, from the words a user gives: a run, the repeats of a study's point, or loose traces."""

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
"""Endings of files that are not traces, except for kernel traces in CSV."""
_MOST_NAMED = 4
"""Number of settings or runs that a message names."""


@dataclass(frozen=True)
class Subject:
    """Runs or traces that a word means.

    Attributes:
        word: The user's word.
        runs: Folders of the runs, which are repeats of one point; empty for traces.
        traces: Loose traces, or folders of them; empty for runs.
    """

    word: str
    runs: tuple[Path, ...] = ()
    traces: tuple[Path, ...] = ()

    @property
    def paths(self) -> set[Path]:
        """Files and folders it is read from, with links resolved."""
        return {path.resolve() for path in (*self.runs, *self.traces)}


def find_subject(word: str, results: Path) -> Subject:
    """Return the runs or traces that a word means.

    Args:
        word: A run id or its beginning, a folder of a run, a trace or a pipe with one, a folder of traces, or
            `STUDY:POINT`, where POINT is the beginning of run ids, or settings such as `tp=8,pp=4`.
        results: Folder of the results.

    Raises:
        UserError: If the word means nothing, or several points.
    """
    if not word.strip():
        raise UserError("an empty word names no run; expected a run id, a folder, a trace or STUDY:POINT")
    path = Path(word)
    if path == STDIN or path.exists():
        return _from_path(word, path)
    study, has_colon, point = word.partition(":")
    if has_colon and "/" not in study:
        return Subject(word, _runs_of_study(study, point, results))
    return Subject(word, _runs_by_name(word, results))


def one_run(subject: Subject) -> Path:
    """Return the folder of the only run of a subject.

    Raises:
        UserError: If there are several runs, or none.
    """
    if len(subject.runs) != 1:
        names = _listed([folder.name for folder in subject.runs])
        raise UserError(f"{shown(subject.word)}: {len(subject.runs)} repeats match: {names}; name one of them")
    return subject.runs[0]


def check_apart(first: Subject, other: Subject) -> None:
    """Check that two subjects have no run or trace in common.

    Raises:
        UserError: If they have one.
    """
    if both := first.paths & other.paths:
        name = min(path.name for path in both)
        raise UserError(f"{shown(first.word)} and {shown(other.word)} both name {name}; name two different runs")


def _from_path(word: str, path: Path) -> Subject:
    """Return the run or traces of an existing path. Raises `UserError` if it is neither."""
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
    holder = path / "runs" if (path / "runs").is_dir() else path
    if run := next((one.parent.name for one in sorted(holder.glob("*/point.json"))), None):
        raise UserError(f"{path}: a folder of runs; name one of them, such as {holder / run}")
    return Subject(word, traces=(path,))


def _runs_by_name(word: str, results: Path) -> tuple[Path, ...]:
    """Return the folder of the run with a name, or those of all repeats of a point whose names begin with it."""
    known = sorted(path.parent.name for path in results.glob("runs/*/point.json"))
    if word in known:
        return (results / "runs" / word,)
    names = [name for name in known if name.startswith(word)]
    if not names:
        raise UserError(f"{shown(word)}: no such run, trace or folder{_hint(word, known, results)}")
    if len({_without_repeat(name) for name in names}) > 1:
        raise UserError(f"{shown(word)}: {len(names)} runs begin like this: {_listed(names)}; type more of the name")
    return tuple(results / "runs" / name for name in names)


def _without_repeat(name: str) -> str:
    """Return the name of a run without repeat and digest; it is equal for all repeats of a point."""
    return re.sub(r"_r\d+(_[0-9a-f]+)?$", "", name)


def _hint(word: str, known: Sequence[str], results: Path) -> str:
    """Return a hint for a name that no run has: the most similar run, if there is one."""
    if not known:
        return f"; {results / 'runs'} has no runs"
    if not re.fullmatch(RUN_PATTERN, word):
        return "; expected a run id, a folder, a trace or STUDY:POINT"
    by_beginning = {name[: len(word)]: name for name in reversed(known)}
    close = difflib.get_close_matches(word, by_beginning, n=1)
    return f" (did you mean {by_beginning[close[0]]!r}?)" if close else f"; {results / 'runs'} has {len(known)} others"


def _runs_of_study(study: str, point: str, results: Path) -> tuple[Path, ...]:
    """Return the folders of all repeats of one point of a study. Raises `UserError` if there is none, or several."""
    plan = read_recorded(results)
    if study not in plan.studies:
        plan = read_plan(results / "plan.json")
    if study not in plan.studies:
        raise UserError(
            f"{shown(study)}: no such study in {results / 'plan.json'}{nearest(study, plan.studies)}; the last "
            "'snakemake' or 'plan --write' planned other studies; plan this one again: 'triplepoint plan STUDY --write'"
        )
    entries = plan.of_study(study).entries
    wanted = _read_settings(study, point, entries)
    matches = [entry for entry in entries if _is_match(entry, point, wanted)]
    if not matches:
        what = "these settings" if wanted is not None else f"a name that begins with {shown(point)}"
        raise UserError(f"{study}: no point has {what}; it has {len(entries)}, such as {_listed([entries[0].run])}")
    points = {entry.planned.point.model_copy(update={"repeat": 1}).digest() for entry in matches}
    if len(points) > 1:
        raise UserError(f"{study}: {len(points)} points match {shown(point)}; {_how_to_choose(matches)}")
    for entry in matches:
        if entry.invalid_because:
            raise UserError(f"{entry.run}: cannot run: {entry.invalid_because}; name another point")
    return tuple(results / "runs" / entry.run for entry in matches)


def _read_settings(study: str, point: str, entries: Sequence[PlanEntry]) -> dict[str, str] | None:
    """Return the settings of POINT as text, by name; None if POINT is the beginning of run ids."""
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


def _is_match(entry: PlanEntry, point: str, wanted: Mapping[str, str] | None) -> bool:
    """Return whether a point has the wanted settings, or a run id that begins with POINT."""
    if wanted is None:
        return entry.run.startswith(point)
    values = _values(entry.planned.point)
    return all(setting_text(values[name]).lower() == value for name, value in wanted.items())


def _values(point: Point) -> dict[str, Any]:
    """Return model, cluster, number of GPUs and all settings of a point."""
    names = {"model": point.model.name, "cluster": point.cluster.name, "num_gpus": point.num_gpus}
    return names | settings_of(point)


def setting_text(value: Any) -> str:
    """Return the text of a setting's value: `none`, `yes`, `grad+param`, `8`."""
    if value is None or value == () or value == []:
        return "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, (tuple, list)):
        return "+".join(setting_text(one) for one in value)
    return f"{value:g}" if isinstance(value, float) else str(value)


def _how_to_choose(entries: Sequence[PlanEntry]) -> str:
    """Return advice on how to name one of several points: the first setting in which they differ."""
    all_values = [_values(entry.planned.point) for entry in entries]
    for name in all_values[0]:
        texts = list(dict.fromkeys(setting_text(values[name]) for values in all_values))
        if len(texts) > 1:
            return f"add {name}={' or '.join(texts[:_MOST_NAMED])}"
    return f"name one run: {_listed([entry.run for entry in entries])}"


def _listed(names: Sequence[str]) -> str:
    """Return the first names in a list, and how many more there are."""
    rest = f" and {len(names) - _MOST_NAMED} more" if len(names) > _MOST_NAMED else ""
    return ", ".join(names[:_MOST_NAMED]) + rest
