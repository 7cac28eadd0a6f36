"""Effects of factors on the quantities of cases: simulations with factors changed, and with each uncertainty moved."""

import contextlib
import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from triplepoint.errors import PointError, UserError
from triplepoint.prices import S_PER_DAY, UNPRICED, Prices
from triplepoint.processes import worker_pool
from triplepoint.simulate.predict.prediction import Prediction, read_calibrations
from triplepoint.text import percent
from triplepoint.whatif.case import QUANTITIES, RUNS, Case, quantities
from triplepoint.whatif.changes import tuned
from triplepoint.whatif.factors import Change
from triplepoint.whatif.shares import MOST_EXACT, Factors, Shares, all_combinations, one_at_a_time, shares
from triplepoint.whatif.text import SMALL
from triplepoint.whatif.unknown import Unknown, unknowns_of

_MANY = 12
"""Simulations for each worker process: a simulation takes 0.1 to 0.5 s, the start of a process 0.5 s."""


@dataclass(frozen=True)
class Explained:
    """A case with factors changed.

    Attributes:
        case: The unchanged case.
        changes: The factors, in the order in which they are applied.
        values: Value of each known quantity, by the set of changed factors.
        moved: The same values with one uncertainty moved, by quantity and uncertainty.
        unknowns: Uncertainties of the case.
        notes: Recomputation and micro-batch that a factor changes, by factor.
        prices: Prices of the cost.
    """

    case: Case
    changes: Sequence[Change]
    values: Mapping[str, Mapping[Factors, float]]
    moved: Mapping[str, Mapping[Unknown, Mapping[Factors, float]]]
    unknowns: Sequence[Unknown]
    notes: Mapping[str, str]
    prices: Prices = UNPRICED

    @property
    def names(self) -> list[str]:
        """Names of the factors."""
        return [change.name for change in self.changes]

    @property
    def steps_per_day(self) -> float:
        """Steps of the unchanged case in a day."""
        return S_PER_DAY / self.values["step_time_s"][Factors()]

    def shares(self, quantity: str) -> Shares:
        """Return the effect of each factor on a quantity."""
        return shares(self.values[quantity], self.names)

    def parts(self, quantity: str) -> dict[str, float]:
        """Return the parts of a quantity, see `Parts`."""
        return parts_of(self.shares(quantity))

    def moves(self, quantity: str) -> dict[Unknown, "Parts"]:
        """Return the change of each part of a quantity by each uncertainty."""
        central = self.parts(quantity)
        moves: dict[Unknown, Parts] = {}
        for unknown, values in self.moved[quantity].items():
            other = parts_of(shares(values, self.names))
            moves[unknown] = {part: other[part] - value for part, value in central.items()}
        return moves


Parts = Mapping[str, float]
"""Parts of a quantity: its change by each factor, by their `interaction` and by all, `whole`; its value without
changes, `base`, and with all, `rest`."""


def parts_of(of_quantity: Shares) -> dict[str, float]:
    """Return the parts of a quantity."""
    ends = {"base": of_quantity.base, "rest": of_quantity.changed}
    return {**of_quantity.effect, "interaction": of_quantity.interaction, "whole": of_quantity.whole, **ends}


@dataclass(frozen=True)
class _Changed:
    """A case with some factors changed.

    Attributes:
        name: Name of the unchanged case.
        changes: The changes.
        case: The changed case.
    """

    name: str
    changes: tuple[Change, ...]
    case: Case

    def where(self, reason: str) -> str:
        """Return a reason, with the name of the case and its changes before it."""
        return _where(self.name, self.changes, reason)


def explain(
    cases: Sequence[Case],
    changes: Sequence[Change],
    config: Path,
    prices: Prices = UNPRICED,
    with_shapley: bool = True,
) -> list[Explained]:
    """Return the effects of factors on each case.

    Args:
        cases: The cases.
        changes: The factors, in the order in which they are applied.
        config: Folder of the configuration.
        prices: Prices for the cost; none: no cost.
        with_shapley: Whether to simulate all combinations of up to `MOST_EXACT` factors, for Shapley values.

    Raises:
        UserError: If a case cannot run, or not with a factor.
    """
    read_calibrations(config)
    names = [change.name for change in changes]
    single = one_at_a_time(names)
    sets = all_combinations(names) if with_shapley and len(names) <= MOST_EXACT else single
    unknowns = [unknowns_of(case, _prediction(_change((case, ()), config), config), config) for case in cases]
    num_tasks = sum(len(sets) + len(single) * len(of_case) for of_case in unknowns)
    with _spread(num_tasks) as map_all:
        # Each case is changed once for all unknowns: a factor such as memory tries many cases to find the fastest.
        keys = [(id(case), some) for case in cases for some in sets]
        to_change = [(case, _some(changes, some)) for case in cases for some in sets]
        changed = dict(zip(keys, map_all(partial(_change, config=config), to_change, 1), strict=True))
        tasks: list[_Identity] = [(*key, None) for key in keys]
        tasks += [
            (id(case), some, unknown)
            for case, of_case in zip(cases, unknowns, strict=True)
            for unknown in of_case
            for some in single
        ]
        simulate = partial(_simulate, config=config, prices=prices)
        simulated = map_all(simulate, [(changed[case, some], unknown) for case, some, unknown in tasks], 4)
        values = dict(zip(tasks, simulated, strict=True))
    return [
        replace(_explained(case, changes, changed, values, of_case, config), prices=prices)
        for case, of_case in zip(cases, unknowns, strict=True)
    ]


