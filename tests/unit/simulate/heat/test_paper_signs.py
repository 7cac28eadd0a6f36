"""The published study's signs, where power and heat alone decide them (arXiv:2509.10371). Nothing is tuned to them."""

import csv
from pathlib import Path

import numpy as np
import pytest

from tests.unit.simulate.heat.machines import CONFIG, machine, product
from triplepoint.simulate.heat.clocks import Reason
from triplepoint.simulate.heat.devices import Devices, draw_devices
from triplepoint.simulate.heat.loop import Steady, run, settle
from triplepoint.simulate.heat.machine import Machine, Profile
from triplepoint.simulate.heat.parameters import read_heat
from triplepoint.simulate.power.gpu import Activity, Float, gpu_power_w
from triplepoint.simulate.power.parameters import read_power

DIES = Path(__file__).parents[3] / "data" / "heat" / "mi250_dies.csv"
FRONT, REAR = [1, 2, 5, 7], [0, 3, 4, 6]
GEMM = {"awake": 1.0, "tensor": 0.8, "hbm": 0.15, "clock_bound": 1.0}
NORM = {"awake": 1.0, "sm": 0.05, "hbm": 0.85}
COMM = {"awake": 1.0, "hbm": 0.2, "link": 0.6}


def steps(nodes: Machine, *phases: tuple[float, dict[str, float]]) -> Profile:
    """A step of phases: length in s, and what every device does."""
    names = ("awake", "tensor", "sm", "hbm", "link", "randomness", "clock_bound")
    rates = {
        name: np.stack(
            [np.full(nodes.shape, phase.get(name, 1.0 if name == "randomness" else 0.0)) for _, phase in phases]
        )
        for name in names
    }
    return Profile(np.array([length for length, _ in phases]), Activity(**rates))


def peak_w(phase: dict[str, float], clock_mhz: float, temp_c: float) -> float:
    return float(gpu_power_w(read_power("h200", CONFIG), Activity(**phase), clock_mhz, temp_c))


def hottest(steady: Steady) -> float:
    return float(steady.trace.temp_c.max())


def test_rear_hotter_than_front() -> None:
    """Published: up to 27 % hotter. Preheat gives 8.6 K at 700 W, spread of sound parts up to 19 % between extremes."""
    nodes = machine()
    found = settle(nodes, product(nodes)).trace.temp_c.mean(axis=0)[0]
    excess = found[REAR].mean() / found[FRONT].mean() - 1
    assert 0.10 < excess < 0.27
    drawn = draw_devices(nodes.heat, nodes.power, (16, 8), seed=4)
    sound = (drawn.die < 2).all(axis=1)
    nodes = machine(devices=Devices(drawn.die[sound], drawn.leakage[sound], drawn.flow[sound]))
    found = settle(nodes, product(nodes)).trace.temp_c.mean(axis=0)
    extremes = found[:, REAR].max(axis=1) / found[:, FRONT].min(axis=1) - 1
    assert extremes.min() > 0.1 and 0.15 < extremes.max() < 0.27


def test_rear_runs_slower_at_the_power_limit_for_leakage() -> None:
    """Published: rear GPUs have lower clocks all the time. Here it is the power limit that hot parts meet sooner."""
    nodes = machine()
    trace = run(nodes, product(nodes), 600.0)
    clock, reasons = trace.clock_mhz[-2000:, 0].mean(axis=0), trace.reasons[-2000:, 0]
    assert clock[REAR].max() < clock[FRONT].min()
    assert (reasons & int(Reason.POWER_CAP)).any() and not (reasons & int(Reason.SW_THERMAL)).any()


def test_larger_micro_batch_raises_peak_power_where_throughput_does_not() -> None:
    """Larger kernels fill the units better; work and communication that do not shrink keep the step as long."""
    small = {**GEMM, "tensor": 0.55}
    assert peak_w(GEMM, 1700, 60) > 1.15 * peak_w(small, 1700, 60)
    nodes = machine(power_limit_w=np.full((1, 8), 700.0))
    # Same FLOPs in less time, but longer exposed communication and a larger bubble of the pipeline.
    less = run(nodes, steps(nodes, (0.8, small), (0.2, COMM)), 120.0)
    more = run(nodes, steps(nodes, (0.8 * 0.55 / 0.8, GEMM), (0.45, COMM)), 120.0)
    assert more.position_s[-1] <= less.position_s[-1] * 1.02
    assert more.power_w.max() > less.power_w.max()


