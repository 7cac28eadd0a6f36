"""Thermal network of nodes: a linear system of resistances and capacities, with exact time steps.

Each device is a die on a sink. The sinks of a package exchange heat, and air carries the heat of sinks to the rows
behind. A node is one linear system, so a step of constant power is one product with a matrix exponential, exact for any
length. Temperatures are relative to the inlet. Heat is conserved: it is in dies, in sinks or in the air.
"""

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from triplepoint.simulate.heat.devices import Devices
from triplepoint.simulate.heat.parameters import AirflowConfig, CoolingConfig
from triplepoint.simulate.power.gpu import Float, Int64

_NUM_POWERS = 4
"""Powers of the argument that the series of the matrix exponential is summed from, to order 15 for norms up to 1/2."""


@dataclass(frozen=True, eq=False)
class Network:
    """Thermal network of nodes with n devices each.

    States are temperatures above the inlet: of n dies, of n sinks, and of the air at n sinks. Unit: K.

    Attributes:
        change: Rate of change of each state per state; shape (num_nodes, 3n, 3n). Unit: 1/s.
        drive: Rate of change of each state per power of a device; shape (num_nodes, 3n, n). Unit: K/J.
    """

    change: Float
    drive: Float

    @property
    def num_devices(self) -> int:
        """Number of devices of a node."""
        return int(self.drive.shape[2])

    def at_rest(self) -> Float:
        """Return the state with everything at the temperature of the inlet; shape (num_nodes, 3n). Unit: K."""
        return np.zeros(self.change.shape[:2])

    @cached_property
    def responses(self) -> Float:
        """Steady rise of each state per watt of every device; shape (num_nodes, 3n, n). Unit: K/W."""
        return np.asarray(np.linalg.solve(self.change, -self.drive))

    def steady(self, power_w: Float) -> Float:
        """Return the steady state under constant power.

        Args:
            power_w: Power of every device; shape (num_nodes, n). Unit: W.

        Returns:
            The state; shape (num_nodes, 3n). Unit: K.
        """
        return np.asarray((self.responses @ power_w[..., None])[..., 0])

    def die_c(self, state: Float, inlet_c: float | Float) -> Float:
        """Return the die temperatures of states with a last axis of 3n; the result has one of n. Unit: degC."""
        return np.asarray(state[..., : self.num_devices] + np.asarray(inlet_c))


def build_network(
    cooling: CoolingConfig,
    airflow: AirflowConfig,
    devices: Devices,
    sink_resistance: Float | None = None,
    preheat: Float | None = None,
) -> Network:
    """Build the thermal network of nodes.

    Args:
        cooling: Cooling of the GPU type, with air or liquid.
        airflow: Airflow of the nodes.
        devices: Differences between their parts; shape (num_nodes, num_devices).
        sink_resistance: Thermal resistance from sink to air of each node, shape (num_nodes,). None: that of `cooling`.
            Unit: K/W.
        preheat: Preheat of each node, shape (num_nodes,). None: that of `airflow`. Unit: K/W.
    """
    num_nodes, n = devices.die.shape
    assert n == airflow.num_devices
    sink = np.array([cooling.sink_resistance.value]) if sink_resistance is None else sink_resistance
    preheats = np.array([airflow.preheat.value]) if preheat is None else preheat
    die_conductance = 1.0 / (cooling.die_resistance.value * devices.die)
    sink_conductance = 1.0 / (sink[:, None] * devices.sink)
    # Capacities are those of a normal part: bad contact does not change them.
    die_capacity = cooling.die_time.value / cooling.die_resistance.value
    sink_capacity = cooling.sink_time.value / sink[:, None]
    dies, sinks, airs = np.arange(n), np.arange(n, 2 * n), np.arange(2 * n, 3 * n)
    change = np.zeros((num_nodes, 3 * n, 3 * n))
    _connect(change, dies, sinks, die_conductance, die_capacity, sink_capacity)
    for first, second in (package for package in airflow.packages if len(package) == 2):
        if cooling.twin_resistance is not None:
            twin = np.full((num_nodes, 1), 1.0 / cooling.twin_resistance.value)
            _connect(change, sinks[[first]], sinks[[second]], twin, sink_capacity, sink_capacity)
    change[:, sinks, sinks] -= sink_conductance / sink_capacity
    change[:, sinks, airs] += sink_conductance / sink_capacity
    heating = cooling.preheat_share.value * _preheat(airflow, preheats)
    heating = heating / devices.flow[:, :, None] / airflow.air_time.value
    change[:, n * 2 :, n : 2 * n] += heating * sink_conductance[:, None, :]
    change[:, n * 2 :, n * 2 :] -= heating * sink_conductance[:, None, :]
    change[:, airs, airs] -= 1.0 / airflow.air_time.value
    drive = np.zeros((num_nodes, 3 * n, n))
    drive[:, dies, dies] = 1.0 / die_capacity
    return Network(change, drive)


