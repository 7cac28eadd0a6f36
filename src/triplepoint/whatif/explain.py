"""Simulate cases with factors changed, and say what each factor does to every quantity, with paired intervals."""

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
"""Simulations from which on a second process pays: one takes some 0.1 to 0.5 s, a process 0.5 s to start."""


@dataclass(frozen=True)
class Explained:
    """A case with factors changed.

    Attributes:
        case: The case as it is.
        changes: The factors, in the order in which they are applied.
        values: Of every quantity that is known, its value by what is changed.
        moved: Of every quantity, by unknown, its values with that moved.
        unknowns: What is not known of the case.
        notes: By factor, what was chosen with it.
        prices: What its cost was counted with.
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
        """The factors."""
        return [change.name for change in self.changes]

    @property
    def steps_per_day(self) -> float:
        """Steps that it takes in a day as it is."""
        return S_PER_DAY / self.values["step_time_s"][Factors()]

    def shares(self, quantity: str) -> Shares:
        """Return what each factor does to a quantity."""
        return shares(self.values[quantity], self.names)

    def parts(self, quantity: str) -> dict[str, float]:
        """Return parts of a quantity: see `parts_of`."""
        return parts_of(self.shares(quantity))

    def moves(self, quantity: str) -> dict[Unknown, "Parts"]:
        """Return by how much each unknown moves the parts of a quantity."""
        usual = self.parts(quantity)
        found: dict[Unknown, Parts] = {}
        for unknown, values in self.moved[quantity].items():
            other = parts_of(shares(values, self.names))
            found[unknown] = {part: other[part] - value for part, value in usual.items()}
        return found


Parts = Mapping[str, float]
"""Of a quantity: its change by factor, `interaction` and `whole`; the value as it is, `base`, and changed, `rest`."""


def parts_of(found: Shares) -> dict[str, float]:
    """Return the parts of a quantity."""
    ends = {"base": found.base, "rest": found.changed}
    return {**found.effect, "interaction": found.interaction, "whole": found.whole, **ends}


@dataclass(frozen=True)
class _Task:
    """One simulation: a case with some factors changed, and maybe one unknown moved."""

    case: Case
    changes: tuple[Change, ...]
    unknown: Unknown | None = None

    @property
    def key(self) -> Factors:
        """What is changed."""
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
    """Return what factors do to each case.

    Args:
        cases: The cases.
        changes: The factors, in the order in which they are applied.
        config: Folder of the configuration.
        prices: For the cost; without any there is none.
        with_shapley: Whether all combinations of up to `MOST_EXACT` factors are simulated, for Shapley values.

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
    found = dict(zip(map(_identity, tasks), _simulate_all(tasks, config, prices), strict=True))
    return [
        replace(_explained(case, changes, found, of_case, config), prices=prices)
        for case, of_case in zip(cases, unknowns, strict=True)
    ]


def _some(changes: Sequence[Change], names: Factors) -> tuple[Change, ...]:
    return tuple(change for change in changes if change.name in names)


_Identity = tuple[int, Factors, Unknown | None]


def _identity(task: _Task) -> _Identity:
    return id(task.case), task.key, task.unknown


def _simulate_all(tasks: Sequence[_Task], config: Path, prices: Prices) -> list[dict[str, float]]:
    """Return the quantities of every task, on all cores where there are many."""
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
        found = task.changed(config).predict(config)
    except PointError as error:
        raise UserError(_where(task, str(error))) from None
    if found.status not in RUNS:
        raise UserError(_where(task, f"{found.status}: {found.reason}"))
    return found


def _where(task: _Task, reason: str) -> str:
    changed = ", ".join(f"{change.name}={change.text}" for change in task.changes)
    return f"{task.case.name}{f' with {changed}' if changed else ''}: {reason}"


def _explained(
    case: Case,
    changes: Sequence[Change],
    found: Mapping[_Identity, Mapping[str, float]],
    unknowns: Sequence[Unknown],
    config: Path,
) -> Explained:
    own = {key[1:]: values for key, values in found.items() if key[0] == id(case)}
    base = own[Factors(), None]
    known = [quantity.name for quantity in QUANTITIES if not math.isnan(base[quantity.name])]

    def column(quantity: str, unknown: Unknown | None) -> dict[Factors, float]:
        return {some: values[quantity] for (some, of), values in own.items() if of == unknown}

    values = {name: column(name, None) for name in known}
    moved = {name: {unknown: column(name, unknown) for unknown in unknowns} for name in known}
    notes = {change.name: note for change in changes if (note := _note(case, change.apply(case, config)))}
    return Explained(case, changes, values, moved, unknowns, notes)


def _note(case: Case, changed: Case) -> str:
    """Return what a factor chose of recomputation and micro-batch, nothing where they stay."""
    one, other = case.job, changed.job
    if (one.recompute, one.micro_batch_size) == (other.recompute, other.micro_batch_size):
        return ""
    return f"recomputation {other.recompute}, micro-batch {other.micro_batch_size}"
