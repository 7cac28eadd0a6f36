"""Kernel totals, phases, breakdown and timeline of one run, from its profiled steps."""

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
"""Columns of `points` that add up to the profiled step, with the category and time column of each."""
_PHASE_KEYS = ["rank", "phase", "category"]
"""Key columns of table `phases`."""
_GEOMETRY = [column.name for column in GEOMETRY]
_NOT_SIMULATED = "simulated: kernels have times, no blocks and threads"


@dataclass(frozen=True)
class Traces:
    """Rows of one run from traces; empty if nothing was profiled."""

    phases: list[dict[str, Any]] = field(default_factory=list)
    """Rows of table `phases`."""
    breakdown: list[dict[str, Any]] = field(default_factory=list)
    """Rows of table `breakdown`."""
    kernels: list[dict[str, Any]] = field(default_factory=list)
    """Rows of table `kernels` over all runs."""
    totals: dict[str, float] = field(default_factory=dict)
    """Columns of table `points`."""


def read_traces(entry: PlanEntry, profiled: tuple[int, ...], folder: Path) -> Traces:
    """Return the rows of a finished run from its traces.

    Args:
        entry: The run.
        profiled: Numbers of the profiled steps.
        folder: Folder of the run.

    Raises:
        UserError: If a traced rank or one of its profiled steps is missing.
    """
    if not profiled:
        return Traces()
    ranks = entry.planned.point.traced_ranks
    categories = CATEGORIES.read(folder / "categories.parquet")
    kernels = KERNELS.read(folder / "kernels.parquet")
    _check(entry.run, categories, ranks, profiled)
    phases = _mean_times(entry.run, categories, _PHASE_KEYS, len(profiled))
    mesh = RankMesh(entry.planned.point.layout)
    intervals = INTERVALS.read(folder / "intervals.parquet")
    breakdown = _mean_times(entry.run, intervals, [*_PHASE_KEYS, "kind", "group"], len(profiled))
    for row in breakdown:
        row["stage"] = mesh.place(row["rank"]).pp if entry.planned.point.knows("pp") else None
    # Kernels between steps have a null step.
    kernels = kernels.filter(pc.is_in(kernels["step"], pa.array(profiled, pa.int64())))
    sums = _sum_by_rank(kernels, len(profiled))
    per_rank_s = [sum(by_rank.get(rank, (0.0, 0.0))[0] for by_rank in sums.values()) for rank in ranks]
    totals = {
        "kernel_sum_s": sum(per_rank_s) / len(ranks),
        "kernel_sum_min_s": min(per_rank_s),
        "kernel_sum_max_s": max(per_rank_s),
    }
    is_simulated = entry.planned.point.engine == "simulated"
    rows = _kernel_rows(entry.run, sums, ranks, _geometry(kernels, is_simulated))
    return Traces(phases, breakdown, rows, totals | _split(phases, len(ranks)))


def read_timeline(run: str, folder: Path, is_traced: bool) -> pa.Table:
    """Return table `timeline` of one run with its run id, in order of rank, lane and time."""
    if not is_traced:
        return RUN_TIMELINE.schema().empty_table()
    spans = TIMELINE.read(folder / "timeline.parquet")
    spans = spans.sort_by([("rank", "ascending"), ("lane", "descending"), ("t_start_ns", "ascending")])
    with_run = spans.add_column(0, "run", pa.array([run] * spans.num_rows, pa.string()))
    return RUN_TIMELINE.check(with_run, folder / "timeline.parquet")


def _check(run: str, categories: pa.Table, ranks: list[int], profiled: tuple[int, ...]) -> None:
    """Raise `UserError` if a profiled step of a traced rank is missing."""
    present = set(zip(categories["rank"].to_pylist(), categories["step"].to_pylist(), strict=True))
    missing = [rank for rank in ranks if not {(rank, step) for step in profiled} <= present]
    if missing:
        raise UserError(
            f"run {run}: categories.parquet lacks profiled steps of ranks {', '.join(map(str, missing))}; "
            "delete it to parse the traces again, or launch the run again if a trace is missing"
        )


def _mean_times(run: str, table: pa.Table, keys: list[str], num_steps: int) -> list[dict[str, Any]]:
    """Return the mean times per profiled step, a row for each combination of the keys, sorted by them."""
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
    """Return the parts of a profiled step and their shares, mean over ranks, by column of `points`."""
    parts = {
        column: sum(row[time] for row in phases if row["category"] == category) / num_ranks
        for column, (category, time) in _SPLIT.items()
    }
    total_s = sum(parts.values())
    shares = {f"{column.removesuffix('_s')}_share": part_s / total_s for column, part_s in parts.items() if total_s}
    return parts | shares


_Kind = tuple[str, str, str | None]
"""Class, kind and group of kernels."""


def _sum_by_rank(kernels: pa.Table, num_steps: int) -> dict[_Kind, dict[int, tuple[float, float]]]:
    """Return summed duration (s) and number of occurrences per step, by kind of kernel and by rank."""
    summed = kernels.group_by(["rank", "class", "kind", "group"]).aggregate([("sum_ns", "sum"), ("count", "sum")])
    sums: dict[_Kind, dict[int, tuple[float, float]]] = defaultdict(dict)
    for row in summed.to_pylist():
        per_step = ns_to_s(row["sum_ns_sum"]) / num_steps, row["count_sum"] / num_steps
        sums[row["class"], row["kind"], row["group"]][row["rank"]] = per_step
    return sums


def _geometry(kernels: pa.Table, is_simulated: bool) -> dict[_Kind, dict[str, Any]]:
    """Return the launch geometry of each kind of kernel, a mean weighted by duration, or why there is none."""
    rows = kernels.select(["class", "kind", "group", "sum_ns", *_GEOMETRY]).to_pylist()
    by_kind: dict[_Kind, list[dict[str, Any]]] = defaultdict(list)
    for row in rows:
        by_kind[row["class"], row["kind"], row["group"]].append(row)
    return {kind: _mean_geometry(rows_of_kind, is_simulated) for kind, rows_of_kind in by_kind.items()}


def _mean_geometry(rows: list[dict[str, Any]], is_simulated: bool) -> dict[str, Any]:
    """Return the mean launch geometry of some rows of table `kernels`, or why there is none."""
    means: dict[str, Any] = {}
    for name in _GEOMETRY:
        weighted = [(row[name], row["sum_ns"]) for row in rows if row[name] is not None]
        if total := sum(weight for _, weight in weighted):
            means[name] = sum(value * weight for value, weight in weighted) / total
    if not means:
        means["geometry_absent"] = _NOT_SIMULATED if is_simulated else "the trace has none"
    return means


def _kernel_rows(
    run: str,
    sums: dict[_Kind, dict[int, tuple[float, float]]],
    ranks: list[int],
    geometry: dict[_Kind, dict[str, Any]],
) -> list[dict[str, Any]]:
    """Return the rows of table `kernels` of a run, over its traced ranks."""
    rows = []
    for kind, by_rank in sorted(sums.items(), key=lambda item: (item[0][0], item[0][1], item[0][2] or "")):
        # A rank without such a kernel counts with a time of 0.
        times, counts = zip(*(by_rank.get(rank, (0.0, 0.0)) for rank in ranks), strict=True)
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
