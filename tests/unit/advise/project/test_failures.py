"""Mean time to failure, the best interval of checkpoints and goodput."""

import math

import numpy as np
import pytest
from scipy.optimize import minimize_scalar

from triplepoint.advise.project.failures import (
    FLEET_RATES,
    PUBLISHED_MTTF_H,
    Failures,
    best_checkpoints,
    fleet_factor,
    goodput,
    mttf_h,
)


def test_mttf_h_passes_through_published_points() -> None:
    assert [mttf_h(size) for size in PUBLISHED_MTTF_H] == pytest.approx(list(PUBLISHED_MTTF_H.values()))
    # Beyond the last point failures go with GPUs; between two points it is straight in logarithms.
    assert mttf_h(262144) == pytest.approx(0.115)
    assert mttf_h(4096) == pytest.approx(math.sqrt(7.9 * 1.8))
    assert mttf_h(1) == pytest.approx(8 * 47.7 * 24)


def test_mttf_h_of_a_rate() -> None:
    # 6.5 failures per 1,000 node-days, 2,048 nodes: 13.3 a day.
    assert mttf_h(16384, 6.5) == pytest.approx(24 / (6.5e-3 * 2048))
    assert mttf_h(16384, 6.5) == pytest.approx(PUBLISHED_MTTF_H[16384], rel=0.01)
    assert mttf_h(131072, 6.5) == pytest.approx(PUBLISHED_MTTF_H[131072], rel=0.03)


def test_interval_holds_the_other_fleets() -> None:
    usual = Failures()
    for rate in FLEET_RATES.values():
        low, high = (usual.mttf_s(16384, end) / 3600 for end in ("lo", "hi"))
        assert low < mttf_h(16384, rate) < high
    # Logarithms of 6.5, 2.34 and 3.79 scatter by 0.511; t with 2 degrees of freedom.
    assert fleet_factor() == pytest.approx(math.exp(2.920 * 0.511 * math.sqrt(4 / 3)), rel=0.01)


def test_failures_of_ones_own() -> None:
    own = Failures(rate=2.0, rate_lo=1.0, rate_hi=4.0)
    assert own.mttf_s(8) == pytest.approx(500 * 86400)
    assert own.mttf_s(8, "lo") == pytest.approx(250 * 86400)
    assert own.mttf_s(8, "hi") == pytest.approx(1000 * 86400)
    assert Failures(rate=2.0).mttf_s(8, "lo") == pytest.approx(500 * 86400)


@pytest.mark.parametrize("mttf_s", [300.0, 828.0, 6480.0, 4e6])
@pytest.mark.parametrize("checkpoint_s", [5.0, 33.0, 600.0])
def test_best_checkpoints_is_the_optimum(mttf_s: float, checkpoint_s: float) -> None:
    best = best_checkpoints(mttf_s, checkpoint_s, 600.0)
    found = minimize_scalar(
        lambda log_s: -goodput(math.exp(log_s), mttf_s, checkpoint_s, 600.0),
        bounds=(math.log(1.0), math.log(mttf_s)), method="bounded", options={"xatol": 1e-10},
    )  # fmt: skip
    assert best.goodput == pytest.approx(-found.fun, rel=1e-9)
    assert best.interval_s == pytest.approx(math.exp(found.x), rel=1e-3)


def test_best_checkpoints_is_near_young_and_daly() -> None:
    mttf_s, checkpoint_s = 1e6, 30.0
    ratio = checkpoint_s / (2 * mttf_s)
    young_s = math.sqrt(2 * checkpoint_s * mttf_s)
    # Daly 2006, equation 37.
    daly_s = young_s * (1 + math.sqrt(ratio) / 3 + ratio / 9) - checkpoint_s
    found = best_checkpoints(mttf_s, checkpoint_s, 0.0).interval_s
    assert found == pytest.approx(young_s, rel=0.01)
    assert found == pytest.approx(daly_s, rel=1e-5)


def test_goodput_against_a_drawn_job() -> None:
    mttf_s, interval_s, checkpoint_s, restart_s = 2000.0, 300.0, 30.0, 100.0
    random, spent_s, kept_s = np.random.default_rng(1), 0.0, 0.0
    for _ in range(20000):
        next_s = random.exponential(mttf_s)
        while next_s < interval_s + checkpoint_s:  # fails before its checkpoint
            spent_s += next_s
            while (again_s := random.exponential(mttf_s)) < restart_s:
                spent_s += again_s
            spent_s += restart_s
            next_s = random.exponential(mttf_s)
        spent_s += interval_s + checkpoint_s
        kept_s += interval_s
    assert goodput(interval_s, mttf_s, checkpoint_s, restart_s) == pytest.approx(kept_s / spent_s, rel=0.005)


def test_goodput_of_a_job_that_never_gets_on() -> None:
    assert goodput(1e6, 1.0, 30.0, 600.0) == 0.0
