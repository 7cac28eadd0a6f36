"""What recordings can and cannot show: of their formats, of how often they were read, and of GPUs that did no work."""

import re
from collections.abc import Sequence
from typing import Any

import numpy as np

from triplepoint.importers import formats
from triplepoint.importers.folder import Telemetry
from triplepoint.importers.times import show_span, show_time
from triplepoint.importers.work import Row
from triplepoint.power_sensor import find_updates
from triplepoint.recorded.run import RecordedNode
from triplepoint.recording import Part
from triplepoint.units import NS_PER_S

_AVERAGE_S = 1.0
"""Window of NVML's average. Source: nvml.h."""
_IDLE = 0.4
"""Highest power over the host's highest, below which a GPU is taken for one that did no work: H100 idles at 0.15 of its
limit, MI355X at 0.25. Our choice."""


def account_of(node: RecordedNode) -> dict[str, Any]:
    """Return what is told of a host: GPUs, number of samples, period, first and last time, columns."""
    t_ns = [int(time) for part in node.parts for time in (part.t_ns[0], part.t_ns[-1])]
    columns = dict.fromkeys(name for part in node.parts for name in part.columns)
    return {
        "host": node.host,
        "num_gpus": len(node.gpus),
        "num_samples": sum(len(part.t_ns) for part in node.parts),
        "period_s": node.period_s if node.parts else None,
        "start": show_time(min(t_ns)) if t_ns else None,
        "end": show_time(max(t_ns)) if t_ns else None,
        "columns": list(columns),
    }


def shows_of(telemetry: Telemetry, rows: Sequence[Row]) -> list[str]:
    """Return what the sensors can and cannot show: of their formats, and of these recordings."""
    known = {declared.name: declared for declared in formats()}
    measured = {name for one in telemetry.hosts.values() for part in one.parts for name in part.columns}
    lines = []
    for declared in (known[name] for name in telemetry.formats if name in known):
        of_columns = [text for name, text in declared.shows_of_columns.items() if name in measured]
        lines.append(f"{declared.name}: {' '.join([*of_columns, declared.shows])}")
    if renewed := _renewal(telemetry):
        lines.append(renewed)
    if "gpu_power_average_w" in measured and not {"gpu_power_w", "gpu_energy_j"} & measured:
        lines.append("power is a running mean alone: its highest value is no peak, and energy is that of the mean")
        steps_s = [(row["t_end_ns"] - row["t_start_ns"]) / NS_PER_S for row in rows if row["kind"] == "measured"]
        if steps_s and float(np.median(steps_s)) < 2 * _AVERAGE_S:
            lines.append(
                f"steps of {show_span(float(np.median(steps_s)))} are no longer than two windows of that mean: power "
                "of all steps together is told, that of single steps is not"
            )
    if rows and not any(row["kind"] == "measured" for row in rows):
        lines.append("steps are the profiler's alone, which slows them: times of measured steps need --steps")
    return lines


def _renewal(telemetry: Telemetry) -> str:
    """Return how often the power of the first GPU is renewed, as its readings show; empty where they do not."""
    for one in telemetry.hosts.values():
        for part in one.parts:
            name = next((each for each in part.columns if re.match(r"gpu_power_(average_)?w$", each)), None)
            if name is None:
                continue
            values = part.values[:, list(part.columns).index(name)]
            known = np.isfinite(values)
            try:
                updates = find_updates(part.t_ns[known] / NS_PER_S, values[known])
            except (ValueError, IndexError):
                return ""
            return f"{name} of {part.device} is renewed every {updates.period_s:.3g} s, read every {one.period_s:.3g} s"
    return ""


def idle_gpus(nodes: Sequence[RecordedNode]) -> list[tuple[str, str]]:
    """Return host and note for each host some of whose GPUs did no work while others did."""
    lines = []
    for node in nodes:
        highest = {part.device: _highest_w(part) for part in node.parts if part.device != "host"}
        known = {device: power_w for device, power_w in highest.items() if power_w is not None}
        idle = [device for device, power_w in known.items() if power_w < _IDLE * max(known.values())]
        if idle:
            note = (
                f"{', '.join(idle)} drew at most {max(known[device] for device in idle):.0f} W, others "
                f"{max(known.values()):.0f} W; if they were not the job's, name those that were with --gpus"
            )
            lines.append((node.host, note))
    return lines


def _highest_w(part: Part) -> float | None:
    for name in ("gpu_power_w", "gpu_power_average_w"):
        if name in part.columns:
            values = part.values[:, list(part.columns).index(name)]
            if np.isfinite(values).any():
                return float(np.nanmax(values))
    return None
