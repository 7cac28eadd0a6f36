"""Steps that every calibration follows (read, fit, report held-out errors, write files), and statistics of fits."""

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
    """Calibration of one kind of constants. The simulator reads the files that it writes."""

    def read(self) -> Measured:
        """Return the measurements.

        Raises:
            UserError: If a file is missing, damaged or of another kind.
        """

    def fit(self, measured: Measured) -> Fitted:
        """Return the constants with standard deviations, and the errors on measurements held out of the fit.

        Raises:
            UserError: If the measurements do not determine the constants.
        """

    def report(self, fitted: Fitted) -> list[str]:
        """Return lines of text on the fitted constants and the held-out error.

        Raises:
            UserError: If that error is so large that nothing should be written.
        """

    def files(self, fitted: Fitted) -> dict[Path, str]:
        """Return the text of each file to write, by path."""


def calibrate(procedure: Procedure[Measured, Fitted]) -> list[str]:
    """Run a procedure, write each of its files atomically, and return its report.

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
        content: Content of the file.
        width: Longest line, in characters.
        flow: Flow style as in `yaml.safe_dump`; None writes innermost lists and mappings on one line each.
    """
    return str(yaml.safe_dump(content, sort_keys=False, width=width, allow_unicode=True, default_flow_style=flow))


def positive(text: str) -> float:
    """Parse a measured number. Raises `ValueError` if it is no number, not above 0, or not finite."""
    value = float(text)
    if not (0 < value < float("inf")):
        raise ValueError(f"found {text!r}, expected a number above 0")
    return value


def rounded(value: float, digits: int) -> float:
    """Return a number rounded to `digits` significant digits."""
    return float(f"{value:.{digits}g}")


_SLOPE_STEP = 1e-4
"""Relative step of the finite differences that give the slopes of residuals."""

COVERAGE = 0.9
"""Share of measurements that an interval should contain."""


@dataclass(frozen=True, eq=False)
class Optimum:
    """Result of a least-squares fit.

    Attributes:
        at: Fitted parameters; shape (num_parameters,).
        covariance: Covariance of the parameters, given residuals in standard deviations; shape (num_parameters,
            num_parameters).
    """

    at: Float
    covariance: Float


def least_squares(residuals: Callable[[Float], Float], start: Float) -> Optimum:
    """Return the parameters with the least sum of squared residuals, downhill from `start`.

    Args:
        residuals: Maps parameters to residuals in standard deviations, one of each prior among them. There must be at
            least as many residuals as parameters, and parameters of similar size, such as logarithms.
        start: Parameters at which the search starts; shape (num_parameters,).
    """
    from scipy import optimize

    best = optimize.least_squares(residuals, np.asarray(start, dtype=float), diff_step=_SLOPE_STEP, x_scale="jac")
    return Optimum(best.x, np.asarray(np.linalg.pinv(best.jac.T @ best.jac)))


def soft(residual: Float) -> Float:
    """Return residuals whose squares grow quadratically while small and linearly when large, to discount outliers."""
    return np.asarray(np.sign(residual) * np.sqrt(2.0 * (np.sqrt(1.0 + residual**2) - 1.0)))


def conformal_quantile(
    scores: Sequence[float], weights: Sequence[float] | None = None, coverage: float = COVERAGE
) -> float:
    """Return the bound that a new score stays below with the given probability, if drawn like the given scores.

    Args:
        scores: Absolute log errors over their scale, of predictions that were not fitted to these rows.
        weights: Weight of each score, as rows of one source and model are nearly one row. Default: equal weights.
        coverage: Probability, 0 to 1.

    Returns:
        The smallest score at which the summed weights reach `coverage`, where the new score counts as infinite with
        the mean weight. The largest score where none reaches it.

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
    index = int(np.searchsorted(reached, coverage - 1e-12))
    return float(np.asarray(scores)[order[min(index, len(scores) - 1)]])
