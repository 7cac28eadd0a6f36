"""Effect sizes with paired intervals: how much one setting changes a quantity, over repeats, steps or settings."""

import math
import statistics
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from numbers import Real
from typing import TYPE_CHECKING, Any, Literal

from triplepoint.metrics import MEAN_TO_SIGMA, Z90, t_quantile
from triplepoint.status import Status
from triplepoint.tables.schema import column_of

if TYPE_CHECKING:
    from pandas import DataFrame, Series

Basis = Literal["repeats", "steps", "ranks", "model", "mixed", "settings", "none"]

COVERAGE = 0.9
"""Of every interval here."""
_P10_TO_P90 = 2.563
"""Standard deviations between the 10th and the 90th percentile of a normal distribution."""
MANY = 1.0
"""From twice as fast on, factors are said instead of per cent."""
FAR = 3.0
"""So many times as long as any other takes a layout that nobody would choose. Our choice."""
_BY_STEP_TIME = frozenset({"step_time_s", "tokens_per_s", "tokens_per_s_per_gpu", "mfu"})
"""Quantities whose model error is that of the step time: what all layouts of one training share of it cancels."""

ABOUT: Mapping[Basis, str] = {
    "repeats": "paired over repeats",
    "steps": "over the steps of one launch each, which do not show how launches differ",
    "ranks": "over the GPUs of simulated runs, paired, without the error of the model",
    "model": "of the model, without the error that both share, as far as known",
    "mixed": "over the steps of the measured side and of the model on the simulated one",
    "settings": "of the mean over them",
    "none": "not known",
}
"""What intervals are over, for captions and notes."""


@dataclass(frozen=True)
class Effect:
    """Change of a quantity from one setting to another: a ratio less 1, or a difference as of temperatures.

    Attributes:
        value: 0.05 where the quantity is 5 % higher; of temperatures kelvin, of shares 0-1.
        low: Lower end of the 90 % interval; NaN where none is known.
        high: Upper end of it.
        basis: What the interval is over.
        num: Repeats, steps or settings behind it.
        is_relative: Whether it is a ratio less 1.
    """

    value: float
    low: float
    high: float
    basis: Basis
    num: int
    is_relative: bool = True

    @property
    def is_tie(self) -> bool:
        """Whether the interval holds no change at all; False where no interval is known and the values differ."""
        if math.isnan(self.low):
            return self.value == 0
        return self.low <= 0 <= self.high

    @property
    def text(self) -> str:
        """The effect with its interval: '4.5 % [2.1, 7.0]' or '3.1 K [1.0, 5.2]'."""
        return self.size + self.ends

    @property
    def size(self) -> str:
        """The effect alone: '4.5 %' or '3.1 K'."""
        return f"{digits(self.value * self.scale)} {self.unit}"

    @property
    def ends(self) -> str:
        """The interval alone, with the space before it: ' [2.1, 7.0]'; nothing where none is known."""
        if math.isnan(self.low):
            return ""
        return f" [{digits(self.low * self.scale)}, {digits(self.high * self.scale)}]"

    @property
    def factor(self) -> str:
        """The effect with its interval, from twice as much on as a factor: '3.0 times [2.1, 4.2]'."""
        if not self.is_relative or self.value < MANY:
            return self.text
        ends = "" if math.isnan(self.low) else f" [{digits(1 + self.low)}, {digits(1 + self.high)}]"
        return f"{digits(1 + self.value)} times{ends}"

    @property
    def opposite(self) -> "Effect":
        """The same effect with its sign turned, to say by how much a quantity falls."""
        return replace(self, value=-self.value, low=-self.high, high=-self.low)

    @property
    def scale(self) -> int:
        """What values are multiplied by where they are written."""
        return 100 if self.is_relative else 1

    @property
    def unit(self) -> str:
        """Unit they are written in."""
        return "%" if self.is_relative else "K"

    def turned(self) -> "Effect":
        """Return the effect of the way back."""
        if not self.is_relative:
            return Effect(-self.value, -self.high, -self.low, self.basis, self.num, False)
        value, low, high = (1 / (1 + end) - 1 for end in (self.value, self.high, self.low))
        return Effect(value, low, high, self.basis, self.num)


