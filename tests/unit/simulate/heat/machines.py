"""Machines whose heat can be counted by hand, and the ones of the configuration."""

from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np

from tests.unit.simulate.power.made_up import estimate
from triplepoint.simulate.heat.devices import Devices, equal_devices
from triplepoint.simulate.heat.machine import Machine, Profile
from triplepoint.simulate.heat.parameters import (
    AirflowConfig,
    CoolingConfig,
    HeatConfig,
    LimitConfig,
    read_airflow,
    read_heat,
)
from triplepoint.simulate.power.gpu import Activity
from triplepoint.simulate.power.parameters import read_power

CONFIG = Path(__file__).parents[4] / "config"


def cooling(twin: float | None = None) -> CoolingConfig:
    """0.04 K/W in 0.2 s from die to sink, 0.01 K/W in 5 s from sink to air: 5 and 500 J/K."""
    return CoolingConfig(
        die_resistance=estimate(0.04, "K/W"),
        die_time=estimate(0.2, "s"),
        sink_resistance=estimate(0.01, "K/W"),
        sink_time=estimate(5, "s"),
        twin_resistance=None if twin is None else estimate(twin, "K/W"),
        preheat_share=estimate(1, "1"),
    )


def airflow(rows: list[list[int]], packages: list[list[int]] | None = None) -> AirflowConfig:
    """0.02 K for each watt of the row before, after 10 s."""
    devices = sorted(device for row in rows for device in row)
    return AirflowConfig(
        name="made-up",
        rows=rows,
        packages=packages or [[device] for device in devices],
        preheat=estimate(0.02, "K/W"),
        air_time=estimate(10, "s"),
    )


def limits(**changes: float) -> LimitConfig:
    celsius = {"max_temperature": 80.0, "slowdown_temperature": 90.0, "shutdown_temperature": 100.0}
    ratios = {"thermal_slew": 0.1, "slowdown_share": 0.5}
    return LimitConfig(
        **{name: estimate(changes.get(name, value), "degC") for name, value in celsius.items()},
        **{name: estimate(changes.get(name, value), "1") for name, value in ratios.items()},
        hysteresis=estimate(3, "K"),
        release_time=estimate(1, "s"),
    )


def heat() -> HeatConfig:
    ratios = {"resistance_spread": 0.05, "bad_contact_share": 0.01, "bad_contact_factor": 5.0}
    shares = {name: estimate(value, "1") for name, value in ratios.items()}
    return HeatConfig(
        name="made-up", cooling={"air": cooling()}, limits=limits(), sensors=read_heat("h200", CONFIG).sensors, **shares
    )


def machine(gpu: str = "h200", node: str = "hgx-8", num_nodes: int = 1, **changes: Any) -> Machine:
    """Nodes as configured, with equal parts and 25 degC at the inlet unless said otherwise."""
    flow = read_airflow(node, CONFIG)
    devices: Devices = changes.pop("devices", equal_devices(num_nodes, flow.num_devices))
    inlet = changes.pop("inlet_c", np.full(devices.die.shape[0], 25.0))
    return Machine(read_power(gpu, CONFIG), read_heat(gpu, CONFIG), flow, devices, inlet, **changes)


def product(machine: Machine, step_s: float = 5.0, **changes: Any) -> Profile:
    """Every device multiplies large matrices all the time."""
    activity = {"awake": 1.0, "tensor": 0.97, "hbm": 0.15, "clock_bound": 1.0} | changes
    return uniform_profile(
        step_s, Activity(**{name: np.broadcast_to(value, machine.shape) for name, value in activity.items()})
    )


def uniform_profile(step_s: float, activity: Activity) -> Profile:
    """Return a step that is the same all the time; activity of shape (num_nodes, num_devices)."""
    columns = {part.name: np.asarray(getattr(activity, part.name))[None] for part in fields(Activity)}
    return Profile(np.array([step_s]), Activity(**columns))
