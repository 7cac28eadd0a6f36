"""Effect sizes with 90 % intervals: by how much one setting changes a quantity."""

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
"""Probability that an interval of this package covers the true value."""
_P10_TO_P90 = 2.563
"""Standard deviations between the 10th and the 90th percentile of a normal distribution."""
FACTOR_FROM = 1.0
"""Relative change from which texts give a factor instead of per cent: twice as much."""
FAR_SLOWER = 3.0
"""Ratio of step times from which a layout counts as far slower than the next faster one. Our choice."""
_BY_STEP_TIME = frozenset({"step_time_s", "tokens_per_s", "tokens_per_s_per_gpu", "mfu"})
"""Quantities with the model error of the step time. The part that all layouts of one training share cancels."""

ABOUT_BASIS: Mapping[Basis, str] = {
    "repeats": "paired over repeats",
    "steps": "over the steps of one launch each, which do not show how launches differ",
    "ranks": "over the GPUs of simulated runs, paired, without the error of the model",
    "model": "of the model, without the error that both share, as far as known",
    "mixed": "over the steps of the measured side and of the model on the simulated one",
    "settings": "of the mean over them",
    "none": "not known",
}
"""Text for each basis of an interval, for captions and notes."""


@dataclass(frozen=True)
class Effect:
    """Change of a quantity from one setting to another: a ratio minus 1, or a difference.

    Attributes:
        value: The change: 0.05 for a quantity that is 5 % higher. Differences of temperatures are in kelvin, of shares
            0-1.
        low: Lower end of the 90 % interval; NaN if the interval is unknown.
        high: Upper end of the 90 % interval; NaN if the interval is unknown.
        basis: Values whose spread gives the interval.
        num: Number of repeats, steps, ranks or settings behind the effect.
        is_relative: Whether `value` is a ratio minus 1; if not, it is a difference.
    """

    value: float
    low: float
    high: float
    basis: Basis
    num: int
    is_relative: bool = True

    @property
    def is_tie(self) -> bool:
        """Whether the interval contains zero. Without an interval: whether the change is exactly zero."""
        if math.isnan(self.low):
            return self.value == 0
        return self.low <= 0 <= self.high

    @property
    def text(self) -> str:
        """Change and interval: '4.5 % [2.1, 7.0]' or '3.1 K [1.0, 5.2]'."""
        return self.size + self.ends

    @property
    def size(self) -> str:
        """Change without its interval: '4.5 %' or '3.1 K'."""
        return f"{digits(self.value * self.scale)} {self.unit}"

    @property
    def ends(self) -> str:
        """Interval with a leading space: ' [2.1, 7.0]'; '' if it is unknown."""
        if math.isnan(self.low):
            return ""
        return f" [{', '.join(equal_digits(self.low * self.scale, self.high * self.scale))}]"

    @property
    def factor(self) -> str:
        """Change and interval; from `FACTOR_FROM` on as a factor: '3.0 times [2.1, 4.2]'."""
        if not self.is_relative or self.value < FACTOR_FROM:
            return self.text
        ends = "" if math.isnan(self.low) else f" [{', '.join(equal_digits(1 + self.low, 1 + self.high))}]"
        return f"{digits(1 + self.value)} times{ends}"

    @property
    def negated(self) -> "Effect":
        """The effect with the opposite sign, for texts such as '5 % less'."""
        return replace(self, value=-self.value, low=-self.high, high=-self.low)

    @property
    def scale(self) -> int:
        """Factor from values to the numbers in texts."""
        return 100 if self.is_relative else 1

    @property
    def unit(self) -> str:
        """Unit of the numbers in texts."""
        return "%" if self.is_relative else "K"

    def inverse(self) -> "Effect":
        """Return the effect of the opposite change: 1 / (1 + value) - 1 for a ratio, -value for a difference."""
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
    """Return the effect of going from point `first` to point `other` on a quantity.

    The interval is over paired repeats, if both points were measured and have at least two repeats in common. Else it
    combines one standard error of each point, from its steps or from the model.

    Args:
        first: Repeats of the first point: rows of table `points` that finished.
        other: Repeats of the other point.
        column: The quantity, a column of `points`.
        is_relative: Whether to return a ratio minus 1 instead of a difference. None: a difference for temperatures
            (`_c`), else a ratio.
        ranks: Values by rank: columns `run`, `rank` and the quantity. For two simulated points that differ in one
            setting only. Their interval is then over paired ranks; it is unknown if `ranks` lacks the quantity.

    Raises:
        ValueError: If a value is missing, or not positive where a ratio is asked for.
    """
    if is_relative is None:
        is_relative = not column.endswith("_c")
    first_values, other_values = (_values(rows, column, is_relative) for rows in (first, other))
    shared = sorted(set(first_values) & set(other_values), key=str)
    means = [statistics.fmean(values.values()) for values in (first_values, other_values)]
    origins = {*first["origin"], *other["origin"]}
    if len(shared) > 1 and origins == {"measured"}:
        return _over([other_values[repeat] - first_values[repeat] for repeat in shared], "repeats", is_relative)
    if ranks is not None and origins == {"simulated"}:
        return _over_ranks(first, other, column, means[1] - means[0], is_relative, ranks)
    sigmas = [_sigma(rows.iloc[0], column, is_relative, origins == {"simulated"}) for rows in (first, other)]
    sigma = math.hypot(*sigmas)
    basis: Basis = "mixed" if len(origins) > 1 else "model" if origins == {"simulated"} else "steps"
    if math.isnan(sigma):
        basis = "none"
    counts = [
        _number(rows.iloc[0], "num_measured_steps") for rows in (first, other) if rows["origin"].iloc[0] == "measured"
    ]
    num = min((int(count) for count in counts if math.isfinite(count)), default=1)
    return _effect(means[1] - means[0], Z90 * sigma, basis, num, is_relative)