def compare(
    first: "DataFrame",
    other: "DataFrame",
    column: str,
    is_relative: bool | None = None,
    ranks: "DataFrame | None" = None,
) -> Effect:
    """Return by how much a quantity of `other` differs from that of `first`.

    Args:
        first: Repeats of one point: rows of table `points` that finished.
        other: Repeats of another.
        column: A column of `points`.
        is_relative: Whether to take the ratio, else the difference; None for that of temperatures (`_c`) alone.
        ranks: Values by rank, columns `run`, `rank` and the quantity, of points that differ in one setting alone: the
            interval of simulated ones is then over their ranks, paired, and unknown of a quantity that is not there.

    Raises:
        ValueError: If a value is missing, or one of a ratio is not positive.
    """
    if is_relative is None:
        is_relative = not column.endswith("_c")
    one, two = (_values(rows, column, is_relative) for rows in (first, other))
    shared = sorted(set(one) & set(two), key=str)
    middle = [statistics.fmean(values.values()) for values in (one, two)]
    origins = {*first["origin"], *other["origin"]}
    if len(shared) > 1 and origins == {"measured"}:
        return _over([two[repeat] - one[repeat] for repeat in shared], "repeats", is_relative)
    if ranks is not None and origins == {"simulated"}:
        return _over_ranks(first, other, column, middle[1] - middle[0], is_relative, ranks)
    sigmas = [_sigma(rows.iloc[0], column, is_relative, origins == {"simulated"}) for rows in (first, other)]
    sigma = math.hypot(*sigmas)
    basis: Basis = "mixed" if len(origins) > 1 else "model" if origins == {"simulated"} else "steps"
    if math.isnan(sigma):
        basis = "none"
    counts = [
        _number(rows.iloc[0], "num_measured_steps") for rows in (first, other) if rows["origin"].iloc[0] == "measured"
    ]
    num = min((int(count) for count in counts if math.isfinite(count)), default=1)
    return _effect(middle[1] - middle[0], Z90 * sigma, basis, num, is_relative)


def over_settings(effects: Sequence[Effect]) -> Effect:
    """Return the mean effect of one change over settings that differ in nothing else, with a paired t interval.

    The interval is of the mean over the settings; the errors of single effects are in it as far as they differ.

    Raises:
        ValueError: If there is no effect, or they are of different kinds.
    """
    kinds = {effect.is_relative for effect in effects}
    if len(kinds) != 1:
        raise ValueError(f"{len(effects)} effects of {len(kinds)} kinds: at least one, all of one kind, are expected")
    is_relative = kinds.pop()
    changes = [math.log1p(effect.value) if is_relative else effect.value for effect in effects]
    return _over(changes, "settings", is_relative)


def over_pairs(effects: Sequence[Effect]) -> Effect:
    """Return the mean effect of one change over pairs of points, with the interval that those of the pairs leave it.

    How pairs differ is not in it: see `over_settings`.

    Raises:
        ValueError: If there is no effect, or they are of different kinds.
    """
    mean = over_settings(effects)
    is_relative, num = mean.is_relative, len(effects)
    ends = [(math.log1p(one.low), math.log1p(one.high)) if is_relative else (one.low, one.high) for one in effects]
    half = math.hypot(*((high - low) / 2 for low, high in ends)) / num
    basis: Basis = "none" if math.isnan(half) else effects[0].basis
    return _effect(math.log1p(mean.value) if is_relative else mean.value, half, basis, num, is_relative)


def pair_points(
    points: "DataFrame",
    column: str,
    by: Sequence[str],
    setting: str,
    first: Hashable,
    other: Hashable,
    ranks: "DataFrame | None" = None,
) -> dict[tuple[Hashable, ...], Effect]:
    """Return the effect on a quantity of changing one setting, for each combination of the others that ran with both.

    Args:
        points: Rows of table `points`; those that did not finish are left out.
        column: The quantity.
        by: Columns that must be equal in a pair, such as model, cluster and layout.
        setting: The column that changes.
        first: Its value before.
        other: Its value afterwards.
        ranks: Values by rank, as `compare` takes them.
    """
    is_meant = (points["status"] == Status.OK) & points[column].notna() & points[setting].isin([first, other])
    # Of two hundred columns a few: to take rows of all, group by group, takes most of a figure's own time.
    compared = [name for name in compared_columns(column) if name in points]
    done = points.loc[is_meant, list(dict.fromkeys([*by, setting, *compared]))]
    effects: dict[tuple[Hashable, ...], Effect] = {}
    for key, members in done.groupby(list(by), sort=False, dropna=False):
        before, after = (members[members[setting] == value] for value in (first, other))
        if len(before) and len(after):
            effects[tuple(key) if isinstance(key, tuple) else (key,)] = compare(before, after, column, ranks=ranks)
    return effects


def compared_columns(column: str) -> list[str]:
    """Return the columns of `points` that `compare` reads for a quantity."""
    ends = [column_of(column, end) for end in ("lo", "hi", "p10", "p90")]
    return [column, *ends, "run", "repeat", "origin", "num_measured_steps", "step_time_layout_sigma"]


def on_as_many_gpus(points: "DataFrame") -> "DataFrame":
    """Return the points on one number of GPUs, that of most of them: a step of fewer GPUs takes longer anyway."""
    if "num_gpus" not in points or points["num_gpus"].nunique() < 2:
        return points
    found: DataFrame = points.loc[points["num_gpus"] == points["num_gpus"].mode().max()]
    return found


