"""The devices of a job with their heat, and the step of a job as a profile of what they do."""

from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from triplepoint.simulate.heat.clocks import Bool
from triplepoint.simulate.heat.devices import Devices
from triplepoint.simulate.heat.network import Network, Propagator, build_network, propagator
from triplepoint.simulate.heat.parameters import AirflowConfig, Cooling, CoolingConfig, HeatConfig
from triplepoint.simulate.power.gpu import Activity, Clocks, Float, Int64, clock_table, data_share
from triplepoint.simulate.power.parameters import PowerConfig


@dataclass(frozen=True, eq=False)
class Machine:
    """Nodes of one kind.

    Attributes:
        power: Of the GPU type.
        heat: Of the GPU type.
        airflow: Of the nodes.
        devices: How parts differ.
        inlet_c: Air at the inlet of every node; shape (num_nodes,). Unit: degC.
        cooling: Air or liquid.
        power_limit_w: Of every device; shape (num_nodes, num_devices); the GPU type's where empty. Unit: W.
        brake: Devices whose power brake is pulled; shape (num_nodes, num_devices); none where empty.
        clock_limit_mhz: Highest clock each device is locked to; same shape; the GPU type's where empty. Unit: MHz.
        inlet_sigma_k: Standard deviation of the inlet. Unit: K.
        fan_flow: Flow of every node's fans over the full one: 1 where it does not follow load, 0 where there is no air;
            shape (num_nodes,) or none.
        period_s: Control period. Assumed: power governors of GPUs act within 20 to 100 ms. Unit: s.
    """

    power: PowerConfig
    heat: HeatConfig
    airflow: AirflowConfig
    devices: Devices
    inlet_c: Float
    cooling: Cooling = "air"
    power_limit_w: Float = field(default_factory=lambda: np.empty(0))
    brake: Bool = field(default_factory=lambda: np.empty(0, dtype=np.bool_))
    clock_limit_mhz: Float = field(default_factory=lambda: np.empty(0))
    inlet_sigma_k: float = 4.0
    fan_flow: Float | float = 1.0
    period_s: float = 0.05

    @property
    def shape(self) -> tuple[int, int]:
        """Nodes, and devices in each."""
        num_nodes, num_devices = self.devices.die.shape
        return num_nodes, num_devices

    def under_load(self, power_w: Float) -> "Machine":
        """Return the nodes with fans as they run under a load; power of shape (num_nodes, num_devices). Unit: W."""
        if not self.cooled_by.preheat_share.value:
            return replace(self, fan_flow=0.0)
        if self.airflow.fans is None:
            return self
        flow, before = self.airflow.fans.flow(power_w.mean(axis=1)), np.asarray(self.fan_flow)
        devices = replace(self.devices, flow=self.devices.flow * (flow / before)[:, None])
        return replace(self, devices=devices, fan_flow=flow)

    def of_nodes(self, nodes: Int64) -> "Machine":
        """Return some of the nodes, in the order of their numbers given; shape (num_chosen,)."""
        devices = self.devices
        sensor_k = np.broadcast_to(devices.sensor_k, self.shape)[nodes]
        own = replace(
            devices, die=devices.die[nodes], leakage=devices.leakage[nodes], flow=devices.flow[nodes], sensor_k=sensor_k
        )
        limits_w = self.power_limit_w[nodes] if self.power_limit_w.size else self.power_limit_w
        brake = self.brake[nodes] if self.brake.size else self.brake
        return replace(self, devices=own, inlet_c=self.inlet_c[nodes], power_limit_w=limits_w, brake=brake)

    @cached_property
    def network(self) -> Network:
        """Heat."""
        return build_network(self.cooled_by, self.airflow, self.devices)

    @cached_property
    def cooled_by(self) -> CoolingConfig:
        """From the die to the coolant, as the nodes have it."""
        cooling = self.heat.cooling_by(self.cooling)
        return self.airflow.over(cooling) if self.cooling == "air" else cooling

    @cached_property
    def responses(self) -> Float:
        """Die over inlet for each watt of every device of a node; shape (num_nodes, num_devices, num_devices)."""
        return np.asarray(np.linalg.solve(self.network.change, -self.network.drive)[:, : self.shape[1]])

    @cached_property
    def resistance(self) -> Float:
        """Die over inlet for each watt that every device of a node draws; shape (num_nodes, num_devices). Unit: K/W."""
        return np.asarray(self.responses.sum(axis=2))

    @cached_property
    def step(self) -> Propagator:
        """Heat over one control period."""
        return propagator(self.network, self.period_s)

    @cached_property
    def table(self) -> Clocks:
        """Clocks."""
        return clock_table(self.power.clocks)

    @cached_property
    def limits_w(self) -> Float:
        """Power limit of every device. Unit: W."""
        given = self.power_limit_w if self.power_limit_w.size else np.asarray(self.power.power_limit.value)
        return np.broadcast_to(given, self.shape).astype(float)

    @cached_property
    def ceilings(self) -> Float:
        """Place of the highest clock of every device; shape (num_nodes, num_devices)."""
        given = self.clock_limit_mhz if self.clock_limit_mhz.size else np.asarray(self.table.mhz[-1])
        return np.asarray(np.broadcast_to(self.table.nearest(given), self.shape), dtype=float)

    @cached_property
    def braked(self) -> Bool:
        """Devices whose power brake is pulled."""
        return np.broadcast_to(self.brake if self.brake.size else np.asarray(False), self.shape)

    @cached_property
    def twin(self) -> Int64:
        """Of every device the other one of its package, itself where there is none; shape (num_devices,)."""
        twin = np.arange(self.airflow.num_devices)
        for package in self.airflow.packages:
            twin[package] = package[::-1]
        return twin


