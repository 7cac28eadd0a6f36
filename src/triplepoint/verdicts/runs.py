"""Finds the runs that a claim speaks of, and what they say."""

import itertools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from triplepoint.config.point import SETTINGS
from triplepoint.status import Status
from triplepoint.tables.results import POINTS
from triplepoint.verdicts.number import Number, mean_of
from triplepoint.verdicts.quantities import DERIVED, Ordering, Row, RunTables, derived_in, number_in

IDENTITY = ("model", "cluster", "num_gpus", *(name for name, setting in SETTINGS.items() if setting.has_column))
"""Columns of table `points` that say which point a run is of, but for `variant`."""
_NAMES = {column.name for column in POINTS.columns if column.type == "names"}


class Group(NamedTuple):
    """Repeats of one point; `why` says why there are none."""

    rows: Sequence[Row]
    why: str = ""

    @property
    def runs(self) -> list[str]:
        """Run ids."""
        return [row["run"] for row in self.rows]

    @property
    def origin(self) -> str | None:
        """Whether measured or simulated; None without runs."""
        return self.rows[0]["origin"] if self.rows else None

    @property
    def has_run(self) -> bool:
        """Whether there is a result to take numbers from."""
        return bool(self.rows) and self.rows[0]["status"] == Status.OK


class Runs:
    """Results of a plan, by what claims ask of them."""

    def __init__(self, tables: Mapping[str, Iterable[Row]], slots: Ordering) -> None:
        """Use the rows of tables `points`, `gpus` and `kernels`, and which slots stand behind others."""
        self.points = list(tables["points"])
        self._slots = slots
        self._tables = {row["run"]: RunTables([], []) for row in self.points}
        for name in ("gpus", "kernels"):
            for row in tables[name]:
                getattr(self._tables[row["run"]], name).append(row)
        self._number: dict[tuple[str, str], Number | None] = {}

    def matching(self, settings: Mapping[str, Any]) -> list[Row]:
        """Return the rows of table `points` with some settings: see `verdicts.file.Settings`."""
        return [row for row in self.points if all(_is_meant(row, *item) for item in settings.items())]

    def find(self, settings: Mapping[str, Any]) -> Group:
        """Return the repeats of the one point with some settings; measured ones if there are any."""
        rows = self.matching(settings)
        if not rows:
            return Group([], "no run of this point in the results")
        measured = [row for row in rows if row["origin"] == "measured"]
        groups = group_repeats(measured or rows)
        if len(groups) > 1:
            return Group([], f"{len(groups)} points have these settings, such as {_first_runs(groups)}")
        return groups[0]

    def gpus_of(self, run: str) -> Sequence[Row]:
        """Return the rows of a run in table `gpus`."""
        return self._tables[run].gpus

    def number(self, group: Group, quantity: str) -> Number | None:
        """Return a quantity of a group, the mean over its runs that have it; None where none has."""
        found = [self._of_run(row, quantity) for row in group.rows]
        known = [number for number in found if number is not None]
        return mean_of(known) if known else None

    def _of_run(self, row: Row, quantity: str) -> Number | None:
        key = (row["run"], quantity)
        if key not in self._number:
            if quantity in DERIVED:
                value = DERIVED[quantity].of(self._tables[row["run"]], self._slots)
                self._number[key] = None if value is None else derived_in(row, quantity, value)
            else:
                self._number[key] = number_in(row, quantity)
        return self._number[key]


def group_repeats(rows: Iterable[Row]) -> list[Group]:
    """Return rows of table `points` in groups that differ in nothing but `repeat`."""
    groups: dict[str, list[Row]] = {}
    for row in rows:
        groups.setdefault(repr([row[name] for name in (*IDENTITY, "variant")]), []).append(row)
    return [Group(of_point) for of_point in groups.values()]


def _first_runs(groups: Sequence[Group]) -> str:
    return " and ".join(group.runs[0] for group in groups[:2])


def _is_meant(row: Row, name: str, wanted: Any) -> bool:
    if name in _NAMES:
        return row[name] is not None and list(row[name]) == wanted
    return bool(row[name] in wanted if isinstance(wanted, list) else row[name] == wanted)


def own_spread(number: Number, group: Group) -> Number:
    """Return a number with the interval that counts between two points of one engine.

    Errors of the model are common to both, and simulated steps are all alike; of measured runs the spread counts.
    """
    return number if group.origin == "measured" else Number.within(number.value, 0.0)


def pair(runs: Runs, points: Mapping[str, Any], before: Mapping[str, Any], after: Mapping[str, Any],
         alike: Sequence[str] | None) -> list[tuple[Group, Group]]:  # fmt: skip
    """Return pairs of points that differ in nothing but a change.

    Args:
        runs: The results.
        points: Settings of either.
        before: Settings before the change.
        after: Settings after it.
        alike: Columns that both have in common. None: all that say which point it is, but for what changes.
    """
    common = [name for name in alike or (*IDENTITY, "variant") if name not in {*before, *after} - set(alike or ())]
    sides: list[dict[str, list[Group]]] = [{}, {}]
    for side, change in zip(sides, (before, after), strict=True):
        for group in group_repeats(runs.matching({**points, **change})):
            side.setdefault(repr([group.rows[0][name] for name in common]), []).append(group)
    return [couple for key, of_key in sides[0].items() for couple in itertools.product(of_key, sides[1].get(key, []))]
