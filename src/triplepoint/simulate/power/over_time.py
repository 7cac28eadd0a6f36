"""Power of a job over many steps, as meters at the plugs of its nodes see it: steps, pauses and evaluations in turn."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from triplepoint.simulate.power.gpu import Float


@dataclass(frozen=True, eq=False)
class Stretch:
    """A step, an evaluation or a pause: power of every node in equal parts of it.

    Attributes:
        nodes_w: Shape (num_periods, num_nodes). Unit: W.
        length_s: How long it takes. Unit: s.
    """

    nodes_w: Float
    length_s: float

    def lasting(self, factor: float) -> "Stretch":
        """Return the same work in so many times the time: its energy stays."""
        return Stretch(self.nodes_w / factor, self.length_s * factor)


@dataclass(frozen=True)
class Meter:
    """Meters at the plugs of nodes, each reading at moments of its own.

    Attributes:
        period_s: Time between two readings of a node. Unit: s.
        window_s: What a reading is the mean of, before it. Unit: s.
    """

    period_s: float
    window_s: float


def with_jitter(stretches: Sequence[Stretch], deviation: float, seed: int) -> list[Stretch]:
    """Return stretches that take longer or shorter, each by a normal deviate of its own.

    Args:
        stretches: In their order.
        deviation: Relative standard deviation of their length. Unit: 1.
        seed: Of the deviates.
    """
    deviates = np.random.default_rng(seed).standard_normal(len(stretches))
    return [stretch.lasting(1.0 + deviation * each) for stretch, each in zip(stretches, deviates.tolist(), strict=True)]


def meter_phases(num_nodes: int, period_s: float, seed: int) -> Float:
    """Return when the meter of every node reads first: no two at the same moment; shape (num_nodes,). Unit: s."""
    return np.asarray(np.random.default_rng(seed).random(num_nodes) * period_s)


def read_meters(stretches: Sequence[Stretch], meter: Meter, seed: int | None) -> tuple[Float, Float]:
    """Return what meters read from the first moment at which a window of all of them lies in the stretches.

    Args:
        stretches: What the job does, one after the other.
        meter: Of every node.
        seed: Of the moments at which they read; None: all at once.

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
    counted = [
        np.interp(when, edges_s, sums) - np.interp(when - meter.window_s, edges_s, sums)
        for when, sums in zip(read_s.T, sums_j.T, strict=True)
    ]
    return read_s, np.array(counted).T / meter.window_s
