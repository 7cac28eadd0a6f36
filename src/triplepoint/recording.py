"""Telemetry recordings of a node on disk: Arrow streams that stay readable if the sampler is killed.

A node writes `node<N>.arrow` and, if it has GPUs, `node<N>.fast.arrow` for the fast lane: one row per (t_ns, device),
with the rows of a batch ordered by device. A batch is flushed every second. Half of so small a batch is metadata, so
every ten seconds one compressed batch replaces the last ten, in the same file.
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
"""Reason for a missing metric that a device has a sensor for."""

_RESOLUTIONS = {"W": 1e-3, "J": 1e-6, "s": 1e-9, "degC": 1e-3, "MHz": 1e-3, "byte": 1.0, "1": 1.0}
"""Resolution that values are rounded to, by unit: no driver is finer, and meaningless digits take space."""
_RATIO_RESOLUTION = 1e-5
"""Resolution of ratios."""
_COLUMNS = {column.name: column for column in SAMPLES.columns}
_KEYS = ("t_ns", "read_latency_ns", "device")
_BATCHES_TO_MERGE = 10
"""Batches of a second that are merged into one. They are uncompressed: compressing each costs more than the merge."""
_ZSTD_LEVEL = 3
_BUFFER_BYTES = 1 << 20
"""Size of the write buffer, far above that of a merged batch: one system call writes it, so a kill cannot split it."""
_ALWAYS_INCREASING = ("gpu_energy_j", "cpu_energy_j")
"""Energy counters, which grow all the time unless they are frozen."""
_FROZEN_AFTER_NS = NS_PER_S
"""Time without a change after which such a counter counts as frozen."""


def fast_path(path: Path) -> Path:
    """Return the path of the fast lane of a recording."""
    return path.with_suffix(f".fast{path.suffix}")


def again_path(path: Path) -> Path:
    """Return the path at which a restarted sampler continues a recording."""
    return path.with_suffix(f".again{path.suffix}")


@dataclass(frozen=True)
class Part:
    """Samples of one device in time order."""

    device: str
    t_ns: np.ndarray
    """Times of the samples. Shape (num_samples,). Unit: ns."""
    read_latency_ns: np.ndarray
    """Durations of the reads. Shape (num_samples,). Unit: ns."""
    columns: Sequence[str]
    """Metrics, names of `tables.SAMPLES`."""
    values: np.ndarray
    """Values in the units of `tables.SAMPLES`, NaN where not read. Shape (num_samples, num_columns)."""


class Recorder:
    """Writer of one lane of a node's recording to an Arrow IPC stream, readable up to the last flush at any time."""

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
            absent: Metrics that no device of the node can measure, each with the reason.
            columns: Metrics of this lane.
            facts: Description of the devices, as JSON.
        """
        path.parent.mkdir(parents=True, exist_ok=True)
        self._index_of = {name: index for index, name in enumerate(columns)}
        self._resolution = np.array([[_resolution(name)] for name in self._index_of])
        metadata = {PERIOD: repr(period_s), ABSENT: json.dumps(absent), FACTS: json.dumps(facts or {})}
        self._schema = pa.schema([SAMPLES.schema().field(name) for name in (*_KEYS, *self._index_of)], metadata)
        self._recent: list[pa.RecordBatch] = []
        self.is_broken = False
        """Whether a write failed, for example on a full disk; nothing more is written then."""
        self._path = path
        self._file = path.open("wb", _BUFFER_BYTES)
        options = pa.ipc.IpcWriteOptions(compression=pa.Codec("zstd", _ZSTD_LEVEL))
        self._stream = pa.ipc.new_stream(self._file, self._schema, options=options)
        self._merged_bytes = 0

    def write(self, parts: Iterable[Part]) -> None:
        """Write and flush samples, one part for each device.

        Raises:
            UserError: If they cannot be written, for example on a full disk.
        """
        parts = [part for part in parts if part.t_ns.size]
        if not parts:
            return
        batch = self._batch(parts)
        self._recent.append(batch)
        with self._disk():
            # The stream writes its schema before its first batch.
            if not self._merged_bytes or len(self._recent) == _BATCHES_TO_MERGE:
                self._merge()
            else:
                self._file.write(batch.serialize())
            self._file.flush()

    def _merge(self) -> None:
        """Replace the recent batches in the file by a single compressed one."""
        (merged,) = pa.Table.from_batches(self._recent).combine_chunks().to_batches()
        self._recent.clear()
        self._file.seek(self._merged_bytes)
        self._stream.write_batch(merged)
        self._file.truncate()
        self._merged_bytes = self._file.tell()

    @contextlib.contextmanager
    def _disk(self) -> Iterator[None]:
        """Turn an error of the file system into a `UserError` and mark the recorder as broken."""
        try:
            yield
        except OSError as error:
            self.is_broken = True
            raise UserError(
                f"{self._path}: {error.strerror or error}; sampling ends here, what was written stays readable"
            ) from None

    def _batch(self, parts: list[Part]) -> pa.RecordBatch:
        """Return the rounded samples of all devices as an Arrow batch."""
        sizes = [part.t_ns.size for part in parts]
        values = np.full((len(self._index_of), sum(sizes)), np.nan)
        for part, end in zip(parts, np.cumsum(sizes), strict=True):
            indices = np.array([self._index_of[name] for name in part.columns], int)
            values[indices, end - part.t_ns.size : end] = part.values.T
        values = np.rint(values / self._resolution) * self._resolution
        is_missing = np.isnan(values)
        valid = np.packbits(~is_missing, axis=1, bitorder="little")
        columns = [_array(pa.int64(), np.concatenate([getattr(part, name) for part in parts])) for name in _KEYS[:2]]
        columns.append(_texts([part.device.encode() for part in parts], sizes))
        for index, kind in enumerate(self._schema.types[len(_KEYS) :]):
            columns.append(_array(kind, values[index], valid[index] if is_missing[index].any() else None))
        return pa.RecordBatch.from_arrays(columns, schema=self._schema)

    def close(self) -> None:
        """End the stream; after a failed write the file is left as it is."""
        if not self.is_broken:
            with self._disk():
                if self._recent:
                    self._merge()
                self._stream.close()
        with contextlib.suppress(OSError):  # on a full disk, flushing Python's buffer fails too
            self._file.close()


def _array(kind: pa.DataType, numbers: np.ndarray, valid: np.ndarray | None = None) -> pa.Array:
    """Return an Arrow array over numpy's memory. `pa.array` with a mask would import pandas into the sampler."""
    if pa.types.is_integer(kind):
        numbers = np.nan_to_num(numbers).astype("i8")
    return pa.Array.from_buffers(
        kind, numbers.size, [None if valid is None else pa.py_buffer(valid), pa.py_buffer(numbers)]
    )


