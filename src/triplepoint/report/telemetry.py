"""Telemetry of a run for its page: power, clock, temperature and use of every device over time, and its steps."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from triplepoint.figures import marks
from triplepoint.manifest import Manifest
from triplepoint.report.payload import steps_of
from triplepoint.tables.telemetry import TELEMETRY
from triplepoint.tables.traces import STEPS
from triplepoint.units import NS_PER_S

_NS_PER_TICK = 1000
"""Resolution of times on a page. Unit: ns. Sensors are read some hundred times a second at most."""


class _Panel(NamedTuple):
    """A chart of a page: the first of its columns that has values is drawn; `mark` is its key of `marks.QUANTITIES`."""

    title: str
    mark: str
    unit: str
    columns: tuple[str, ...]
    resolution: float


class _Times:
    """Different lists of times, in microseconds since the start; devices of a node share theirs."""

    def __init__(self) -> None:
        self.found: list[list[int]] = []
        self._places: dict[bytes, int] = {}

    def index(self, ticks: np.ndarray) -> int:
        """Return the place of some times, which are added where they are new."""
        whole = np.rint(ticks).astype(np.int64)
        key = whole.tobytes()
        if key not in self._places:
            self._places[key] = len(self.found)
            self.found.append(steps_of(whole))
        return self._places[key]


_PANELS = (
    _Panel("Power", "power", "W", ("gpu_power_w", "gpu_module_power_w", "gpu_power_average_w", "node_power_w"), 0.1),
    _Panel("Clock", "clock", "MHz", ("sm_clock_mhz", "cpu_freq_mhz"), 1.0),
    _Panel("Temperature", "temperature", "°C", ("gpu_temp_c", "cpu_temp_c"), 0.1),
    _Panel("Utilisation", "utilisation", "1", ("gpu_utilisation", "cpu_utilisation"), 0.001),
)
_BREAK = 3.0
"""Times the median distance of samples from which the line between two is broken. Our choice: sensors miss a tick now
and then."""
_KEYS = ("node", "t_ns", "device")
_Device = tuple[int, str, dict[str, np.ndarray]]
"""Node, device, and its columns over time."""


def describe_telemetry(folder: Path, manifest: Manifest, window: int = 1) -> dict[str, Any]:
    """Return telemetry and steps of a run as its page shows them.

    Args:
        folder: Folder of the run.
        manifest: Its manifest, which knows the clocks of its nodes.
        window: Samples that are joined to their mean; 1 for all of them.

    Raises:
        UserError: If a table is damaged.
    """
    steps = _read_steps(folder / "raw" / "steps.parquet", manifest)
    path = folder / "telemetry.parquet"
    samples = TELEMETRY.read(path) if path.is_file() else TELEMETRY.schema().empty_table()
    devices = list(_split(samples))
    starts = [device["t_ns"][0] for _, _, device in devices] + [start for _, _, start, _ in steps]
    zero = int(min(starts, default=0))
    times = _Times()
    panels = [found for panel in _PANELS if (found := _draw(panel, devices, zero, window, times))]
    return {
        "zero_ns": zero,
        "window": window,
        "steps": [[step, kind, (start - zero) / NS_PER_S, (end - zero) / NS_PER_S] for step, kind, start, end in steps],
        "times": times.found,
        "colours": [marks.on_grounds(colour) for colour in marks.DEVICES],
        "grounds": {"profiled": marks.on_grounds(marks.BLUE), "warmup": marks.on_grounds(marks.MIDDLE)},
        "panels": panels,
    }


def num_samples(folder: Path) -> int:
    """Return how many rows of telemetry a run has."""
    path = folder / "telemetry.parquet"
    return TELEMETRY.read(path).num_rows if path.is_file() else 0


def _read_steps(path: Path, manifest: Manifest) -> list[tuple[int, str, int, int]]:
    """Return number, kind, start and end of each step, from its first rank to its last, on the first node's clock."""
    if not path.is_file():
        return []
    nodes = {device.rank: node for node in manifest.nodes for device in node.devices}
    found: dict[int, tuple[str, int, int]] = {}
    for row in STEPS.read(path).select(["rank", "step", "kind", "t_start_ns", "t_end_ns"]).to_pylist():
        times = np.array([row["t_start_ns"], row["t_end_ns"]])
        if row["rank"] in nodes:
            times = manifest.on_first_clock(nodes[row["rank"]], times)
        start, end = (int(time) for time in times)
        if row["step"] in found:
            _, first, last = found[row["step"]]
            start, end = min(start, first), max(end, last)
        found[row["step"]] = (row["kind"], start, end)
    return [(step, *found[step]) for step in sorted(found)]


def _split(samples: pa.Table) -> Iterator[_Device]:
    """Yield node, device and columns of each device, in order of time."""
    names = [name for panel in _PANELS for name in panel.columns]
    table = samples.select([*_KEYS, *names]).sort_by([(key, "ascending") for key in ("node", "device", "t_ns")])
    if not table.num_rows:
        return
    node = table["node"].to_numpy()
    code = table["device"].combine_chunks().dictionary_encode()
    device = code.indices.to_numpy()
    opens = np.flatnonzero(np.append(True, (np.diff(node) != 0) | (np.diff(device) != 0)))
    columns = {name: table[name].to_numpy().astype(float) for name in names} | {"t_ns": table["t_ns"].to_numpy()}
    for first, last in zip(opens, [*opens[1:], table.num_rows], strict=True):
        yield (
            int(node[first]),
            code.dictionary[int(device[first])].as_py(),
            {name: values[first:last] for name, values in columns.items()},
        )


def _draw(panel: _Panel, devices: list[_Device], zero: int, window: int, times: "_Times") -> dict[str, Any] | None:
    """Return a chart; None where none of its columns was measured."""
    for column in panel.columns:
        lines = [
            _line(f"node {node} {device}", found["t_ns"] - zero, found[column], panel.resolution, window, times)
            for node, device, found in devices
            if not np.isnan(found[column]).all()
        ]
        if lines:
            return {
                "title": panel.title,
                "unit": panel.unit,
                "colour": marks.on_grounds(marks.QUANTITIES[panel.mark]),
                "resolution": panel.resolution,
                "column": column,
                "lines": lines,
            }
    return None


def _line(
    name: str, t_ns: np.ndarray, values: np.ndarray, resolution: float, window: int, times: "_Times"
) -> dict[str, Any]:
    """Return the samples of one device that have a value, and before which of them the line is broken."""
    is_there = ~np.isnan(values)
    ticks, values = (_joined(found[is_there], window) for found in (t_ns / _NS_PER_TICK, values))
    distances = np.diff(ticks)
    breaks = np.flatnonzero(distances > _BREAK * np.median(distances)) + 1 if len(distances) else np.array([], int)
    return {
        "name": name,
        "time": times.index(ticks),
        "values": steps_of(values / resolution),
        "breaks": breaks.tolist(),
    }


def _joined(values: np.ndarray, window: int) -> np.ndarray:
    """Return the means of windows, the last of which may be shorter."""
    if window == 1:
        return values
    opens = np.arange(0, len(values), window)
    means: np.ndarray = np.add.reduceat(values, opens) / np.diff(np.append(opens, len(values)))
    return means
