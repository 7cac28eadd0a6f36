"""Difference of two sample means with a 90 % t interval, for instance over the steps of two traces."""

import math
import statistics
from collections.abc import Sequence

from triplepoint.effects import COVERAGE, Basis, Effect
from triplepoint.metrics import t_quantile


def paired(first: Sequence[float], other: Sequence[float], basis: Basis) -> Effect:
    """Return the mean of paired differences with its t interval; a single pair has no interval.

    Args:
        first: Values of the first side, shape (num_pairs,).
        other: Values of the other side in the same order, shape (num_pairs,).
        basis: What the pairs are.

    Raises:
        ValueError: If there is no pair, or if the sides have different lengths.
    """
    changes = [after - before for before, after in zip(first, other, strict=True)]
    if not changes:
        raise ValueError("no pairs, expected at least one")
    if len(changes) == 1:
        return Effect(changes[0], math.nan, math.nan, "none", 1, is_relative=False)
    error = statistics.stdev(changes) / math.sqrt(len(changes))
    return _within(statistics.fmean(changes), error, len(changes) - 1, basis, len(changes))


def unpaired(first: Sequence[float], other: Sequence[float], basis: Basis) -> Effect:
    """Return the difference of two means with Welch's t interval; without one if a side has a single value.

    Args:
        first: Values of the first side, shape (num_first,).
        other: Values of the other side, shape (num_other,).
        basis: What the values are.

    Raises:
        ValueError: If a side has no value.

    Source:
        Welch 1947, doi:10.1093/biomet/34.1-2.28; degrees of freedom by Satterthwaite 1946, doi:10.2307/3002019.
    """
    if not first or not other:
        raise ValueError(f"{len(first)} and {len(other)} values, expected at least one of each")
    change = statistics.fmean(other) - statistics.fmean(first)
    num = min(len(first), len(other))
    if num == 1:
        return Effect(change, math.nan, math.nan, "none", 1, is_relative=False)
    squares = [statistics.variance(values) / len(values) for values in (first, other)]
    weights = [square**2 / (len(values) - 1) for square, values in zip(squares, (first, other), strict=True)]
    freedom = sum(squares) ** 2 / sum(weights) if sum(weights) else math.inf
    return _within(change, math.sqrt(sum(squares)), freedom, basis, num)


def _within(change: float, error: float, freedom: float, basis: Basis, num: int) -> Effect:
    """Return a difference with the t interval of its standard error."""
    # Without spread the degrees of freedom are undefined, and the interval has no width.
    half = t_quantile(freedom, (1 + COVERAGE) / 2) * error if error else 0.0
    return Effect(change, change - half, change + half, basis, num, is_relative=False)
