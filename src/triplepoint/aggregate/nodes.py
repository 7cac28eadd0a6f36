"""Rows of table `nodes`: power at the plug, of GPUs and of the host, and the air that enters."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from triplepoint.aggregate.energy import DeviceEnergy
from triplepoint.aggregate.plug import Readings, mean_w
from triplepoint.aggregate.samples import DeviceKey, Samples, why_absent
from triplepoint.manifest import Node


def node_rows(run: str, samples: Samples, gpus: Mapping[DeviceKey, DeviceEnergy]) -> list[dict[str, Any]]:
    """Return one row per node.

    Args:
        run: Run id.
        samples: Its samples.
        gpus: What each GPU drew; of packages whose GPUs share a sensor, the first GPU stands for all.
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
        who = {"run": run, "node": node.node, "host": node.host, "num_ranks": len(node.devices)}
        rows.append(who | columns | _plug_columns(samples, node))
    return rows


def _plug_columns(samples: Samples, node: Node) -> dict[str, Any]:
    readings = readings_of(samples, node)
    if len(readings.t_ns) < 2:
        return {"node_power_absent": why_absent(samples.manifest, "node_power_w")}
    return {"node_power_w": mean_w(readings), "node_power_peak_w": float(readings.power_w.max())}


def readings_of(samples: Samples, node: Node) -> Readings:
    """Return what the meter of a node's plug read from the first measured step to the last."""
    if (node.node, "host") not in samples:
        return Readings(np.array([]), np.array([]))
    columns, windows_ns = samples.of((node.node, "host")), samples.windows_ns(node)
    power_w, t_ns = columns["node_power_w"].astype(float), columns["t_ns"]
    is_inside = np.isfinite(power_w) & (t_ns >= windows_ns[0, 0]) & (t_ns <= windows_ns[-1, 1])
    return Readings(t_ns[is_inside], power_w[is_inside])


def host_energy_j(samples: Samples, node: Node) -> np.ndarray | None:
    """Return energy of CPU packages, and of DRAM where the host reports it, in each measured step; None where unknown.

    Shape (num_measured,). Unit: J.
    """
    packages_j, dram_j = (samples.growth(name, node, "host") for name in ("cpu_energy_j", "dram_energy_j"))
    if packages_j is None:
        return None
    return packages_j if dram_j is None else packages_j + dram_j
