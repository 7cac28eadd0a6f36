"""The throttled share is one of the load, not of how long a step of it is."""

from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import pytest

from tests.unit.simulate.heat.machines import CONFIG, machine
from triplepoint.config.catalogue import Catalogue
from triplepoint.config.plan import PlannedRun
from triplepoint.plan import select
from triplepoint.simulate.artefacts.simulate_run import job_of
from triplepoint.simulate.heat.clocks import Reason
from triplepoint.simulate.heat.machine import Machine, Profile
from triplepoint.simulate.heat.periodic import Periodic
from triplepoint.simulate.power.gpu import Activity
from triplepoint.simulate.predict.prediction import predict_job

CATALOGUE = Catalogue(Path(CONFIG))
TIMES = (1, 2, 8)
HELD = int(Reason.POWER_CAP | Reason.SW_THERMAL | Reason.HW_THERMAL)


def uneven(nodes: Machine) -> Profile:
    """1.6 s in parts of a control period each: GEMMs, waiting, memory-bound kernels."""
    kinds = np.array([1.0] * 16 + [0.0] * 6 + [0.4] * 10)[:, None, None]
    values = {"awake": 1.0, "tensor": 0.97 * kinds, "hbm": 0.9 - 0.75 * kinds, "clock_bound": kinds}
    shape = len(kinds), *nodes.shape
    columns = {name: np.broadcast_to(value, shape).reshape(len(kinds), -1) for name, value in values.items()}
    kind = np.arange(nodes.shape[0] * nodes.shape[1]).reshape(nodes.shape)
    return Profile(np.full(len(kinds), nodes.period_s), Activity(**columns), kind)


def repeated(profile: Profile, times: int) -> Profile:
    columns = {part.name: np.asarray(getattr(profile.activity, part.name)) for part in fields(profile.activity)}
    tiled = {name: np.tile(column, (times, 1)) if column.ndim else column for name, column in columns.items()}
    return Profile(np.tile(profile.duration_s, times), Activity(**tiled), profile.kind)


def share(reasons: np.ndarray) -> float:
    return float(((reasons & HELD) != 0).mean())


@pytest.mark.parametrize("limit_w", [700.0, 650.0])
def test_share_of_a_repeating_step(limit_w: float) -> None:
    nodes = machine(power_limit_w=np.full((1, 8), limit_w))
    profile, start_w = uneven(nodes), np.full(nodes.shape, 0.9 * limit_w)
    steps = [repeated(profile, times) for times in TIMES]
    found = [Periodic(nodes, step, step.step_s).settle(start_w) for step in steps]
    shares = [share(trace.reasons) for trace in found]
    assert 0.2 < shares[0] < 1.0
    assert shares == pytest.approx([shares[0]] * 3, abs=0.01)
    assert [trace.rate.mean() for trace in found] == pytest.approx([found[0].rate.mean()] * 3, rel=0.003)


def planned(text: str) -> PlannedRun:
    plan = select(Path(CONFIG), None, ["cpu-local"], ["h200x32", "h100x64"])
    return next(entry.planned for entry in plan.valid if text in entry.run)


@pytest.mark.parametrize("inlet_c", [None, 50.0])
@pytest.mark.parametrize(
    "text",
    [
        pytest.param("llama3-70b_h100x64_tp4-pp8-dp2-sp-zero1_mbs1_sim", marks=pytest.mark.long),
        "mixtral-8x7b_h200x32_tp1-pp1-dp32",
    ],
)
def test_share_of_the_micro_batches_of_a_point(text: str, inlet_c: float | None) -> None:
    """At 50 degC inlet heat holds clocks too."""
    point, found = planned(text).point, []
    cluster = CATALOGUE.cluster(point.cluster.name)
    if inlet_c is not None:
        hot = cluster.conditions.model_copy(update={"inlet_temp_c": inlet_c})
        cluster = cluster.model_copy(update={"conditions": hot})
    for times in TIMES:
        job = replace(job_of(point, CATALOGUE), global_batch_size=times * point.global_batch_size)
        predicted = predict_job(job, None, CATALOGUE.folder, cluster)
        found.append((predicted.step_time_s, predicted.step_time_s * predicted.power.throttle_fraction))
        assert (predicted.power.lost_to_heat_fraction > 0) == (inlet_c is not None)
    # Filling, draining, gradients and update are once a step: what more micro-batches add is the load alone.
    (time_s, held_s) = np.diff(np.array(found), axis=0).T
    assert held_s[0] / time_s[0] == pytest.approx(held_s[1] / time_s[1], abs=0.02)
