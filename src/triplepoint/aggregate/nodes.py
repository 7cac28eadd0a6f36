"""Power of nodes: table `nodes`, power at the plug and its swings for `points`, and energy of hosts."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from triplepoint import swings
from triplepoint.aggregate.energy import DeviceEnergy
from triplepoint.aggregate.samples import DeviceKey, Samples, why_absent
from triplepoint.manifest import Node
from triplepoint.units import NS_PER_S

LEAST_SAMPLES = 100
"""Fewest samples for swings: the 1st percentile of fewer is just the lowest sample."""


class Readings(NamedTuple):
    """Power of a node at the plug.

    Attributes:
        t_ns: Times of the readings, on a clock of all nodes; shape (num_samples,). Unit: ns.
        power_w: Readings; same shape. Unit: W.
    """

    t_ns: np.ndarray
    power_w: np.ndarray


def node_rows(run: str, samples: Samples, gpus: Mapping[DeviceKey, DeviceEnergy]) -> list[dict[str, Any]]:
    """Return the rows of table `nodes`.

    Args:
        run: Run id.
        samples: Samples of the run.
        gpus: Power of each GPU; if GPUs share a sensor, that of the package, for its first GPU only.
    """
    rows = []
    for node in samples.manifest.nodes:
        gpu_power_w = [energy.mean_w for (number, _), energy in gpus.items() if number == node.node]
        inlet = samples.weighted("inlet_temp_c", (node.node, "host"))
        columns: dict[str, Any] = {"gpu_power_w": sum(gpu_power_w)} if gpu_power_w else {}
        if inlet.values.size:
            columns["inlet_temp_c"] = inlet.mean
        if (energy_j := host_energy_j(samples, node)) is not None:
            columns["host_power_w"] = float(energy_j.sum() / samples.step_lengths_s(node).sum())
        keys = {"run": run, "node": node.node, "host": node.host, "num_ranks": len(node.devices)}
        rows.append(keys | columns | _plug_power(samples, node))
    return rows


def _plug_power(samples: Samples, node: Node) -> dict[str, Any]:
    """Return mean and peak of a node's power at the plug, or why there is none, by column of `nodes`."""
    readings = readings_of(samples, node)
    if len(readings.t_ns) < 2:
        return {"node_power_absent": why_absent(samples.manifest, "node_power_w")}
    return {"node_power_w": _mean_w(readings), "node_power_peak_w": float(readings.power_w.max())}


def readings_of(samples: Samples, node: Node) -> Readings:
    """Return the readings of a node's power meter from the first measured step to the last."""
    if (node.node, "host") not in samples:
        return Readings(np.array([]), np.array([]))
    columns, windows_ns = samples.of((node.node, "host")), samples.windows_ns(node)
    power_w, t_ns = columns["node_power_w"].astype(float), columns["t_ns"]
    is_inside = np.isfinite(power_w) & (t_ns >= windows_ns[0, 0]) & (t_ns <= windows_ns[-1, 1])
    return Readings(t_ns[is_inside], power_w[is_inside])


def host_energy_j(samples: Samples, node: Node) -> np.ndarray | None:
    """Return the energy of CPU packages and, where reported, of DRAM in each measured step; None if not measured.

    Shape (num_measured,). Unit: J.
    """
    packages_j, dram_j = (samples.growth(name, node, "host") for name in ("cpu_energy_j", "dram_energy_j"))
    if packages_j is None:
        return None
    return packages_j if dram_j is None else packages_j + dram_j


def plug_columns(nodes: Sequence[Readings]) -> dict[str, float]:
    """Return the columns of `points` about power at the plug; none if a node has fewer than two readings.

    Swing and spectral line are those of the power of all nodes, evenly sampled at the rate of the slowest meter. They
    are omitted if there are too few samples.

    Args:
        nodes: Readings of every node in the measured steps.
    """
    if not nodes or any(len(node.t_ns) < 2 for node in nodes):
        return {}
    columns = {"node_power_w": float(np.mean([_mean_w(node) for node in nodes]))}
    series = job_power(nodes)
    if series is None:
        return columns
    job_w, period_s = series
    highest_hz = swings.highest_hz(period_s)
    line = swings.strongest_line(job_w, period_s, swings.LOWEST_PERIODS / (len(job_w) * period_s), highest_hz)
    return columns | {
        "job_power_swing_fraction": swings.swing(job_w, period_s).fraction,
        "job_power_line_hz": line.frequency_hz,
        "job_power_line_fraction": line.amplitude_w / float(job_w.mean()),
        "job_power_seen_hz": highest_hz,
    }


def job_power(nodes: Sequence[Readings]) -> tuple[np.ndarray, float] | None:
    """Return the power of all nodes, evenly sampled; None if a node has no meter or there are too few samples.

    Args:
        nodes: Readings of every node.

    Returns:
        Power, shape (num_samples,), unit W, and its sampling period, unit s, that of the slowest meter.
    """
    if not nodes or any(len(node.t_ns) < 2 for node in nodes):
        return None
    start_ns = int(nodes[0].t_ns[0])
    times_s = [(node.t_ns - start_ns) / NS_PER_S for node in nodes]
    nodes_w, period_s = swings.at_even_times(times_s, [node.power_w for node in nodes])
    return (nodes_w.sum(axis=1), period_s) if len(nodes_w) >= LEAST_SAMPLES else None


def _mean_w(node: Readings) -> float:
    """Return the time average of at least two readings, which need not be evenly spaced. Unit: W."""
    return float(np.trapezoid(node.power_w, node.t_ns) / (node.t_ns[-1] - node.t_ns[0]))
