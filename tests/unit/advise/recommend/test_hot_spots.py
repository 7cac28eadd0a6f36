"""Moving hot spots: drift within a run is found and told from none, and a restart pays after as long as it should."""

from dataclasses import replace
from types import SimpleNamespace
from typing import cast

import numpy as np
import pytest

from tests.unit.advise.recommend.test_placement import CATALOGUE, CONFIG, site_of
from triplepoint.advise.recommend import hot_spots as moving
from triplepoint.advise.recommend.hot_spots import find_moving, moved_on, payback_h, predict_drift
from triplepoint.advise.recommend.passport import Learned
from triplepoint.calibrate.heat_runs import Observed
from triplepoint.config.cluster import ConditionsConfig
from triplepoint.simulate.heat.machine import Machine
from triplepoint.simulate.heat.nodes import machine_of

SHAPE, POWER_W, PERIOD_S = (2, 8), 600.0, 60.0


def nodes() -> Machine:
    cluster = CATALOGUE.cluster("h200x32")
    gpu = CATALOGUE.gpu_of(cluster)
    assert gpu is not None
    made = machine_of(cluster.conditions, gpu, SHAPE, "h200x32", CONFIG)
    return replace(made, devices=replace(made.devices, die=np.ones(SHAPE)))


def watched(machine: Machine, log_per_h: float, num_times: int = 200) -> Observed:
    """A run at constant power whose GPU 3 of node 1 touches its sink worse and worse; temperatures of whole degrees."""
    power_w = np.full(SHAPE, POWER_W)
    under = machine.under_load(power_w)
    rise_k = under.network.steady(power_w)[:, :8]
    logs = np.zeros((num_times, *SHAPE))
    logs[:, 1, 3] = log_per_h * np.arange(num_times) * PERIOD_S / 3600.0
    more_k = under.cooled_by.die_resistance.value * POWER_W * np.expm1(logs)
    noise_k = 0.3 * np.random.default_rng(1).standard_normal(logs.shape)
    series_c = np.round(25.0 + rise_k + more_k + noise_k)
    return Observed(power_w, series_c.mean(axis=0), np.full(logs.shape, POWER_W), series_c, PERIOD_S)


def test_a_slot_whose_contact_grows_is_found_with_its_rate() -> None:
    machine = nodes()
    found = find_moving(machine, watched(machine, 0.2))
    assert found is not None
    seen_h, (one,) = found
    assert seen_h == pytest.approx((200 * PERIOD_S - 240.0) / 3600.0)
    assert one.name == "node1.gpu3" and one.log_per_h == pytest.approx(0.2, abs=3 * one.sigma_per_h + 0.02)


def test_noise_alone_moves_no_slot() -> None:
    machine = nodes()
    found = find_moving(machine, watched(machine, 0.0))
    assert found is not None and found[1] == []


def test_a_short_run_is_not_asked() -> None:
    machine = nodes()
    assert find_moving(machine, watched(machine, 0.2, num_times=20)) is None


def test_payback_is_the_restart_over_the_gain() -> None:
    """15 min at 5 %: after 5 h, 0.25 h were saved."""
    assert payback_h(0.05, 15.0) == pytest.approx(5.0)
    assert payback_h(-0.01, 15.0) == float("inf")


def test_contacts_that_grow_become_faults() -> None:
    cluster = CATALOGUE.cluster("h200x32")
    conditions = ConditionsConfig(contact={"node0.gpu1": 1.2}, bad_contact={"node1.gpu2": 2.0})
    moved = moved_on(
        cluster.model_copy(update={"conditions": conditions}), {"node0.gpu1": 1.5, "node1.gpu2": 0.5}
    ).conditions
    assert moved.bad_contact == {"node0.gpu1": pytest.approx(1.8)}
    assert moved.contact == {"node0.gpu1": 1.0, "node1.gpu2": pytest.approx(1.0)}


def test_a_placement_gains_later_where_a_hot_spot_grows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is gained at the end of the run; three times as long after it, at a contact of about 4, something is."""
    monkeypatch.setattr(moving, "_AHEAD", (0.0, 3.0))
    machine = nodes()
    site = site_of(model="llama3-8b", tp=8, pp=2, num_gpus=16, global_batch_size=32)
    usual = {f"node{node}.gpu{gpu}": 1.0 for node in range(4) for gpu in range(8)}
    conditions = site.cluster.conditions.model_copy(update={"contact": usual, "leakage": usual})
    site = replace(site, cluster=site.cluster.model_copy(update={"conditions": conditions}))
    runs = SimpleNamespace(machine=machine, observed=[watched(machine, 0.12)])
    outlook = predict_drift(site, cast(Learned, SimpleNamespace(runs=runs)))
    assert outlook is not None and [one.name for one in outlook.moving] == ["node1.gpu3"]
    now, later = outlook.ahead
    assert now.gain is None or not now.gain.is_accepted
    assert later.gain is not None and later.gain.is_accepted
