"""Heat in nodes as a linear network of resistances and capacities, stepped exactly.

Each device is a die on a sink; sinks of a package exchange heat; air takes up what sinks give off and carries it to the
rows behind. All of a node is one linear system, so a step of constant power is one product with a matrix exponential,
exact for any length. Temperatures are kept above the inlet's, and nothing is lost: heat put in is in dies, in sinks, or
in the air.
"""

from dataclasses import dataclass

import numpy as np

from triplepoint.simulate.heat.devices import Devices
from triplepoint.simulate.heat.parameters import AirflowConfig, CoolingConfig
from triplepoint.simulate.power.gpu import Float, Int64

_ORDER = 14


@dataclass(frozen=True, eq=False)
class Network:
    """The heat of nodes with n devices each: states are n dies, n sinks and the air at n sinks, above the inlet.

    Attributes:
        change: Rate of change of states by state; shape (num_nodes, 3n, 3n). Unit: 1/s.
        drive: Rate of change of states by power; shape (num_nodes, 3n, n). Unit: K/J.
    """

    change: Float
    drive: Float

    @property
    def num_devices(self) -> int:
        """Devices of a node."""
        return int(self.drive.shape[2])

    def at_rest(self) -> Float:
        """Return the state where nothing is warmer than the inlet; shape (num_nodes, 3n)."""
        return np.zeros(self.change.shape[:2])

    def steady(self, power_w: Float) -> Float:
        """Return the state that constant power ends in; power of shape (num_nodes, n)."""
        return np.asarray(np.linalg.solve(self.change, -(self.drive @ power_w[..., None]))[..., 0])

    def die_c(self, state: Float, inlet_c: float | Float) -> Float:
        """Return die temperatures of states, whose last axis is 3n long. Unit: degC."""
        return np.asarray(state[..., : self.num_devices] + np.asarray(inlet_c))


def build_network(cooling: CoolingConfig, airflow: AirflowConfig, devices: Devices) -> Network:
    """Return the network of nodes.

    Args:
        cooling: Of the GPU type, with air or with liquid.
        airflow: Of the nodes.
        devices: How their parts differ; shape (num_nodes, num_devices).
    """
    num_nodes, n = devices.die.shape
    assert n == airflow.num_devices
    die = 1.0 / (cooling.die_resistance.value * devices.die)
    exhaust = 1.0 / (cooling.sink_resistance.value * devices.sink)
    # Capacities are those of a normal part: bad contact changes none.
    die_capacity = cooling.die_time.value / cooling.die_resistance.value
    sink_capacity = cooling.sink_time.value / cooling.sink_resistance.value
    dies, sinks, airs = np.arange(n), np.arange(n, 2 * n), np.arange(2 * n, 3 * n)
    change = np.zeros((num_nodes, 3 * n, 3 * n))
    _connect(change, dies, sinks, die, die_capacity, sink_capacity)
    for first, second in (package for package in airflow.packages if len(package) == 2):
        if cooling.twin_resistance is not None:
            twin = np.full((num_nodes, 1), 1.0 / cooling.twin_resistance.value)
            _connect(change, sinks[[first]], sinks[[second]], twin, sink_capacity, sink_capacity)
    change[:, sinks, sinks] -= exhaust / sink_capacity
    change[:, sinks, airs] += exhaust / sink_capacity
    warmed = cooling.preheat_share.value * _preheat(airflow) / devices.flow[:, :, None] / airflow.air_time.value
    change[:, n * 2 :, n : 2 * n] += warmed * exhaust[:, None, :]
    change[:, n * 2 :, n * 2 :] -= warmed * exhaust[:, None, :]
    change[:, airs, airs] -= 1.0 / airflow.air_time.value
    drive = np.zeros((num_nodes, 3 * n, n))
    drive[:, dies, dies] = 1.0 / die_capacity
    return Network(change, drive)


def _connect(change: Float, one: Int64, other: Int64, conductance: Float, first: float, second: float) -> None:
    """Let heat flow between pairs of states; `first` and `second` are the capacities of either side."""
    change[:, one, one] -= conductance / first
    change[:, one, other] += conductance / first
    change[:, other, other] -= conductance / second
    change[:, other, one] += conductance / second


def _preheat(airflow: AirflowConfig) -> Float:
    """Return how much warmer air at a device is for each watt of another; shape (n, n). Unit: K/W."""
    n = airflow.num_devices
    matrix = np.zeros((n, n))
    for index, row in enumerate(airflow.rows):
        for before in airflow.rows[:index]:
            matrix[np.ix_(row, before)] = airflow.preheat.value / len(before)
    if airflow.package_preheat is not None:
        for first, second in (package for package in airflow.packages if len(package) == 2):
            matrix[second, first] += airflow.package_preheat.value
    return matrix


@dataclass(frozen=True, eq=False)
class Propagator:
    """One step of a network: `state @ stay + power @ gain`, as `[state, power] @ both`.

    Attributes:
        both: Shape (num_nodes, 3n, 3n + n), to be multiplied with a column of state and power.
        step_s: Length of the step. Unit: s.
    """

    both: Float
    step_s: float

    def __call__(self, state: Float, power_w: Float) -> Float:
        """Return the state after a step of constant power; shapes (num_nodes, 3n) and (num_nodes, n)."""
        return np.asarray((self.both @ np.concatenate([state, power_w], axis=-1)[..., None])[..., 0])

    def repeated(self, number: int) -> "Propagator":
        """Return so many steps of the same power as one step."""
        size = self.both.shape[2]
        one = np.broadcast_to(np.eye(size), (len(self.both), size, size)).copy()
        one[:, : self.both.shape[1]] = self.both
        return Propagator(np.linalg.matrix_power(one, number)[:, : self.both.shape[1]], number * self.step_s)


def propagator(network: Network, step_s: float) -> Propagator:
    """Return the exact step of a network over `step_s` seconds of constant power."""
    m, n = network.drive.shape[1:]
    system = np.zeros((network.change.shape[0], m + n, m + n))
    system[:, :m, :m] = network.change * step_s
    system[:, :m, m:] = network.drive * step_s
    return Propagator(_exponential(system)[:, :m, :], step_s)


def _exponential(matrices: Float) -> Float:
    """Return the exponential of square matrices: Taylor's series of a halved argument, squared back.

    `scipy.linalg.expm` gives the same to 1e-18; it takes a hundred times as long on stacks of small matrices.
    """
    size = float(np.abs(matrices).sum(axis=-1).max())
    halvings = max(0, int(np.ceil(np.log2(max(size, 1e-12)))) + 1)
    small = matrices / 2.0**halvings
    result = np.broadcast_to(np.eye(matrices.shape[-1]), matrices.shape).copy()
    for order in range(_ORDER, 0, -1):
        result = np.eye(matrices.shape[-1]) + small @ result / order
    for _ in range(halvings):
        result = result @ result
    return result
