"""Fits what is not known of one layout against another, to differences of errors of layouts of one training."""

import itertools
import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from triplepoint.calibrate.protocol import conformal_quantile
from triplepoint.calibrate.step_cases import Case
from triplepoint.calibrate.step_ratios import grouped
from triplepoint.simulate.calibration import Calibration
from triplepoint.simulate.layouts import LayoutWidths, differences, same_training

Float = npt.NDArray[np.float64]

PRIOR = LayoutWidths(
    repeat=0.02, stack=0.5, gradients=1.0, tp=0.03, pp=0.03, vp=0.03, cp=0.03, ep=0.03, micro_batch_size=0.03,
    software=0.05, quantile=2.0, tie_quantile=1.5,
)  # fmt: skip
"""What is expected before any pair is seen, and stays where none says anything of a difference. A choice."""

_PRIOR_LOG_SIGMA = 1.5
"""How far the logarithm of a variance strays from the prior's. A choice."""

_FREEDOM = 4.0
"""Degrees of freedom of Student's t that differences are taken to follow: a few are far off. A choice."""

_FOLDS = 10
"""Parts of the trainings, each left out in turn for the quantile."""

NAMES = tuple(name for name in LayoutWidths.model_fields if name not in ("quantile", "tie_quantile"))


@dataclass(frozen=True, eq=False)
class Pair:
    """Two measured layouts of one training.

    Attributes:
        training: Which training.
        one: A row.
        other: Another one.
        log_error: Logarithm of measured over predicted time, the first's less the other's.
        times: How often the square of each width counts, in the order of `NAMES`; shape (num_widths,).
        weight: Pairs of a training with many layouts count less: together as the square root of their number.
        has_first: Whether one of the two is predicted to be the fastest of the training.
    """

    training: Hashable
    one: Case
    other: Case
    log_error: float
    times: Float
    weight: float
    has_first: bool

    @property
    def gained(self) -> float:
        """By how much the one predicted slower came out faster than predicted, against the other, in log."""
        slower = math.log(self.one.measured_s / self.other.measured_s) - self.log_error
        return -self.log_error if slower > 0 else self.log_error

    def scale(self, widths: LayoutWidths) -> float:
        """Return the standard deviation of its log error."""
        return math.sqrt(float(self.times @ _squares(widths)))


def pairs_of(cases: Sequence[Case], calibration: Calibration) -> list[Pair]:
    """Return all pairs of measured layouts of one training.

    Args:
        cases: Measured rows.
        calibration: Constants that their times are predicted with, and spreads of stacks.
    """
    found = []
    for training, rows in grouped(cases, lambda case: same_training(case.job)).items():
        errors = {case: case.log_error(calibration.constants(case.job)) for case in rows}
        first = min(rows, key=lambda case: math.log(case.measured_s) - errors[case])
        spread, pairs = calibration.spread(rows[0].job), list(itertools.combinations(rows, 2))
        for one, other in pairs:
            times = differences(one.laid, other.laid, spread)
            row = np.array([times[name] for name in NAMES])
            found.append(
                Pair(training, one, other, errors[one] - errors[other], row, len(pairs) ** -0.5, first in (one, other))
            )
    return found


def fit_layouts(pairs: Sequence[Pair]) -> LayoutWidths:
    """Return the widths that differences of errors show, and the quantile of trainings left out; few keep the prior.

    Args:
        pairs: Of many trainings.
    """
    if len({pair.training for pair in pairs}) < _FOLDS:
        return PRIOR
    # Rankings show differences to the first, which is first by its errors too: theirs are somewhat larger.
    first = [(pair, pair.scale(widths)) for pair, widths in left_out(pairs) if pair.has_first]
    scores = {
        "quantile": [abs(pair.log_error) / scale for pair, scale in first],
        "tie_quantile": [pair.gained / scale for pair, scale in first],
    }
    return _fit(pairs).model_copy(
        update={name: round(max(0.0, conformal_quantile(found)), 4) for name, found in scores.items()}
    )


def left_out(pairs: Sequence[Pair]) -> list[tuple[Pair, LayoutWidths]]:
    """Return each pair with widths fitted to other trainings; their quantile is the prior's."""
    trainings = {training: place % _FOLDS for place, training in enumerate(dict.fromkeys(p.training for p in pairs))}
    found = []
    for fold in range(_FOLDS):
        widths = _fit([pair for pair in pairs if trainings[pair.training] != fold])
        found += [(pair, widths) for pair in pairs if trainings[pair.training] == fold]
    return found


def _fit(pairs: Sequence[Pair]) -> LayoutWidths:
    """Return the likeliest widths, drawn to the prior."""
    from scipy.optimize import minimize

    times, errors = np.array([pair.times for pair in pairs]), np.array([pair.log_error for pair in pairs])
    weights, expected = np.array([pair.weight for pair in pairs]), np.log(_squares(PRIOR))

    def loss(logs: Float) -> tuple[float, Float]:
        """Return the negative logarithm of the posterior and its slope, of logarithms of squared widths."""
        squares = times @ np.exp(logs)
        score = errors**2 / (_FREEDOM * squares)
        strays = (logs - expected) / _PRIOR_LOG_SIGMA
        value = 0.5 * np.log(squares) + (_FREEDOM + 1) / 2 * np.log1p(score)
        slope = weights * (0.5 - (_FREEDOM + 1) / 2 * score / (1 + score)) / squares
        return float(weights @ value + strays @ strays / 2), slope @ times * np.exp(logs) + strays / _PRIOR_LOG_SIGMA

    best = minimize(loss, expected, jac=True, method="L-BFGS-B")
    found = np.exp(best.x / 2)
    return PRIOR.model_copy(update={name: round(float(width), 4) for name, width in zip(NAMES, found, strict=True)})


def _squares(widths: LayoutWidths) -> Float:
    return np.array([getattr(widths, name) ** 2 for name in NAMES])
