"""The devices of a job with their heat, and the step of a job as a profile of what they do."""

from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from functools import cached_property

import numpy as np

from triplepoint.simulate.heat.clocks import Bool
from triplepoint.simulate.heat.devices import Devices
from triplepoint.simulate.heat.network import Network, Propagator, build_network, propagator
from triplepoint.simulate.heat.parameters import AirflowConfig, Cooling, HeatConfig
from triplepoint.simulate.power.gpu import Activity, Clocks, Float, Int64, clock_table, data_share
from triplepoint.simulate.power.parameters import PowerConfig
from triplepoint.simulate.power.segments import bin_activity
from triplepoint.units import NS_PER_S


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
    period_s: float = 0.05

    @property
    def shape(self) -> tuple[int, int]:
        """Nodes, and devices in each."""
        num_nodes, num_devices = self.devices.die.shape
        return num_nodes, num_devices

    @cached_property
    def network(self) -> Network:
        """Heat."""
        return build_network(self.heat.cooling_by(self.cooling), self.airflow, self.devices)

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
        activity: Of every device; shape (num_bins, num_nodes, num_devices).
    """

    duration_s: Float
    activity: Activity

    def __post_init__(self) -> None:
        """Check the bins."""
        assert (self.duration_s > 0).all(), "a bin of no length has no rates"

    @property
    def step_s(self) -> float:
        """Length of the step. Unit: s."""
        return float(self.duration_s.sum())

    def integral(self, power: PowerConfig, shape: tuple[int, int]) -> Float:
        """Return what the loop needs of the activity, summed up to the border of every bin.

        Args:
            power: Of the GPU type.
            shape: Nodes, and devices in each.

        Returns:
            Shape (num_bins + 1, 4, num_nodes, num_devices): at the highest clock and voltage, energy that goes with
            rates alone, with rates and voltage, with clock and voltage (J); and time that goes with the clock (s).
        """
        act = self.activity
        data = data_share(power, act.randomness)
        columns = (
            power.hbm.value * np.asarray(act.hbm) * data + power.link.value * np.asarray(act.link),
            (power.tensor.value * np.asarray(act.tensor) + power.sm.value * np.asarray(act.sm)) * data,
            power.clock_tree.value * np.asarray(act.awake),
            np.asarray(act.clock_bound),
        )
        whole = (len(self.duration_s), *shape)
        rates = np.stack([np.broadcast_to(column, whole) for column in columns], axis=1)
        parts = np.cumsum(rates * self.duration_s[:, None, None, None], axis=0)
        return np.concatenate([np.zeros_like(parts[:1]), parts])


def profile_from(pieces: Sequence[tuple[Int64, Activity]], shape: tuple[int, int], bins_ns: Int64) -> Profile:
    """Return the profile of a step from what runs on every device.

    Args:
        pieces: Of every device, node by node: edges in ns and what runs between them, as `overlay` gives it. Devices
            that do the same may share one.
        shape: Nodes, and devices in each.
        bins_ns: Borders of the bins, from 0 to the end of the step; a bin should be no longer than a control period.
            Unit: ns.
    """
    known: dict[int, Activity] = {}
    for edges, activity in pieces:
        if id(activity) not in known:
            known[id(activity)] = bin_activity(edges, activity, bins_ns)
    binned = [known[id(activity)] for _, activity in pieces]
    columns = {
        part.name: np.stack([getattr(of, part.name) for of in binned], axis=1).reshape(-1, *shape)
        for part in fields(Activity)
    }
    return Profile(np.diff(bins_ns) / NS_PER_S, Activity(**columns))
