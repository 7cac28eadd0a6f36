"""What `triplepoint trace` prints: where each rank's time went, and its heaviest kernels."""

from collections import Counter

from triplepoint.trace.rank.breakdown import Breakdown
from triplepoint.trace.rank.intervals import single
from triplepoint.trace.rank.work import Work
from triplepoint.units import MS_PER_S, NS_PER_S

_TOP = 8


def summarise_rank(rank: int, work: Work) -> str:
    """Return a few lines on one rank, over all its work in the file.

    Args:
        rank: Rank.
        work: Its work.
    """
    start, end = work.span
    span = end - start
    of = "GPU" if work.is_device else "CPU"
    if span == 0:
        return f"rank {rank}: no work in the trace"
    rows = {row["category"]: row for row in Breakdown.of(work).rows(single(start, end))}
    comm = rows["comm"]
    lines = [
        f"rank {rank}: {_ms(span)} of {of} work",
        f"  compute           {_share(rows['compute']['busy_ns'], span)}",
        f"  comm exposed      {_share(comm['exposed_ns'], span)}",
        f"  comm overlapped   {_share(comm['overlapped_ns'], span)}",
        f"  memory exposed    {_share(rows['memory']['exposed_ns'], span)}",
        f"  idle              {_share(rows['idle']['busy_ns'], span)}",
        "  top classes       " + _top_classes(work),
    ]
    return "\n".join(lines)


def _top_classes(work: Work) -> str:
    sums: Counter[tuple[str, str]] = Counter()
    for index, duration in zip(work.label.tolist(), work.duration.tolist(), strict=True):
        label = work.labels[index]
        sums[label.cls, label.kind] += duration
    return ", ".join(f"{cls}/{kind} {_ms(total).strip()}" for (cls, kind), total in sums.most_common(_TOP))


def _ms(duration_ns: int) -> str:
    return f"{duration_ns / (NS_PER_S / MS_PER_S):12.3f} ms"


def _share(duration_ns: int, span_ns: int) -> str:
    return f"{_ms(duration_ns)} {100 * duration_ns / span_ns:6.2f} %"