def test_overlap_raises_peak_temperature() -> None:
    """Communication beside computation: the same work in less time, and both powers at once."""
    nodes = machine()
    apart = settle(nodes, steps(nodes, (0.7, {**GEMM, "tensor": 0.6}), (0.3, COMM)))
    beside = {**GEMM, "tensor": 0.6 * 0.7 / 0.75, "hbm": 0.15 + 0.2 * 0.3 / 0.75, "link": 0.6 * 0.3 / 0.75}
    together = settle(nodes, steps(nodes, (0.75, beside)))
    assert together.trace.power_w.mean() > apart.trace.power_w.mean()
    assert hottest(together) > hottest(apart)


def test_less_work_runs_cooler_and_on_less_power() -> None:
    """LoRA has no gradients of frozen weights and waits more; what that is in rates is the timeline's to say."""
    nodes = machine()
    full = settle(nodes, steps(nodes, (0.85, GEMM), (0.15, COMM)))
    lora = settle(nodes, steps(nodes, (0.45, {**GEMM, "tensor": 0.5}), (0.35, NORM), (0.2, {"awake": 0.3})))
    assert lora.trace.power_w.mean() < 0.92 * full.trace.power_w.mean()
    assert hottest(lora) < hottest(full) - 3


def test_mi250_second_die_of_a_package_is_hotter() -> None:
    """Air alone makes 1 K, and 0.3 to 4.4 K wherever flow and sink are plausible; see docs/power-and-heat.md."""
    nodes = machine("mi250", "mi250-4x2", inlet_c=np.full(1, 25.0))
    found = settle(nodes, product(nodes, tensor=0.7, hbm=0.2)).trace.temp_c.mean(axis=0)[0]
    skew = found[1::2] - found[::2]
    assert ((skew > 1) & (skew < 5)).all()


def test_mi250_dies_of_a_package_as_far_apart_as_sensors_show() -> None:
    """Published: 5 to 10 K. Air makes 1 K; sensors as far apart at rest as public ones make the largest of a node.

    20 public packages tell their root mean square to a sixth.
    """
    lines = (line for line in DIES.read_text().splitlines() if not line.startswith("#"))
    public = [float(row["second_c"]) - float(row["first_c"]) for row in csv.DictReader(lines) if row["load"] == "rest"]
    drawn = draw_devices(read_heat("mi250", CONFIG), read_power("mi250", CONFIG), (100, 8), seed=0)
    sound = (drawn.die < 2).all(axis=1)
    nodes = machine("mi250", "mi250-4x2", devices=Devices(*(of[sound] for of in vars(drawn).values())))

    def apart(**rates: float) -> Float:
        shown = settle(nodes, product(nodes, **rates)).trace.temp_c.mean(axis=0) + nodes.devices.sensor_k
        return np.abs(shown[:, 1::2] - shown[:, ::2])

    rest = apart(awake=0.0, tensor=0.0, hbm=0.0)
    assert np.sqrt(np.mean(rest**2)) == pytest.approx(np.sqrt(np.mean(np.square(public))), rel=1 / 6)
    largest = apart(tensor=0.7, hbm=0.2).max(axis=1)
    assert 5 < largest.mean() < 10 and (largest > 10).mean() < 0.1


def test_failed_power_supply_slows_a_node() -> None:
    """Published: more than four times. A power brake as NVML documents it halves clocks: twice at most.

    Under the least power limit (200 W) it is 2.7 times. More takes clocks near the lowest, which nothing
    published says of a brake.
    """
    nodes = machine()
    free = settle(nodes, product(nodes)).step_s
    braked = settle(braked_node := machine(brake=np.ones((1, 8), dtype=bool)), product(braked_node))
    assert 1.4 < braked.step_s / free < 2.0
    assert (braked.trace.reasons & int(Reason.POWER_BRAKE)).all()
    low = machine(power_limit_w=np.full((1, 8), 200.0), brake=np.ones((1, 8), dtype=bool))
    assert 2.5 < settle(low, product(low)).step_s / free < 4.0
