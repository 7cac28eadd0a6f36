"""Operations from the tables of a run: passes and transfers of its traces, or whole steps.

From traces come the passes of micro-batches and the optimizer of the first profiled step, and the transfers outside of
them (pipeline, data parallel). Communication inside a pass, such as tensor parallel collectives, is part of its time.
"""

from collections import Counter
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
Key = tuple[Any, ...]

_LARGE_BYTES = 16 * 2**20
"""Size from which the time of a transfer is proportional to its size; smaller transfers are compared at equal size. Our
choice."""
_PASSES = {"forward": "forward-compute", "backward": "backward-compute", "optimizer": "optimizer"}
"""Phases that are operations, with their kind; phases of reductions hold nothing but their collectives."""
INSIDE = frozenset({"tp", "cp", "ep", "etp"})
"""Process groups whose communication is part of a pass."""


def operations_of_traces(run: Path, place: Callable[[int], tuple[int, int]], gpus_per_node: int) -> Operations:
    """Return the operations of the first profiled step.

    Args:
        run: Folder with the tables of joined traces.
        place: Returns replica and stage of a rank.
        gpus_per_node: Ranks per node; transfers inside a node are not compared with transfers between nodes.

    Raises:
        UserError: If a table is missing or damaged, or no passes were traced.
    """
    timeline = TIMELINE.read(run / "timeline.parquet")
    passes = timeline.filter(pc.equal(timeline["lane"], "phase")).to_pylist()
    passes = [row for row in passes if row["label"] in _PASSES]
    if not passes:
        raise UserError(f"{run / 'timeline.parquet'}: has no phases; every rank needs its forward and backward passes")
    comm = _communication(run)
    offset_ns = clock_offset_ns(timeline, comm) if len(comm) else 0
    rows = _pass_rows(passes, place) + comm_rows(comm, offset_ns, gpus_per_node)
    ranks = sorted({row["rank"] for row in passes})
    rows = [row for row in rows if row["rank"] in ranks]
    return operations_of_rows(rows, [Worker(rank, *place(rank)) for rank in ranks])


def _communication(run: Path) -> pa.Table:
    """Return the rows of `collectives` of the first profiled step that are not part of a pass."""
    table = COLLECTIVES.read(run / "collectives.parquet")
    table = table.filter(pc.is_valid(table["step"]))
    table = table.filter(pc.equal(table["step"], pc.min(table["step"])))
    inside = pc.fill_null(pc.is_in(table["group"], pa.array(sorted(INSIDE))), False)
    return table.filter(pc.invert(inside))


def clock_offset_ns(timeline: pa.Table, comm: pa.Table) -> int:
    """Return the offset between the clocks of `collectives` and `timeline`, whose times start at the step. Unit: ns.

    The timeline may lack some collectives and join others. So collectives of equal rank, kind, group and duration are
    paired where both tables have the same number of them; the offset is the median difference of their starts.
    """
    of_comm = _starts_ns(comm, "kind")
    timeline = timeline.filter(pc.equal(timeline["lane"], "comm"))
    # Most communication of the timeline is inside passes, in other groups.
    timeline = timeline.filter(pc.is_in(timeline["group"], value_set=pc.unique(comm["group"])))
    of_timeline = _starts_ns(timeline, "label")
    differences_ns = [
        start - start_in_timeline
        for key, starts in of_comm.items()
        if len(starts) == len(of_timeline.get(key, ()))
        for start, start_in_timeline in zip(sorted(starts), sorted(of_timeline[key]), strict=True)
    ]
    return int(np.median(differences_ns)) if differences_ns else int(min(map(min, of_comm.values())))


def _starts_ns(table: pa.Table, kind: str) -> dict[tuple[Any, ...], list[int]]:
    """Return starts by rank, kind (the column of this name), group and duration. Unit: ns."""
    starts: dict[tuple[Any, ...], list[int]] = {}
    columns = [table[name].to_pylist() for name in ("rank", kind, "group", "duration_ns", "t_start_ns")]
    for *key, start in zip(*columns, strict=True):
        starts.setdefault(tuple(key), []).append(start)
    return starts


