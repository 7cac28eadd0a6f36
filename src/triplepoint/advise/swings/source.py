"""Power of nodes over time, from a run or a file."""

import io
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet

from triplepoint import swings
from triplepoint.aggregate.energy import read_sensors
from triplepoint.aggregate.nodes import LEAST_SAMPLES, readings_of
from triplepoint.aggregate.samples import Samples
from triplepoint.aggregate.steps import read_steps
from triplepoint.compare.sides import parsed_run
from triplepoint.config.catalogue import Catalogue
from triplepoint.config.plan import PlanEntry, read_planned_run
from triplepoint.errors import UserError, printable, shown
from triplepoint.importers.text import is_utf16, read_content
from triplepoint.manifest import Node, read_manifest
from triplepoint.power_sensor import AVERAGE_S
from triplepoint.tables.telemetry import MOST_NODE_W, TELEMETRY
from triplepoint.units import NS_PER_S, counted

SUFFIXES = (".parquet", ".csv")
_TIMES_S = {"t_s": 1.0, "time_s": 1.0, "time_ms": 1e-3, "t_ns": 1e-9}
"""Columns of times, and their unit in seconds."""
_POWERS = ("node_power_w", "job_power_w", "power_w")
_MOST_W = {"job_power_w": 1e10, "power_w": 1e10}
"""Highest power in columns that may be of a whole job, above that of any announced site; in others that of a node.
Our choice. Unit: W."""
_GPU_POWERS_S = {"gpu_power_w": 0.0, "gpu_power_average_w": AVERAGE_S}
"""Columns of the power of GPUs, first choice first, and their averaging window without a sensor card. Unit: s."""
_OTHER_UNIT = re.compile(
    r"^(step|rank|index|gpu|temp|temperature|num_\w+|is_\w+)$"
    r"|_(c|k|degc|kw|mhz|hz|s|ms|us|ns|j|kj|kwh|v|a|pa|bytes|percent|pct|temp|temperature)$",
    re.IGNORECASE,
)
"""Names of columns that are not the power of a node in W; most end in another unit."""
_MAX_SAMPLES = 100_000_000
"""Largest number of samples of a node: 11 days at 100 Hz, a gigabyte."""
_MAX_RATIO = 10.0
"""Largest ratio of the mean power of a node and the median over nodes. An idle GPU draws a tenth of its limit
(config/gpus), and the rest of a node more, so a larger ratio means another quantity, such as a temperature or total."""


@dataclass(frozen=True, eq=False)
class NodePower:
    """Power of the nodes of a job over time.

    Attributes:
        name: Name of the run, file or point.
        origin: `measured`, `simulated`, or `file` if unknown.
        nodes_w: Samples at common, evenly spaced times; shape (num_samples, num_nodes). Unit: W.
        period_s: Time between samples. Unit: s.
        window_s: Averaging window of a sample; 0 if unknown. Unit: s.
        nodes_per_rack: Number of consecutive nodes in a rack; None if unknown.
        notes: Sentences on missing data and assumptions.
        names: Names of the nodes, in order; empty if they have only numbers.
        num_steps: Steps that it covers; None if unknown.
    """

    name: str
    origin: str
    nodes_w: np.ndarray
    period_s: float
    window_s: float
    nodes_per_rack: int | None = None
    notes: tuple[str, ...] = ()
    names: tuple[str, ...] = ()
    num_steps: int | None = None

    @property
    def job_w(self) -> np.ndarray:
        """Power of all nodes; shape (num_samples,). Unit: W."""
        return np.asarray(self.nodes_w.sum(axis=1))

    @property
    def lasts_s(self) -> float:
        """Duration. Unit: s."""
        return len(self.nodes_w) * self.period_s


