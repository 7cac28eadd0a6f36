"""`breakdown.csv` and `kernels.csv`: where each rank's time went, and what ran. Times in us, exact to a nanosecond."""

import csv
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from triplepoint.files import atomic_file, guarded, write_text
from triplepoint.trace.lanes import RankSummary
from triplepoint.units import NS_PER_US

_KEYS = ["rank", "class", "kind", "name"]


def breakdown_row(one: RankSummary) -> dict[str, str]:
    """Return the row of a rank: times over all its work in the file, in us with three decimals.

    `memory_us` is the time any copy or fill was running, overlapped with others or not: compute, exposed communication,
    memory and idle time together exceed the span by what memory operations overlap.
    """
    first, last = one.span
    comm, exposed = one.busy("comm"), one.exposed("comm")
    return {
        "rank": str(one.rank),
        "span_us": as_us(last - first),
        "compute_us": as_us(one.busy("compute")),
        "comm_us": as_us(comm),
        "comm_exposed_us": as_us(exposed),
        "comm_overlapped_us": as_us(comm - exposed),
        "memory_us": as_us(one.busy("memory")),
        "idle_us": as_us(one.busy("idle")),
        "comm_overlap_fraction": f"{(comm - exposed) / comm:.9f}" if comm else "",
        "num_gpu_events": str(one.num_gpu_events),
        "num_damaged_events": str(one.num_damaged_events),
        "truncated": "true" if one.is_truncated else "false",
    }


def write_breakdown(path: Path, rows: Sequence[dict[str, str]]) -> None:
    """Write rows of text under their keys."""
    lines = [",".join(rows[0]) if rows else "", *(",".join(row.values()) for row in rows)]
    write_text(path, "\n".join(lines) + "\n")


def write_kernels(path: Path, kernels: pa.Table) -> None:
    """Write what ran, summed over steps and process groups, the longest first.

    Args:
        path: File to write.
        kernels: Columns rank, class, kind, name, count, sum_ns, min_ns, max_ns; other columns do not matter.
    """
    sums = kernels.group_by(_KEYS, use_threads=False).aggregate(
        [("count", "sum"), ("sum_ns", "sum"), ("min_ns", "min"), ("max_ns", "max")]
    )
    order = pc.sort_indices(sums, [("rank", "ascending"), ("sum_ns_sum", "descending"), ("name", "ascending")])
    sums = sums.take(order)
    with atomic_file(path) as scratch, scratch.open("w", encoding="utf-8", newline="") as file:
        rows = csv.writer(file, lineterminator="\n")
        rows.writerow([*_KEYS, "count", "sum_us", "mean_us", "min_us", "max_us"])
        for one in sums.to_pylist():
            count, total = one["count_sum"], one["sum_ns_sum"]
            mean = f"{total / NS_PER_US / count:.3f}"
            ends = (as_us(one["min_ns_min"]), as_us(one["max_ns_max"]))
            rows.writerow([one["rank"], *(guarded(one[key]) for key in _KEYS[1:]), count, as_us(total), mean, *ends])


def as_us(time_ns: int) -> str:
    """Return nanoseconds as exact microseconds."""
    sign, time_ns = ("-", -time_ns) if time_ns < 0 else ("", time_ns)
    return f"{sign}{time_ns // NS_PER_US}.{time_ns % NS_PER_US:03d}"