def over_settings(effects: Sequence[Effect]) -> Effect:
    """Return the mean effect of one change over several settings, with the t interval of that mean.

    The errors of single effects widen the interval as far as they differ between settings.

    Raises:
        ValueError: If there is no effect, or if ratios and differences are mixed.
    """
    kinds = {effect.is_relative for effect in effects}
    if len(kinds) != 1:
        raise ValueError(f"{len(effects)} effects of {len(kinds)} kinds: at least one, all of one kind, are expected")
    is_relative = kinds.pop()
    changes = [math.log1p(effect.value) if is_relative else effect.value for effect in effects]
    return _over(changes, "settings", is_relative)


def over_pairs(effects: Sequence[Effect]) -> Effect:
    """Return the mean effect of one change over pairs of points, with an interval from the intervals of the pairs.

    The spread between pairs does not widen the interval; `over_settings` includes it.

    Raises:
        ValueError: If there is no effect, or if ratios and differences are mixed.
    """
    mean = over_settings(effects)
    is_relative, num = mean.is_relative, len(effects)
    intervals = [
        (math.log1p(effect.low), math.log1p(effect.high)) if is_relative else (effect.low, effect.high)
        for effect in effects
    ]
    half = math.hypot(*((high - low) / 2 for low, high in intervals)) / num
    bases = {effect.basis for effect in effects}
    # Repeats show more than steps do; the text of the weaker one holds for both.
    common: Basis = bases.pop() if len(bases) == 1 else "steps" if bases == {"repeats", "steps"} else "mixed"
    basis: Basis = "none" if math.isnan(half) else common
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
    """Return the effect of changing one setting on a quantity, for each pair of points that is otherwise equal.

    Args:
        points: Rows of table `points`; runs that did not finish are left out.
        column: The quantity.
        by: Columns that must be equal in a pair, such as model, cluster and layout.
        setting: Column of the setting that changes.
        first: Value of the setting before the change.
        other: Value of the setting after the change.
        ranks: Values by rank, as in `compare`.

    Returns:
        Effects by the values of the columns `by`.
    """
    is_compared = (points["status"] == Status.OK) & points[column].notna() & points[setting].isin([first, other])
    # Table `points` has two hundred columns. Selecting rows of all of them per group would dominate a figure's time.
    compared = [name for name in compared_columns(column) if name in points]
    done = points.loc[is_compared, list(dict.fromkeys([*by, setting, *compared]))]
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
    """Return the points on the most frequent number of GPUs; step times on other numbers are not comparable."""
    if "num_gpus" not in points or points["num_gpus"].nunique() < 2:
        return points
    comparable: DataFrame = points.loc[points["num_gpus"] == points["num_gpus"].mode().max()]
    return comparable


