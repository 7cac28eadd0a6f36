"""Effects of factors on the quantities of cases: simulations with factors changed, and with each uncertainty moved."""

import math
import os
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from triplepoint.errors import PointError, UserError
from triplepoint.prices import S_PER_DAY, UNPRICED, Prices
from triplepoint.simulate.predict.prediction import Prediction, read_calibrations
from triplepoint.whatif.case import QUANTITIES, RUNS, Case, quantities
from triplepoint.whatif.factors import Change
from triplepoint.whatif.shares import MOST_EXACT, Factors, Shares, all_combinations, one_at_a_time, shares
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
class _Task:
    """One simulation: a case with some factors changed and at most one uncertainty moved."""

    case: Case
    changes: tuple[Change, ...]
    unknown: Unknown | None = None

    @property
    def key(self) -> Factors:
        """Names of the changed factors."""
        return Factors(change.name for change in self.changes)

    def changed(self, config: Path) -> Case:
        """Return the case with its factors changed."""
        case = self.case
        for change in self.changes:
            case = change.apply(case, config)
        return case


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
    unknowns = [unknowns_of(case, _prediction(_Task(case, ()), config), config) for case in cases]
    names = [change.name for change in changes]
    is_exact = with_shapley and len(names) <= MOST_EXACT
    single = one_at_a_time(names)
    tasks = []
    for case, of_case in zip(cases, unknowns, strict=True):
        sets = all_combinations(names) if is_exact else single
        tasks += [_Task(case, _some(changes, some)) for some in sets]
        tasks += [_Task(case, _some(changes, some), unknown) for unknown in of_case for some in single]
    results = dict(zip(map(_identity, tasks), _simulate_all(tasks, config, prices), strict=True))
    return [
        replace(_explained(case, changes, results, of_case, config), prices=prices)
        for case, of_case in zip(cases, unknowns, strict=True)
    ]


def _some(changes: Sequence[Change], names: Factors) -> tuple[Change, ...]:
    return tuple(change for change in changes if change.name in names)


_Identity = tuple[int, Factors, Unknown | None]


def _identity(task: _Task) -> _Identity:
    return id(task.case), task.key, task.unknown


def _simulate_all(tasks: Sequence[_Task], config: Path, prices: Prices) -> list[dict[str, float]]:
    """Return the quantities of each task, computed in worker processes if there are many."""
    simulate = partial(_simulate, config=config, prices=prices)
    workers = min(os.cpu_count() or 1, len(tasks) // _MANY)
    if workers < 2:
        return [simulate(task) for task in tasks]
    with ProcessPoolExecutor(workers) as pool:
        return list(pool.map(simulate, tasks, chunksize=4))


def _simulate(task: _Task, config: Path, prices: Prices) -> dict[str, float]:
    if task.unknown is None:
        return quantities(task.case, _prediction(task, config), prices)
    try:
        return task.unknown.simulate(task.changed(config), config, prices)
    except PointError as error:
        raise UserError(_where(task, str(error))) from None


def _prediction(task: _Task, config: Path) -> Prediction:
    """Return the prediction of a task. Raises `UserError` if it cannot run."""
    try:
        prediction = task.changed(config).predict(config)
    except PointError as error:
        raise UserError(_where(task, str(error))) from None
    if prediction.status not in RUNS:
        raise UserError(_where(task, f"{prediction.status}: {prediction.reason}"))
    return prediction


def _where(task: _Task, reason: str) -> str:
    changed = ", ".join(f"{change.name}={change.text}" for change in task.changes)
    return f"{task.case.name}{f' with {changed}' if changed else ''}: {reason}"


def _explained(
    case: Case,
    changes: Sequence[Change],
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
    notes = {change.name: note for change in changes if (note := _note(case, change.apply(case, config)))}
    return Explained(case, changes, values, moved, unknowns, notes)


def _note(case: Case, changed: Case) -> str:
    """Return words on recomputation and micro-batch if a factor changes them; else an empty text."""
    before, after = case.job, changed.job
    if (before.recompute, before.micro_batch_size) == (after.recompute, after.micro_batch_size):
        return ""
    return f"recomputation {after.recompute}, micro-batch {after.micro_batch_size}"