def _texts(texts: list[bytes], counts: list[int]) -> pa.Array:
    """Return an Arrow array in which each text is repeated `counts` times."""
    ends = np.concatenate([[0], np.cumsum(np.repeat([len(text) for text in texts], counts))]).astype("i4")
    content = b"".join(text * count for text, count in zip(texts, counts, strict=True))
    return pa.StringArray.from_buffers(sum(counts), pa.py_buffer(ends), pa.py_buffer(content))


def _resolution(name: str) -> float:
    """Return the resolution of a metric, in its unit."""
    column = _COLUMNS[name]
    return _RATIO_RESOLUTION if column.kind is Kind.RATIO else _RESOLUTIONS[column.unit]


@dataclass(frozen=True)
class Recording:
    """The recording of one node."""

    samples: pa.Table
    """Checked table `tables.SAMPLES`, in time order."""
    period_s: float
    """Time between samples of the slow lane. Unit: s."""
    absent: dict[str, str]
    """Metrics without values, each with the reason."""
    facts: dict[str, Any] = field(default_factory=dict)
    """Description of the devices."""
    fast_period_s: float | None = None
    """Time between samples of the fast lane; None without a fast lane. Unit: s."""
    is_fast: np.ndarray = field(default_factory=lambda: np.array([], bool))
    """Whether a sample belongs to the fast lane. Shape (num_samples,)."""

    @property
    def measured(self) -> tuple[str, ...]:
        """Metrics with at least one value."""
        return tuple(name for name in METRICS if self.samples[name].null_count < self.samples.num_rows)

    @property
    def stale(self) -> dict[str, int]:
        """Number of samples with a frozen energy counter, by counter; only counters that froze."""
        num_frozen = {}
        devices = self.samples["device"].to_numpy(zero_copy_only=False)
        t_ns = self.samples["t_ns"].to_numpy()
        for name in _ALWAYS_INCREASING:
            values = self.samples[name].to_numpy(zero_copy_only=False).astype(float)
            is_read = np.isfinite(values)
            rows = [np.flatnonzero(is_read & (devices == device)) for device in np.unique(devices[is_read])]
            num_frozen[name] = sum(_num_frozen(t_ns[indices], values[indices]) for indices in rows)
        return {name: num for name, num in num_frozen.items() if num}


