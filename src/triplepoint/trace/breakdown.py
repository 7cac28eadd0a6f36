"""Write `breakdown.csv`, the time of each rank by category, and `kernels.csv`. Times in us, exact to a nanosecond."""

from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from triplepoint.files import csv_text, write_text
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
    rows = (
        {key: row[key] for key in _KEYS}
        | {
            "count": row["count_sum"],
            "sum_us": as_us(row["sum_ns_sum"]),
            "mean_us": f"{row['sum_ns_sum'] / NS_PER_US / row['count_sum']:.3f}",
            "min_us": as_us(row["min_ns_min"]),
            "max_us": as_us(row["max_ns_max"]),
        }
        for row in sums.to_pylist()
    )
    write_text(path, csv_text([*_KEYS, "count", "sum_us", "mean_us", "min_us", "max_us"], rows))


def as_us(time_ns: int) -> str:
    """Return a time in ns as text in us, exactly."""
    sign, time_ns = ("-", -time_ns) if time_ns < 0 else ("", time_ns)
    return f"{sign}{time_ns // NS_PER_US}.{time_ns % NS_PER_US:03d}"
