"""Read a table of operations as StragglerAnalysis publishes them: one row per operation of a worker and step."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from triplepoint.errors import UserError
from triplepoint.why.operations import Float, Int64, Operations, Worker, number_groups

COLUMNS = ("dp_rank", "stage", "rank", "step", "optype", "start_ts", "duration", "seq_id")
"""Columns that are read; times in seconds since the start of the step."""
_ALONE, _STAGE, _REPLICA, _ALL = "alone", "stage", "replica", "all"
_PARTNERS: Mapping[str, str] = {
    "grads-reduce-scatter": _STAGE,
    "params-all-gather": _STAGE,
    "embedding-grads-all-reduce": _REPLICA,
    "optimizer-clip-main-grad": _ALL,
    "layernorm-grads-all-reduce": _ALONE,
}
"""Who takes part in collectives: workers of a stage, of a replica, or all. That of norms is inside a worker."""
_SENDS: Mapping[str, tuple[str, int]] = {
    "forward-send": ("forward", 0),
    "forward-recv": ("forward", -1),
    "backward-send": ("backward", 0),
    "backward-recv": ("backward", 1),
}
"""Transfers of the pipeline: their direction, and how far the sending stage is."""
_COMM = frozenset(_PARTNERS) | frozenset(_SENDS)


def is_operations_table(path: Path) -> bool:
    """Return whether a Parquet file has the columns of such a table."""
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
    keys, first, place = np.unique(np.vstack((keys, kind)), axis=1, return_index=True, return_inverse=True)
    place = place.reshape(-1)
    times = [_by_step(table[name].to_numpy(), place, step, keys.shape[1], len(steps)) for name in COLUMNS[5:7]]
    if table.num_rows != keys.shape[1] * len(steps) or any(np.isnan(column).any() for column in times):
        raise UserError(
            f"{path}: {table.num_rows} rows, expected {keys.shape[1]} operations in each of {len(steps)} steps; "
            "leave out steps that differ from the others, and operations given twice"
        )
    dp, stage, sequence, kind = keys
    places = sorted(set(zip(dp.tolist(), stage.tolist(), strict=True)))
    rank = table["rank"].to_numpy()[first]
    ranks = {(d, s): int(r) for d, s, r in zip(dp.tolist(), stage.tolist(), rank.tolist(), strict=True)}
    number = {found: index for index, found in enumerate(places)}
    return Operations(
        workers=[Worker(ranks[found], *found) for found in places],
        kinds=kinds,
        steps=steps,
        worker=np.array([number[found] for found in zip(dp.tolist(), stage.tolist(), strict=True)]),
        kind=kind,
        group=_groups(kinds, dp, stage, sequence, kind),
        is_comm=np.array([name in _COMM for name in kinds])[kind],
        alike=kind,
        rate_class=kind,
        size_bytes=np.ones(len(kind)),
        start_s=times[0],
        duration_s=times[1],
    )


def _read(path: Path) -> pa.Table:
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
    return table


def _by_step(values: Float, place: Int64, step: Int64, num_operations: int, num_steps: int) -> Float:
    dense = np.full((num_operations, num_steps), np.nan)
    dense[place, step] = values
    return dense


def _groups(kinds: Sequence[str], dp: Int64, stage: Int64, sequence: Int64, kind: Int64) -> Int64:
    """Return the number of the transfer of every operation."""
    num_stages = int(stage.max()) + 1
    keys: list[object] = []
    for index, (of_kind, replica, own, number) in enumerate(
        zip(kind.tolist(), dp.tolist(), stage.tolist(), sequence.tolist(), strict=True)
    ):
        name = kinds[of_kind]
        if name in _SENDS:
            direction, offset = _SENDS[name]
            keys.append((direction, replica, (own + offset) % num_stages, number))
            continue
        who = _PARTNERS.get(name, _ALONE)
        among = {_STAGE: own, _REPLICA: (replica,), _ALL: None, _ALONE: (index, "alone")}[who]
        keys.append((name, who, among, number))
    return number_groups(keys)
