"""Power of a job over many steps, evaluations and pauses, as meters at the plugs of its nodes read it."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from triplepoint.simulate.power.gpu import Float


@dataclass(frozen=True, eq=False)
class Stretch:
    """A step, an evaluation or a pause, with the power of every node in equal periods.

    Attributes:
        nodes_w: Power; shape (num_periods, num_nodes). Unit: W.
        length_s: Duration. Unit: s.
    """

    nodes_w: Float
    length_s: float

    def lasting(self, factor: float) -> "Stretch":
        """Return the same work with `factor` times the duration and the same energy."""
        return Stretch(self.nodes_w / factor, self.length_s * factor)


@dataclass(frozen=True)
class Meter:
    """Meters at the plugs of nodes, each reading at moments of its own.

    Attributes:
        period_s: Time between two readings of a node. Unit: s.
        window_s: Time before a reading over which it averages. Unit: s.
    """

    period_s: float
    window_s: float


def with_jitter(stretches: Sequence[Stretch], deviation: float, seed: int) -> list[Stretch]:
    """Return stretches with normally distributed durations.

    Args:
        stretches: The stretches in order.
        deviation: Relative standard deviation of a duration. Unit: 1.
        seed: Seed of the random numbers.
    """
    deviates = np.random.default_rng(seed).standard_normal(len(stretches))
    return [stretch.lasting(1.0 + deviation * each) for stretch, each in zip(stretches, deviates.tolist(), strict=True)]


def meter_phases(num_nodes: int, period_s: float, seed: int) -> Float:
    """Return the time of the first reading of every node's meter, all different; shape (num_nodes,). Unit: s."""
    return np.asarray(np.random.default_rng(seed).random(num_nodes) * period_s)


def read_meters(stretches: Sequence[Stretch], meter: Meter, seed: int | None) -> tuple[Float, Float]:
    """Return the readings of meters, from the first moment at which every window lies inside the stretches.

    Args:
        stretches: The stretches in order.
        meter: Meter of every node.
        seed: Seed of the moments of the readings; None: all meters read at once.

    Returns:
        Times and readings; both of shape (num_readings, num_nodes). Units: s, W.
    """
    lengths_s = np.concatenate([np.full(len(each.nodes_w), each.length_s / len(each.nodes_w)) for each in stretches])
    edges_s = np.append(0.0, np.cumsum(lengths_s))
    energy_j = np.concatenate([each.nodes_w for each in stretches]) * lengths_s[:, None]
    sums_j = np.concatenate([np.zeros((1, energy_j.shape[1])), np.cumsum(energy_j, axis=0)])
    num_nodes = energy_j.shape[1]
    phase_s = np.zeros(num_nodes) if seed is None else meter_phases(num_nodes, meter.period_s, seed)
    number = int((edges_s[-1] - meter.window_s - meter.period_s) // meter.period_s)
    read_s = meter.window_s + phase_s + meter.period_s * np.arange(number)[:, None]
    window_j = [
        np.interp(end_s, edges_s, sums) - np.interp(end_s - meter.window_s, edges_s, sums)
        for end_s, sums in zip(read_s.T, sums_j.T, strict=True)
    ]
    return read_s, np.array(window_j).T / meter.window_s
