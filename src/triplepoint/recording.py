"""Samples on disk: Arrow streams flushed every second, readable after a kill.

A node leaves `node<N>.arrow` and, where it has GPUs, `node<N>.fast.arrow` beside it. Values are kept as small whole
numbers, counters as steps since the device's previous sample: eight GPUs at 20 Hz must fit into 20 MB an hour.
"""

import contextlib
import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from triplepoint.errors import UserError
from triplepoint.tables import SAMPLES
from triplepoint.tables.telemetry import CUMULATIVE, METRICS

_PERIOD = b"period_s"
_ABSENT = b"absent"
_FACTS = b"facts"
_RESOLUTION = b"resolution"
_CODING = b"coding"
_STEP = b"step"
_LEVEL = b"level"

_RESOLUTIONS = {"W": 1e-3, "J": 1e-6, "s": 1e-9, "degC": 1e-3, "MHz": 1e-3, "byte": 1.0, "1": 1.0}
"""What one count of a stored number is worth, in the unit of its column; no driver resolves finer."""
_RATIO_RESOLUTION = 1e-5
_COLUMNS = {column.name: column for column in SAMPLES.columns}
_INDEX = pa.dictionary(pa.int8(), pa.string())


def fast_path(path: Path) -> Path:
    """Return where the fast lane of the recording at `path` is kept."""
    return path.with_suffix(f".fast{path.suffix}")


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
        self._columns = tuple(columns)
        account = {_PERIOD: repr(period_s), _ABSENT: json.dumps(absent), _FACTS: json.dumps(facts or {})}
        fields = [SAMPLES.schema().field("t_ns"), pa.field("read_latency_ns", pa.uint32(), False)]
        fields += [pa.field("device", _INDEX, False), *map(_stored_field, self._columns)]
        self._schema = pa.schema(fields, metadata=account)
        self._last: dict[tuple[str, str], int] = {}
        self._names: list[str] = []
        self._rows: list[dict[str, Any]] = []
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
        for device in dict.fromkeys(row["device"] for row in rows):
            mine = [row for row in rows if row["device"] == device]
            values = {name: np.array([row.get(name, np.nan) for row in mine], float) for name in self._columns}
            times = [np.array([row[name] for row in mine]) for name in ("t_ns", "read_latency_ns")]
            self.write([(device, times[0], times[1], values)])

    def write(self, parts: list[tuple[str, np.ndarray, np.ndarray, dict[str, np.ndarray]]]) -> None:
        """Write samples at once and hand them to the operating system.

        Args:
            parts: For each device its name, times and read latencies in ns, and metrics in the units of
                `tables.SAMPLES`, NaN where not read. Arrays of shape (num_samples,), in time order.
        """
        parts = [part for part in parts if part[1].size]
        if not parts:
            return
        for device, *_ in parts:
            if device not in self._names:
                self._names.append(device)
        lengths = [part[1].size for part in parts]
        devices = np.repeat([self._names.index(part[0]) for part in parts], lengths).astype("i1")
        arrays = [
            pa.array(np.concatenate([part[1] for part in parts])),
            pa.array(np.concatenate([part[2] for part in parts]).clip(0, 2**32 - 1).astype("u4")),
            pa.DictionaryArray.from_arrays(devices, self._names),
        ]
        for name in self._columns:
            numbers = [self._encode(device, name, values.get(name), times.size) for device, times, _, values in parts]
            stored, missing = (np.concatenate(found) for found in zip(*numbers, strict=True))
            arrays.append(pa.array(stored, mask=missing if missing.any() else None))
        self._stream.write_batch(pa.RecordBatch.from_arrays(arrays, schema=self._schema))
        self._file.flush()

    def _encode(self, device: str, name: str, values: np.ndarray | None, length: int) -> tuple[np.ndarray, np.ndarray]:
        if values is None:
            return np.zeros(length, "i8"), np.ones(length, bool)
        missing = ~np.isfinite(values)
        numbers = np.rint(np.where(missing, 0.0, values) / _resolution(name)).astype("i8")
        if name in CUMULATIVE and not missing.all():
            kept = numbers[~missing]
            numbers[~missing] = np.diff(kept, prepend=self._last.get((device, name), 0))
            self._last[device, name] = int(kept[-1])
        return numbers, missing

    def close(self) -> None:
        """Flush and end the stream."""
        self.flush()
        self._stream.close()
        self._file.close()