def far_slower(points: "DataFrame") -> dict[str, float]:
    """Return the layouts that are no choice, and how many times the step time of the best each takes.

    They are fewer than the others, and take `FAR` times as long as any of those.

    Args:
        points: Rows of table `points` of one training that may be compared, with column `layout`.
    """
    done = points[(points["status"] == Status.OK) & points["step_time_s"].notna()]
    means = done.groupby("layout", sort=False)["step_time_s"].mean().sort_values(kind="stable")
    steps = [float(mean) for mean in means]
    gaps = [at for at in range(len(steps) // 2 + 1, len(steps)) if steps[at] >= FAR * steps[at - 1]]
    first = gaps[0] if gaps else len(steps)
    return {str(name): step / steps[0] for name, step in zip(means.index[first:], steps[first:], strict=True)}


def _values(rows: "DataFrame", column: str, is_relative: bool) -> dict[Hashable, float]:
    """Return the value of each repeat, of ratios its logarithm."""
    values = dict(zip(rows["repeat"], rows[column].astype(float), strict=True))
    if not values or not all(math.isfinite(value) and (value > 0 or not is_relative) for value in values.values()):
        raise ValueError(f"{column} of {list(values.values())}: numbers{' above zero' * is_relative} are expected")
    return {key: math.log(value) if is_relative else value for key, value in values.items()}


def _over_ranks(
    first: "DataFrame", other: "DataFrame", column: str, change: float, is_relative: bool, ranks: "DataFrame"
) -> Effect:
    """Return a change with the t interval that its spread over ranks gives: of ratios that of a ratio of two means.

    Args:
        first: Repeats of one point.
        other: Repeats of another.
        column: The quantity.
        change: How much it changes, of ratios in log.
        is_relative: Whether it is a ratio.
        ranks: Values by rank.
    """
    value = math.expm1(change) if is_relative else change
    one, two = (_by_rank(ranks, set(rows["run"]), column) for rows in (first, other))
    shared = sorted(set(one) & set(two))
    if len(shared) < 2:
        return Effect(value, math.nan, math.nan, "none", 1, is_relative)
    mean = statistics.fmean(one[rank] for rank in shared) if is_relative else 1.0
    ratio = statistics.fmean(two[rank] for rank in shared) / mean if is_relative else 1.0
    spread = statistics.stdev((two[rank] - ratio * one[rank]) / mean for rank in shared)
    half = t_quantile(len(shared) - 1, (1 + COVERAGE) / 2) * spread / math.sqrt(len(shared))
    return Effect(value, value - half, value + half, "ranks", len(shared), is_relative)


def _by_rank(ranks: "DataFrame", runs: set[str], column: str) -> dict[int, float]:
    """Return the mean of a quantity over repeats, by rank; nothing of a quantity that is not there."""
    found: dict[int, list[float]] = {}
    if column in ranks:
        # In plain lists: pandas takes longer to group a hundred rows, and a figure compares some hundred times.
        for run, rank, value in zip(*(ranks[name].tolist() for name in ("run", "rank", column)), strict=True):
            if run in runs and not math.isnan(value):
                found.setdefault(rank, []).append(value)
    return {rank: statistics.fmean(values) for rank, values in found.items()}


def _sigma(row: "Series[Any]", column: str, is_relative: bool, are_both_simulated: bool) -> float:
    """Return the standard error of one value, of ratios of its logarithm; NaN where nothing is known of it."""
    is_simulated = row["origin"] == "simulated"
    if are_both_simulated and column in _BY_STEP_TIME:
        return _number(row, "step_time_layout_sigma")
    low, high = (_number(row, column_of(column, end)) for end in (("lo", "hi") if is_simulated else ("p10", "p90")))
    if is_relative:
        low, high = (math.log(end) if end > 0 else math.nan for end in (low, high))
    if is_simulated:
        return abs(high - low) / (2 * Z90)
    num = _number(row, "num_measured_steps")
    # Equal steps show no spread: a sensor of whole degrees reads alike, and utilisation is one value a run.
    return MEAN_TO_SIGMA * abs(high - low) / _P10_TO_P90 / math.sqrt(num) if num > 0 and high != low else math.nan


def _number(row: "Series[Any]", column: str) -> float:
    value = row.get(column)
    return float(value) if isinstance(value, Real) else math.nan


def _over(changes: Iterable[float], basis: Basis, is_relative: bool) -> Effect:
    """Return the mean of paired changes with the t interval of that mean; without one of a single change."""
    known = list(changes)
    half = math.nan
    if len(known) > 1:
        quantile = t_quantile(len(known) - 1, (1 + COVERAGE) / 2)
        half = quantile * statistics.stdev(known) / math.sqrt(len(known))
    return _effect(statistics.fmean(known), half, basis, len(known), is_relative)


def _effect(change: float, half: float, basis: Basis, num: int, is_relative: bool) -> Effect:
    ends = (change, change - half, change + half)
    value, low, high = (math.expm1(end) for end in ends) if is_relative else ends
    return Effect(value, low, high, basis, num, is_relative)


def digits(value: float) -> str:
    """Return a number of per cent or kelvin to a tenth, from 20 on to a whole."""
    text = f"{value:.0f}" if abs(value) >= 19.95 else f"{value:.1f}"
    return text.removeprefix("-") if float(text) == 0 else text