def _connect(
    change: Float,
    first: Int64,
    second: Int64,
    conductance: Float,
    first_capacity: Float | float,
    second_capacity: Float,
) -> None:
    """Connect pairs of states by a heat conductance.

    Args:
        change: Rates of change of the network; changed in place.
        first: Indices of the first states; shape (num_pairs,).
        second: Indices of the second states; same shape.
        conductance: Conductance of each pair; shape (num_nodes, num_pairs). Unit: W/K.
        first_capacity: Heat capacity of a first state; of each node in shape (num_nodes, 1). Unit: J/K.
        second_capacity: Heat capacity of a second state; likewise. Unit: J/K.
    """
    change[:, first, first] -= conductance / first_capacity
    change[:, first, second] += conductance / first_capacity
    change[:, second, second] -= conductance / second_capacity
    change[:, second, first] += conductance / second_capacity


def _preheat(airflow: AirflowConfig, preheat: Float) -> Float:
    """Return the temperature rise of the air at each device per watt of each other one.

    Args:
        airflow: Airflow of the nodes.
        preheat: Preheat of each node, or of all; shape (num_nodes,) or (1,). Unit: K/W.

    Returns:
        Shape (num_nodes, n, n) or (1, n, n). Unit: K/W.
    """
    n = airflow.num_devices
    matrix = np.zeros((len(preheat), n, n))
    for index, row in enumerate(airflow.rows):
        for row_before in airflow.rows[:index]:
            matrix[np.ix_(range(len(preheat)), row, row_before)] = preheat[:, None, None] / len(row_before)
    if airflow.package_preheat is not None:
        for first, second in (package for package in airflow.packages if len(package) == 2):
            matrix[:, second, first] += airflow.package_preheat.value
    return matrix


@dataclass(frozen=True, eq=False)
class Propagator:
    """Exact time step of a network under constant power.

    Attributes:
        both: Matrix from state and power to the next state, to be multiplied with a column of both; shape
            (num_nodes, 3n, 3n + n).
        step_s: Length of the time step. Unit: s.
    """

    both: Float
    step_s: float

    def __call__(self, state: Float, power_w: Float) -> Float:
        """Return the state after the time step; shapes (num_nodes, 3n) and (num_nodes, n)."""
        return np.asarray((self.both @ np.concatenate([state, power_w], axis=-1)[..., None])[..., 0])

    def repeated(self, number: int) -> "Propagator":
        """Return `number` time steps of equal power as one time step."""
        num_states, size = self.both.shape[1:]
        square = np.broadcast_to(np.eye(size), (len(self.both), size, size)).copy()
        square[:, :num_states] = self.both
        return Propagator(np.linalg.matrix_power(square, number)[:, :num_states], number * self.step_s)


def propagator(network: Network, step_s: float) -> Propagator:
    """Return the exact time step of a network.

    Args:
        network: The network.
        step_s: Length of the time step, with constant power. Unit: s.
    """
    num_states, num_devices = network.drive.shape[1:]
    size = num_states + num_devices
    system = np.zeros((network.change.shape[0], size, size))
    system[:, :num_states, :num_states] = network.change * step_s
    system[:, :num_states, num_states:] = network.drive * step_s
    return Propagator(_exponential(system)[:, :num_states, :], step_s)


def _exponential(matrices: Float) -> Float:
    """Return the exponential of square matrices: a Taylor series of the halved argument, squared back.

    The result equals that of `scipy.linalg.expm` to 1e-18. `scipy` takes a hundred times as long on stacks of small
    matrices.

    Source:
        Series in 6 products instead of 15: Paterson and Stockmeyer 1973, doi:10.1137/0202007.
    """
    norm = float(np.abs(matrices).sum(axis=-1).max())
    num_halvings = max(0, int(np.ceil(np.log2(max(norm, 1e-12)))) + 1)
    powers = [np.broadcast_to(np.eye(matrices.shape[-1]), matrices.shape), matrices / 2.0**num_halvings]
    while len(powers) <= _NUM_POWERS:
        powers.append(powers[-1] @ powers[1])
    result = np.zeros_like(matrices)
    for first in reversed(range(0, _NUM_POWERS**2, _NUM_POWERS)):
        terms = (power / math.factorial(first + place) for place, power in enumerate(powers[:-1]))
        result = result @ powers[-1] + sum(terms)
    for _ in range(num_halvings):
        result = result @ result
    return result