def _some(changes: Sequence[Change], names: Factors) -> tuple[Change, ...]:
    return tuple(change for change in changes if change.name in names)


_Identity = tuple[int, Factors, Unknown | None]


@contextlib.contextmanager
def _spread(num_tasks: int) -> Iterator[Callable[[Callable[[Any], Any], Sequence[Any], int], list[Any]]]:
    """Yield a function like `map`, with the chunk size as third argument; it uses all cores if tasks are many."""
    workers = min(os.cpu_count() or 1, num_tasks // _MANY)
    if workers < 2:
        yield lambda do, tasks, _: [do(task) for task in tasks]
        return
    with worker_pool(workers) as pool:
        yield lambda do, tasks, size: list(pool.map(do, tasks, chunksize=size))


def _change(task: tuple[Case, tuple[Change, ...]], config: Path) -> _Changed:
    """Return a case with some factors changed. Raises `UserError` if a change does not apply to it."""
    case, changes = task
    changed = case
    try:
        for change in changes:
            changed = change.apply(changed, config)
    except PointError as error:
        raise UserError(_where(case.name, changes, str(error))) from None
    return _Changed(case.name, changes, changed)


def _simulate(task: tuple[_Changed, Unknown | None], config: Path, prices: Prices) -> dict[str, float]:
    changed, unknown = task
    if unknown is None:
        return quantities(changed.case, _prediction(changed, config), prices)
    try:
        return unknown.simulate(changed.case, config, prices)
    except PointError as error:
        raise UserError(changed.where(str(error))) from None


def _prediction(changed: _Changed, config: Path) -> Prediction:
    """Return the prediction of a case. Raises `UserError` if it cannot run."""
    try:
        found = changed.case.predict(config)
    except PointError as error:
        raise UserError(changed.where(str(error))) from None
    if found.status not in RUNS:
        raise UserError(changed.where(f"{found.status}: {found.reason}"))
    return found


def _where(name: str, changes: Sequence[Change], reason: str) -> str:
    changed = ", ".join(f"{change.name}={change.text}" for change in changes)
    return f"{name}{f' with {changed}' if changed else ''}: {reason}"


def _explained(
    case: Case,
    changes: Sequence[Change],
    changed: Mapping[tuple[int, Factors], _Changed],
    results: Mapping[_Identity, Mapping[str, float]],
    unknowns: Sequence[Unknown],
    config: Path,
) -> Explained:
    """Collect the results of one case."""
    of_case = {key[1:]: values for key, values in results.items() if key[0] == id(case)}
    base = of_case[Factors(), None]
    known = [quantity.name for quantity in QUANTITIES if not math.isnan(base[quantity.name])]

    def column(quantity: str, unknown: Unknown | None) -> dict[Factors, float]:
        return {some: values[quantity] for (some, moved_by), values in of_case.items() if moved_by == unknown}

    values = {name: column(name, None) for name in known}
    moved = {name: {unknown: column(name, unknown) for unknown in unknowns} for name in known}
    alone = {change.name: changed[id(case), Factors([change.name])].case for change in changes}
    notes = {name: note for name, other in alone.items() if (note := _note(case, other))}
    if "memory" in alone and (fits := _fits_already(case, values["step_time_s"][Factors()], config)):
        whose = "part of which is" if "memory" in notes else "which is"
        notes["memory"] = "; ".join([*([notes["memory"]] if "memory" in notes else []), f"{fits}, {whose} not counted"])
    return Explained(case, changes, values, moved, unknowns, notes)


def _fits_already(case: Case, step_s: float, config: Path) -> str:
    """Return words on recomputation and micro-batch that fit in the present memory and are faster; else an empty text.

    Args:
        case: The unchanged case.
        step_s: Its step time. Unit: s.
        config: Folder of the configuration.
    """
    with contextlib.suppress(PointError):
        faster = tuned(case, config)
        note = _note(case, faster)
        shorter = 1.0 - faster.predict(config).step_time_s / step_s if note else 0.0
        if shorter > SMALL:
            return f"{note} already fit in the present memory and make steps {percent(shorter)} shorter"
    return ""


def _note(case: Case, changed: Case) -> str:
    """Return words on recomputation and micro-batch if a factor changes them; else an empty text."""
    before, after = case.job, changed.job
    if (before.recompute, before.micro_batch_size) == (after.recompute, after.micro_batch_size):
        return ""
    return f"recomputation {after.recompute}, micro-batch {after.micro_batch_size}"
