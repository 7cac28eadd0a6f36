"""The nodes of a job with their heat, and the profile of a step's activity."""

from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from triplepoint.simulate.heat.clocks import Bool
from triplepoint.simulate.heat.devices import Devices
from triplepoint.simulate.heat.network import Network, Propagator, build_network, propagator
from triplepoint.simulate.heat.parameters import AirflowConfig, Cooling, CoolingConfig, HeatConfig
from triplepoint.simulate.power.gpu import Activity, Clocks, Float, Int64, clock_table, data_share, gpu_power_w
from triplepoint.simulate.power.parameters import PowerConfig


@dataclass(frozen=True, eq=False)
class Machine:
    """Nodes of one kind.

    Attributes:
        power: Power parameters of the GPU type.
        heat: Cooling and limits of the GPU type.
        airflow: Airflow of the nodes.
        devices: Part-to-part differences and faults.
        inlet_c: Air temperature at the inlet of every node; shape (num_nodes,). Unit: degC.
        cooling: Air or liquid.
        power_limit_w: Power limit of every device, empty for that of the GPU type; shape (num_nodes, num_devices).
            Unit: W.
        brake: Devices whose power brake is active, empty for none; shape (num_nodes, num_devices).
        clock_limit_mhz: Highest clock that each device is locked to, empty for that of the GPU type; same shape.
            Unit: MHz.
        inlet_sigma_k: Standard deviation of the inlet temperature. Unit: K.
        fan_flow: Flow of every node's fans over the full flow: 1 if it does not follow load, 0 if there is no air;
            shape (num_nodes,) or a number.
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
        """Number of nodes, and of devices in each."""
        num_nodes, num_devices = self.devices.die.shape
        return num_nodes, num_devices

    @property
    def idle_w(self) -> Float:
        """Power of idle devices; shape (num_nodes, num_devices). Unit: W."""
        idle_w = gpu_power_w(self.power, Activity(awake=0.0), self.power.clocks.min_clock.value, self.inlet_c)
        return np.broadcast_to(idle_w[:, None], self.shape)

    def under_load(self, power_w: Float) -> "Machine":
        """Return the nodes with fans as they run under a load.

        Args:
            power_w: Mean power of every device; shape (num_nodes, num_devices). Unit: W.
        """
        if not self.cooled_by.preheat_share.value:
            return self._without_air
        if self.airflow.fans is None:
            return self
        flow, before = self.airflow.fans.flow(power_w.mean(axis=1)), np.asarray(self.fan_flow)
        devices = replace(self.devices, flow=self.devices.flow * (flow / before)[:, None])
        return replace(self, devices=devices, fan_flow=flow)

    @cached_property
    def _without_air(self) -> "Machine":
        """The nodes with fans at rest; always the same object, whose network is built once."""
        return replace(self, fan_flow=0.0)

    def of_nodes(self, nodes: Int64) -> "Machine":
        """Return some of the nodes.

        Args:
            nodes: Numbers of the nodes, in the order of the result; shape (num_chosen,).
        """
        devices = self.devices
        sensor_k = np.broadcast_to(devices.sensor_k, self.shape)[nodes]
        chosen = replace(
            devices, die=devices.die[nodes], leakage=devices.leakage[nodes], flow=devices.flow[nodes], sensor_k=sensor_k
        )
        limits_w = self.power_limit_w[nodes] if self.power_limit_w.size else self.power_limit_w
        brake = self.brake[nodes] if self.brake.size else self.brake
        return replace(self, devices=chosen, inlet_c=self.inlet_c[nodes], power_limit_w=limits_w, brake=brake)

    @cached_property
    def network(self) -> Network:
        """Thermal network of the nodes."""
        return build_network(self.cooled_by, self.airflow, self.devices)

    @cached_property
    def cooled_by(self) -> CoolingConfig:
        """Cooling from die to coolant, with the values of the nodes if they have their own."""
        cooling = self.heat.cooling_by(self.cooling)
        return self.airflow.over(cooling) if self.cooling == "air" else cooling

    @cached_property
    def responses(self) -> Float:
        """Steady rise of every die over the inlet per watt of every device of its node.

        Shape (num_nodes, num_devices, num_devices). Unit: K/W.
        """
        return self.network.responses[:, : self.shape[1]]

    @cached_property
    def resistance(self) -> Float:
        """Steady rise of every die over the inlet if every device of the node draws one watt.

        Shape (num_nodes, num_devices). Unit: K/W.
        """
        return np.asarray(self.responses.sum(axis=2))

    @cached_property
    def step(self) -> Propagator:
        """Propagator of heat over one control period."""
        return propagator(self.network, self.period_s)

    @cached_property
    def table(self) -> Clocks:
        """Clocks of the GPU type."""
        return clock_table(self.power.clocks)

    @cached_property
    def limits_w(self) -> Float:
        """Power limit of every device; shape (num_nodes, num_devices). Unit: W."""
        given = self.power_limit_w if self.power_limit_w.size else np.asarray(self.power.power_limit.value)
        return np.broadcast_to(given, self.shape).astype(float)

    @cached_property
    def ceilings(self) -> Float:
        """Index of the highest clock of every device; shape (num_nodes, num_devices)."""
        given = self.clock_limit_mhz if self.clock_limit_mhz.size else np.asarray(self.table.mhz[-1])
        return np.asarray(np.broadcast_to(self.table.nearest(given), self.shape), dtype=float)

    @cached_property
    def braked(self) -> Bool:
        """Devices whose power brake is active; shape (num_nodes, num_devices)."""
        return np.broadcast_to(self.brake if self.brake.size else np.asarray(False), self.shape)

    @cached_property
    def twin(self) -> Int64:
        """The other device of the package of every device, or itself; shape (num_devices,)."""
        twin = np.arange(self.airflow.num_devices)
        for package in self.airflow.packages:
            twin[package] = package[::-1]
        return twin


@dataclass(frozen=True, eq=False)
class Profile:
    """Activity in one step of a job, which repeats, as if clocks were at their highest; in time bins.

    Attributes:
        duration_s: Duration of every bin, none of them 0; shape (num_bins,). Unit: s.
        activity: Activity of every kind of device; shape (num_bins, num_kinds). Without `kind`, that of every device;
            shape (num_bins, num_nodes, num_devices).
        kind: Kind of every device; shape (num_nodes, num_devices).
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
        """Return the rates that the closed loop needs, in the shape of the activity.

        Returns:
            Five arrays. Powers at the highest clock and voltage, in W: that which scales with rates only, with rates
            and voltage, with clock and voltage. Then the share of the time that scales with the clock, and that of
            memory traffic.
        """
        activity = self.activity
        data = data_share(power, activity.randomness)
        return (
            power.hbm.value * np.asarray(activity.hbm) * data + power.link.value * np.asarray(activity.link),
            (power.tensor.value * np.asarray(activity.tensor) + power.sm.value * np.asarray(activity.sm)) * data,
            power.clock_tree.value * np.asarray(activity.awake),
            np.asarray(activity.clock_bound),
            np.asarray(activity.hbm),
        )

    def of_devices(self, values: Float, shape: tuple[int, int]) -> Float:
        """Return values of kinds as values of devices; shape (num_bins, num_nodes, num_devices)."""
        by_device = values if self.kind is None else values[:, self.kind]
        return np.broadcast_to(by_device, (len(self.duration_s), *shape))

    def integral(self, power: PowerConfig, shape: tuple[int, int]) -> Float:
        """Return the time integral of `rates` up to every bin edge; shape (num_bins + 1, 5, num_nodes, num_devices)."""
        rates = np.stack([self.of_devices(column, shape) for column in self.rates(power)], axis=1)
        sums = np.cumsum(rates * self.duration_s[:, None, None, None], axis=0)
        return np.concatenate([np.zeros_like(sums[:1]), sums])
