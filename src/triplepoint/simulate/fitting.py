"""Least squares with priors, for models that are a few numbers: Levenberg-Marquardt with differences for slopes."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Float = npt.NDArray[np.float64]

_SLOPE_STEP = 1e-4
_MOST_STEPS = 200
_GOOD_ENOUGH = 1e-9


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
    at, damping = np.asarray(start, dtype=float).copy(), 1e-2
    now = residuals(at)
    slopes = _slopes(residuals, at, now)
    for _ in range(_MOST_STEPS):
        square = slopes.T @ slopes
        move = np.linalg.solve(square + damping * np.diag(np.diag(square) + 1e-12), -slopes.T @ now)
        then = residuals(at + move)
        if not then @ then < now @ now:
            damping *= 5
            if damping > 1e12:
                break
            continue
        gain = now @ now - then @ then
        at, now, damping = at + move, then, damping / 5
        if gain < _GOOD_ENOUGH * max(float(now @ now), 1e-12):
            break
        slopes = _slopes(residuals, at, now)
    slopes = _slopes(residuals, at, now)
    return Found(at, np.asarray(np.linalg.pinv(slopes.T @ slopes)), now)


def _slopes(residuals: Callable[[Float], Float], at: Float, now: Float) -> Float:
    return np.stack([(residuals(at + _SLOPE_STEP * unit) - now) / _SLOPE_STEP for unit in np.eye(len(at))], axis=1)
