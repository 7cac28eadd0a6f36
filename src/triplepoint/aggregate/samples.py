"""Telemetry samples of one run by device, cut to its measured steps."""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from triplepoint.aggregate.steps import RunSteps
from triplepoint.manifest import Device, Manifest, Node
from triplepoint.units import NS_PER_S

DeviceKey = tuple[int, str]
"""Node index and device name."""


class Weighted(NamedTuple):
    """Samples of measured steps without nulls, with their weights.

    Attributes:
        values: Values; shape (num_samples,).
        weight_ns: Time that each sample represents; shape (num_samples,). Unit: ns.
    """

    values: np.ndarray
    weight_ns: np.ndarray

    @property
    def mean(self) -> float:
        """Time-weighted mean; NaN without samples."""
        if not self.values.size:
            return float("nan")
        return float(np.average(self.values, weights=self.weight_ns) if self.weight_ns.any() else self.values.mean())


class Samples:
    """Samples of a run by device, with the windows of its measured steps."""

    def __init__(self, manifest: Manifest, steps: RunSteps, telemetry: pa.Table) -> None:
        """Group the samples by device. Samples of interrupted steps count as outside of measured steps."""
        self.manifest, self.steps = manifest, steps
        self._columns = {name: telemetry[name].to_numpy(zero_copy_only=False) for name in telemetry.column_names}
        if interrupted := list(manifest.interrupted_steps):
            kinds, is_interrupted = self._columns["kind"], np.isin(self._columns["step"], interrupted)
            self._columns["kind"] = np.where(is_interrupted, None, kinds)
        rows: dict[DeviceKey, list[int]] = {}
        keys = zip(self._columns["node"].tolist(), self._columns["device"].tolist(), strict=True)
        for row, key in enumerate(keys):
            rows.setdefault(key, []).append(row)
        self._rows = {key: np.array(indices) for key, indices in rows.items()}
        self.devices = sorted({(node.node, device.device) for node in manifest.nodes for device in node.devices})

    def __contains__(self, key: DeviceKey) -> bool:
        """Return whether a device has samples and its node has steps."""
        return key in self._rows and key[0] in self.steps.windows_ns

    def of(self, key: DeviceKey, *names: str) -> dict[str, np.ndarray]:
        """Return the named columns of a device's samples; all of them if none is named."""
        rows = self._rows.get(key, np.array([], dtype=np.int64))
        return {name: self._columns[name][rows] for name in names or self._columns}

    def values(self, name: str, key: DeviceKey) -> np.ndarray:
        """Return the values of a device in measured steps, without nulls."""
        if key not in self._rows:
            return np.array([])
        values: np.ndarray = self._columns[name][self._rows[key]].astype(float)
        return np.asarray(values[np.isfinite(values) & (self._columns["kind"][self._rows[key]] == "measured")])

    def weighted(self, name: str, key: DeviceKey, by: str | None = None) -> Weighted:
        """Return the values of a device in measured steps with the time that each represents.

        Args:
            name: Column of table `telemetry`.
            key: The device.
            by: Column of shares that multiply the weights, with its last value at each sample; samples before its
                first value are omitted. None: weights are times.
        """
        if key not in self:
            return Weighted(self.values(name, key), np.ones(self.values(name, key).shape))
        node = next(node for node in self.manifest.nodes if node.node == key[0])
        columns = self.of(key, "t_ns", "kind", name, *([by] if by else []))
        values: np.ndarray = columns[name].astype(float)
        has_value = np.isfinite(values)
        share = np.ones(len(values)) if by is None else _fill_forward(columns[by].astype(float))
        weight_ns = sample_weights_ns(columns["t_ns"][has_value], self.windows_ns(node)) * share[has_value]
        is_measured = (columns["kind"][has_value] == "measured") & np.isfinite(weight_ns)
        return Weighted(values[has_value][is_measured], weight_ns[is_measured])

    def windows_ns(self, node: Node) -> np.ndarray:
        """Return start and end of the measured steps of a node, on the first node's clock as in the telemetry."""
        return self.manifest.on_first_clock(node, self.steps.windows_ns[node.node])

    def sampled(self) -> Iterator[tuple[Node, Device]]:
        """Yield node and device of each GPU with samples and steps."""
        for node in self.manifest.nodes:
            for device in node.devices:
                if (node.node, device.device) in self:
                    yield node, device

    def growth(self, name: str, node: Node, device: str) -> np.ndarray | None:
        """Return the increase of a counter in each measured step; None unless its samples cover all of them.

        Args:
            name: Column of table `telemetry`.
            node: The node.
            device: `host`, or a GPU of it.
        """
        if (node.node, device) not in self:
            return None
        columns, windows_ns = self.of((node.node, device), "t_ns", name), self.windows_ns(node)
        values = columns[name].astype(float)
        has_value = np.isfinite(values)
        t_ns = columns["t_ns"][has_value]
        if t_ns.size < 2 or windows_ns.min() < t_ns[0] or windows_ns.max() > t_ns[-1]:
            return None
        return np.asarray(np.diff(np.interp(windows_ns, t_ns, values[has_value]), axis=1)[:, 0])

    def step_lengths_s(self, node: Node) -> np.ndarray:
        """Return the time of each measured step on a node. Shape (num_measured,). Unit: s."""
        return np.asarray(np.diff(self.steps.windows_ns[node.node], axis=1)[:, 0] / NS_PER_S)


def sample_weights_ns(t_ns: np.ndarray, windows_ns: np.ndarray) -> np.ndarray:
    """Return the time that each sample represents: half way to its neighbours, within measured steps only.

    Samples can be denser at the ends of steps, where clocks differ from the rest, so plain means would be biased. A
    sample represents at most twice the usual time to each side, because a gap was not measured.

    Args:
        t_ns: Times of the samples, in order; shape (num_samples,). Unit: ns.
        windows_ns: Start and end of measured steps, in order; shape (num_steps, 2). Unit: ns.

    Returns:
        Weights; shape (num_samples,). Unit: ns.
    """
    if len(t_ns) < 2:
        return np.ones(len(t_ns))
    half = np.diff(t_ns) / 2
    half = np.minimum(half, 2 * np.median(half))
    low, high = t_ns - np.append(0.0, half), t_ns + np.append(half, 0.0)
    # Cumulative measured time, which is constant between steps.
    lengths = np.diff(windows_ns, axis=1)[:, 0]
    edges, cumulative = windows_ns.reshape(-1).astype(float), np.repeat(np.cumsum(lengths), 2)
    cumulative[::2] -= lengths
    return np.asarray(np.interp(high, edges, cumulative) - np.interp(low, edges, cumulative))


def _fill_forward(values: np.ndarray) -> np.ndarray:
    """Return values with each NaN replaced by the last finite value before it; NaN before the first."""
    last = np.maximum.accumulate(np.where(np.isfinite(values), np.arange(len(values)), -1))
    return np.where(last < 0, np.nan, values[last])


def why_absent(manifest: Manifest, column: str) -> str:
    """Return why a column of the telemetry has no values in a run, from the summaries or gaps in the manifest."""
    for node in manifest.nodes:
        if node.telemetry is None:
            return node.gaps[-1] if node.gaps else f"the sampler of {node.host} left no account"
        if column in node.telemetry.absent:
            return node.telemetry.absent[column]
        if node.gaps:
            return node.gaps[-1]
    return "no samples around the measured steps; use a shorter telemetry_period_s or more steps"
