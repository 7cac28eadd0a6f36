"""Compare a table of a user's measured values with the results of a study, or with predictions if there is no run."""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from triplepoint.config.base import parse
from triplepoint.config.catalogue import Catalogue
from triplepoint.config.point import SETTINGS, settings_of
from triplepoint.errors import Problems, UserError, nearest
from triplepoint.metrics import Z90
from triplepoint.predictions import Configuration, Request, read_cells, try_request
from triplepoint.simulate.predict.prediction import Prediction
from triplepoint.status import PredictionStatus
from triplepoint.tables.results import POINTS
from triplepoint.tables.schema import column_of
from triplepoint.tables.studies import read_joined
from triplepoint.tables.telemetry import MOST_GPU_W, MOST_NODE_W
from triplepoint.tables.traces import LONGEST_STEP_S, SHORTEST_STEP_S
from triplepoint.verdicts.number import Number, Verdict, judge_values
from triplepoint.verdicts.quantities import DERIVED, Ordering, unit_of
from triplepoint.verdicts.read import read_claims
from triplepoint.verdicts.rows import NO_NUMBER, missing_reason
from triplepoint.verdicts.runs import IDENTITY, Group, Runs, group_repeats

SD = "_sd"
"""Suffix of the column with the standard deviation of a quantity."""
COLUMNS = (
    "id", "quantity", "unit", "measured", "measured_lo", "measured_hi", "ours", "ours_lo", "ours_hi", "difference",
    "verdict", "reason", "origin", "runs",
)  # fmt: skip
"""Columns of the result."""
_QUANTITIES = {
    column.name for column in POINTS.columns if column.type == "float" and column.name not in Configuration.model_fields
} | set(DERIVED)
"""Quantities that a user's table may hold."""
_RANGES = {column.name: (column.minimum, column.maximum) for column in POINTS.columns} | {
    "step_time_s": (SHORTEST_STEP_S, LONGEST_STEP_S),
    "gpu_power_w": (0.0, MOST_GPU_W),
    "node_power_w": (0.0, MOST_NODE_W),
}
"""Smallest and largest valid value of each column."""


@dataclass(frozen=True)
class _Measured:
    """One row of a user's table.

    Attributes:
        request: Point of the row.
        stated: Settings that the row states, as in table `points`.
        values: Measured values by quantity.
    """

    request: Request
    stated: Mapping[str, Any]
    values: Mapping[str, Number]


def compare_table(
    source: Path, results: Path, config: Path, say: Callable[[str], None]
) -> list[dict[str, str | float | None]]:
    """Return the verdict on each measured value of a table: rows with the columns `COLUMNS`.

    Args:
        source: CSV with settings as for `predict`, columns of table `points`, and optional columns `<column>_sd`.
        results: Folder of runs and tables; a row without a run there is compared with the prediction.
        config: Folder of the configuration.
        say: Called with lines for the user.

    Raises:
        UserError: If the table cannot be read, has a wrong column or value, or a row matches several points.
    """
    rows = _read(source, config)
    runs = _read_runs(results, config)
    if not runs.points:
        say(f"compare: no tables in {results}; every row is compared with the prediction")
    problems = Problems(source)
    verdicts = [problems.call(lambda row=row: list(_judge(row, runs, config))) for row in rows]
    problems.refuse()
    return [verdict for of_row in verdicts for verdict in of_row or []]


def _read_runs(results: Path, config: Path) -> Runs:
    """Return the results of all studies."""
    published = read_claims(config)
    slots = Ordering(published.content.rear_slots, published.content.front_slots) if published else Ordering([], [])
    names = ("points", "gpus", "kernels")
    studies = sorted(path.parent.name for path in results.glob("tables/*/points.parquet"))
    return Runs({name: read_joined(results, studies, name).to_pylist() for name in names}, slots)


def _read(source: Path, config: Path) -> list[_Measured]:
    """Return the rows of a user's table. Raises `UserError` with all problems of the table."""
    catalogue, rows, problems = Catalogue(config), list(read_cells(source)), Problems(source)
    if not rows:
        raise UserError(f"{source}: has no rows; expected settings and measured values, see 'compare --help'")
    names = dict.fromkeys(name for _, cells in rows for name in cells)
    unknown = {name for name in names if not problems.call(_is_known, name, source)}
    measured_rows: list[_Measured] = []
    ids: set[str] = set()
    for number, (line, cells) in enumerate(rows, 1):
        where = f"{source}: line {line}"
        settings = {name: value for name, value in cells.items() if name in Configuration.model_fields}
        configuration = problems.call(parse, Configuration, settings, where)
        measured = {name: value for name, value in cells.items() if name not in settings and name not in unknown}
        values = problems.call(_numbers, measured, where)
        if values is not None and not values and not unknown:
            problems.add(UserError(f"{where}: no measured value; give a column of table points, such as step_time_s"))
        request = try_request(problems, configuration, where, number, catalogue) if configuration else None
        if request is None or values is None:
            continue
        if request.id in ids:
            problems.add(UserError(f"{where}: id {request.id!r} is given to two rows; change one"))
        ids.add(request.id)
        measured_rows.append(_Measured(request, _stated(request, settings), values))
    problems.refuse()
    return measured_rows