def _num_frozen(t_ns: np.ndarray, values: np.ndarray) -> int:
    """Return the number of samples more than `_FROZEN_AFTER_NS` after the last change of a counter."""
    is_changed = np.concatenate([[True], np.diff(values) != 0])
    last_change = np.maximum.accumulate(np.where(is_changed, np.arange(len(t_ns)), 0))
    return int((t_ns - t_ns[last_change] > _FROZEN_AFTER_NS).sum())


def read_recording(path: Path) -> Recording:
    """Return all complete batches of a recording; a batch that a kill cut off is omitted.

    Args:
        path: `node<N>.arrow`. Its fast lane and the recording of a restarted sampler are read too, if they exist.

    Raises:
        UserError: If no file of the recording is a readable stream.
    """
    again = again_path(path)
    recordings: list[Recording] = []
    errors: list[UserError] = []
    for each in (path, again) if again.is_file() else (path,):
        try:
            recordings.append(_read_both_lanes(each))
        except UserError as error:
            errors.append(error)
        except (ValueError, KeyError, pa.ArrowIndexError, pa.ArrowNotImplementedError) as error:
            why = " ".join(str(error).split())
            errors.append(UserError(f"{each}: damaged ({why}); restore it from a copy, or launch the run again"))
    if not recordings:
        raise errors[0]
    return recordings[0] if len(recordings) == 1 else _join(recordings)


def _join(recordings: list[Recording]) -> Recording:
    """Join the recordings of a sampler and of its restart.

    Counters start from 0 again in the second one, and their growth in between is not known. So only the longer
    recording keeps its counters.
    """
    tables = [recording.samples for recording in recordings]
    shorter = int(np.argmin([_length_ns(table) for table in tables]))
    for index, name in enumerate(tables[shorter].column_names):
        if name in CUMULATIVE:
            nulls = pa.nulls(tables[shorter].num_rows, tables[shorter].schema.field(name).type)
            tables[shorter] = tables[shorter].set_column(index, name, nulls)
    samples = pa.concat_tables(tables)
    order = np.argsort(samples["t_ns"].to_numpy(), kind="stable")
    first, last = recordings[0], recordings[-1]
    return Recording(
        samples=samples.take(pa.array(order)),
        period_s=last.period_s,
        absent=first.absent | last.absent,
        facts=last.facts,
        fast_period_s=last.fast_period_s or first.fast_period_s,
        is_fast=np.concatenate([recording.is_fast for recording in recordings])[order],
    )


def _length_ns(samples: pa.Table) -> int:
    """Return the time from the first to the last sample. Unit: ns."""
    t_ns = samples["t_ns"].to_numpy()
    return int(t_ns[-1] - t_ns[0]) if t_ns.size else 0


def _read_both_lanes(path: Path) -> Recording:
    """Return the recording of one sampler, without the fast lane if that is damaged."""
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
    """Return the checked samples and the metadata of one stream. Raises `UserError` if it is not readable."""
    batches: list[pa.RecordBatch] = []
    try:
        with path.open("rb") as file, pa.ipc.open_stream(file) as stream:
            schema = stream.schema
            with contextlib.suppress(pa.ArrowInvalid, OSError):  # the sampler was killed while writing its last batch
                for batch in stream:
                    batch.validate(full=True)  # damaged lengths of text would end this process
                    if batches and batch["t_ns"][0].as_py() <= batches[-1]["t_ns"][-1].as_py():
                        break  # it was killed between writing a merged batch and truncating the batches it replaces
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
    samples = _without_impossible(samples)
    return SAMPLES.check(samples.select(SAMPLES.schema().names), path), schema.metadata


def _without_impossible(samples: pa.Table) -> pa.Table:
    """Return samples with null for values that no device can have, which drivers report now and then."""
    import pyarrow.compute as pc  # here, to keep the sampler small: it only writes

    for index, name in enumerate(samples.column_names):
        column = _COLUMNS.get(name)
        if column is None or column.maximum is None or not samples.num_rows:
            continue
        limits = pc.min_max(samples[name]).as_py()
        if limits["min"] is None or (limits["min"] >= column.minimum and limits["max"] <= column.maximum):
            continue
        is_possible = pc.and_(
            pc.greater_equal(samples[name], column.minimum), pc.less_equal(samples[name], column.maximum)
        )
        values = pc.if_else(is_possible, samples[name], pa.scalar(None, samples[name].type))
        samples = samples.set_column(index, samples.schema.field(name), values)
    return samples