def far_slower(points: "DataFrame") -> dict[str, float]:
    """Return the layouts that are far slower than all others, each with its step time over that of the best layout.

    They are fewer than half of the layouts, and take at least `FAR_SLOWER` times as long as any other layout.

    Args:
        points: Comparable rows of table `points` of one training, with column `layout`.
    """
    done = points[(points["status"] == Status.OK) & points["step_time_s"].notna()]
    means = done.groupby("layout", sort=False)["step_time_s"].mean().sort_values(kind="stable")
    steps = [float(mean) for mean in means]
    gaps = [at for at in range(len(steps) // 2 + 1, len(steps)) if steps[at] >= FAR_SLOWER * steps[at - 1]]
    first = gaps[0] if gaps else len(steps)
    return {str(name): step / steps[0] for name, step in zip(means.index[first:], steps[first:], strict=True)}


def _values(rows: "DataFrame", column: str, is_relative: bool) -> dict[Hashable, float]:
    """Return the value of each repeat; its natural logarithm if `is_relative`."""
    values = dict(zip(rows["repeat"], rows[column].astype(float), strict=True))
    if not values or not all(math.isfinite(value) and (value > 0 or not is_relative) for value in values.values()):
        raise ValueError(f"{column} of {list(values.values())}: numbers{' above zero' * is_relative} are expected")
    return {key: math.log(value) if is_relative else value for key, value in values.items()}


def _over_ranks(
    first: "DataFrame", other: "DataFrame", column: str, change: float, is_relative: bool, ranks: "DataFrame"
) -> Effect:
    """Return a change with a t interval from its spread over ranks; for a ratio, that of a ratio of two means.

    Args:
        first: Repeats of the first point.
        other: Repeats of the other point.
        column: The quantity.
        change: Change of the mean over repeats; of its logarithm if `is_relative`.
        is_relative: Whether the effect is a ratio minus 1.
        ranks: Values by rank, as in `compare`.
    """
    value = math.expm1(change) if is_relative else change
    first_values, other_values = (_by_rank(ranks, set(rows["run"]), column) for rows in (first, other))
    shared = sorted(set(first_values) & set(other_values))
    if len(shared) < 2:
        return Effect(value, math.nan, math.nan, "none", 1, is_relative)
    mean = statistics.fmean(first_values[rank] for rank in shared) if is_relative else 1.0
    ratio = statistics.fmean(other_values[rank] for rank in shared) / mean if is_relative else 1.0
    spread = statistics.stdev((other_values[rank] - ratio * first_values[rank]) / mean for rank in shared)
    half = t_quantile(len(shared) - 1, (1 + COVERAGE) / 2) * spread / math.sqrt(len(shared))
    return Effect(value, value - half, value + half, "ranks", len(shared), is_relative)


def _by_rank(ranks: "DataFrame", runs: set[str], column: str) -> dict[int, float]:
    """Return the mean of a quantity over repeats, by rank; empty if `ranks` lacks the quantity."""
    by_rank: dict[int, list[float]] = {}
    if column in ranks:
        # Plain lists, since pandas takes longer to group a hundred rows, and a figure makes some hundred comparisons.
        for run, rank, value in zip(*(ranks[name].tolist() for name in ("run", "rank", column)), strict=True):
            if run in runs and not math.isnan(value):
                by_rank.setdefault(rank, []).append(value)
    return {rank: statistics.fmean(values) for rank, values in by_rank.items()}


def _sigma(row: "Series[Any]", column: str, is_relative: bool, are_both_simulated: bool) -> float:
    """Return the standard error of a point's value, or of its logarithm if `is_relative`; NaN if unknown."""
    is_simulated = row["origin"] == "simulated"
    if are_both_simulated and column in _BY_STEP_TIME:
        return _number(row, "step_time_layout_sigma") * (1 if is_relative else float(row[column]))
    low, high = (_number(row, column_of(column, end)) for end in (("lo", "hi") if is_simulated else ("p10", "p90")))
    if is_relative:
        low, high = (math.log(end) if end > 0 else math.nan for end in (low, high))
    if is_simulated:
        return abs(high - low) / (2 * Z90)
    num = _number(row, "num_measured_steps")
    # Equal percentiles are no measure of spread: some sensors read whole degrees, and utilisation is one value a run.
    return MEAN_TO_SIGMA * abs(high - low) / _P10_TO_P90 / math.sqrt(num) if num > 0 and high != low else math.nan


def _number(row: "Series[Any]", column: str) -> float:
    value = row.get(column)
    return float(value) if isinstance(value, Real) else math.nan


def _over(changes: Iterable[float], basis: Basis, is_relative: bool) -> Effect:
    """Return the mean of paired changes with the t interval of that mean; a single change has no interval.

    Args:
        changes: Differences; of logarithms if `is_relative`.
        basis: What the pairs are.
        is_relative: Whether the effect is a ratio minus 1.
    """
    values = list(changes)
    half = math.nan
    if len(values) > 1:
        quantile = t_quantile(len(values) - 1, (1 + COVERAGE) / 2)
        half = quantile * statistics.stdev(values) / math.sqrt(len(values))
    return _effect(statistics.fmean(values), half, basis, len(values), is_relative)


def _effect(change: float, half: float, basis: Basis, num: int, is_relative: bool) -> Effect:
    """Return an effect from a change and half the width of its interval; both of logarithms if `is_relative`."""
    ends = (change, change - half, change + half)
    value, low, high = (math.expm1(end) for end in ends) if is_relative else ends
    return Effect(value, low, high, basis, num, is_relative)


def digits(value: float) -> str:
    """Return a number of per cent or kelvin with one decimal; without decimals from 20 on."""
    return equal_digits(value)[0]


def equal_digits(*values: float) -> list[str]:
    """Return numbers of per cent or kelvin with one decimal; without if one is 20 or more and none rounds to zero."""
    decimals = 0 if max(map(abs, values)) >= 19.95 and min(map(abs, values)) >= 0.5 else 1
    texts = [f"{value:.{decimals}f}" for value in values]
    return [text.removeprefix("-") if float(text) == 0 else text for text in texts]
