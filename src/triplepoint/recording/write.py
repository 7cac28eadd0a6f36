"""Samples to disk: Arrow streams flushed every second, readable after a kill; `read` reads them.

A node leaves `node<N>.arrow` and, where it has GPUs, `node<N>.fast.arrow` beside it. A row holds the change of every
column since the device's previous sample, as whole multiples of a resolution: most changes are 0, which costs nothing
once compressed. Rows stand in time order, and a time is counted from the end of the read before, of whatever device: in
a sweep that is some tens of nanoseconds, whereas wake-ups jitter by many thousands. One list column takes the place of
forty columns, whose descriptions alone would outweigh the samples: eight GPUs at 20 Hz must fit into 20 MB an hour.
Names, units and resolutions stand in the metadata of that column.
"""

import contextlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from triplepoint.errors import UserError
from triplepoint.tables import SAMPLES
from triplepoint.tables.schema import Kind
from triplepoint.tables.telemetry import METRICS

PERIOD = b"period_s"
ABSENT = b"absent"
FACTS = b"facts"
COLUMNS = b"columns"

_RESOLUTIONS = {"ns": 1.0, "W": 1e-3, "J": 1e-6, "s": 1e-9, "degC": 1e-3, "MHz": 1e-3, "byte": 1.0, "1": 1.0}
"""What one count of a stored number is worth, in the unit of its column; no driver resolves finer."""
_RATIO_RESOLUTION = 1e-5
_SAMPLED = {column.name: column for column in SAMPLES.columns}
_TIMES = ("t_ns", "read_latency_ns")
_INDEX = pa.dictionary(pa.int8(), pa.string())


def fast_path(path: Path) -> Path:
    """Return where the fast lane of the recording at `path` is kept."""
    return path.with_suffix(f".fast{path.suffix}")


def again_path(path: Path) -> Path:
    """Return where a sampler that was started again goes on with the recording at `path`."""
    return path.with_suffix(f".again{path.suffix}")


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
        account = {PERIOD: repr(period_s), ABSENT: json.dumps(absent), FACTS: json.dumps(facts or {})}
        layout = {COLUMNS: json.dumps([_layout(name) for name in self._places])}
        fields = [pa.field("device", _INDEX, False), pa.field("change", stored, False, metadata=layout)]
        self._schema = pa.schema(fields, metadata=account)
        self._last: dict[str, np.ndarray] = {}
        self._end_ns = 0
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
        order = np.argsort(np.concatenate([part.t_ns for part in parts]), kind="stable")
        changes, missing = (rows[order] for rows in self._changes(parts))
        changes[:, 0] = self._waits(parts, order)
        index = _array(pa.int8(), devices[order].astype("i1"))
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
        for part, start, length in zip(parts, starts, lengths, strict=True):
            rows = slice(start + 1, start + length)
            values[rows, 1] = part.read_latency_ns
            values[rows, self._places_of(part)] = part.values
        values[:, 0] = 0.0
        missing = ~np.isfinite(values)
        numbers = np.rint(np.where(missing, 0.0, values) / self._resolution).astype("i8")
        none = np.zeros(len(self._places), "i8")
        numbers[starts] = [self._last.get(part.device, none) for part in parts]
        missing[starts] = False
        carried = _carried(numbers, missing)
        for part, end in zip(parts, np.cumsum(lengths) - 1, strict=True):
            self._last[part.device] = carried[end]
        samples = np.ones(len(carried) - 1, bool)
        samples[starts[1:] - 1] = False
        return np.diff(carried, axis=0)[samples], missing[1:][samples]

    def _waits(self, parts: list[Part], order: np.ndarray) -> np.ndarray:
        """Return how long after the end of the read before it each read began, rows in time order. Unit: ns."""
        t_ns, latency_ns = (
            np.concatenate(each)[order].astype("i8")
            for each in ([part.t_ns for part in parts], [part.read_latency_ns for part in parts])
        )
        ends_ns = t_ns + latency_ns
        before_ns, self._end_ns = np.concatenate([[self._end_ns], ends_ns[:-1]]), int(ends_ns[-1])
        return np.asarray(t_ns - before_ns)

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
    return _RATIO_RESOLUTION if column.kind is Kind.RATIO else _RESOLUTIONS[column.unit]


def _layout(name: str) -> dict[str, Any]:
    return {"name": name, "unit": _SAMPLED[name].unit, "resolution": _resolution(name)}