def read_run(folder: Path, config: Path) -> NodePower:
    """Return the power of the nodes of a run in measured steps: at the plug, or of GPUs if a node has no meter.

    Args:
        folder: `results/runs/<run>`.
        config: Folder of the configuration, with the racks of the cluster.

    Raises:
        UserError: If the run has no telemetry or too few readings.
    """
    planned, manifest = read_planned_run(folder / "point.json"), read_manifest(folder / "raw" / "manifest.json")
    if not manifest.nodes:
        raise UserError(f"{folder.name}: its status is {manifest.status}, no node took a step; name a finished run")
    entry = PlanEntry(run=planned.run, studies=(), invalid_because=None, planned=planned)
    steps = read_steps(entry, manifest, folder / "raw" / "steps.parquet")
    with parsed_run(folder) as parsed:
        samples = Samples(manifest, steps, TELEMETRY.read(parsed / "telemetry.parquet"))
    at_plugs = [readings_of(samples, node) for node in manifest.nodes]
    window_s, notes, nodes = 0.0, list[str](), list(range(len(at_plugs)))
    times_ns, powers_w = [list(each) for each in zip(*at_plugs, strict=True)]
    if any(len(each) < 2 for each in times_ns):
        for column in _GPU_POWERS_S:
            times_ns, powers_w, nodes = _of_gpus(samples, manifest.nodes, column)
            window_s = _gpu_window_s(folder, manifest.nodes, column)
            if times_ns:
                break
        notes.append("a node has no meter at its plug: power is that of its GPUs alone, by their sensors")
    if not times_ns or any(len(each) < 2 for each in times_ns):
        raise UserError(f"{folder.name}: no readings of power in measured steps, of nodes or of all their GPUs")
    start_ns = min(int(each[0]) for each in times_ns)
    power_w, period_s = swings.at_even_times([(each - start_ns) / NS_PER_S for each in times_ns], powers_w)
    nodes_w = np.stack([power_w[:, np.array(nodes) == node].sum(axis=1) for node in dict.fromkeys(nodes)], axis=1)
    per_rack = _nodes_per_rack(planned.point.cluster.name, config)
    num_steps = len(samples.windows_ns(manifest.nodes[0]))
    power = NodePower(
        folder.name, manifest.origin, nodes_w, period_s, window_s, per_rack, tuple(notes), num_steps=num_steps
    )
    return _long_enough(power)


def _nodes_per_rack(cluster: str, config: Path) -> int | None:
    """Return the nodes of a rack of a cluster; None if the cluster has no file, as for a run from elsewhere."""
    if not (config / "clusters" / f"{cluster}.yaml").is_file():
        return None
    return Catalogue(config).cluster(cluster).nodes_per_rack


def _of_gpus(
    samples: Samples, nodes: tuple[Node, ...], column: str
) -> tuple[list[np.ndarray], list[np.ndarray], list[int]]:
    """Return times and power of each GPU with a power sensor in measured steps, and its node; empty if a node has none.

    Args:
        samples: Telemetry of the run.
        nodes: Nodes of the run.
        column: Column of the power.
    """
    times_ns, powers_w, owners = list[np.ndarray](), list[np.ndarray](), list[int]()
    for node in nodes:
        windows_ns = samples.windows_ns(node)
        for device in node.devices:
            columns = samples.of((node.node, device.device))
            power_w, t_ns = columns[column].astype(float), columns["t_ns"]
            is_inside = np.isfinite(power_w) & (t_ns >= windows_ns[0, 0]) & (t_ns <= windows_ns[-1, 1])
            # Of GPUs that share a sensor one shows the power of all.
            if is_inside.any():
                times_ns.append(t_ns[is_inside])
                powers_w.append(power_w[is_inside])
                owners.append(node.node)
    return (times_ns, powers_w, owners) if {*owners} == {node.node for node in nodes} else ([], [], [])


