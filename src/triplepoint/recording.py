"""Recordings: samples of a node on disk, as Arrow streams that stay readable after a kill.

A node leaves `node<N>.arrow` and, where it has GPUs, `node<N>.fast.arrow` next to it: plain columns, one row per
(t_ns, device), rows of a batch device by device. Samples are flushed every second. Half of such a batch describes its
columns, so every ten seconds one compressed batch takes the place of ten, in the same file.
"""

import contextlib
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from triplepoint.errors import UserError
from triplepoint.tables.schema import Kind
from triplepoint.tables.telemetry import CUMULATIVE, METRICS, SAMPLES
from triplepoint.units import NS_PER_S

PERIOD, ABSENT, FACTS = b"period_s", b"absent", b"facts"
NEVER = "no value in the whole recording"
"""Why a metric is absent that a device was to measure."""

_RESOLUTIONS = {"W": 1e-3, "J": 1e-6, "s": 1e-9, "degC": 1e-3, "MHz": 1e-3, "byte": 1.0, "1": 1.0}
"""What values are rounded to, by unit: no driver resolves finer, and digits without meaning take room."""
_RATIO_RESOLUTION = 1e-5
_COLUMNS = {column.name: column for column in SAMPLES.columns}
_KEYS = ("t_ns", "read_latency_ns", "device")
_MOST_RECENT = 10
"""Batches of a second kept as they are; uncompressed, since compressing costs more than one merge."""
_ZSTD_LEVEL = 3
_BUFFER_BYTES = 1 << 20
"""A merged batch is far smaller, so it is written by one call: a kill leaves it out or has it whole."""
_MOVING = ("gpu_energy_j", "cpu_energy_j")
_STILL_NS = NS_PER_S


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
        self._places = {name: place for place, name in enumerate(columns)}
        self._resolution = np.array([[_resolution(name)] for name in self._places])
        account = {PERIOD: repr(period_s), ABSENT: json.dumps(absent), FACTS: json.dumps(facts or {})}
        self._schema = pa.schema([SAMPLES.schema().field(name) for name in (*_KEYS, *self._places)], account)
        self._recent: list[pa.RecordBatch] = []
        self.is_broken = False
        self._path = path
        self._file = path.open("wb", _BUFFER_BYTES)
        options = pa.ipc.IpcWriteOptions(compression=pa.Codec("zstd", _ZSTD_LEVEL))
        self._stream = pa.ipc.new_stream(self._file, self._schema, options=options)
        self._merged_bytes = 0

    def write(self, parts: Iterable[Part]) -> None:
        """Write samples at once, one part for each device, and hand them to the operating system.

        Raises:
            UserError: If they cannot be written: a full disk.
        """
        parts = [part for part in parts if part.t_ns.size]
        if not parts:
            return
        batch = self._batch(parts)
        self._recent.append(batch)
        with self._disk():
            # The stream writes its schema before its first batch.
            if not self._merged_bytes or len(self._recent) == _MOST_RECENT:
                self._merge()
            else:
                self._file.write(batch.serialize())
            self._file.flush()

    def _merge(self) -> None:
        """Put one batch in the place of the recent ones."""
        (merged,) = pa.Table.from_batches(self._recent).combine_chunks().to_batches()
        self._recent.clear()
        self._file.seek(self._merged_bytes)
        self._stream.write_batch(merged)
        self._file.truncate()
        self._merged_bytes = self._file.tell()

    @contextlib.contextmanager
    def _disk(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            self.is_broken = True
            raise UserError(
                f"{self._path}: {error.strerror or error}; sampling ends here, what was written stays readable"
            ) from None

    def _batch(self, parts: list[Part]) -> pa.RecordBatch:
        sizes = [part.t_ns.size for part in parts]
        values = np.full((len(self._places), sum(sizes)), np.nan)
        for part, end in zip(parts, np.cumsum(sizes), strict=True):
            places = np.array([self._places[name] for name in part.columns], int)
            values[places, end - part.t_ns.size : end] = part.values.T
        values = np.rint(values / self._resolution) * self._resolution
        is_missing = np.isnan(values)
        valid = np.packbits(~is_missing, axis=1, bitorder="little")
        columns = [_array(pa.int64(), np.concatenate([getattr(part, name) for part in parts])) for name in _KEYS[:2]]
        columns.append(_texts([part.device.encode() for part in parts], sizes))
        for place, kind in enumerate(self._schema.types[len(_KEYS) :]):
            columns.append(_array(kind, values[place], valid[place] if is_missing[place].any() else None))
        return pa.RecordBatch.from_arrays(columns, schema=self._schema)

    def close(self) -> None:
        """End the stream; after a failed write what was written before stays as it is."""
        if not self.is_broken:
            with self._disk():
                if self._recent:
                    self._merge()
                self._stream.close()
        with contextlib.suppress(OSError):  # a full disk also fails to take what Python still holds
            self._file.close()


def _array(kind: pa.DataType, numbers: np.ndarray, valid: np.ndarray | None = None) -> pa.Array:
    """Return an Arrow array over numpy's memory; pa.array with a mask would import pandas into the sampler."""
    if pa.types.is_integer(kind):
        numbers = np.nan_to_num(numbers).astype("i8")
    return pa.Array.from_buffers(
        kind, numbers.size, [None if valid is None else pa.py_buffer(valid), pa.py_buffer(numbers)]
    )


def _texts(texts: list[bytes], counts: list[int]) -> pa.Array:
    """Return an Arrow array of texts, each of them as often in a row as `counts` says."""
    ends = np.concatenate([[0], np.cumsum(np.repeat([len(text) for text in texts], counts))]).astype("i4")
    content = b"".join(text * count for text, count in zip(texts, counts, strict=True))
    return pa.StringArray.from_buffers(sum(counts), pa.py_buffer(ends), pa.py_buffer(content))


def _resolution(name: str) -> float:
    column = _COLUMNS[name]
    return _RATIO_RESOLUTION if column.kind is Kind.RATIO else _RESOLUTIONS[column.unit]


@dataclass(frozen=True)
class Recording:
    """What a sampler left on one node: `samples` is a checked `tables.SAMPLES`, in time order."""

    samples: pa.Table
    period_s: float
    """Time between samples of the slow lane. Unit: s."""
    absent: dict[str, str]
    """Metrics without a value, with the reason of each."""
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
        path: `node<N>.arrow`; its fast lane is read too, where there is one, and what a second sampler went on with.

    Raises:
        UserError: If the file is missing or is not such a stream, and that of a second sampler neither.
    """
    again = again_path(path)
    lives: list[Recording] = []
    problems: list[UserError] = []
    for each in (path, again) if again.is_file() else (path,):
        try:
            lives.append(_read_life(each))
        except UserError as error:
            problems.append(error)
    if not lives:
        raise problems[0]
    return lives[0] if len(lives) == 1 else _join(lives)


def _join(lives: list[Recording]) -> Recording:
    """Return two recordings as one.

    What grows since the first sample grows from 0 again in the second, by an unknown amount between the two: it is kept
    in the longer one only.
    """
    tables = [life.samples for life in lives]
    shorter = int(np.argmin([_length_ns(table) for table in tables]))
    for place, name in enumerate(tables[shorter].column_names):
        if name in CUMULATIVE:
            nothing = pa.nulls(tables[shorter].num_rows, tables[shorter].schema.field(name).type)
            tables[shorter] = tables[shorter].set_column(place, name, nothing)
    samples = pa.concat_tables(tables)
    order = np.argsort(samples["t_ns"].to_numpy(), kind="stable")
    return Recording(
        samples=samples.take(pa.array(order)),
        period_s=lives[-1].period_s,
        absent=lives[0].absent | lives[-1].absent,
        facts=lives[-1].facts,
        fast_period_s=lives[-1].fast_period_s or lives[0].fast_period_s,
        is_fast=np.concatenate([life.is_fast for life in lives])[order],
    )


def _length_ns(samples: pa.Table) -> int:
    t_ns = samples["t_ns"].to_numpy()
    return int(t_ns[-1] - t_ns[0]) if t_ns.size else 0


def _read_life(path: Path) -> Recording:
    """Return what one sampler recorded; without its fast lane where that is damaged."""
    slow, metadata = _read_lane(path)
    parts, fast_period_s, why_empty = [slow], None, NEVER
    if fast_path(path).is_file():
        try:
            fast, fast_metadata = _read_lane(fast_path(path))
            parts.append(fast)
            fast_period_s = float(fast_metadata[PERIOD])
        except UserError as error:
            why_empty = str(error)
    samples = pa.concat_tables(parts)
    order = np.argsort(samples["t_ns"].to_numpy(), kind="stable")
    empty = {name: why_empty for name in METRICS if samples[name].null_count == samples.num_rows}
    return Recording(
        samples=samples.take(pa.array(order)),
        period_s=float(metadata[PERIOD]),
        absent=empty | json.loads(metadata[ABSENT]),
        facts=json.loads(metadata[FACTS]),
        fast_period_s=fast_period_s,
        is_fast=order >= slow.num_rows,
    )


def _read_lane(path: Path) -> tuple[pa.Table, dict[bytes, bytes]]:
    batches: list[pa.RecordBatch] = []
    try:
        with path.open("rb") as file, pa.ipc.open_stream(file) as stream:
            schema = stream.schema
            with contextlib.suppress(pa.ArrowInvalid, OSError):  # killed while writing its last batch
                for batch in stream:
                    if batches and batch["t_ns"][0].as_py() <= batches[-1]["t_ns"][-1].as_py():
                        break  # killed before what a merged batch replaces was cut off
                    batches.append(batch)
    except FileNotFoundError:
        raise UserError(f"{path}: no such file; the sampler of this node wrote nothing; launch the run again") from None
    except (pa.ArrowInvalid, OSError) as error:
        raise UserError(f"{path}: not an Arrow stream ({error})") from None
    if not {PERIOD, ABSENT, FACTS} <= set(schema.metadata or {}):
        raise UserError(f"{path}: an Arrow stream that Triplepoint's sampler did not write; name another file")
    if not set(_KEYS) <= set(schema.names):
        raise UserError(
            f"{path}: recorded by an earlier version, in a format this one does not read; launch the run again with "
            "--force, or read it with the version in its manifest (git_commit)"
        )
    samples = pa.Table.from_batches(batches, schema).replace_schema_metadata()
    for column in SAMPLES.schema():
        if column.name not in schema.names:
            samples = samples.append_column(column, pa.nulls(samples.num_rows, column.type))
    return SAMPLES.check(samples.select(SAMPLES.schema().names), path), schema.metadata
