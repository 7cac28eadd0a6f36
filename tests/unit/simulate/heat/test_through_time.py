"""The loop through time in C against plain Python; arrays that do not fit and indices out of range are refused."""

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.simulate.heat.machines import limits, machine
from triplepoint.simulate.heat import _stretches
from triplepoint.simulate.heat.clocks import Governor
from triplepoint.simulate.heat.loop import clock_effects

NUM_NODES, NUM_DEVICES, NUM_STATES, NUM_PERIODS = 2, 3, 9, 40
MOST_W = 400.0

Arrays = dict[str, Any]


def made_up(seed: int) -> Arrays:
    """Return the arguments of the loop, by name and in its order: devices at limits, too hot, braked and at rest."""
    random, shape = np.random.default_rng(seed), (NUM_NODES, NUM_DEVICES)
    nodes, num_bins = machine(), int(random.integers(1, 6))
    brake = random.random(shape) < 0.3
    governor = Governor(nodes.table, limits(), 0.2, brake, 0.1)
    highest = len(nodes.table.mhz) - 1
    duration_s = random.uniform(0.03, 0.4, num_bins)
    ranges = ((0, 60), (0, 500), (5, 80), (0, 1), (0, 0.5))
    rates = np.stack([random.uniform(*limit, (num_bins, *shape)) for limit in ranges], axis=1)
    rates[:, :, random.random(shape) < 0.2] = 0.0
    edges_s = np.append(0.0, np.cumsum(duration_s))
    integral = np.append(np.zeros((1, 5, *shape)), np.cumsum(rates * duration_s[:, None, None, None], axis=0), axis=0)
    values = [random.uniform(*limit, shape) for limit in ((150, 400), (5, 60), (20, 70))]
    requested = random.uniform(0, highest, shape)
    return {
        "edges_s": edges_s,
        "integral": integral,
        "tables": clock_effects(nodes.table, nodes.power, governor),
        "values": np.stack([*values, random.uniform(20, 45, shape), brake]),
        "twin": np.array([1, 0, 2]),
        "propagator": random.uniform(0, 0.08, (NUM_NODES, NUM_STATES + NUM_DEVICES, NUM_STATES)),
        "numbers": np.array([0.01, 50.0, MOST_W, 1.0, governor.rise_step, 1e-9, 0.1, edges_s[-1], seed % 4 > 0]),
        "zones": governor.zones,
        "slowdown_index": governor.slowdown_index,
        "record": np.zeros((5, NUM_PERIODS, *shape)),
        "is_slowed": np.zeros((NUM_PERIODS, *shape), dtype=np.bool_),
        "index": np.zeros((NUM_PERIODS, *shape), dtype=np.int64),
        "rate": np.zeros(NUM_PERIODS),
        "position_s": np.zeros(NUM_PERIODS),
        "allowed": requested + 1.0,
        "requested": requested,
        "clock": requested.astype(np.int64),
        "ceiling": random.uniform(highest / 2, highest, shape),
        "left_s": random.uniform(0, 0.3, shape) * (random.random(shape) < 0.3),
        "heat": random.uniform(0, 60, (NUM_NODES, NUM_STATES)),
        "job": np.array([random.uniform(0, 3), random.uniform(0.3, 1)]),
    }


def work_done(made: Arrays, position_s: float, node: int, device: int) -> list[float]:
    """Return the integral of the profile up to a position, for one device."""
    edges_s, step_s = made["edges_s"], made["numbers"][7]
    num_steps, within_s = divmod(position_s, step_s)
    integral = made["integral"][:, :, node, device]
    return [num_steps * kind[-1] + float(np.interp(within_s, edges_s, kind)) for kind in integral.T]


def clock_of(made: Arrays, node: int, device: int, watts: list[tuple[float, float]]) -> None:
    """Set the clock of one device from power, and from power that depends on the clock, of all of its node."""
    at, growth, twin = (node, device), made["tables"][5], int(made["twin"][device])
    power_w, clocked_w = ((watts[device][kind] + watts[twin][kind]) / 2 for kind in (0, 1))
    highest, limit_w = len(growth) - 1.0, made["values"][0][at]
    change = (limit_w - power_w) / (clocked_w * growth[made["clock"][at]])
    made["allowed"][at] = min(max(made["requested"][at] + change, 0.0), highest)
    made["requested"][at] = min(made["allowed"][at], made["requested"][at] + made["numbers"][4])
    temp_c, braked = made["heat"][at] + made["values"][3][at], made["values"][4][at]
    start_c, ceiling_step, elapsed_s, restart_s = made["zones"]
    zone = max(place for place, low_c in enumerate(start_c) if temp_c >= low_c)
    made["ceiling"][at] = min(max(made["ceiling"][at] + ceiling_step[zone], 0.0), highest)
    made["left_s"][at] = max(made["left_s"][at] + elapsed_s[zone], restart_s[zone])
    clock = int(min(made["requested"][at], made["ceiling"][at]))
    made["clock"][at] = made["slowdown_index"][clock] if made["left_s"][at] > 1e-9 or braked else clock


