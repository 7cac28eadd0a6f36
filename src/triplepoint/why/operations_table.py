"""Read a table of operations in StragglerAnalysis's format: one row per operation of a worker and step."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from triplepoint.errors import UserError
from triplepoint.why.operations import Int64, Operations, Worker, number_groups

COLUMNS = ("dp_rank", "stage", "rank", "step", "optype", "start_ts", "duration", "seq_id")
"""Columns that are read. Times are in seconds after the start of the step."""
_MOST_S = 1e15
"""Largest time that is read. Unit: s."""
_ALONE, _STAGE, _REPLICA, _ALL = "alone", "stage", "replica", "all"
_PARTNERS: Mapping[str, str] = {
    "grads-reduce-scatter": _STAGE,
    "params-all-gather": _STAGE,
    "embedding-grads-all-reduce": _REPLICA,
    "optimizer-clip-main-grad": _ALL,
    "layernorm-grads-all-reduce": _ALONE,
}
"""Members of each collective: the workers of a stage, of a replica, or all. That of layer norms is inside a worker."""
_SENDS: Mapping[str, tuple[str, int]] = {
    "forward-send": ("forward", 0),
    "forward-recv": ("forward", -1),
    "backward-send": ("backward", 0),
    "backward-recv": ("backward", 1),
}
"""Direction of each pipeline operation, and the offset from its stage to the sending stage."""
_COMM = frozenset(_PARTNERS) | frozenset(_SENDS)


def is_operations_table(path: Path) -> bool:
    """Return whether a Parquet file has the columns of a table of operations."""
    try:
        return set(COLUMNS) <= set(pq.read_schema(path).names)
    except (pa.ArrowInvalid, OSError):
        return False


def read_operations(path: Path) -> Operations:
    """Return the operations of a table.

    Raises:
        UserError: If the file cannot be read, lacks a column or a value, or its steps have different operations.
    """
    table = _read(path)
    steps, step = np.unique(table["step"].to_numpy(), return_inverse=True)
    keys = np.stack([table[name].to_numpy().astype(np.int64) for name in ("dp_rank", "stage", "seq_id")])
    names = pc.dictionary_encode(table["optype"].cast(pa.string())).combine_chunks()
    kinds, kind = names.dictionary.to_pylist(), names.indices.to_numpy().astype(np.int64)
    keys, first_row, operation = np.unique(np.vstack((keys, kind)), axis=1, return_index=True, return_inverse=True)
    start_s, duration_s = np.full((2, keys.shape[1], len(steps)), np.nan)
    for times_s, column in ((start_s, "start_ts"), (duration_s, "duration")):
        times_s[operation.reshape(-1), step] = table[column].to_numpy()
    is_complete = table.num_rows == start_s.size and not np.isnan((start_s, duration_s)).any()
    if not is_complete:
        raise UserError(
            f"{path}: {table.num_rows} rows, expected {keys.shape[1]} operations in each of {len(steps)} steps; "
            "leave out steps that differ from the others, and operations given twice"
        )
    dp, stage, sequence, kind = keys
    place_of = list(zip(dp.tolist(), stage.tolist(), strict=True))
    places = sorted(set(place_of))
    ranks = dict(zip(place_of, table["rank"].to_numpy()[first_row].tolist(), strict=True))
    index_of = {place: index for index, place in enumerate(places)}
    return Operations(
        workers=[Worker(int(ranks[place]), *place) for place in places],
        kinds=kinds,
        steps=steps,
        worker=np.array([index_of[place] for place in place_of]),
        kind=kind,
        transfer=_transfers(kinds, dp, stage, sequence, kind),
        is_comm=np.array([name in _COMM for name in kinds])[kind],
        duration_class=kind,
        rate_class=kind,
        size_bytes=np.ones(len(kind)),
        start_s=start_s,
        duration_s=duration_s,
    )


def _read(path: Path) -> pa.Table:
    """Read the columns of a table of operations. Raises `UserError` if it is not one."""
    try:
        table = pq.read_table(path)
    except FileNotFoundError:
        raise UserError(f"{path}: no such file") from None
    except (pa.ArrowInvalid, OSError) as error:
        raise UserError(f"{path}: not a readable Parquet file: {' '.join(str(error).split())}") from None
    if missing := [name for name in COLUMNS if name not in table.column_names]:
        raise UserError(f"{path}: no column {', '.join(missing)}; a table of operations has {', '.join(COLUMNS)}")
    table = table.select(COLUMNS)
    if lacking := [name for name in COLUMNS if table[name].null_count]:
        raise UserError(f"{path}: column {lacking[0]} has empty cells; every operation needs a value")
    if not table.num_rows:
        raise UserError(f"{path}: no rows; a table of operations has one for each operation of a worker and step")
    _check_times(table, path)
    return table


def _check_times(table: pa.Table, path: Path) -> None:
    """Check that every time is finite, no duration is negative, and every step takes time. Raises `UserError`."""
    for name in ("start_ts", "duration"):
        try:
            times_s = table[name].to_numpy().astype(float)
        except (TypeError, ValueError):
            raise UserError(f"{path}: column {name} holds {table[name].type}, expected seconds") from None
        is_odd = ~(np.abs(times_s) <= _MOST_S) | ((times_s < 0) & (name == "duration"))
        if is_odd.any():
            row = int(is_odd.argmax())
            least = "0" if name == "duration" else f"{-_MOST_S:g}"
            raise UserError(f"{path}: row {row + 1}: {name} is {times_s[row]:g}, expected {least} to {_MOST_S:g} s")
    step, duration_s = table["step"].to_numpy(), table["duration"].to_numpy()
    steps, index = np.unique(step, return_inverse=True)
    is_empty = np.bincount(index.reshape(-1), weights=duration_s) == 0
    if is_empty.any():
        raise UserError(f"{path}: step {steps[is_empty.argmax()]}: every duration is 0; leave the step out")


def _transfers(kinds: Sequence[str], dp: Int64, stage: Int64, sequence: Int64, kind: Int64) -> Int64:
    """Return the number of the transfer of each operation; shape (num_operations,)."""
    num_stages = int(stage.max()) + 1
    keys: list[object] = []
    for index, (kind_index, replica, stage_number, number) in enumerate(
        zip(kind.tolist(), dp.tolist(), stage.tolist(), sequence.tolist(), strict=True)
    ):
        name = kinds[kind_index]
        if name in _SENDS:
            direction, offset = _SENDS[name]
            keys.append((direction, replica, (stage_number + offset) % num_stages, number))
            continue
        partners = _PARTNERS.get(name, _ALONE)
        members = {_STAGE: stage_number, _REPLICA: replica, _ALL: None, _ALONE: index}[partners]
        keys.append((name, partners, members, number))
    return number_groups(keys)
