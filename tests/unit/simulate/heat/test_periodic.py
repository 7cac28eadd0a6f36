"""All stretches of a step at once, against constant loads by hand and against the loop that goes through time."""

import numpy as np
import pytest

from tests.unit.simulate.heat.machines import machine
from triplepoint.simulate.heat.clocks import Reason
from triplepoint.simulate.heat.devices import Devices
from triplepoint.simulate.heat.loop import run, settle
from triplepoint.simulate.heat.machine import Machine, Profile
from triplepoint.simulate.heat.periodic import Periodic, num_periods
from triplepoint.simulate.power.gpu import Activity, gpu_power_w

PERIOD_S = 0.05
START_W = np.full((1, 8), 400.0)


FINE = 16
"""Bins of a control period, for the loop."""


def profile(num_bins: int, seed: int = 0) -> Profile:
    """Return passes of random length that draw more than the limit, with waits between; two kinds of devices."""
    random = np.random.default_rng(seed)
    lengths = random.integers(1, 8 * FINE, 2 * num_bins)
    busy = np.repeat(np.arange(len(lengths)) % 4 > 0, lengths)[: num_bins * FINE].astype(float)[:, None]
    busy = np.concatenate([busy, np.roll(busy, 20)], axis=1)
    tensor = busy * random.uniform(0.75, 0.9, (1, 2))
    activity = Activity(awake=0.2 + 0.8 * busy, tensor=tensor, hbm=0.2 * busy, clock_bound=0.9 * busy)
    return Profile(np.full(len(busy), PERIOD_S / FINE), activity, np.array([[0, 0, 0, 0, 1, 1, 1, 1]]))


def by_period(fine: Profile) -> Profile:
    """Return means over control periods."""
    number = len(fine.duration_s) // FINE
    columns = {name: np.broadcast_to(column, (number * FINE, 2)) for name, column in vars(fine.activity).items()}
    means = {name: column.reshape(number, FINE, 2).mean(axis=1) for name, column in columns.items()}
    return Profile(np.full(number, PERIOD_S), Activity(**means), fine.kind)


def test_num_periods_is_whole_stretches_of_more_than_a_few() -> None:
    assert [num_periods(step_s, 0.05) for step_s in (0.01, 0.75, 1.6, 2.3, 1000.0)] == [1, 15, 32, 45, 19968]


@pytest.mark.parametrize(("tensor", "held"), [(0.3, 0.0), (1.0, 1.0)])
@pytest.mark.parametrize("num_bins", [5, 64])
def test_constant_load(tensor: float, held: float, num_bins: int) -> None:
    """Below the limit its own power at the highest clock, above it the limit and longer steps."""
    nodes, shape = machine(), (num_bins, 1, 8)
    load = Activity(*(np.full(shape, value) for value in (1.0, tensor, 0.0, 0.2, 0.0, 1.0, 1.0)))
    found = Periodic(nodes, Profile(np.full(num_bins, PERIOD_S), load), num_bins * PERIOD_S).settle(START_W)
    is_capped = (found.reasons & int(Reason.POWER_CAP)) != 0
    assert is_capped.mean() == held
    limit_w = nodes.power.power_limit.value
    free_w = gpu_power_w(nodes.power, Activity(1.0, tensor, 0.0, 0.2), 1980.0, found.temp_c.mean(axis=0))
    assert found.power_w.mean(axis=0) == pytest.approx(np.minimum(free_w, limit_w), rel=0.01)
    warm_c = nodes.network.die_c(nodes.network.steady(found.power_w.mean(axis=0)), 25.0)
    assert found.temp_c.mean(axis=0) == pytest.approx(warm_c, abs=0.2)
    assert (len(found.rate) * found.period_s > 1.01 * num_bins * PERIOD_S) == bool(held)


def through_time(nodes: Machine, load: Profile, step_s: float) -> tuple[np.ndarray, np.ndarray, float]:
    """Return mean power, mean temperature and throttled share of ten steps after 200, in periods of the loop."""
    steady = settle(nodes, load, 0.01, 200)
    found = run(nodes, load, 10 * step_s, steady.state)
    return found.power_w.mean(axis=0), found.temp_c.mean(axis=0), float((found.reasons != 0).mean())


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_is_what_the_loop_comes_to_that_goes_through_time(seed: int) -> None:
    """The loop's control periods lie anywhere in a step, those here where the step begins."""
    spread = Devices(np.linspace(0.9, 1.1, 8)[None], np.linspace(1.2, 0.8, 8)[None], np.ones((1, 8)))
    nodes, fine = machine(devices=spread), profile(160, seed)
    found = Periodic(nodes, by_period(fine), 8.0).settle(START_W)
    power_w, temp_c, share = through_time(nodes, fine, len(found.rate) * found.period_s)
    assert share > 0.05
    # Here periods in which clocks are lower last longer; profiles of jobs are such that they do not.
    lasts = 1.0 / found.rate
    assert np.average(found.power_w, axis=0, weights=lasts) == pytest.approx(power_w, rel=0.06)
    assert np.average(found.temp_c, axis=0, weights=lasts) == pytest.approx(temp_c, abs=2.0)
    assert float(np.average((found.reasons != 0).mean(axis=(1, 2)), weights=lasts)) == pytest.approx(share, abs=0.03)


def test_a_step_of_known_length_is_stretched_to_it() -> None:
    nodes, load = machine(), by_period(profile(160))
    free, known = (Periodic(nodes, load, 8.0).settle(START_W, lasts_s) for lasts_s in (None, 8.0))
    assert len(free.rate) * free.period_s > 8.05
    assert len(known.rate) * known.period_s == pytest.approx(8.0)
    # Less work in as much time: clocks are lower for less of it.
    assert known.rate.mean() < 0.995 and known.position_s[-1] < free.position_s[-1]


def test_devices_without_work_are_idle_at_the_lowest_clock() -> None:
    nodes, shape = machine(), (40, 1, 8)
    busy = np.zeros(shape)
    busy[:, :, :4] = 1.0
    found = Periodic(nodes, Profile(np.full(40, PERIOD_S), Activity(busy, 0.25 * busy)), 2.0).settle(START_W)
    assert (found.reasons[:, :, 4:] == int(Reason.IDLE)).all() and not (found.reasons[:, :, :4]).any()
    assert (found.clock_mhz[:, :, 4:] == nodes.table.mhz[0]).all()
