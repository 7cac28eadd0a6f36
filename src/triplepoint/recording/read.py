"""Samples from disk: what a sampler left on a node, as a checked table."""

import contextlib
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from triplepoint.errors import UserError
from triplepoint.recording.write import ABSENT, COLUMNS, FACTS, PERIOD, again_path, fast_path
from triplepoint.tables import SAMPLES
from triplepoint.tables.telemetry import CUMULATIVE, METRICS
from triplepoint.units import NS_PER_S

_MOVING = ("gpu_energy_j", "cpu_energy_j")
_STILL_NS = NS_PER_S
NEVER = "no value in the whole recording"
"""Why a metric is absent that a device was to measure."""


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
                batches.extend(stream)
    except FileNotFoundError:
        raise UserError(f"{path}: no such file; the sampler of this node wrote nothing") from None
    except (pa.ArrowInvalid, OSError) as error:
        raise UserError(f"{path}: not an Arrow stream ({error})") from None
    if not {PERIOD, ABSENT, FACTS} <= set(schema.metadata or {}) or schema.names != ["device", "change"]:
        raise UserError(f"{path}: an Arrow stream, but not one a triplepoint sampler wrote")
    return SAMPLES.check(_decode(pa.Table.from_batches(batches, schema)), path), schema.metadata


def _decode(stored: pa.Table) -> pa.Table:
    """Return changes added up, as columns of `tables.SAMPLES`."""
    import pyarrow.compute as pc  # 10 MB that the sampler has no use for

    layout = json.loads(stored.schema.field("change").metadata[COLUMNS])
    flat = pc.list_flatten(stored["change"])
    shape = (stored.num_rows, len(layout))
    missing = pc.is_null(flat).to_numpy().reshape(shape)
    changes = pc.fill_null(flat, 0).to_numpy().reshape(shape)
    names = stored["device"].cast(pa.string())
    totals = np.zeros(shape, "i8")
    for name in names.unique().to_pylist():
        rows = pc.equal(names, name).to_numpy()
        totals[rows] = np.cumsum(changes[rows], axis=0)
    # A time is counted from the end of the read before: all waits and all reads until then.
    totals[:, 0] = np.cumsum(changes[:, 0]) + np.cumsum(totals[:, 1]) - totals[:, 1]
    columns = {"device": names}
    for place, about in enumerate(layout):
        kind = SAMPLES.schema().field(about["name"]).type
        numbers = totals[:, place] if pa.types.is_integer(kind) else totals[:, place] * about["resolution"]
        columns[about["name"]] = pa.array(numbers, kind, mask=missing[:, place])
    for absent in set(SAMPLES.schema().names) - set(columns):
        columns[absent] = pa.nulls(stored.num_rows, SAMPLES.schema().field(absent).type)
    return pa.table(columns)
