"""Differences between layouts: what cancels, what is left by what differs; planted scatter comes out of the fit."""

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.unit.simulate.jobs import job, llama
from triplepoint.calibrate.layout_pairs import NAMES, PRIOR, Pair, fit_layouts, left_out
from triplepoint.calibrate.step_cases import FACTORS, HOST_TIMES_S, Case
from triplepoint.config.catalogue import Catalogue
from triplepoint.simulate.calibration import Calibration, kind_of
from triplepoint.simulate.intervals import Uncertainty
from triplepoint.simulate.layouts import Laid, LayoutWidths, differences, recomputes_more, same_training

WIDTHS = LayoutWidths(
    repeat=0.01, stack=0.5, gradients=1.0, tp=0.06, pp=0.03, vp=0.02, cp=0.02, ep=0.02, micro_batch_size=0.04,
    software=0.03, quantile=2.0, tie_quantile=1.5,
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


@pytest.mark.parametrize(
    ("less", "more", "expected"),
    [
        ({}, {"recompute": "full"}, True),
        ({}, {"recompute": "selective"}, True),
        ({"recompute": "selective"}, {"recompute": "full"}, True),
        ({"recompute": "full", "recompute_layers": 1}, {"recompute": "full", "recompute_layers": 2}, True),
        ({"recompute": "full", "recompute_layers": 2}, {"recompute": "full"}, True),
        ({"recompute": "selective"}, {"recompute": "full", "recompute_layers": 1}, False),
        ({"recompute": "full"}, {}, False),
        ({}, {}, False),
        ({}, {"recompute": "full", "micro_batch_size": 4}, False),
    ],
)
def test_recomputes_more_compares_layouts_that_differ_in_nothing_else(
    less: dict[str, object], more: dict[str, object], expected: bool
) -> None:
    assert recomputes_more(job(**less), job(**more)) is expected


def test_no_tie_with_a_layout_that_only_recomputes_more() -> None:
    calibration = Calibration.load(Path("config"))
    first, slower = Laid(job(), 0.1), 1e-6
    assert not calibration.is_tied(first, Laid(job(recompute="full"), 0.1), slower)
    assert calibration.is_tied(first, Laid(job(micro_batch_size=4), 0.1), slower)


@pytest.mark.parametrize(("name", "parent"), [("nvfp4", "fp8"), ("fp8", "bf16")])
@pytest.mark.parametrize("stack", ["NeMo dgxc v25.04", "Megatron-Core r0.8", "HAI-LLM"])
def test_a_precision_that_was_not_measured_is_no_surer_than_its_parent(name: str, parent: str, stack: str) -> None:
    calibration, gpu = Calibration.load(Path("config")), Catalogue(Path("config")).gpu("b200")
    own = replace(job(llama(), stack=stack), gpu=gpu, precision=name)
    assert (own.family, str(kind_of(own))) not in calibration._by_kind
    known = Uncertainty(0.0, 0.0, 1.0)
    assert calibration.scale(own, known) >= calibration.scale(replace(own, precision=parent), known)


def test_a_gpu_type_without_rows_scatters_as_its_relative() -> None:
    calibration, config = Calibration.load(Path("config")), Catalogue(Path("config"))
    of, other = (replace(job(llama(), stack="Megatron-LM"), gpu=config.gpu(name)) for name in ("mi300x", "mi325x"))
    assert calibration.spread(other) >= calibration.spread(of)
