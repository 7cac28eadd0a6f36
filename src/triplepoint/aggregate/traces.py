"""Kernel totals, phases and timeline of one run, from its profiled steps."""

from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from triplepoint.config.mesh import RankMesh
from triplepoint.config.plan import PlanEntry
from triplepoint.errors import UserError
from triplepoint.tables import CATEGORIES, INTERVALS, KERNELS, TIMELINE
from triplepoint.tables.results import RUN_TIMELINE
from triplepoint.tables.traces import GEOMETRY
from triplepoint.units import ns_to_s

_SPLIT = {
    "compute_s": ("compute", "busy_s"),
    "exposed_comm_s": ("comm", "exposed_s"),
    "exposed_memory_s": ("memory", "exposed_s"),
    "idle_s": ("idle", "busy_s"),
}
"""Columns of `points` that add up to the profiled step, by category and kind of time."""
_OF_PHASE = ["rank", "phase", "category"]
"""What a row of table `phases` is of."""
_GEOMETRY = [column.name for column in GEOMETRY]
_NOT_SIMULATED = "simulated: kernels have times, no blocks and threads"


@dataclass(frozen=True)
class Traces:
    """Rows of one run, empty if nothing was profiled."""

    phases: list[dict[str, Any]] = field(default_factory=list)
    """Rows of table `phases`."""
    breakdown: list[dict[str, Any]] = field(default_factory=list)
    """Rows of table `breakdown`."""
    kernels: list[dict[str, Any]] = field(default_factory=list)
    """Rows of table `kernels` over all runs."""
    totals: dict[str, float] = field(default_factory=dict)
    """Columns of table `points`."""


def read_traces(entry: PlanEntry, profiled: tuple[int, ...], folder: Path) -> Traces:
    """Return the trace rows of a finished run.

    Args:
        entry: The run.
        profiled: Profiled step numbers.
        folder: Folder of the run.

    Raises:
        UserError: If a rank that was to be traced, or a profiled step of it, is missing.
    """
    if not profiled:
        return Traces()
    ranks = entry.planned.point.traced_ranks
    categories = CATEGORIES.read(folder / "categories.parquet")
    kernels = KERNELS.read(folder / "kernels.parquet")
    _check(entry.run, categories, ranks, profiled)
    phases = _mean_times(entry.run, categories, _OF_PHASE, len(profiled))
    mesh = RankMesh(entry.planned.point.layout)
    intervals = INTERVALS.read(folder / "intervals.parquet")
    breakdown = _mean_times(entry.run, intervals, [*_OF_PHASE, "kind", "group"], len(profiled))
    for row in breakdown:
        row["stage"] = mesh.place(row["rank"]).pp if entry.planned.point.knows("pp") else None
    # Those between the steps have no step.
    kernels = kernels.filter(pc.is_in(kernels["step"], pa.array(profiled, pa.int64())))
    sums = _sum_by_rank(kernels, len(profiled))
    per_rank = [sum(found.get(rank, (0.0, 0.0))[0] for found in sums.values()) for rank in ranks]
    totals = {
        "kernel_sum_s": sum(per_rank) / len(ranks),
        "kernel_sum_min_s": min(per_rank),
        "kernel_sum_max_s": max(per_rank),
    }
    is_simulated = entry.planned.point.engine == "simulated"
    rows = _kernel_rows(entry.run, sums, ranks, _geometry(kernels, is_simulated))
    return Traces(phases, breakdown, rows, totals | _split(phases, len(ranks)))


def read_timeline(run: str, folder: Path, is_traced: bool) -> pa.Table:
    """Return the drawn spans of one run with its id, in order of rank and time."""
    if not is_traced:
        return RUN_TIMELINE.schema().empty_table()
    spans = TIMELINE.read(folder / "timeline.parquet")
    spans = spans.sort_by([("rank", "ascending"), ("lane", "descending"), ("t_start_ns", "ascending")])
    named = spans.add_column(0, "run", pa.array([run] * spans.num_rows, pa.string()))
    return RUN_TIMELINE.check(named, folder / "timeline.parquet")


