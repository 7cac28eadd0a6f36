"""Operations of a run of ours: from its traces, or from the step times of its ranks alone.

From traces: passes of micro-batches and optimizer as the timeline of the first profiled step has them, and collectives
and transfers outside of them (pipeline, data parallel). What a pass has inside, such as tensor parallel collectives, is
in its time.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from triplepoint.errors import UserError
from triplepoint.tables import COLLECTIVES, INTERVALS, STEPS, TIMELINE
from triplepoint.units import NS_PER_S
from triplepoint.why.operations import Float, Operations, Worker, number_groups

Row = Mapping[str, Any]

_LARGE_BYTES = 16 * 2**20
"""From so many bytes on the time of a transfer goes with them; smaller ones are compared with equal ones. Ours."""
_PASSES = {"forward": "forward-compute", "backward": "backward-compute", "optimizer": "optimizer"}
"""Phases that are operations; those of reductions hold nothing but their collectives."""
INSIDE = frozenset({"tp", "cp", "ep", "etp"})
"""Groups whose communication is part of a pass."""


def operations_of_traces(run: Path, place: Callable[[int], tuple[int, int]], gpus_per_node: int) -> Operations:
    """Return the operations of the first profiled step.

    Args:
        run: Folder of the run, its traces joined.
        place: Replica and stage of a rank.
        gpus_per_node: Ranks of a node: transfers inside of one are not compared with those out of it.

    Raises:
        UserError: If a table is missing or damaged, or no passes were traced.
    """
    timeline = TIMELINE.read(run / "timeline.parquet")
    passes = timeline.filter(pc.equal(timeline["lane"], "phase")).to_pylist()
    passes = [row for row in passes if row["label"] in _PASSES]
    if not passes:
        raise UserError(f"{run / 'timeline.parquet'}: has no phases; every rank needs its forward and backward passes")
    comm = _communication(run)
    rows = [_pass_row(row) for row in passes] + comm_rows(
        comm, offset_ns(timeline, comm) if len(comm) else 0, gpus_per_node
    )
    ranks = sorted({row["rank"] for row in passes})
    rows = [row for row in rows if row["rank"] in ranks]
    return operations_of_rows(rows, [Worker(rank, *place(rank)) for rank in ranks])


def _communication(run: Path) -> pa.Table:
    """Return the collectives of the first profiled step that are no part of a pass."""
    table = COLLECTIVES.read(run / "collectives.parquet")
    table = table.filter(pc.is_valid(table["step"]))
    table = table.filter(pc.equal(table["step"], pc.min(table["step"])))
    inside = pc.fill_null(pc.is_in(table["group"], pa.array(sorted(INSIDE))), False)
    return table.filter(pc.invert(inside))


def offset_ns(passes_and_comm: pa.Table, comm: pa.Table) -> int:
    """Return what to take off times of collectives: the timeline has the same ones since the step's start.

    It may lack some, and join others, so those of one rank, kind, group and duration are paired where both tables have
    as many; the median of their differences is taken.
    """
    drawn = passes_and_comm.filter(pc.equal(passes_and_comm["lane"], "comm"))
    # Most of what is drawn is inside of passes.
    drawn = drawn.filter(pc.is_in(drawn["group"], value_set=pc.unique(comm["group"])))
    known, found = _starts(comm, "kind"), _starts(drawn, "label")
    apart = [
        one - other
        for key, starts in known.items()
        if len(starts) == len(found.get(key, ()))
        for one, other in zip(sorted(starts), sorted(found[key]), strict=True)
    ]
    return int(np.median(apart)) if apart else int(min(map(min, known.values())))


def _starts(table: pa.Table, kind: str) -> dict[tuple[Any, ...], list[int]]:
    starts: dict[tuple[Any, ...], list[int]] = {}
    columns = [table[name].to_pylist() for name in ("rank", kind, "group", "duration_ns", "t_start_ns")]
    for *key, start in zip(*columns, strict=True):
        starts.setdefault(tuple(key), []).append(start)
    return starts


def _pass_row(row: Row) -> dict[str, Any]:
    key = ("pass", row["rank"], row["label"], row["stage"], row["microbatch"], row["t_start_ns"])
    kind = _PASSES[row["label"]]
    times = {"start": row["t_start_ns"], "duration": row["duration_ns"]}
    return {"rank": row["rank"], "kind": kind, "is_comm": False, "key": key, "alike": kind} | times


def comm_rows(comm: pa.Table, zero_ns: int, gpus_per_node: int) -> list[dict[str, Any]]:
    """Return rows of communication, with times since `zero_ns`; those of one transfer have one key."""
    rows = []
    shared_columns = zip(*(comm[name].to_pylist() for name in _SharedColumns._fields), strict=True)
    own_names = ("sequence", "num_seen", "t_start_ns", "duration_ns")
    own_columns = zip(*(comm[name].to_pylist() for name in own_names), strict=True)
    shared_values = cache(partial(_shared_values, gpus_per_node=gpus_per_node))
    for shared, own in zip(map(_SharedColumns._make, shared_columns), own_columns, strict=True):
        sequence, num_seen, start_ns, duration_ns = own
        values, key = shared_values(shared)
        is_alone = shared.group_name is None or (num_seen or 0) < 1
        row_key = ("alone", shared.rank, start_ns) if is_alone else (*key, sequence)
        rows.append(values | {"key": row_key, "start": start_ns - zero_ns, "duration": duration_ns})
    return rows


class _SharedColumns(NamedTuple):
    """Columns of `collectives` whose values many rows share."""

    rank: int
    kind: str
    group: str | None
    group_name: str | None
    ranks: str | None
    peer: int | None
    size_bytes: float | None


def _shared_values(shared: _SharedColumns, gpus_per_node: int) -> tuple[dict[str, Any], tuple[Any, ...]]:
    """Return the values that rows of communication share, and their key without the sequence number."""
    rank, kind, peer = shared.rank, shared.kind, _peer(shared)
    if peer is not None and kind in ("send", "recv"):
        ends = (rank, peer) if kind == "send" else (peer, rank)
        key: tuple[Any, ...] = ("pair", shared.group_name, *ends)
        name = "forward-pp-comm" if ends[0] < ends[1] else "backward-pp-comm"
        members: tuple[int, ...] = ends
    else:
        members = tuple(map(int, shared.ranks.split(","))) if shared.ranks else (rank,)
        key = ("all", shared.group_name, shared.ranks, kind)
        name = f"{shared.group or 'other'}-{kind.replace('_', '-')}"
    is_far = len({one // gpus_per_node for one in members}) > 1
    size, link = shared.size_bytes or 0.0, (name, is_far, len(members))
    is_large = size >= _LARGE_BYTES
    rate = {"rate_class": link if is_large else (*link, size), "size_bytes": size if is_large else 1.0}
    return {"rank": rank, "kind": name, "is_comm": True, "alike": (*link, size)} | rate, key


def _peer(shared: _SharedColumns) -> int | None:
    """Return the other end of a transfer: where the trace does not tell, the other rank of a group of two."""
    others = [one for one in map(int, shared.ranks.split(",") if shared.ranks else ()) if one != shared.rank]
    return shared.peer if shared.peer is not None else others[0] if len(others) == 1 else None


def operations_of_rows(rows: list[dict[str, Any]], workers: list[Worker], steps: Sequence[int] = (0,)) -> Operations:
    """Return operations of rows whose start and duration, in ns, are one number or one of each step."""
    kinds = list(dict.fromkeys(row["kind"] for row in rows))
    index = {worker.rank: number for number, worker in enumerate(workers)}
    shape = (len(rows), len(steps))
    start, duration = (
        np.array([row[name] for row in rows], dtype=float).reshape(shape) / NS_PER_S for name in ("start", "duration")
    )
    return Operations(
        workers=workers,
        kinds=kinds,
        steps=np.array(steps),
        worker=np.array([index[row["rank"]] for row in rows]),
        kind=np.array([kinds.index(row["kind"]) for row in rows]),
        group=number_groups([row["key"] for row in rows]),
        is_comm=np.array([row["is_comm"] for row in rows]),
        alike=number_groups([row["alike"] for row in rows]),
        rate_class=number_groups([row.get("rate_class", row["alike"]) for row in rows]),
        size_bytes=np.array([row.get("size_bytes", 1.0) for row in rows]),
        start_s=start,
        duration_s=duration,
    )


def operations_of_steps(run: Path, place: Callable[[int], tuple[int, int]]) -> Operations:
    """Return one operation for each rank and measured step: its step, which ends where its last work does.

    Raises:
        UserError: If the table is missing or damaged, or ranks have no measured step in common.
    """
    table = STEPS.read(run / "raw" / "steps.parquet")
    table = table.filter(pc.equal(table["kind"], "measured"))
    ranks = sorted(pc.unique(table["rank"]).to_pylist())
    took = (table["t_end_ns"].to_numpy() - table["t_start_ns"].to_numpy()) / NS_PER_S
    by_step: dict[int, dict[int, float]] = {}
    for rank, step, time_s in zip(table["rank"].to_pylist(), table["step"].to_pylist(), took.tolist(), strict=True):
        by_step.setdefault(step, {})[rank] = time_s
    steps = sorted(step for step, times in by_step.items() if len(times) == len(ranks))
    if not steps:
        raise UserError(
            f"{run / 'raw/steps.parquet'}: has no measured step of all ranks; launch or record the run again"
        )
    duration_s = np.array([[by_step[step][rank] for step in steps] for rank in ranks])
    return _whole_steps([Worker(rank, *place(rank)) for rank in ranks], steps, duration_s)


def operations_of_one_rank(folder: Path) -> Operations | None:
    """Return one operation for each profiled step of the only rank traced; None of several ranks, or without steps.

    Raises:
        UserError: If the table of intervals is damaged.
    """
    if not (folder / "intervals.parquet").is_file():
        return None
    table = INTERVALS.read(folder / "intervals.parquet")
    ranks = pc.unique(table["rank"]).to_pylist()
    if len(ranks) != 1:
        return None
    of_steps = table.group_by("step").aggregate([("exposed_ns", "sum")]).sort_by("step")
    duration_s = of_steps["exposed_ns_sum"].to_numpy()[None, :] / NS_PER_S
    return _whole_steps([Worker(ranks[0], ranks[0], 0)], of_steps["step"].to_pylist(), duration_s)


def _whole_steps(workers: Sequence[Worker], steps: Sequence[int], duration_s: Float) -> Operations:
    """Return one operation for each worker and step, of durations of shape (num_workers, num_steps)."""
    numbers, zeros = np.arange(len(workers)), np.zeros(len(workers), dtype=np.int64)
    return Operations(
        workers=workers,
        kinds=["step"],
        steps=np.array(steps),
        worker=numbers,
        kind=zeros,
        group=numbers,
        is_comm=zeros.astype(bool),
        alike=zeros,
        rate_class=zeros,
        size_bytes=np.ones(len(workers)),
        start_s=np.zeros(duration_s.shape),
        duration_s=duration_s,
    )


def places_of_traces(folder: Path) -> dict[int, tuple[int, int]]:
    """Return replica and stage of every traced rank, from its passes and its pipeline's group.

    Raises:
        UserError: If a table is missing or damaged.
    """
    passes = TIMELINE.read(folder / "timeline.parquet")
    passes = passes.filter(pc.and_(pc.equal(passes["lane"], "phase"), pc.is_valid(passes["stage"])))
    stages: dict[int, int] = {}
    for rank, stage in zip(passes["rank"].to_pylist(), passes["stage"].to_pylist(), strict=True):
        stages[rank] = min(stage, stages.get(rank, stage))
    table = COLLECTIVES.read(folder / "collectives.parquet")
    of_pipeline = table.filter(pc.and_(pc.equal(table["group"], "pp"), pc.is_valid(table["ranks"])))
    lines = dict(zip(of_pipeline["rank"].to_pylist(), of_pipeline["ranks"].to_pylist(), strict=True))
    keys = [lines.get(rank, str(rank)) for rank in sorted(stages)]
    replicas = number_groups(keys).tolist()
    return {rank: (replica, stages[rank]) for rank, replica in zip(sorted(stages), replicas, strict=True)}
