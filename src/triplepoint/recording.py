"""Samples on disk: Arrow streams flushed every second, readable after a kill.

A node leaves `node<N>.arrow` and, where it has GPUs, `node<N>.fast.arrow` beside it. A row holds the change of every
column since the device's previous sample, as whole multiples of a resolution: most changes are 0, which costs nothing
once compressed. One list column takes the place of forty columns, whose descriptions alone would outweigh the samples:
eight GPUs at 20 Hz must fit into 20 MB an hour. Names, units and resolutions stand in the metadata of that column.
"""

import contextlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from triplepoint.errors import UserError
from triplepoint.tables import SAMPLES
from triplepoint.tables.telemetry import METRICS
from triplepoint.units import NS_PER_S

_PERIOD = b"period_s"
_ABSENT = b"absent"
_FACTS = b"facts"
_COLUMNS = b"columns"

_RESOLUTIONS = {"ns": 1.0, "W": 1e-3, "J": 1e-6, "s": 1e-9, "degC": 1e-3, "MHz": 1e-3, "byte": 1.0, "1": 1.0}
"""What one count of a stored number is worth, in the unit of its column; no driver resolves finer."""
_RATIO_RESOLUTION = 1e-5
_SAMPLED = {column.name: column for column in SAMPLES.columns}
_TIMES = ("t_ns", "read_latency_ns")
_MOVING = ("gpu_energy_j", "cpu_energy_j")
_STILL_NS = NS_PER_S
_INDEX = pa.dictionary(pa.int8(), pa.string())


def fast_path(path: Path) -> Path:
    """Return where the fast lane of the recording at `path` is kept."""
    return path.with_suffix(f".fast{path.suffix}")


@dataclass(frozen=True)
class Part:
    """Samples of one device in time order."""

    device: str
    t_ns: np.ndarray
    """Shape (num_samples,). Unit: ns."""
    read_latency_ns: np.ndarray
    """Shape (num_samples,). Unit: ns."""
    columns: Sequence[str]
    """Metrics, names of `tables.SAMPLES`."""
    values: np.ndarray
    """In the units of `tables.SAMPLES`, NaN where not read. Shape (num_samples, num_columns)."""