@dataclass(frozen=True, eq=False)
class Profile:
    """One step of the job as if clocks were at their highest, cut into bins; over and over.

    Attributes:
        duration_s: Of every bin, none of them empty; shape (num_bins,). Unit: s.
        activity: Shape (num_bins, num_kinds): of every kind of device; without kinds of every device, shape (num_bins,
            num_nodes, num_devices).
        kind: Of every device, its kind; shape (num_nodes, num_devices).
    """

    duration_s: Float
    activity: Activity
    kind: Int64 | None = None

    def __post_init__(self) -> None:
        """Check the bins."""
        assert (self.duration_s > 0).all(), "a bin of no length has no rates"

    @property
    def step_s(self) -> float:
        """Length of the step. Unit: s."""
        return float(self.duration_s.sum())

    def rates(self, power: PowerConfig) -> tuple[Float, ...]:
        """Return what the loop needs of the activity, of the shape of its arrays.

        Returns:
            At the highest clock and voltage, power that goes with rates alone, with rates and voltage, with clock and
            voltage (W); the share of the time that goes with the clock, and that in which memory is read or written.
        """
        act = self.activity
        data = data_share(power, act.randomness)
        return (
            power.hbm.value * np.asarray(act.hbm) * data + power.link.value * np.asarray(act.link),
            (power.tensor.value * np.asarray(act.tensor) + power.sm.value * np.asarray(act.sm)) * data,
            power.clock_tree.value * np.asarray(act.awake),
            np.asarray(act.clock_bound),
            np.asarray(act.hbm),
        )

    def of_devices(self, values: Float, shape: tuple[int, int]) -> Float:
        """Return values of kinds as those of devices; shape (num_bins, num_nodes, num_devices)."""
        own = values if self.kind is None else values[:, self.kind]
        return np.broadcast_to(own, (len(self.duration_s), *shape))

    def integral(self, power: PowerConfig, shape: tuple[int, int]) -> Float:
        """Return `rates` summed up to the border of every bin; shape (num_bins + 1, 5, num_nodes, num_devices)."""
        rates = np.stack([self.of_devices(column, shape) for column in self.rates(power)], axis=1)
        parts = np.cumsum(rates * self.duration_s[:, None, None, None], axis=0)
        return np.concatenate([np.zeros_like(parts[:1]), parts])