def _resolution(name: str) -> float:
    column = _COLUMNS[name]
    is_ratio = column.unit == "1" and column.maximum is not None
    return _RATIO_RESOLUTION if is_ratio else _RESOLUTIONS[column.unit]


def _stored_field(name: str) -> pa.Field:
    column = _COLUMNS[name]
    coding = _STEP if name in CUMULATIVE else _LEVEL
    metadata = {b"unit": column.unit, b"about": column.about, _RESOLUTION: repr(_resolution(name)), _CODING: coding}
    return pa.field(name, pa.int64(), True, metadata=metadata)


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

    @property
    def measured(self) -> tuple[str, ...]:
        """Metrics with at least one value."""
        return tuple(name for name in METRICS if self.samples[name].null_count < self.samples.num_rows)


def read_recording(path: Path) -> Recording:
    """Return every whole batch of the streams at `path`; a batch cut off by a kill is left out.

    Args:
        path: `node<N>.arrow`; its fast lane is read too, where there is one.

    Raises:
        UserError: If the file is missing or is not such a stream.
    """
    slow, schema = _read_lane(path)
    metadata = schema.metadata
    parts, fast_period_s = [slow], None
    if fast_path(path).is_file():
        fast, fast_schema = _read_lane(fast_path(path))
        parts.append(fast)
        fast_period_s = float(fast_schema.metadata[_PERIOD])
    samples = pa.concat_tables(parts).sort_by("t_ns")
    facts = json.loads(metadata[_FACTS])
    return Recording(samples, float(metadata[_PERIOD]), json.loads(metadata[_ABSENT]), facts, fast_period_s)


def _read_lane(path: Path) -> tuple[pa.Table, pa.Schema]:
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
    if not {_PERIOD, _ABSENT, _FACTS} <= set(schema.metadata or {}):
        raise UserError(f"{path}: an Arrow stream, but not one a triplepoint sampler wrote")
    return _decode(pa.Table.from_batches(batches, schema), path), schema


def _decode(stored: pa.Table, path: Path) -> pa.Table:
    """Return stored whole numbers as `tables.SAMPLES`."""
    names = stored["device"].cast(pa.string())
    columns = {"t_ns": stored["t_ns"], "read_latency_ns": stored["read_latency_ns"], "device": names}
    rows_of = {name: pc.equal(names, name).to_numpy(zero_copy_only=False) for name in names.unique().to_pylist()}
    for schema_field in SAMPLES.schema():
        if schema_field.name in columns:
            continue
        if schema_field.name not in stored.column_names:
            columns[schema_field.name] = pa.nulls(stored.num_rows, schema_field.type)
            continue
        metadata = stored.schema.field(schema_field.name).metadata
        missing = pc.is_null(stored[schema_field.name]).to_numpy(zero_copy_only=False)
        numbers = pc.fill_null(stored[schema_field.name], 0).to_numpy(zero_copy_only=False)
        if metadata[_CODING] == _STEP:
            numbers = _totals(numbers, list(rows_of.values()))
        values = numbers * float(metadata[_RESOLUTION])
        whole = pa.types.is_integer(schema_field.type)
        columns[schema_field.name] = pa.array(numbers if whole else values, schema_field.type, mask=missing)
    return SAMPLES.check(pa.table(columns), path)


def _totals(steps: np.ndarray, devices: list[np.ndarray]) -> np.ndarray:
    totals = np.zeros_like(steps)
    for rows in devices:
        totals[rows] = np.cumsum(steps[rows])
    return totals