def _pass_rows(passes: Sequence[Row], place: Callable[[int], tuple[int, int]]) -> list[dict[str, Any]]:
    """Return the operations of passes, as `operations_of_rows` takes them.

    The ranks of a place leave the last collective of a pass together, even if a faster rank has nothing else to do.
    So a forward or backward pass lasts until its last rank is done.

    Args:
        passes: Rows of table `timeline`.
        place: Returns replica and stage of a rank.
    """
    numbers: Counter[Key] = Counter()
    keys: list[Key] = []
    ends_ns: dict[Key, int] = {}
    for row in passes:
        name = (row["label"], row["stage"], row["microbatch"])
        key = (place(row["rank"]) if row["label"] != "optimizer" else row["rank"], *name, numbers[row["rank"], *name])
        numbers[row["rank"], *name] += 1
        keys.append(key)
        ends_ns[key] = max(ends_ns.get(key, 0), row["t_start_ns"] + row["duration_ns"])
    return [
        {
            "rank": row["rank"],
            "kind": _PASSES[row["label"]],
            "is_comm": False,
            "transfer": ("pass", row["rank"], *key[1:]),
            "duration_class": _PASSES[row["label"]],
            "start": row["t_start_ns"],
            "duration": ends_ns[key] - row["t_start_ns"],
        }
        for row, key in zip(passes, keys, strict=True)
    ]