def power_of(made: Arrays, node: int, device: int, clock: int, rates: list[float]) -> tuple[float, float]:
    """Return the power of one device, and the part of it that depends on the clock."""
    leakage_growth, fixed_w, most_w = made["numbers"][:3]
    _, _, leakage_share, energy_share, clock_energy, _ = made["tables"][:, clock]
    _, inlet_leakage_w, shutdown_k, _, _ = made["values"][:, node, device]
    rate, (traffic_w, work_w, awake_w, _, _) = made["job"][1], rates
    growth = math.exp(leakage_growth * min(made["heat"][node, device], shutdown_k))
    clocked_w = inlet_leakage_w * growth * leakage_share + rate * work_w * energy_share + awake_w * clock_energy
    return min(clocked_w + rate * traffic_w + fixed_w, most_w), clocked_w


def loop(made: Arrays) -> None:
    """Do in Python, one period, node and device after the other, what `_stretches.follow` documents."""
    stretch, starved = made["tables"][:2]
    for now in range(NUM_PERIODS):
        position_s, rate = made["job"]
        moved_s = rate * made["numbers"][6]
        made["rate"][now], made["position_s"][now] = rate, position_s + moved_s
        made["record"][3:, now] = made["allowed"], made["ceiling"]
        made["is_slowed"][now], slowdowns, watts = made["left_s"] > 1e-9, [], []
        for node, device in np.ndindex(NUM_NODES, NUM_DEVICES):
            after, before = (work_done(made, at_s, node, device) for at_s in (position_s + moved_s, position_s))
            rates = [(end - start) / moved_s for end, start in zip(after, before, strict=True)]
            clock = int(made["clock"][node, device]) if rates[2] >= made["numbers"][5] else 0
            slowdowns.append(1.0 + rates[3] * stretch[clock] + rates[4] * starved[clock])
            watts.append(power_of(made, node, device, clock, rates))
            made["index"][now, node, device] = clock
        of_nodes = [watts[node * NUM_DEVICES :][:NUM_DEVICES] for node in range(NUM_NODES)]
        for node, of_node in enumerate(of_nodes):
            column = np.append(made["heat"][node], [power_w for power_w, _ in of_node])
            made["heat"][node] = column @ made["propagator"][node]
        shape = NUM_NODES, NUM_DEVICES
        made["record"][0, now] = np.reshape([power_w for power_w, _ in watts], shape)
        made["record"][1, now], made["record"][2, now] = made["heat"][:, :NUM_DEVICES], np.reshape(slowdowns, shape)
        if made["numbers"][8]:
            for node, device in np.ndindex(NUM_NODES, NUM_DEVICES):
                clock_of(made, node, device, of_nodes[node])
        made["job"][:] = position_s + moved_s, 1.0 / max(slowdowns)


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 2**32))
def test_does_what_python_does(seed: int) -> None:
    found, expected = made_up(seed), made_up(seed)
    _stretches.follow(*found.values())
    loop(expected)
    for name, array in expected.items():
        assert found[name] == pytest.approx(array, rel=1e-9, abs=1e-9), name


def test_examples_reach_every_limit() -> None:
    seen = made_up(3)
    loop(seen)
    power_w, _, _, allowed, ceiling = seen["record"]
    highest = len(seen["slowdown_index"]) - 1
    assert (power_w == MOST_W).any() and (allowed < highest).any() and (ceiling < highest).any()
    assert seen["is_slowed"].any() and seen["values"][4].any() and (seen["index"] == 0).any()


@pytest.mark.parametrize("name", made_up(0))
def test_array_of_another_size_is_refused(name: str) -> None:
    made = made_up(0)
    made[name] = made[name][..., :-1].copy()
    with pytest.raises(ValueError, match="wrong size"):
        _stretches.follow(*made.values())


@pytest.mark.parametrize("name", ["twin", "slowdown_index", "clock"])
@pytest.mark.parametrize("index", [-1, 1000])
def test_index_out_of_range_is_refused(name: str, index: int) -> None:
    made = made_up(0)
    made[name].flat[0] = index
    with pytest.raises(ValueError, match="out of range"):
        _stretches.follow(*made.values())


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, -1e300, 0.0])
@pytest.mark.parametrize("name", [name for name, array in made_up(0).items() if array.dtype == np.float64])
def test_any_numbers_end_with_clocks_of_the_table(name: str, value: float) -> None:
    made = made_up(1)
    made[name][...] = value
    _stretches.follow(*made.values())
    for clocks in (made["index"], made["clock"]):
        assert clocks.min() >= 0 and clocks.max() < len(made["slowdown_index"])
