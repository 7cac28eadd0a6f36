"""Statistics of fits: least squares with priors, and conformal quantiles."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from triplepoint.simulate.power.gpu import Float

_SLOPE_STEP = 1e-4

COVERAGE = 0.9
"""Share of measurements an interval is made to hold."""


@dataclass(frozen=True, eq=False)
class Optimum:
    """The numbers of a least-squares fit.

    Attributes:
        at: The numbers.
        covariance: Of the numbers, if residuals are in standard deviations.
    """

    at: Float
    covariance: Float


def least_squares(residuals: Callable[[Float], Float], start: Float) -> Optimum:
    """Return the numbers with the least sum of squared residuals, downhill from `start`.

    Args:
        residuals: Of a list of numbers of similar size (logarithms, say), in standard deviations, with a residual for
            every prior; at least as many as numbers.
        start: Where to begin.
    """
    from scipy import optimize

    best = optimize.least_squares(residuals, np.asarray(start, dtype=float), diff_step=_SLOPE_STEP, x_scale="jac")
    return Optimum(best.x, np.asarray(np.linalg.pinv(best.jac.T @ best.jac)))


def conformal_quantile(
    scores: Sequence[float], weights: Sequence[float] | None = None, coverage: float = COVERAGE
) -> float:
    """Return the score that a new one stays below with the given probability, if it is drawn as these were.

    Args:
        scores: Absolute log errors over their scale, of predictions that were not fitted to them.
        weights: Of each score; rows of one source and model are nearly one row. Equal where not given.
        coverage: Probability.

    Returns:
        The smallest score at which the weights reach `coverage`, a new score of mean weight counted as infinite; the
        largest where none does.

    Raises:
        ValueError: If there is no score.

    Source:
        Vovk, Gammerman and Shafer 2005; Tibshirani et al. 2019, arXiv:1904.06019, for weights.
    """
    if len(scores) == 0:
        raise ValueError("no scores, expected at least one")
    order = np.argsort(scores)
    weight = np.ones(len(scores)) if weights is None else np.asarray(weights, dtype=float)
    reached = np.cumsum(weight[order]) / (weight.sum() + weight.mean())
    place = int(np.searchsorted(reached, coverage - 1e-12))
    return float(np.asarray(scores)[order[min(place, len(scores) - 1)]])
