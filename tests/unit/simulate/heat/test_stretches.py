"""The loop of stretches in C, and the chain of their heat, against numpy; arrays that do not fit are refused."""

from typing import Any

import numpy as np
import pytest

from tests.unit.simulate.heat.machines import machine
from triplepoint.simulate.heat import _stretches
from triplepoint.simulate.power.gpu import Clocks

NUM_STRETCHES, LENGTH, NUM_NODES, NUM_DEVICES, NUM_STATES = 3, 5, 2, 4, 12
AT_REST_W, MOST_W = 10.0, 300.0

Arrays = dict[str, Any]


def made_up(seed: int) -> Arrays:
    """Return the arguments of the loop, by name and in its order: devices at limits, at ceilings and at rest."""
    random, periods = np.random.default_rng(seed), NUM_STRETCHES * LENGTH
    shape, start = (NUM_NODES, NUM_DEVICES), (NUM_STRETCHES, NUM_NODES, NUM_DEVICES)
    clocks: Clocks = machine().table
    highest = len(clocks.mhz) - 1
    tables = [
        clocks.stretch, clocks.starved, clocks.voltage_share, clocks.energy_share, clocks.energy_share * clocks.share,
        np.full(highest + 1, 0.01),
    ]  # fmt: skip
    ranges = ((0, 60), (0, 500), (5, 80), (0, 1), (0, 0.5))
    requested = random.uniform(0, highest, start)
    return {
        "rates": np.stack([random.uniform(*limits, (periods, *shape)) for limits in ranges]),
        "dither": random.uniform(0, 1, periods),
        "tables": np.stack(tables),
        "values": np.stack([
            random.uniform(*limits, shape) for limits in ((300, 500), (20, 60), (40, 90), (highest / 2, highest))
        ]),
        "twin": np.array([1, 0, 2, 3]),
        "propagator": random.uniform(0, 0.07, (NUM_NODES, NUM_STATES + NUM_DEVICES, NUM_STATES)),
        "numbers": np.array([0.01, 50.0, MOST_W, 1.1, 4.0, AT_REST_W]),
        "record": np.zeros((4, periods, *shape)),
        "index": np.zeros((periods, *shape), dtype=np.int64),
        "rate": np.zeros(periods),
        "allowed": requested + 1.0,
        "requested": requested,
        "clock": requested.astype(np.int64),
        "heat": random.uniform(0, 60, (NUM_NODES, NUM_STRETCHES, NUM_STATES)),
    }  # fmt: skip


def loop(made: Arrays) -> None:
    """Do in numpy, one stretch and period after the other, what `_stretches.run` documents."""
    traffic_w, work_w, awake_w, bound, streams = made["rates"]
    stretch, starved, leakage_share, energy_share, clock_energy, growth = made["tables"]
    limit_w, inlet_leakage_w, shutdown_k, ceiling = made["values"]
    leakage_growth, fixed_w, most_w, scale, rise_step, at_rest_w = made["numbers"]
    for number in range(NUM_STRETCHES):
        heat = made["heat"][:, number].copy()
        allowed, requested, clock = (made[name][number] for name in ("allowed", "requested", "clock"))
        for now in range(number * LENGTH, (number + 1) * LENGTH):
            index = np.minimum(clock, (ceiling + made["dither"][now]).astype(np.int64))
            index = np.where(awake_w[now] < at_rest_w, 0, index)
            slowdown = 1.0 + bound[now] * stretch[index] + streams[now] * starved[index]
            made["rate"][now] = 1.0 / slowdown.max()
            speed = made["rate"][now] / scale
            rise_k = heat[:, :NUM_DEVICES].copy()
            leakage_w = inlet_leakage_w * np.exp(leakage_growth * np.minimum(rise_k, shutdown_k)) * leakage_share[index]
            clocked_w = leakage_w + speed * work_w[now] * energy_share[index] + awake_w[now] * clock_energy[index]
            power_w = np.minimum(clocked_w + speed * traffic_w[now] + fixed_w, most_w)
            made["record"][:, now], made["index"][now] = (power_w, rise_k, slowdown, allowed), index
            heat = (np.concatenate([heat, power_w], axis=1)[:, None] @ made["propagator"])[:, 0]
            power_w, clocked_w = (0.5 * (watts + watts[:, made["twin"]]) for watts in (power_w, clocked_w))
            change = (limit_w - power_w) / (clocked_w * growth[clock])
            allowed[:] = np.clip(requested + change, 0.0, len(growth) - 1.0)
            requested[:] = np.minimum(allowed, requested + rise_step)
            clock[:] = requested.astype(np.int64)
        made["heat"][:, number] = heat


@pytest.mark.parametrize("seed", range(5))
def test_does_what_numpy_does(seed: int) -> None:
    found, expected = made_up(seed), made_up(seed)
    _stretches.run(*found.values())
    loop(expected)
    assert (expected["index"] == 0).any() and (expected["index"] > 0).any() and (expected["record"][0] == MOST_W).any()
    for name, array in expected.items():
        assert found[name] == pytest.approx(array, rel=1e-12, abs=1e-12), name


@pytest.mark.parametrize("name", [name for name in made_up(0) if name not in ("twin", "heat", "rate", "tables")])
def test_array_of_another_size_is_refused(name: str) -> None:
    made = made_up(0)
    made[name] = made[name][..., :-1].copy()
    with pytest.raises(ValueError, match="wrong size"):
        _stretches.run(*made.values())


@pytest.mark.parametrize("name", ["twin", "clock"])
@pytest.mark.parametrize("index", [-1, 1000])
def test_index_out_of_range_is_refused(name: str, index: int) -> None:
    made = made_up(0)
    made[name].flat[0] = index
    with pytest.raises(ValueError, match="out of range"):
        _stretches.run(*made.values())


def test_a_ceiling_that_is_no_number_is_the_lowest_clock() -> None:
    made = made_up(0)
    made["values"][3] = np.nan
    _stretches.run(*made.values())
    assert (made["index"] == 0).all()


def heat_of_stretches(seed: int) -> tuple[Any, ...]:
    """Return the arguments of `_stretches.chain`."""
    random, shape = np.random.default_rng(seed), (NUM_NODES, NUM_STRETCHES, NUM_STATES)
    stay = random.uniform(0, 1 / NUM_STATES, (NUM_NODES, NUM_STATES, NUM_STATES))
    return (
        stay,
        random.uniform(0, 60, (NUM_NODES, NUM_STATES)),
        random.uniform(0, 60, shape),
        random.uniform(0, 60, shape),
    )


@pytest.mark.parametrize("seed", range(3))
def test_chain_starts_each_stretch_where_the_one_before_ends(seed: int) -> None:
    stay, steady, end, start = heat_of_stretches(seed)
    driven = end - start @ stay
    expected, first = np.empty_like(start), steady
    for _ in range(2):
        for number in range(NUM_STRETCHES):
            expected[:, number] = first
            first = (first[:, None] @ stay)[:, 0] + driven[:, number]
    _stretches.chain(stay, steady, end, start)
    assert start == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("place", range(3))
def test_chain_refuses_arrays_of_another_size(place: int) -> None:
    arrays = list(heat_of_stretches(0))
    arrays[place] = arrays[place][..., :-1].copy()
    with pytest.raises(ValueError, match="wrong size"):
        _stretches.chain(*arrays)
