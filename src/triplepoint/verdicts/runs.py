"""Runs that a claim is about, and their numbers."""

import itertools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from triplepoint.config.point import SETTINGS
from triplepoint.status import Status
from triplepoint.tables.results import POINTS
from triplepoint.verdicts.number import Number, mean_of
from triplepoint.verdicts.quantities import DERIVED, Ordering, Row, RunTables, derived_in, number_in

IDENTITY = ("model", "cluster", "num_gpus", *(name for name, setting in SETTINGS.items() if setting.has_column))
"""Columns of table `points` that identify the point of a run, together with `variant`."""
_NAMES = {column.name for column in POINTS.columns if column.type == "names"}


class Group(NamedTuple):
    """Repeats of one point.

    Attributes:
        rows: Rows of table `points`.
        why: Reason that there are none; empty where there are.
    """

    rows: Sequence[Row]
    why: str = ""

    @property
    def runs(self) -> list[str]:
        """Identifiers of the runs."""
        return [row["run"] for row in self.rows]

    @property
    def origin(self) -> str | None:
        """`measured` or `simulated`; None without runs."""
        return self.rows[0]["origin"] if self.rows else None

    @property
    def has_run(self) -> bool:
        """Whether the group has a finished run."""
        return bool(self.rows) and self.rows[0]["status"] == Status.OK


class Runs:
    """Results of studies, searched by settings."""

    def __init__(self, tables: Mapping[str, Iterable[Row]], slots: Ordering) -> None:
        """Use the rows of result tables.

        Args:
            tables: Rows of tables `points`, `gpus` and `kernels`.
            slots: Order of the slots of a node in the air flow.
        """
        self.points = list(tables["points"])
        self._slots = slots
        self._tables = {row["run"]: RunTables([], []) for row in self.points}
        for name in ("gpus", "kernels"):
            for row in tables[name]:
                getattr(self._tables[row["run"]], name).append(row)
        self._numbers: dict[tuple[str, str], Number | None] = {}

    def matching(self, settings: Mapping[str, Any]) -> list[Row]:
        """Return the rows of table `points` with given settings, see `verdicts.file.Settings`."""
        return [row for row in self.points if all(_has_setting(row, *item) for item in settings.items())]

    def find(self, settings: Mapping[str, Any]) -> Group:
        """Return the repeats of the only point with given settings; measured runs alone if there are any."""
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
        """Return the mean of a quantity over the runs of a group that have it; None where none has."""
        numbers = [number for row in group.rows if (number := self._number_of_run(row, quantity)) is not None]
        return mean_of(numbers) if numbers else None

    def _number_of_run(self, row: Row, quantity: str) -> Number | None:
        key = (row["run"], quantity)
        if key not in self._numbers:
            if quantity in DERIVED:
                value = DERIVED[quantity].of(self._tables[row["run"]], self._slots)
                self._numbers[key] = None if value is None else derived_in(row, quantity, value)
            else:
                self._numbers[key] = number_in(row, quantity)
        return self._numbers[key]


def group_repeats(rows: Iterable[Row]) -> list[Group]:
    """Return rows of table `points` in groups that differ only in `repeat`."""
    groups: dict[str, list[Row]] = {}
    for row in rows:
        groups.setdefault(repr([row[name] for name in (*IDENTITY, "variant")]), []).append(row)
    return [Group(repeats) for repeats in groups.values()]


def _first_runs(groups: Sequence[Group]) -> str:
    return " and ".join(group.runs[0] for group in groups[:2])


def _has_setting(row: Row, name: str, wanted: Any) -> bool:
    if name in _NAMES:
        return row[name] is not None and list(row[name]) == wanted
    return bool(row[name] in wanted if isinstance(wanted, list) else row[name] == wanted)


def own_spread(number: Number, group: Group) -> Number:
    """Return a number with the interval that counts in comparisons of two points of one engine.

    Between simulated points it is 0, as they have the errors of the model in common and their steps do not vary.
    Between measured points it is the spread.
    """
    return number if group.origin == "measured" else Number.within(number.value, 0.0)


def pair(runs: Runs, points: Mapping[str, Any], before: Mapping[str, Any], after: Mapping[str, Any],
         alike: Sequence[str] | None) -> list[tuple[Group, Group]]:  # fmt: skip
    """Return the pairs of points that differ only in a change.

    Args:
        runs: The results.
        points: Settings of both points.
        before: Settings before the change.
        after: Settings after the change.
        alike: Columns that both points have in common. None: all that identify a point, without the changed ones.
    """
    common = [name for name in alike or (*IDENTITY, "variant") if name not in {*before, *after} - set(alike or ())]
    sides: list[dict[str, list[Group]]] = [{}, {}]
    for side, change in zip(sides, (before, after), strict=True):
        for group in group_repeats(runs.matching({**points, **change})):
            side.setdefault(repr([group.rows[0][name] for name in common]), []).append(group)
    return [couple for key, groups in sides[0].items() for couple in itertools.product(groups, sides[1].get(key, []))]
