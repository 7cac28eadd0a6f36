"""Fit of the uncertainty of one layout against another, to differences of errors between layouts of one training."""

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
"""Prior widths, which remain where no pair determines them. A choice."""

_PRIOR_LOG_SIGMA = 1.5
"""Prior standard deviation of the logarithm of a variance. A choice."""

_FREEDOM = 4.0
"""Degrees of freedom of the Student's t distribution of differences, which allows for outliers. A choice."""

_FOLDS = 10
"""Parts of the trainings, each held out in turn for the quantile."""

NAMES = tuple(name for name in LayoutWidths.model_fields if name not in ("quantile", "tie_quantile"))
"""Names of the widths."""


@dataclass(frozen=True, eq=False)
class Pair:
    """Two measured layouts of one training.

    Attributes:
        training: Key of the training.
        one: First layout.
        other: Second layout.
        log_error: Log error (measured over predicted time) of the first layout less that of the second.
        times: Multiple of each squared width in the variance, in the order of `NAMES`; shape (num_widths,).
        weight: Weight in the fit. All pairs of a training together weigh the square root of their number.
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
        """Log gain of the layout predicted slower over the other, measured against predicted."""
        slower = math.log(self.one.measured_s / self.other.measured_s) - self.log_error
        return -self.log_error if slower > 0 else self.log_error

    def scale(self, widths: LayoutWidths) -> float:
        """Return the standard deviation of the log error, given widths."""
        return math.sqrt(float(self.times @ _squares(widths)))


def pairs_of(cases: Sequence[Case], calibration: Calibration) -> list[Pair]:
    """Return all pairs of measured layouts of one training.

    Args:
        cases: Measured rows.
        calibration: Calibration with the constants of predictions and the spreads of stacks.
    """
    pairs = []
    for training, rows in grouped(cases, lambda case: same_training(case.job)).items():
        errors = {case: case.log_error(calibration.constants(case.job)) for case in rows}
        fastest = min(rows, key=lambda case: math.log(case.measured_s) - errors[case])
        spread, combinations = calibration.spread(rows[0].job), list(itertools.combinations(rows, 2))
        for one, other in combinations:
            parts = differences(one.laid, other.laid, spread)
            pairs.append(
                Pair(
                    training,
                    one,
                    other,
                    log_error=errors[one] - errors[other],
                    times=np.array([parts[name] for name in NAMES]),
                    weight=len(combinations) ** -0.5,
                    has_first=fastest in (one, other),
                )
            )
    return pairs


def fit_layouts(pairs: Sequence[Pair]) -> LayoutWidths:
    """Fit widths to differences of errors, and their quantiles to held-out trainings.

    Args:
        pairs: Pairs of layouts. With fewer than ten trainings, the result is the prior.
    """
    if len({pair.training for pair in pairs}) < _FOLDS:
        return PRIOR
    # Rankings compare with the layout predicted fastest, whose own error made it the fastest: these pairs differ more.
    scaled = [(pair, pair.scale(widths)) for pair, widths in left_out(pairs) if pair.has_first]
    scores_of = {
        "quantile": [abs(pair.log_error) / scale for pair, scale in scaled],
        "tie_quantile": [pair.gained / scale for pair, scale in scaled],
    }
    return _fit(pairs).model_copy(
        update={name: round(max(0.0, conformal_quantile(scores)), 4) for name, scores in scores_of.items()}
    )


def left_out(pairs: Sequence[Pair]) -> list[tuple[Pair, LayoutWidths]]:
    """Return each pair with the widths fitted to other trainings; quantiles of these widths are the prior's."""
    trainings = dict.fromkeys(pair.training for pair in pairs)
    fold_of = {training: number % _FOLDS for number, training in enumerate(trainings)}
    results = []
    for fold in range(_FOLDS):
        widths = _fit([pair for pair in pairs if fold_of[pair.training] != fold])
        results += [(pair, widths) for pair in pairs if fold_of[pair.training] == fold]
    return results


def _fit(pairs: Sequence[Pair]) -> LayoutWidths:
    """Return the widths of highest posterior probability."""
    from scipy.optimize import minimize

    times, errors = np.array([pair.times for pair in pairs]), np.array([pair.log_error for pair in pairs])
    weights, expected = np.array([pair.weight for pair in pairs]), np.log(_squares(PRIOR))

    def loss(logs: Float) -> tuple[float, Float]:
        """Return the negative log posterior of logarithms of squared widths, and its gradient."""
        variances = times @ np.exp(logs)
        score = errors**2 / (_FREEDOM * variances)
        prior_scores = (logs - expected) / _PRIOR_LOG_SIGMA
        value = 0.5 * np.log(variances) + (_FREEDOM + 1) / 2 * np.log1p(score)
        slope = weights * (0.5 - (_FREEDOM + 1) / 2 * score / (1 + score)) / variances
        gradient = slope @ times * np.exp(logs) + prior_scores / _PRIOR_LOG_SIGMA
        return float(weights @ value + prior_scores @ prior_scores / 2), gradient

    best = minimize(loss, expected, jac=True, method="L-BFGS-B")
    fitted = np.exp(best.x / 2)
    return PRIOR.model_copy(update={name: round(float(width), 4) for name, width in zip(NAMES, fitted, strict=True)})


def _squares(widths: LayoutWidths) -> Float:
    """Return the squared widths in the order of `NAMES`; shape (num_widths,)."""
    return np.array([getattr(widths, name) ** 2 for name in NAMES])