class Recorder:
    """Writes one lane of one node to an Arrow IPC stream; what was written stays readable whatever happens next."""

    def __init__(
        self,
        path: Path,
        period_s: float,
        absent: dict[str, str],
        columns: Iterable[str] = METRICS,
        facts: dict[str, Any] | None = None,
    ) -> None:
        """Open the stream.

        Args:
            path: File to write.
            period_s: Time between samples. Unit: s.
            absent: Metrics no device here can measure, with the reason of each.
            columns: Metrics of this lane.
            facts: Account of the devices, as JSON.
        """
        path.parent.mkdir(parents=True, exist_ok=True)
        self._places = {name: place for place, name in enumerate((*_TIMES, *columns))}
        self._resolution = np.array([_resolution(name) for name in self._places])
        stored = pa.list_(pa.field("item", pa.int64()), len(self._places))
        account = {_PERIOD: repr(period_s), _ABSENT: json.dumps(absent), _FACTS: json.dumps(facts or {})}
        layout = {_COLUMNS: json.dumps([_layout(name) for name in self._places])}
        fields = [pa.field("device", _INDEX, False), pa.field("change", stored, False, metadata=layout)]
        self._schema = pa.schema(fields, metadata=account)
        self._last: dict[str, np.ndarray] = {}
        self._names: list[str] = []
        self._rows: list[dict[str, Any]] = []
        self.is_broken = False
        self._path = path
        self._file = path.open("wb")
        options = pa.ipc.IpcWriteOptions(compression="zstd", emit_dictionary_deltas=True)
        self._stream = pa.ipc.new_stream(self._file, self._schema, options=options)
        self._file.flush()

    def add(self, t_ns: int, read_latency_ns: int, device: str, values: dict[str, float]) -> None:
        """Keep one sample until the next flush."""
        self._rows.append({"t_ns": t_ns, "read_latency_ns": read_latency_ns, "device": device, **values})

    def flush(self) -> None:
        """Hand all kept samples to the operating system."""
        rows, self._rows = self._rows, []
        names = [name for name in self._places if name not in _TIMES]
        for device in dict.fromkeys(row["device"] for row in rows):
            mine = [row for row in rows if row["device"] == device]
            values = np.array([[row.get(name, np.nan) for name in names] for row in mine], float)
            times, latencies = (np.array([row[name] for row in mine]) for name in _TIMES)
            self.write([Part(device, times, latencies, names, values)])

    def write(self, parts: Iterable[Part]) -> None:
        """Write samples at once, one part for each device, and hand them to the operating system.

        Raises:
            UserError: If they cannot be written: a full disk.
        """
        parts = [part for part in parts if part.t_ns.size]
        if not parts:
            return
        self._names += [name for name in dict.fromkeys(part.device for part in parts) if name not in self._names]
        devices = np.repeat([self._names.index(part.device) for part in parts], [part.t_ns.size for part in parts])
        changes, missing = self._changes(parts)
        index = _array(pa.int8(), devices.astype("i1"))
        named = pa.DictionaryArray.from_arrays(index, _texts(self._names))
        flat = _array(pa.int64(), changes.reshape(-1), missing.reshape(-1))
        change = pa.FixedSizeListArray.from_arrays(flat, type=self._schema.field("change").type)
        try:
            self._stream.write_batch(pa.RecordBatch.from_arrays([named, change], schema=self._schema))
            self._file.flush()
        except OSError as error:
            self.is_broken = True
            raise UserError(
                f"{self._path}: {error.strerror or error}; sampling ends here, what was written stays readable"
            ) from None

    def _changes(self, parts: list[Part]) -> tuple[np.ndarray, np.ndarray]:
        """Return changes since each device's previous sample and where there is none, shape (samples, places)."""
        # Before the rows of each part stands a row with the last values of its device.
        lengths = np.array([part.t_ns.size + 1 for part in parts])
        starts = np.cumsum(lengths) - lengths
        values = np.full((lengths.sum(), len(self._places)), np.nan)
        times = np.empty(lengths.sum(), "i8")  # as float they would lose nanoseconds
        for part, start, length in zip(parts, starts, lengths, strict=True):
            rows = slice(start + 1, start + length)
            times[rows] = part.t_ns
            values[rows, 1] = part.read_latency_ns
            values[rows, self._places_of(part)] = part.values
        values[:, 0] = 0.0
        missing = ~np.isfinite(values)
        numbers = np.rint(np.where(missing, 0.0, values) / self._resolution).astype("i8")
        numbers[:, 0] = times
        none = np.zeros(len(self._places), "i8")
        numbers[starts] = [self._last.get(part.device, none) for part in parts]
        missing[starts] = False
        carried = _carried(numbers, missing)
        for part, end in zip(parts, np.cumsum(lengths) - 1, strict=True):
            self._last[part.device] = carried[end]
        samples = np.ones(len(carried) - 1, bool)
        samples[starts[1:] - 1] = False
        return np.diff(carried, axis=0)[samples], missing[1:][samples]

    def _places_of(self, part: Part) -> list[int]:
        return [self._places[name] for name in part.columns]

    def close(self) -> None:
        """Flush and end the stream; after a failed write what was written before stays as it is."""
        if not self.is_broken:
            self.flush()
            self._stream.close()
        with contextlib.suppress(OSError):  # a full disk also fails to take what Python still holds
            self._file.close()


def _carried(numbers: np.ndarray, missing: np.ndarray) -> np.ndarray:
    """Return numbers with each missing one replaced by the one before it."""
    gaps = np.flatnonzero(missing.any(axis=0))
    if gaps.size:
        rows = np.where(missing[:, gaps], 0, np.arange(len(numbers))[:, None])
        numbers[:, gaps] = np.take_along_axis(numbers[:, gaps], np.maximum.accumulate(rows, axis=0), axis=0)
    return numbers


def _array(kind: pa.DataType, numbers: np.ndarray, missing: np.ndarray | None = None) -> pa.Array:
    """Return an Arrow array over numpy's memory; pa.array with a mask would import pandas into the sampler."""
    valid = None
    if missing is not None and missing.any():
        valid = pa.py_buffer(np.packbits(~missing, bitorder="little"))
    return pa.Array.from_buffers(kind, numbers.size, [valid, pa.py_buffer(np.ascontiguousarray(numbers))])


def _texts(texts: list[str]) -> pa.Array:
    encoded = [text.encode() for text in texts]
    ends = np.cumsum([0, *map(len, encoded)]).astype("i4")
    return pa.StringArray.from_buffers(len(texts), pa.py_buffer(ends), pa.py_buffer(b"".join(encoded)))


def _resolution(name: str) -> float:
    column = _SAMPLED[name]
    is_ratio = column.unit == "1" and column.maximum is not None
    return _RATIO_RESOLUTION if is_ratio else _RESOLUTIONS[column.unit]


def _layout(name: str) -> dict[str, Any]:
    return {"name": name, "unit": _SAMPLED[name].unit, "resolution": _resolution(name)}


