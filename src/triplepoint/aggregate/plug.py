"""Power of nodes at the plug over the measured steps of one run: mean, swing of all together, and its line."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from triplepoint import swings
from triplepoint.units import NS_PER_S

LEAST_SAMPLES = 100
"""A 1st percentile of fewer is the lowest sample."""


class Readings(NamedTuple):
    """Power of a node.

    Attributes:
        t_ns: When it was read, on a clock of all nodes; shape (num_samples,). Unit: ns.
        power_w: Same shape. Unit: W.
    """

    t_ns: np.ndarray
    power_w: np.ndarray


def plug_columns(nodes: Sequence[Readings]) -> dict[str, float]:
    """Return columns of `points`; none where a node has fewer than two readings, no swing or line that cannot be seen.

    Swing and line are of the sum over nodes, at even times as far apart as the readings of the node read least often.

    Args:
        nodes: Readings of every node in the measured steps.
    """
    if not nodes or any(len(node.t_ns) < 2 for node in nodes):
        return {}
    columns = {"node_power_w": float(np.mean([mean_w(node) for node in nodes]))}
    course = together(nodes)
    if course is None:
        return columns
    job_w, period_s = course
    highest_hz = swings.highest_hz(period_s)
    line = swings.strongest_line(job_w, period_s, swings.LOWEST_PERIODS / (len(job_w) * period_s), highest_hz)
    return columns | {
        "job_power_swing_fraction": swings.swing(job_w, period_s).fraction,
        "job_power_line_hz": line.frequency_hz,
        "job_power_line_fraction": line.amplitude_w / float(job_w.mean()),
        "job_power_seen_hz": highest_hz,
    }


def together(nodes: Sequence[Readings]) -> tuple[np.ndarray, float] | None:
    """Return power of all nodes at even times, and the time between them; None where a swing cannot be told of it.

    Args:
        nodes: Readings of every node.

    Returns:
        Power, shape (num_samples,), unit W, and its period, unit s: that of the node read least often.
    """
    if not nodes or any(len(node.t_ns) < 2 for node in nodes):
        return None
    start_ns = int(nodes[0].t_ns[0])
    times_s = [(node.t_ns - start_ns) / NS_PER_S for node in nodes]
    nodes_w, period_s = swings.at_even_times(times_s, [node.power_w for node in nodes])
    return (nodes_w.sum(axis=1), period_s) if len(nodes_w) >= LEAST_SAMPLES else None


def mean_w(node: Readings) -> float:
    """Return the mean over time of two readings or more, which need not be even. Unit: W."""
    return float(np.trapezoid(node.power_w, node.t_ns) / (node.t_ns[-1] - node.t_ns[0]))
