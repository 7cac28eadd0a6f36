"""Differences between layouts: what cancels, what is left by what differs; planted scatter comes out of the fit."""

import math
from dataclasses import replace

import numpy as np
import pytest

from tests.unit.simulate.jobs import job
from triplepoint.calibrate.layout_pairs import NAMES, PRIOR, Pair, fit_layouts, left_out
from triplepoint.calibrate.step_cases import FACTORS, HOST_TIMES_S, Case
from triplepoint.simulate.intervals import Uncertainty
from triplepoint.simulate.layouts import Laid, LayoutWidths, differences, same_training

WIDTHS = LayoutWidths(
    repeat=0.01, stack=0.5, gradients=1.0, tp=0.06, pp=0.03, vp=0.02, cp=0.02, ep=0.02, micro_batch_size=0.04,
    software=0.03, quantile=2.0,
)  # fmt: skip
SPREAD = 0.04


def laid(gradient_share: float = 0.1, **layout: object) -> Laid:
    return Laid(job(**layout), gradient_share)


def test_of_one_layout_only_two_runs_and_the_stack_are_left() -> None:
    assert WIDTHS.scale(laid(tp=4), laid(tp=4), SPREAD) == pytest.approx(math.hypot(0.01, 0.02))


@pytest.mark.parametrize(
    ("other", "more"),
    [
        (laid(tp=8), 0.06),
        (laid(tp=1), 0.06 * math.sqrt(2)),
        (laid(tp=4, micro_batch_size=4), 0.04),
        (laid(0.15, tp=4), 0.05),
        (laid(tp=4, recompute="full"), 0.03),
        (laid(tp=4, sequence_parallel=True), 0.03),
        (laid(tp=4, pp=2, schedule="1f1b"), 0.03),
    ],
)  # fmt: skip
def test_what_differs_adds_in_squares(other: Laid, more: float) -> None:
    other_way = WIDTHS.scale(other, laid(tp=4), SPREAD)
    assert WIDTHS.scale(laid(tp=4), other, SPREAD) == other_way == pytest.approx(math.hypot(0.01, 0.02, more))


def test_layouts_of_one_training_are_alternatives() -> None:
    assert same_training(job(tp=4, dp=2)) == same_training(job(tp=2, dp=4, micro_batch_size=1))
    assert same_training(job(tp=4, dp=2)) != same_training(job(tp=4, dp=4))


def test_planted_scatter_comes_out() -> None:
    """200 trainings of three layouts that differ in tp; only doublings of tp scatter, with 10 %."""
    random = np.random.default_rng(1)
    zeros = np.zeros((len(FACTORS), len(HOST_TIMES_S)))
    case = Case("row", job(), 1.0, zeros, Uncertainty(0.0, 0.0, 1.0))
    pairs = []
    for training in range(200):
        steps = np.cumsum([0.0, *random.normal(0.0, 0.1, 2)])
        for one, other in ((0, 1), (0, 2), (1, 2)):
            times = differences(laid(tp=2**one), laid(tp=2**other), 1e-6)
            row = np.array([times[name] for name in NAMES])
            pairs.append(Pair(training, case, replace(case), steps[one] - steps[other], row, 3**-0.5, one == 0))
    found = fit_layouts(pairs)
    half = found.quantile * found.scale(laid(tp=1), laid(tp=2), 1e-6)
    assert half == pytest.approx(0.1 * 1.645, rel=0.15)
    assert found.repeat < found.tp / 2 and found.ep == pytest.approx(PRIOR.ep, abs=1e-3)
    covered = [abs(pair.log_error) <= found.quantile * pair.scale(widths) for pair, widths in left_out(pairs)]
    assert 0.85 < np.mean(covered) < 0.95
    assert fit_layouts(pairs[:9]) == PRIOR
