"""Telemetry of a run for its page: steps, and power, clock, temperature and utilisation of devices over time."""

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
"""Resolution of times on a page; sensors are read some hundred times a second at most. Unit: ns."""


class _Panel(NamedTuple):
    """A chart of a page.

    Attributes:
        title: Title of the chart.
        mark: Key of its colour in `marks.QUANTITIES`.
        unit: Unit of the values.
        columns: Columns of table `telemetry`; the first with values is drawn.
        resolution: Resolution of the values on the page, in their unit.
    """

    title: str
    mark: str
    unit: str
    columns: tuple[str, ...]
    resolution: float


class _Times:
    """Distinct lists of sample times, stored once, since the devices of a node share them.

    Attributes:
        lists: Times since the start of the run, as `steps_of` writes them. Unit: us.
    """

    def __init__(self) -> None:
        self.lists: list[list[int]] = []
        self._indices: dict[bytes, int] = {}

    def index(self, ticks: np.ndarray) -> int:
        """Return the index of a list of times; a new list is added."""
        integers = np.rint(ticks).astype(np.int64)
        key = integers.tobytes()
        if key not in self._indices:
            self._indices[key] = len(self.lists)
            self.lists.append(steps_of(integers))
        return self._indices[key]


_PANELS = (
    _Panel("Power", "power", "W", ("gpu_power_w", "gpu_module_power_w", "gpu_power_average_w", "node_power_w"), 0.1),
    _Panel("Clock", "clock", "MHz", ("sm_clock_mhz", "cpu_freq_mhz"), 1.0),
    _Panel("Temperature", "temperature", "°C", ("gpu_temp_c", "cpu_temp_c"), 0.1),
    _Panel("Utilisation", "utilisation", "1", ("gpu_utilisation", "cpu_utilisation"), 0.001),
)
_BREAK = 3.0
"""Multiple of the median interval between samples from which a line is interrupted. Our choice: sensors miss single
samples now and then."""
_KEYS = ("node", "t_ns", "device")
_Device = tuple[int, str, dict[str, np.ndarray]]
"""Node, device, and columns of the device over time."""


def describe_telemetry(folder: Path, manifest: Manifest, window: int = 1) -> dict[str, Any]:
    """Return telemetry and steps of a run for its page.

    Args:
        folder: Folder of the run.
        manifest: Manifest of the run, with the clocks of its nodes.
        window: Number of samples that are averaged; 1 for all samples.

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
    panels = [chart for panel in _PANELS if (chart := _chart(panel, devices, zero, window, times))]
    return {
        "zero_ns": zero,
        "window": window,
        "steps": [[step, kind, (start - zero) / NS_PER_S, (end - zero) / NS_PER_S] for step, kind, start, end in steps],
        "times": times.lists,
        "colours": [marks.on_grounds(colour) for colour in marks.DEVICES],
        "grounds": {"profiled": marks.on_grounds(marks.BLUE), "warmup": marks.on_grounds(marks.MIDDLE)},
        "panels": panels,
    }


def num_samples(folder: Path) -> int:
    """Return the number of rows of telemetry of a run."""
    path = folder / "telemetry.parquet"
    return TELEMETRY.read(path).num_rows if path.is_file() else 0


def _read_steps(path: Path, manifest: Manifest) -> list[tuple[int, str, int, int]]:
    """Return number, kind, start and end of each step over all ranks, on the clock of the first node. Unit: ns."""
    if not path.is_file():
        return []
    nodes = {device.rank: node for node in manifest.nodes for device in node.devices}
    steps: dict[int, tuple[str, int, int]] = {}
    for row in STEPS.read(path).select(["rank", "step", "kind", "t_start_ns", "t_end_ns"]).to_pylist():
        times = np.array([row["t_start_ns"], row["t_end_ns"]])
        if row["rank"] in nodes:
            times = manifest.on_first_clock(nodes[row["rank"]], times)
        start, end = (int(time) for time in times)
        if row["step"] in steps:
            _, first, last = steps[row["step"]]
            start, end = min(start, first), max(end, last)
        steps[row["step"]] = (row["kind"], start, end)
    return [(step, *steps[step]) for step in sorted(steps)]


def _split(samples: pa.Table) -> Iterator[_Device]:
    """Yield each device of each node with its columns in order of time."""
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


def _chart(panel: _Panel, devices: list[_Device], zero: int, window: int, times: _Times) -> dict[str, Any] | None:
    """Return the data of a chart; None if none of its columns was measured."""
    for column in panel.columns:
        lines = [
            _line(f"node {node} {device}", columns["t_ns"] - zero, columns[column], panel.resolution, window, times)
            for node, device, columns in devices
            if not np.isnan(columns[column]).all()
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
    name: str, t_ns: np.ndarray, values: np.ndarray, resolution: float, window: int, times: _Times
) -> dict[str, Any]:
    """Return the line of one device: samples with a value, and indices of samples before which the line is interrupted.

    Args:
        name: Name of the device.
        t_ns: Times since the start of the run. Shape (num_samples,).
        values: Values, NaN where there is none. Shape (num_samples,).
        resolution: Resolution of the values.
        window: Number of samples that are averaged.
        times: Times of all lines.
    """
    has_value = ~np.isnan(values)
    ticks, values = (_averaged(samples[has_value], window) for samples in (t_ns / _NS_PER_TICK, values))
    intervals = np.diff(ticks)
    breaks = np.flatnonzero(intervals > _BREAK * np.median(intervals)) + 1 if len(intervals) else np.array([], int)
    return {
        "name": name,
        "time": times.index(ticks),
        "values": steps_of(values / resolution),
        "breaks": breaks.tolist(),
    }


def _averaged(values: np.ndarray, window: int) -> np.ndarray:
    """Return the means of windows of samples; the last window may be shorter."""
    if window == 1:
        return values
    opens = np.arange(0, len(values), window)
    means: np.ndarray = np.add.reduceat(values, opens) / np.diff(np.append(opens, len(values)))
    return means