def _gpu_window_s(folder: Path, nodes: tuple[Node, ...], column: str) -> float:
    """Return the time that a reading of GPU power is the mean of, by sensor cards or else its column. Unit: s."""
    sensors = read_sensors(folder.parents[1] / "sensors")
    cards = [sensors.card_of(device.uuid, device.product) for node in nodes for device in node.devices]
    found = [dict(card["sensors"]).get(column, {}) for card in cards if card is not None]
    windows_s = [max(float(each.get("window_s", 0.0)), float(each.get("period_s", 0.0))) for each in found]
    return max(windows_s, default=0.0) or _GPU_POWERS_S[column]


def read_file(path: Path) -> NodePower:
    """Return power of nodes in a file: a row for each reading of a node, or for each time with a column for each node.

    Raises:
        UserError: If it cannot be read, or has no column of times or power.
    """
    table = _read(path)
    time = next((name for name in _TIMES_S if name in table.column_names), None)
    if time is None:
        raise UserError(f"{path}: no column {', '.join(_TIMES_S)}, which are the times of readings")
    power = next((name for name in _POWERS if name in table.column_names), None)
    names = list[str]()
    if power is not None:
        named = table["node"].to_numpy(zero_copy_only=False) if "node" in table.column_names else np.zeros(len(table))
        owners = list(dict.fromkeys(named.tolist()))
        columns = [(named == node, power) for node in owners]
        names = [_called(node) for node in owners] if "node" in table.column_names else []
    else:
        wide = [name for name in table.column_names if name != time]
        _check_wide(table, wide, path)
        columns = [(np.ones(len(table), bool), name) for name in wide]
        names = [name.removesuffix("_w").removesuffix("_power") for name in wide]
    times_s, powers_w = [], []
    all_times = _numbers(table, time, path)
    # Less the first: seconds since 1970 leave too few digits for milliseconds.
    all_times_s = (all_times - np.min(all_times, initial=np.inf, where=np.isfinite(all_times))) * _TIMES_S[time]
    for rows, name in columns:
        power_w = _numbers(table, name, path)
        is_known = rows & np.isfinite(power_w) & np.isfinite(all_times_s)
        _check_range(power_w[rows], power_w[is_known], name, path)
        t_s, first = np.unique(all_times_s[is_known], return_index=True)
        times_s.append(t_s)
        powers_w.append(power_w[is_known][first])
    _check_times(times_s, [name for _, name in columns], names if power else [], path)
    nodes_w, period_s = swings.at_even_times(times_s, powers_w)
    return _long_enough(NodePower(path.name, "file", nodes_w, period_s, 0.0, names=tuple(names)))


def _check_range(all_w: np.ndarray, known_w: np.ndarray, name: str, path: Path) -> None:
    """Check that readings can be power.

    Args:
        all_w: All readings of a column of one node. Unit: W.
        known_w: Those with a number and a time. Unit: W.
        name: Name of the column.
        path: The file, for errors.
    """
    if num_infinite := int(np.isinf(all_w).sum()):
        raise UserError(
            f"{path}: column {name} has infinite readings ({num_infinite}); mend them or leave their cells empty"
        )
    if num_below := int((known_w < 0).sum()):
        raise UserError(
            f"{path}: column {name} has readings below 0 W ({num_below}), down to {known_w.min():g} W; mend them or "
            "leave their cells empty"
        )
    most_w = _MOST_W.get(name, MOST_NODE_W)
    if num_above := int((known_w > most_w).sum()):
        raise UserError(
            f"{path}: column {name} has readings above {most_w:g} W ({num_above}), up to {known_w.max():g} W; mend "
            "them or leave their cells empty"
        )


