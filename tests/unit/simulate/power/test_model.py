"""Power of devices: by hand, and what must hold for any activity."""

import math
from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.node_power import product_tflops
from tests.unit.simulate.power.made_up import clocks, node, power
from triplepoint.errors import UserError
from triplepoint.simulate.power.gpu import (
    Activity,
    clock_at_limit,
    clock_table,
    gpu_power_w,
    power_parts,
    rate_at,
    voltage_v,
)
from triplepoint.simulate.power.node import board_power_w, fan_power_w, node_power_w, rack_power_w
from triplepoint.simulate.power.parameters import read_node_power, read_power

CONFIG = Path(__file__).parents[4] / "config"
share = st.floats(0, 1)
activities = st.builds(Activity, share, share, share, share, share, share, share)


def test_voltage_v_is_flat_then_straight() -> None:
    assert voltage_v(clocks(), np.array([500, 1000, 1500, 2000])).tolist() == [0.5, 0.5, 0.75, 1.0]


def test_gpu_power_w_by_hand_at_highest_clock() -> None:
    busy = Activity(awake=1, tensor=0.5, sm=0.1, hbm=0.25, link=0.5)
    # 10 + 20 + 100 + 50 + 200 + 20 + 20 + 20
    assert gpu_power_w(power(), busy, 2000, 60) == pytest.approx(440)


def test_power_parts_at_half_clock_cost_a_quarter_per_operation() -> None:
    parts = power_parts(power(), Activity(awake=1, tensor=0.5, hbm=0.5), 1000, 60)
    assert parts.tensor == pytest.approx(400 * 0.5 * 0.25)
    assert parts.clock_tree == pytest.approx(50 * 0.5 * 0.25)
    assert parts.leakage == pytest.approx(100 * 0.25)
    assert parts.memory_idle + parts.hbm == pytest.approx(20 + 40)


def test_power_parts_zeros_switch_half() -> None:
    parts = power_parts(power(), Activity(awake=1, tensor=1, sm=1, hbm=1, randomness=0.0), 2000, 60)
    assert (parts.tensor, parts.sm, parts.hbm) == (200, 100, 40)


@settings(deadline=None)
@given(activities, st.floats(500, 2000), st.floats(10, 95))
def test_power_parts_sum_to_power(activity: Activity, clock: float, temp: float) -> None:
    parts = power_parts(power(), activity, clock, temp)
    whole = sum(float(getattr(parts, part.name)) for part in fields(parts))
    assert gpu_power_w(power(), activity, clock, temp) == pytest.approx(whole)


@settings(deadline=None)
@given(activities, st.floats(500, 1990), st.floats(10, 94))
def test_gpu_power_w_grows_with_clock_temperature_and_work(activity: Activity, clock: float, temp: float) -> None:
    found = gpu_power_w(power(), activity, clock, temp)
    assert gpu_power_w(power(), activity, clock + 10, temp) >= found
    assert gpu_power_w(power(), activity, clock, temp + 1) > found
    assert gpu_power_w(power(), activity.at_rate(0.5), clock, temp) <= found


@settings(deadline=None)
@given(activities, st.floats(150, 900), st.floats(20, 90))
def test_clock_at_limit_is_the_highest_within(activity: Activity, limit: float, temp: float) -> None:
    table = clock_table(clocks())
    found = float(clock_at_limit(power(), activity, limit, temp))

    def taken(clock: float) -> float:
        rate = rate_at(clock / 2000, activity.clock_bound)
        return float(gpu_power_w(power(), activity.at_rate(rate), clock, temp))

    assert taken(found) <= limit or found == table.mhz[0]
    if found < 2000:
        assert taken(float(table.mhz[table.nearest(found) + 1])) > limit


def test_clock_at_limit_less_random_operands_run_faster() -> None:
    product = Activity(1.0, 0.9, 0.0, 0.1, 0.0, np.array([1.0, 0.5, 0.0]), 1.0)
    found = clock_at_limit(power(), product, 400.0, 60.0)
    assert found[0] < found[1] < found[2]


def test_gpu_power_w_at_rest_leaks_more_when_hot() -> None:
    # 10 + 20 + 100 at half the voltage, e^0.1 more for every ten degrees
    assert gpu_power_w(power(), Activity(awake=0.0), 500, 60) == pytest.approx(55)
    assert gpu_power_w(power(), Activity(awake=0.0), 500, 70) == pytest.approx(30 + 25 * math.exp(0.1))


def test_clock_table_ends_at_the_highest() -> None:
    table = clock_table(clocks())
    assert (table.mhz[0], table.mhz[1], table.mhz[-1]) == (500, 510, 2000)
    assert table.nearest(np.array([100, 514.9, 520, 9000])).tolist() == [0, 1, 2, len(table.mhz) - 1]


def test_node_power_w_by_hand() -> None:
    # 400 GPUs + 140 CPU at a fifth + 50 + 10 + 200 + 60 + 40 NICs + 100 fans, over 0.8, then over 0.5 at the plug
    gpus = np.array([100.0] * 4)
    assert board_power_w(node(), gpus, 0.0, 2, 0.2) == pytest.approx(1250)
    assert node_power_w(node(), gpus, 0.0, 2, 0.2) == pytest.approx(2500)
    assert rack_power_w(np.array([1.0, 2, 4]), [[0, 2], [1]]).tolist() == [5, 2]


def test_fan_power_w_goes_with_the_cube_of_speed() -> None:
    # 700 W between rest and full flow, an eighth of it at half the flow.
    assert fan_power_w(node(), np.array([0.0, 0.5, 1.0])) == pytest.approx([100, 100 + 700 / 8, 800])


@pytest.mark.parametrize(("name", "low", "high"), [("h100", 68, 76), ("h200", 73, 77), ("mi250", 44, 46.5)])
def test_config_idle_power_as_published(name: str, low: float, high: float) -> None:
    """nvidia-smi shows 68 to 76 W (H100) and 73 to 77 W (H200) at some 30 degC, 88 to 93 W a package of two (MI250)."""
    known = read_power(name, CONFIG)
    assert low <= gpu_power_w(known, Activity(awake=0.0), known.clocks.min_clock.value, 30) <= high


def test_config_sustained_throughput_of_an_h200_at_700_w() -> None:
    """A large bf16 GEMM reaches 788 TFLOP/s on one H200 (stas00/ml-engineering), 690 to 715 on another one.

    The other is that of ai-dynamo/aiconfigurator: parts and coolers differ. With zeros the first one reaches 894.
    """
    random, zeros = (product_tflops("h200", 700.0, randomness=share) for share in (1.0, 0.0))
    assert 690 < random < 788
    assert zeros / random == pytest.approx(894 / 788, rel=0.02)


def test_config_node_reads() -> None:
    assert read_node_power("hgx-8", CONFIG).rectifier_efficiency.value < 1


def test_read_power_names_wrong_unit(tmp_path: Path) -> None:
    (tmp_path / "power").mkdir()
    text = (CONFIG / "power" / "h200.yaml").read_text().replace("unit: MHz", "unit: GHz", 1)
    (tmp_path / "power" / "h200.yaml").write_text(text)
    with pytest.raises(UserError, match=r"min_clock.*unit is 'GHz', expected 'MHz'"):
        read_power("h200", tmp_path)
