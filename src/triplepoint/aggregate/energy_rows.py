"""Energy rows: of table `step_energy`, and in table `phases`."""

from collections.abc import Iterable
from typing import Any

import numpy as np
import pyarrow as pa

from triplepoint.aggregate.phases import Spans, phase_energy, read_pattern, read_spans
from triplepoint.aggregate.power import Power
from triplepoint.aggregate.steps import RunSteps
from triplepoint.config.gpu import GpuConfig
from triplepoint.manifest import Device, Manifest, Node
from triplepoint.units import NS_PER_S


def step_energy_rows(run: str, manifest: Manifest, steps: RunSteps, power: Power) -> list[dict[str, Any]]:
    """Return rows of table `step_energy`: none of GPUs without power, nor of steps without samples."""
    rows = []
    for node, device in _ranks(manifest):
        energy = power.device_energy.get((node.node, device.device))
        if energy is None:
            continue
        length_s = np.diff(steps.windows_ns[node.node], axis=1)[:, 0] / NS_PER_S
        for step, time_s, power_w in zip(steps.measured, length_s.tolist(), energy.power_w.tolist(), strict=True):
            if np.isfinite(power_w):
                row = {"run": run, "rank": device.rank, "step": step, "step_time_s": time_s, "source": energy.source}
                rows.append(row | {"gpu_power_w": power_w, "gpu_energy_j": power_w * time_s})
    return sorted(rows, key=lambda row: (row["rank"], row["step"]))


def add_phase_energy(
    phases: list[dict[str, Any]],
    manifest: Manifest,
    steps: RunSteps,
    power: Power,
    timeline: pa.Table,
    gpu: GpuConfig | None,
) -> None:
    """Add energy and power to rows of table `phases`, for ranks whose GPU has an energy counter of its own.

    Args:
        phases: The rows, changed in place.
        manifest: The run's manifest.
        steps: Its steps.
        power: What telemetry says.
        timeline: Table `timeline` of the run: what each rank did in its first profiled step.
        gpu: GPU type; None on cpu. Dies that share a counter have no energy of their own.
    """
    if gpu is None or gpu.gpus_per_package > 1 or steps.profiled_time_s is None:
        return
    if manifest.interrupted_steps:
        return  # moves of the counter are laid over steps that follow one another
    spans, rank = read_spans(timeline), timeline["rank"].to_numpy()
    for node, device in _ranks(manifest):
        energy = power.device_energy.get((node.node, device.device))
        mine = [row for row in phases if row["rank"] == device.rank]
        if energy is None or energy.counter is None or not mine:
            continue
        exposed_s = {(row["phase"], row["category"]): row["exposed_s"] for row in mine}
        of_rank = Spans(*(values[rank == device.rank] for values in spans))
        pattern = read_pattern(of_rank, steps.profiled_time_s * NS_PER_S, exposed_s)
        windows_s = manifest.on_first_clock(node, steps.windows_ns[node.node]) / NS_PER_S
        cells = phase_energy(energy.counter, windows_s, pattern, gpu.package_power_limit.value)
        for row in mine:
            if cell := cells.get((row["phase"], row["category"])):
                row |= {"gpu_energy_j": cell.energy_j, "gpu_power_w": cell.power_w, "gpu_power_sigma_w": cell.error_w}


def _ranks(manifest: Manifest) -> Iterable[tuple[Node, Device]]:
    return ((node, device) for node in manifest.nodes for device in node.devices)
