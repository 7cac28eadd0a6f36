"""Differences of quantities between two runs: speed, power, clocks, heat, energy and memory, with paired intervals."""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from pandas import DataFrame

from triplepoint.compare.sides import CONDITIONS, Run, Side
from triplepoint.effects import Effect, compare
from triplepoint.tables import TELEMETRY
from triplepoint.tables.results import POINTS
from triplepoint.tables.schema import Column
from triplepoint.tables.shown import describe, is_fraction, shown_value

Verdict = Literal["differs", "within spread", "equal", "not known"]

NAMES = (
    "step_time_s", "tokens_per_s_per_gpu", "mfu", "time_to_first_token_s", "time_per_output_token_s",
    "predicted_step_time_s", "kernel_sum_s", "gpu_power_w", "gpu_power_peak_w", "node_power_w",
    "sm_clock_mhz", "sm_clock_busy_mhz", "throttle_fraction", "power_cap_share", "sw_thermal_share",
    "hw_thermal_share", "lost_to_power_limit_fraction", "lost_to_heat_fraction", "gpu_temp_c", "gpu_temp_max_c",
    "gpu_energy_per_token_j", "host_energy_per_token_j", "gpu_utilisation", "cpu_utilisation", "peak_memory_bytes",
)  # fmt: skip
"""Columns of table `points` that are compared, in order."""
_COLUMNS = {column.name: column for table in (TELEMETRY, POINTS) for column in table.columns}


@dataclass(frozen=True)
class QuantityDifference:
    """One quantity on both sides.

    Attributes:
        name: Column of table `points`, or of telemetry.
        label: Its name in text.
        unit: Unit in which it is shown.
        first: Value of the first side, mean over repeats, in the unit of the column.
        other: Value of the other side.
        effect: Relative change; for temperatures and shares the difference.
    """

    name: str
    label: str
    unit: str
    first: float
    other: float
    effect: Effect

    @property
    def verdict(self) -> Verdict:
        """Whether the change is beyond its spread."""
        if self.first == self.other:
            return "equal"
        if math.isnan(self.effect.low):
            return "not known"
        return "within spread" if self.effect.is_tie else "differs"

    @property
    def is_clear(self) -> bool:
        """Whether the change may be beyond its spread: it is, or the spread is not known."""
        return self.verdict in ("differs", "not known")

    @property
    def shown(self) -> tuple[float | None, float | None]:
        """Both values in the unit in which they are shown."""
        return shown_value(self.name, self.first), shown_value(self.name, self.other)


def quantity_differences(first: Side, other: Side) -> list[QuantityDifference]:
    """Return the quantities that both sides have, in the order of `NAMES`, then `CONDITIONS`; none for traces."""
    if not (first.runs and other.runs):
        return []
    tables = [_table(side.runs) for side in (first, other)]
    differences = []
    for name in NAMES:
        values = [[run.row[name] for run in side.runs if run.row[name] is not None] for side in (first, other)]
        if all(values):
            known = [DataFrame(rows[rows[name].notna()]) for rows in tables]
            means = [statistics.fmean(side) for side in values]
            differences.append(_difference(_COLUMNS[name], None, means, _effect(known[0], known[1], name)))
    for name, label in CONDITIONS.items():
        values = [[run.conditions[name] for run in side.runs if name in run.conditions] for side in (first, other)]
        if all(values):
            means = [statistics.fmean(side) for side in values]
            effect = _effect_without_interval(name, means[0], means[1])
            differences.append(_difference(_COLUMNS[name], label, means, effect))
    return differences


def _table(runs: Sequence[Run]) -> DataFrame:
    """Return the rows of table `points` of runs."""
    table: DataFrame = POINTS.from_rows([run.row for run in runs]).to_pandas()
    return table


def _effect(first: DataFrame, other: DataFrame, name: str) -> Effect:
    """Return the relative change; the difference for shares, temperatures, and quantities that are somewhere 0."""
    is_relative = not _is_compared_by_difference(name) and bool((first[name] > 0).all() and (other[name] > 0).all())
    return compare(first, other, name, is_relative)


def _effect_without_interval(name: str, first: float, other: float) -> Effect:
    """Return the change of a quantity whose spread is not known."""
    is_relative = not _is_compared_by_difference(name) and bool(first)
    change = other / first - 1 if is_relative else other - first
    return Effect(change, math.nan, math.nan, "none", 1, is_relative)


def _is_compared_by_difference(name: str) -> bool:
    """Return whether a column is a temperature or a share."""
    return name.endswith("_c") or is_fraction(name)


def _difference(column: Column, label: str | None, means: Sequence[float], effect: Effect) -> QuantityDifference:
    """Return a quantity with its label (the column's if None) and unit."""
    words = describe(column)
    return QuantityDifference(column.name, label or words["label"], words["unit"], means[0], means[1], effect)