@dataclass(frozen=True)
class Recording:
    """What a sampler left on one node: `samples` is a checked `tables.SAMPLES`, in time order."""

    samples: pa.Table
    period_s: float
    """Time between samples of the slow lane. Unit: s."""
    absent: dict[str, str]
    facts: dict[str, Any] = field(default_factory=dict)
    fast_period_s: float | None = None
    """Time between samples of the fast lane; None where there is none. Unit: s."""
    is_fast: np.ndarray = field(default_factory=lambda: np.array([], bool))
    """Whether a sample is of the fast lane. Shape (num_samples,)."""

    @property
    def measured(self) -> tuple[str, ...]:
        """Metrics with at least one value."""
        return tuple(name for name in METRICS if self.samples[name].null_count < self.samples.num_rows)

    @property
    def stale(self) -> dict[str, int]:
        """Number of samples of each energy counter that stood still for over a second: nothing draws no power."""
        found = {}
        devices = self.samples["device"].to_numpy(zero_copy_only=False)
        t_ns = self.samples["t_ns"].to_numpy()
        for name in _MOVING:
            values = self.samples[name].to_numpy(zero_copy_only=False).astype(float)
            known = np.isfinite(values)
            rows = [np.flatnonzero(known & (devices == device)) for device in np.unique(devices[known])]
            found[name] = sum(_still(t_ns[chosen], values[chosen]) for chosen in rows)
        return {name: num for name, num in found.items() if num}


def _still(t_ns: np.ndarray, values: np.ndarray) -> int:
    """Return how many samples come more than `_STILL_NS` after the last change."""
    changed = np.concatenate([[True], np.diff(values) != 0])
    last = np.maximum.accumulate(np.where(changed, np.arange(len(t_ns)), 0))
    return int((t_ns - t_ns[last] > _STILL_NS).sum())


def read_recording(path: Path) -> Recording:
    """Return every whole batch of the streams at `path`; a batch cut off by a kill is left out.

    Args:
        path: `node<N>.arrow`; its fast lane is read too, where there is one.

    Raises:
        UserError: If the file is missing or is not such a stream.
    """
    slow, metadata = _read_lane(path)
    parts, fast_period_s = [slow], None
    if fast_path(path).is_file():
        fast, fast_metadata = _read_lane(fast_path(path))
        parts.append(fast)
        fast_period_s = float(fast_metadata[_PERIOD])
    samples = pa.concat_tables(parts)
    order = np.argsort(samples["t_ns"].to_numpy(), kind="stable")
    return Recording(
        samples=samples.take(pa.array(order)),
        period_s=float(metadata[_PERIOD]),
        absent=json.loads(metadata[_ABSENT]),
        facts=json.loads(metadata[_FACTS]),
        fast_period_s=fast_period_s,
        is_fast=order >= slow.num_rows,
    )


def _read_lane(path: Path) -> tuple[pa.Table, dict[bytes, bytes]]:
    batches: list[pa.RecordBatch] = []
    try:
        with path.open("rb") as file, pa.ipc.open_stream(file) as stream:
            schema = stream.schema
            with contextlib.suppress(pa.ArrowInvalid, OSError):  # killed while writing its last batch
                batches.extend(stream)
    except FileNotFoundError:
        raise UserError(f"{path}: no such file; the sampler of this node wrote nothing") from None
    except (pa.ArrowInvalid, OSError) as error:
        raise UserError(f"{path}: not an Arrow stream ({error})") from None
    if not {_PERIOD, _ABSENT, _FACTS} <= set(schema.metadata or {}) or schema.names != ["device", "change"]:
        raise UserError(f"{path}: an Arrow stream, but not one a triplepoint sampler wrote")
    return SAMPLES.check(_decode(pa.Table.from_batches(batches, schema)), path), schema.metadata


def _decode(stored: pa.Table) -> pa.Table:
    """Return changes added up, as columns of `tables.SAMPLES`."""
    import pyarrow.compute as pc  # 10 MB that the sampler has no use for

    layout = json.loads(stored.schema.field("change").metadata[_COLUMNS])
    flat = pc.list_flatten(stored["change"])
    shape = (stored.num_rows, len(layout))
    missing = pc.is_null(flat).to_numpy().reshape(shape)
    changes = pc.fill_null(flat, 0).to_numpy().reshape(shape)
    names = stored["device"].cast(pa.string())
    totals = np.zeros(shape, "i8")
    for name in names.unique().to_pylist():
        rows = pc.equal(names, name).to_numpy()
        totals[rows] = np.cumsum(changes[rows], axis=0)
    columns = {"device": names}
    for place, about in enumerate(layout):
        kind = SAMPLES.schema().field(about["name"]).type
        numbers = totals[:, place] if pa.types.is_integer(kind) else totals[:, place] * about["resolution"]
        columns[about["name"]] = pa.array(numbers, kind, mask=missing[:, place])
    for absent in set(SAMPLES.schema().names) - set(columns):
        columns[absent] = pa.nulls(stored.num_rows, SAMPLES.schema().field(absent).type)
    return pa.table(columns)
