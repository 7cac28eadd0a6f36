"""Least squares with priors, for models that are a few numbers: scipy's, with what is known of the numbers after."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Float = npt.NDArray[np.float64]

_SLOPE_STEP = 1e-4


@dataclass(frozen=True, eq=False)
class Found:
    """The best numbers.

    Attributes:
        at: The numbers.
        covariance: Of the numbers, if residuals are in standard deviations.
        residuals: At the numbers.
    """

    at: Float
    covariance: Float
    residuals: Float


def least_squares(residuals: Callable[[Float], Float], start: Float) -> Found:
    """Return the numbers whose squared residuals add up to least, from `start` downhill.

    Args:
        residuals: Of a list of numbers of similar size (logarithms, say), in standard deviations, with a residual for
            every prior; at least as many as numbers.
        start: Where to begin.
    """
    from scipy import optimize

    found = optimize.least_squares(residuals, np.asarray(start, dtype=float), diff_step=_SLOPE_STEP, x_scale="jac")
    return Found(found.x, np.asarray(np.linalg.pinv(found.jac.T @ found.jac)), found.fun)