def _is_known(name: str, source: Path) -> bool:
    """Return True for a column of settings or measured values. Raises `UserError` for any other column."""
    if name not in Configuration.model_fields and name.removesuffix(SD) not in _QUANTITIES:
        known = [*Configuration.model_fields, *_QUANTITIES]
        hint = nearest(name, known)
        hint = hint if len(hint) < 60 else "; expected a setting or a column of table points"
        raise UserError(f"{source}: unknown column {name[:60]!r}{hint}")
    return True


def _numbers(cells: Mapping[str, Any], where: str) -> dict[str, Number]:
    """Return the measured values; a standard deviation gives a 90 % interval. Raises `UserError` for wrong values."""
    if problems := [problem for name in cells if (problem := _number_problem(name, cells))]:
        raise UserError(f"{where}: {'; '.join(problems)}")
    return {
        name: Number.within(float(value), Z90 * float(cells.get(name + SD, 0.0)))
        for name, value in cells.items()
        if not name.endswith(SD)
    }


def _number_problem(name: str, cells: Mapping[str, Any]) -> str:
    """Return the problem of a measured value; empty if there is none."""
    value = cells[name]
    is_number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    if not is_number or (name.endswith(SD) and value < 0):
        expected = "a standard deviation, 0 or more" if name.endswith(SD) else "a number"
        return f"{name}: found {str(value)[:40]!r}, expected {expected}; leave blank what is not known"
    least, most = _RANGES.get(name, (None, None))
    if (least is not None and value < least) or (most is not None and value > most):
        limits = f"{least or 0:g} or more" if most is None else f"{least or 0:g} to {most:g}"
        return f"{name} is {value:g} {unit_of(name)}".removesuffix(" 1") + f", expected {limits}"
    if name.endswith(SD) and name.removesuffix(SD) not in cells:
        return f"{name} without {name.removesuffix(SD)}; give the value beside its deviation"
    return ""


def _stated(request: Request, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings that a row states, with their values in the point: settings without effect are normalised."""
    point = request.point
    values = settings_of(point) | {
        "model": point.model.name, "cluster": point.cluster.name, "num_gpus": point.num_gpus,
    }  # fmt: skip
    return {
        name: list(values[name]) if isinstance(values[name], tuple) else values[name]
        for name in IDENTITY
        if name in settings and (name not in SETTINGS or SETTINGS[name].has_column)
    }


def _judge(measured: _Measured, runs: Runs, config: Path) -> Iterator[dict[str, str | float | None]]:
    """Yield a row of the result for each value of a measured row. Raises `UserError` if it matches several points."""
    groups = group_repeats(runs.matching(measured.stated))
    if len(groups) > 1:
        raise UserError(f"{measured.request.where}: {len(groups)} points have these settings; {_how_to_choose(groups)}")
    prediction = None if groups else measured.request.predict(config)
    for quantity, number in measured.values.items():
        row: dict[str, str | float | None] = {
            "id": measured.request.id,
            "quantity": quantity,
            "unit": unit_of(quantity),
        }
        if prediction:
            ours, reason = _predicted(prediction, quantity), prediction.reason or "not predicted"
            row |= {"origin": "predicted", "runs": ""}
        else:
            ours = runs.number(groups[0], quantity) if groups[0].has_run else None
            reason = missing_reason(groups[0]) or NO_NUMBER
            row |= {"origin": groups[0].origin, "runs": ";".join(groups[0].runs)}
        yield row | _comparison(number, ours, reason)


def _comparison(measured: Number, ours: Number | None, missing: str) -> dict[str, str | float | None]:
    """Return the cells with both values, their difference and the verdict.

    Args:
        measured: The user's value.
        ours: Value of the results or the prediction; None if there is none.
        missing: Why there is none.
    """
    row: dict[str, str | float | None] = {
        "measured": measured.value, "measured_lo": measured.low, "measured_hi": measured.high,
    }  # fmt: skip
    if ours is None:
        return row | dict.fromkeys(("ours", "ours_lo", "ours_hi", "difference")) | {
            "verdict": Verdict.CANNOT_TELL, "reason": missing,
        }  # fmt: skip
    verdict, reason = judge_values(measured, ours)
    row |= {"ours": ours.value, "ours_lo": ours.low, "ours_hi": ours.high, "difference": ours.value - measured.value}
    return row | {"verdict": verdict, "reason": reason or None}


def _predicted(prediction: Prediction, quantity: str) -> Number | None:
    """Return a predicted quantity with its interval; None if it is not predicted or the point cannot run."""
    if prediction.status not in (PredictionStatus.OK, PredictionStatus.UNDECIDED):
        return None
    columns = {**vars(prediction), **vars(prediction.power)}
    value = columns.get(quantity, math.nan)
    if math.isnan(value):
        return None
    low, high = (columns.get(column_of(quantity, end), math.nan) for end in ("lo", "hi"))
    return Number(value, value, value) if math.isnan(low) or math.isnan(high) else Number(value, low, high)


def _how_to_choose(groups: list[Group]) -> str:
    """Return advice on the setting that a row must state to match one of several points."""
    for name in IDENTITY:
        values = sorted({str(group.rows[0][name]) for group in groups})
        if len(values) > 1:
            return f"state {name}: {' or '.join(values[:6])}"
    return f"their runs, such as {groups[0].runs[0]} and {groups[1].runs[0]}, differ in no setting a row can state"