def _check_times(times_s: list[np.ndarray], columns: list[str], nodes: list[str], path: Path) -> None:
    """Check that every node has readings at different times, and none of them far off.

    Args:
        times_s: Times of the readings of each node, ascending. Unit: s.
        columns: Name of the column of each node.
        nodes: Name of each node where all have one column; else empty.
        path: The file, for errors.
    """
    if not times_s:
        raise UserError(f"{path}: no column of power; expected one of {', '.join(_POWERS)}")
    for node, (t_s, column) in enumerate(zip(times_s, columns, strict=True)):
        if len(t_s) < 2:
            of_node = f" of {nodes[node]}" if nodes else ""
            raise UserError(
                f"{path}: column {column}{of_node} has fewer than two readings at different times ({len(t_s)}); add "
                "readings, or leave it out"
            )
        if (num := float((t_s[-1] - t_s[0]) / np.median(np.diff(t_s)))) > _MAX_SAMPLES:
            raise UserError(
                f"{path}: readings over {t_s[-1] - t_s[0]:.3g} s are {num:.1g} samples at their usual distance; at "
                f"most {_MAX_SAMPLES:,} are read, mend the time that is far off"
            )


def _called(node: object) -> str:
    """Return the name of a node from a value of column `node`."""
    return node if isinstance(node, str) else f"node{node}"


def _known(table: pa.Table, columns: list[str], path: Path) -> Iterator[tuple[str, np.ndarray]]:
    """Yield the columns with any number."""
    for name in columns:
        values = _numbers(table, name, path)
        if np.isfinite(values).any():
            yield name, values


def _check_wide(table: pa.Table, columns: list[str], path: Path) -> None:
    """Check that each column of a file with a column per node is the power of a node.

    Raises:
        UserError: If a name ends in another unit, a column has no numbers, or its mean is far from that of the others.
    """
    expected = "expected a column of watts for each node beside the times; leave it out, or name it <node>_power_w"
    odd = next((name for name in columns if _OTHER_UNIT.search(name)), None)
    if odd is not None:
        raise UserError(f"{path}: column {odd} is no power of a node, {expected}")
    means = {name: float(np.nanmean(values)) for name, values in _known(table, columns, path)}
    usual_w = float(np.median(list(means.values()))) if means else 0.0
    for name, mean_w in means.items():
        if not usual_w / _MAX_RATIO <= mean_w <= usual_w * _MAX_RATIO:
            raise UserError(
                f"{path}: column {name} has a mean of {mean_w:.4g}, most others one near {usual_w:.4g} W; {expected}"
            )


def _read(path: Path) -> pa.Table:
    try:
        table = pa.parquet.read_table(path) if path.suffix == ".parquet" else _read_csv(path)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise UserError(f"{path}: not readable as {path.suffix[1:]}: {str(error).splitlines()[0]}") from None
    table = table.rename_columns([printable(name) for name in table.column_names])
    if twice := [name for name, count in Counter(table.column_names).items() if count > 1]:
        raise UserError(f"{path}: column {shown(twice[0])} is there twice; leave one out, or rename it")
    if not len(table):
        raise UserError(f"{path}: no row in it; expected readings of power")
    return table


def _read_csv(path: Path) -> pa.Table:
    with path.open("rb") as file:
        if not is_utf16(file.read(2)):
            return pa.csv.read_csv(path)
    return pa.csv.read_csv(io.BytesIO(read_content(path).text.encode()))


def _numbers(table: pa.Table, column: str, path: Path) -> np.ndarray:
    try:
        return np.asarray(table[column].to_numpy(zero_copy_only=False).astype(float))
    except (TypeError, ValueError):
        raise UserError(f"{path}: column {column} holds {table[column].type}, expected numbers") from None


def _long_enough(power: NodePower) -> NodePower:
    """Return power unchanged. Raises `UserError` for too few samples, or a mean that is not positive."""
    if len(power.nodes_w) < LEAST_SAMPLES:
        raise UserError(
            f"{power.name}: {counted(len(power.nodes_w), 'reading')}, every {power.period_s:.3g} s, while all nodes "
            f"are read; expected {LEAST_SAMPLES} for a 1st percentile: record longer or read more often"
        )
    if not power.nodes_w.mean() > 0:
        raise UserError(f"{power.name}: mean power is {power.nodes_w.mean():.3g} W, expected a positive one")
    return power
