"""Write `breakdown.csv`, the time of each rank by category, and `kernels.csv`. Times in us, exact to a nanosecond."""

import csv
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from triplepoint.files import atomic_file, guarded, write_text
from triplepoint.trace.rank_results import RankSummary
from triplepoint.units import NS_PER_US

_KEYS = ["rank", "class", "kind", "name"]


def breakdown_row(summary: RankSummary) -> dict[str, str]:
    """Return the row of a rank in `breakdown.csv`: times of all its work in the file, in us with three decimals.

    `memory_us` is the time that any copy or fill was running, overlapped or not. Therefore compute, exposed
    communication, memory and idle time together exceed the span by the overlap of memory operations.
    """
    first, last = summary.span
    comm, exposed = summary.busy("comm"), summary.exposed("comm")
    return {
        "rank": str(summary.rank),
        "span_us": as_us(last - first),
        "compute_us": as_us(summary.busy("compute")),
        "comm_us": as_us(comm),
        "comm_exposed_us": as_us(exposed),
        "comm_overlapped_us": as_us(comm - exposed),
        "memory_us": as_us(summary.busy("memory")),
        "idle_us": as_us(summary.busy("idle")),
        "comm_overlap_fraction": f"{(comm - exposed) / comm:.9f}" if comm else "",
        "num_gpu_events": str(summary.num_gpu_events),
        "num_damaged_events": str(summary.num_damaged_events),
        "truncated": "true" if summary.is_truncated else "false",
    }


def write_breakdown(path: Path, rows: Sequence[dict[str, str]]) -> None:
    """Write rows of text as CSV; their keys are the header."""
    lines = [",".join(rows[0]) if rows else "", *(",".join(row.values()) for row in rows)]
    write_text(path, "\n".join(lines) + "\n")


def write_kernels(path: Path, kernels: pa.Table) -> None:
    """Write kernels with their times, summed over steps and process groups, the longest first.

    Args:
        path: File to write.
        kernels: Columns rank, class, kind, name, count, sum_ns, min_ns, max_ns; other columns are not read.
    """
    sums = kernels.group_by(_KEYS, use_threads=False).aggregate(
        [("count", "sum"), ("sum_ns", "sum"), ("min_ns", "min"), ("max_ns", "max")]
    )
    order = pc.sort_indices(sums, [("rank", "ascending"), ("sum_ns_sum", "descending"), ("name", "ascending")])
    sums = sums.take(order)
    with atomic_file(path) as scratch, scratch.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow([*_KEYS, "count", "sum_us", "mean_us", "min_us", "max_us"])
        for row in sums.to_pylist():
            count, total_ns = row["count_sum"], row["sum_ns_sum"]
            times = [
                as_us(total_ns),
                f"{total_ns / NS_PER_US / count:.3f}",
                as_us(row["min_ns_min"]),
                as_us(row["max_ns_max"]),
            ]
            writer.writerow([row["rank"], *(guarded(row[key]) for key in _KEYS[1:]), count, *times])


def as_us(time_ns: int) -> str:
    """Return a time in ns as text in us, exactly."""
    sign, time_ns = ("-", -time_ns) if time_ns < 0 else ("", time_ns)
    return f"{sign}{time_ns // NS_PER_US}.{time_ns % NS_PER_US:03d}"