def _check(run: str, categories: pa.Table, ranks: list[int], profiled: tuple[int, ...]) -> None:
    present = set(zip(categories["rank"].to_pylist(), categories["step"].to_pylist(), strict=True))
    lost = [rank for rank in ranks if not {(rank, step) for step in profiled} <= present]
    if lost:
        raise UserError(
            f"run {run}: categories.parquet lacks profiled steps of ranks {', '.join(map(str, lost))}; "
            "delete it to parse the traces again, or launch the run again if a trace is missing"
        )


def _mean_times(run: str, table: pa.Table, keys: list[str], num_steps: int) -> list[dict[str, Any]]:
    """Return mean times of a profiled step, a row for each of the keys, sorted by them."""
    times = ["busy", "exposed", "overlapped"]
    summed = table.group_by(keys).aggregate([(f"{time}_ns", "sum") for time in times])
    rows = [
        {key: row[key] for key in keys}
        | {"run": run}
        | {f"{time}_s": ns_to_s(row[f"{time}_ns_sum"]) / num_steps for time in times}
        for row in summed.to_pylist()
    ]
    return sorted(rows, key=lambda row: (row["rank"], *(row[key] or "" for key in keys[1:])))


def _split(phases: list[dict[str, Any]], num_ranks: int) -> dict[str, float]:
    parts = {
        column: sum(row[time] for row in phases if row["category"] == category) / num_ranks
        for column, (category, time) in _SPLIT.items()
    }
    whole_s = sum(parts.values())
    shares = {f"{column.removesuffix('_s')}_share": part_s / whole_s for column, part_s in parts.items() if whole_s}
    return parts | shares


_Kind = tuple[str, str, str | None]


def _sum_by_rank(kernels: pa.Table, num_steps: int) -> dict[_Kind, dict[int, tuple[float, float]]]:
    """Return summed duration (s) and occurrences per step, by kind of kernel and by rank."""
    summed = kernels.group_by(["rank", "class", "kind", "group"]).aggregate([("sum_ns", "sum"), ("count", "sum")])
    sums: dict[_Kind, dict[int, tuple[float, float]]] = defaultdict(dict)
    for row in summed.to_pylist():
        per_step = ns_to_s(row["sum_ns_sum"]) / num_steps, row["count_sum"] / num_steps
        sums[row["class"], row["kind"], row["group"]][row["rank"]] = per_step
    return sums


def _geometry(kernels: pa.Table, is_simulated: bool) -> dict[_Kind, dict[str, Any]]:
    """Return the launch geometry of each kind of kernel, mean weighted by duration, or why there is none."""
    frame = kernels.select(["class", "kind", "group", "sum_ns", *_GEOMETRY]).to_pylist()
    by_kind: dict[_Kind, list[dict[str, Any]]] = defaultdict(list)
    for row in frame:
        by_kind[row["class"], row["kind"], row["group"]].append(row)
    return {kind: _mean_geometry(rows, is_simulated) for kind, rows in by_kind.items()}


def _mean_geometry(rows: list[dict[str, Any]], is_simulated: bool) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name in _GEOMETRY:
        known = [(row[name], row["sum_ns"]) for row in rows if row[name] is not None]
        if total := sum(weight for _, weight in known):
            found[name] = sum(value * weight for value, weight in known) / total
    if not found:
        found["geometry_absent"] = _NOT_SIMULATED if is_simulated else "the trace has none"
    return found


def _kernel_rows(
    run: str,
    sums: dict[_Kind, dict[int, tuple[float, float]]],
    ranks: list[int],
    geometry: dict[_Kind, dict[str, Any]],
) -> list[dict[str, Any]]:
    rows = []
    for kind, found in sorted(sums.items(), key=lambda item: (item[0][0], item[0][1], item[0][2] or "")):
        # A rank without such a kernel spent no time in it, which is a number and counts.
        times, counts = zip(*(found.get(rank, (0.0, 0.0)) for rank in ranks), strict=True)
        rows.append(
            {
                "run": run,
                "class": kind[0],
                "kind": kind[1],
                "group": kind[2],
                "num_ranks": len(ranks),
                "count_per_rank": sum(counts) / len(ranks),
                "sum_s": sum(times) / len(ranks),
                "sum_min_s": min(times),
                "sum_max_s": max(times),
                **geometry[kind],
            }
        )
    return rows
