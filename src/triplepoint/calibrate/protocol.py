"""The protocol of a calibration: read, fit, error on what was held out, write with deviations; statistics of fits."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeVar

import numpy as np
import yaml

from triplepoint.files import write_text
from triplepoint.simulate.power.gpu import Float

Measured = TypeVar("Measured")
Fitted = TypeVar("Fitted")


class Procedure(Protocol[Measured, Fitted]):
    """How one kind of constants is calibrated. The simulator reads the files it writes."""

    def read(self) -> Measured:
        """Return the measurements.

        Raises:
            UserError: If a file is missing, damaged or of something else.
        """

    def fit(self, measured: Measured) -> Fitted:
        """Return the constants with their standard deviations, and errors of measurements held out of the fit.

        Raises:
            UserError: If the measurements do not determine the constants.
        """

    def report(self, fitted: Fitted) -> list[str]:
        """Return lines on what was fitted and on the error of what was held out.

        Raises:
            UserError: If that error is so large that nothing should be written.
        """

    def files(self, fitted: Fitted) -> dict[Path, str]:
        """Return what to write, by path."""


def calibrate(procedure: Procedure[Measured, Fitted]) -> list[str]:
    """Run a procedure, write its files, each whole or not at all, and return its report.

    Raises:
        UserError: If the measurements cannot be read or used; nothing is written then.
    """
    fitted = procedure.fit(procedure.read())
    report = procedure.report(fitted)
    for path, text in procedure.files(fitted).items():
        write_text(path, text)
    return report


def to_yaml(content: dict[str, Any], *, width: int = 120, flow: bool | None = False) -> str:
    """Return the text of a configuration file, keys in the order given.

    Args:
        content: What to write.
        width: Longest line.
        flow: None writes innermost lists and mappings on one line each.
    """
    return str(yaml.safe_dump(content, sort_keys=False, width=width, allow_unicode=True, default_flow_style=flow))


def positive(text: str) -> float:
    """Return a number that was measured. Raises `ValueError` if it is none, not above 0, or not finite."""
    value = float(text)
    if not (0 < value < float("inf")):
        raise ValueError(f"found {text!r}, expected a number above 0")
    return value


def rounded(value: float, digits: int) -> float:
    """Return a number to so many significant digits."""
    return float(f"{value:.{digits}g}")


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