def comm_rows(comm: pa.Table, origin_ns: int, gpus_per_node: int) -> list[dict[str, Any]]:
    """Return the operations of communication, as `operations_of_rows` takes them.

    Args:
        comm: Rows of table `collectives`.
        origin_ns: Time that is subtracted from starts. Unit: ns.
        gpus_per_node: Ranks per node.
    """
    rows = []
    shared_columns = zip(*(comm[name].to_pylist() for name in _SharedColumns._fields), strict=True)
    own_names = ("sequence", "num_seen", "t_start_ns", "duration_ns")
    own_columns = zip(*(comm[name].to_pylist() for name in own_names), strict=True)
    shared_values = cache(partial(_shared_values, gpus_per_node=gpus_per_node))
    for shared, own in zip(map(_SharedColumns._make, shared_columns), own_columns, strict=True):
        sequence, num_seen, start_ns, duration_ns = own
        values, key = shared_values(shared)
        is_alone = shared.group_name is None or (num_seen or 0) < 1
        transfer = ("alone", shared.rank, start_ns) if is_alone else (*key, sequence)
        rows.append(values | {"transfer": transfer, "start": start_ns - origin_ns, "duration": duration_ns})
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
    """Return the values that rows of communication share, and their transfer without the sequence number."""
    rank, kind, peer = shared.rank, shared.kind, _peer(shared)
    if peer is not None and kind in ("send", "recv"):
        ends = (rank, peer) if kind == "send" else (peer, rank)
        transfer: tuple[Any, ...] = ("pair", shared.group_name, *ends)
        name = "forward-pp-comm" if ends[0] < ends[1] else "backward-pp-comm"
        members: tuple[int, ...] = ends
    else:
        members = tuple(map(int, shared.ranks.split(","))) if shared.ranks else (rank,)
        transfer = ("all", shared.group_name, shared.ranks, kind)
        name = f"{shared.group or 'other'}-{kind.replace('_', '-')}"
    is_between_nodes = len({member // gpus_per_node for member in members}) > 1
    size_bytes, link = shared.size_bytes or 0.0, (name, is_between_nodes, len(members))
    is_large = size_bytes >= _LARGE_BYTES
    values = {
        "rank": rank,
        "kind": name,
        "is_comm": True,
        "duration_class": (*link, size_bytes),
        "rate_class": link if is_large else (*link, size_bytes),
        "size_bytes": size_bytes if is_large else 1.0,
    }
    return values, transfer


def _peer(shared: _SharedColumns) -> int | None:
    """Return the other rank of a point-to-point transfer; if the trace lacks it, the other one of a group of two."""
    ranks = map(int, shared.ranks.split(",") if shared.ranks else ())
    others = [rank for rank in ranks if rank != shared.rank]
    return shared.peer if shared.peer is not None else others[0] if len(others) == 1 else None


def operations_of_rows(rows: list[dict[str, Any]], workers: list[Worker], steps: Sequence[int] = (0,)) -> Operations:
    """Return the operations of rows.

    Args:
        rows: One row per operation. `transfer`, `duration_class` and `rate_class` are any hashable values, equal for
            equal numbers in `Operations`; `start` and `duration` are a number, or one for each step, in ns.
        workers: The workers; `rank` of a row is that of its worker.
        steps: Numbers of the steps.
    """
    kinds = list(dict.fromkeys(row["kind"] for row in rows))
    index_of = {worker.rank: index for index, worker in enumerate(workers)}
    shape = (len(rows), len(steps))
    start_s, duration_s = (
        np.array([row[name] for row in rows], dtype=float).reshape(shape) / NS_PER_S for name in ("start", "duration")
    )
    return Operations(
        workers=workers,
        kinds=kinds,
        steps=np.array(steps),
        worker=np.array([index_of[row["rank"]] for row in rows]),
        kind=np.array([kinds.index(row["kind"]) for row in rows]),
        transfer=number_groups([row["transfer"] for row in rows]),
        is_comm=np.array([row["is_comm"] for row in rows]),
        duration_class=number_groups([row["duration_class"] for row in rows]),
        rate_class=number_groups([row.get("rate_class", row["duration_class"]) for row in rows]),
        size_bytes=np.array([row.get("size_bytes", 1.0) for row in rows]),
        start_s=start_s,
        duration_s=duration_s,
    )


def operations_of_steps(run: Path, place: Callable[[int], tuple[int, int]]) -> Operations:
    """Return one operation for each rank and measured step: the whole step.

    Args:
        run: Folder of the run.
        place: Returns replica and stage of a rank.

    Raises:
        UserError: If the table is missing or damaged, or ranks have no measured step in common.
    """
    table = STEPS.read(run / "raw" / "steps.parquet")
    table = table.filter(pc.equal(table["kind"], "measured"))
    ranks = sorted(pc.unique(table["rank"]).to_pylist())
    times_s = (table["t_end_ns"].to_numpy() - table["t_start_ns"].to_numpy()) / NS_PER_S
    by_step: dict[int, dict[int, float]] = {}
    for rank, step, time_s in zip(table["rank"].to_pylist(), table["step"].to_pylist(), times_s.tolist(), strict=True):
        by_step.setdefault(step, {})[rank] = time_s
    steps = sorted(step for step, times in by_step.items() if len(times) == len(ranks))
    if not steps:
        raise UserError(
            f"{run / 'raw/steps.parquet'}: has no measured step of all ranks; launch or record the run again"
        )
    duration_s = np.array([[by_step[step][rank] for step in steps] for rank in ranks])
    return _whole_steps([Worker(rank, *place(rank)) for rank in ranks], steps, duration_s)


def operations_of_one_rank(folder: Path) -> Operations | None:
    """Return one operation for each profiled step if a single rank was traced; None for several ranks or no intervals.

    Raises:
        UserError: If the table of intervals is damaged.
    """
    if not (folder / "intervals.parquet").is_file():
        return None
    table = INTERVALS.read(folder / "intervals.parquet")
    ranks = pc.unique(table["rank"]).to_pylist()
    if len(ranks) != 1:
        return None
    by_step = table.group_by("step").aggregate([("exposed_ns", "sum")]).sort_by("step")
    duration_s = by_step["exposed_ns_sum"].to_numpy()[None, :] / NS_PER_S
    return _whole_steps([Worker(ranks[0], ranks[0], 0)], by_step["step"].to_pylist(), duration_s)


def _whole_steps(workers: Sequence[Worker], steps: Sequence[int], duration_s: Float) -> Operations:
    """Return one operation for each worker and step; durations have shape (num_workers, num_steps)."""
    numbers, zeros = np.arange(len(workers)), np.zeros(len(workers), dtype=np.int64)
    return Operations(
        workers=workers,
        kinds=["step"],
        steps=np.array(steps),
        worker=numbers,
        kind=zeros,
        transfer=numbers,
        is_comm=zeros.astype(bool),
        duration_class=zeros,
        rate_class=zeros,
        size_bytes=np.ones(len(workers)),
        start_s=np.zeros(duration_s.shape),
        duration_s=duration_s,
    )


def places_of_traces(folder: Path) -> dict[int, tuple[int, int]]:
    """Return replica and stage of each traced rank: the stage from its passes, the replica from its pipeline group.

    Raises:
        UserError: If a table is missing or damaged.
    """
    passes = TIMELINE.read(folder / "timeline.parquet")
    passes = passes.filter(pc.and_(pc.equal(passes["lane"], "phase"), pc.is_valid(passes["stage"])))
    stages: dict[int, int] = {}
    for rank, stage in zip(passes["rank"].to_pylist(), passes["stage"].to_pylist(), strict=True):
        stages[rank] = min(stage, stages.get(rank, stage))
    table = COLLECTIVES.read(folder / "collectives.parquet")
    pipeline = table.filter(pc.and_(pc.equal(table["group"], "pp"), pc.is_valid(table["ranks"])))
    group_of = dict(zip(pipeline["rank"].to_pylist(), pipeline["ranks"].to_pylist(), strict=True))
    replicas = number_groups([group_of.get(rank, str(rank)) for rank in sorted(stages)]).tolist()
    return {rank: (replica, stages[rank]) for rank, replica in zip(sorted(stages), replicas, strict=True)}
