"""What the power limit takes from stretches of a step, against constant loads by hand and against the step's totals."""

import numpy as np
import pytest

from tests.unit.simulate.power.made_up import power
from tests.unit.simulate.test_heated import CATALOGUE, CONFIG, planned
from triplepoint.simulate.artefacts.simulate_run import job_of
from triplepoint.simulate.calibration import Calibration
from triplepoint.simulate.heat.parameters import read_heat
from triplepoint.simulate.power.gpu import Activity
from triplepoint.simulate.power.step import Ran, StepPieces
from triplepoint.simulate.power.work import Workload
from triplepoint.simulate.predict.governed import Stretches, govern
from triplepoint.simulate.predict.phases import phases_of
from triplepoint.simulate.step import simulate_step

LIMITS = read_heat("h200", CONFIG).limits
DEEP = "gpt3-175b_h200x32_tp2-pp16-dp1-sp_mbs1_act_sim"


def constant(tensor: float, num_periods: int = 8) -> Stretches:
    """Two stages that do the same all the time; the first is always at rest."""
    shape = (num_periods, 2, 1)
    none, load = np.zeros(shape), np.broadcast_to([[0.0], [1.0]], shape)
    return Stretches(Activity(load, tensor * load, none, none, none, none + 1.0, none), 2, 0.05)


@pytest.mark.parametrize(("tensor", "held"), [(0.7, 0.0), (1.0, 1.0)])
def test_constant_load(tensor: float, held: float) -> None:
    """10 + 20 + 100 + 50 + 400 t at 60 degC: 460 W stay below 500, 580 come to it by a step of clocks."""
    found = govern(constant(tensor), power(), LIMITS, np.full((2, 1), 60.0))
    assert found.held_share[:, 0].tolist() == [0.0, held]
    assert found.lost_w[:, 0] == pytest.approx([0.0, held * 80.0], abs=8)


def deep() -> Ran:
    job = job_of(planned(DEEP).point, CATALOGUE)
    step = simulate_step(job, Calibration.load(CONFIG).constants(job), CONFIG)
    return Ran(job, step.stages, step.timeline, step.time_of)


def test_stretches_are_a_fair_sample_of_the_step() -> None:
    ran = deep()
    phases = phases_of(ran, Workload(ran.job, ran.time_of), 0.24)
    assert phases.stretches is not None
    whole = phases.work.sum(axis=1)[:, :2] / phases.seconds.sum(axis=1, keepdims=True)
    activity = phases.stretches.activity
    for index, name in enumerate(("awake", "tensor")):
        sampled = np.asarray(getattr(activity, name))[..., 0].reshape(activity.awake.shape[0], len(whole), -1)
        assert sampled.mean() == pytest.approx(whole[:, index].mean(), rel=0.03)
    assert np.asarray(activity.awake).min() == pytest.approx(0.24, abs=0.01), "nobody is without a kernel"


def test_who_waits_in_a_run_polls() -> None:
    ran, config = deep(), power(polling_share=0.3)
    edges, activity = StepPieces(ran, config).of(3, 0)
    awake = np.asarray(activity.awake)
    assert awake.min() == 0.3 and awake.max() == 1.0
    waits_s = float(np.diff(edges)[awake == 0.3].sum()) / 1e9
    own = phases_of(ran, Workload(ran.job, ran.time_of), 0.3).alone_s[3]
    assert waits_s == pytest.approx(own[3], rel=0.02), "in what passes and the update leave of the step"
