"""What `triplepoint trace` prints: where each rank's time went, how whole its file was, and what the ranks tell."""

from collections.abc import Iterable

from triplepoint.trace.cross.compare import Comparison
from triplepoint.trace.rank.summary import RankSummary
from triplepoint.units import MS_PER_S, NS_PER_S

_TOP = 8
_ROWS = (
    ("compute", "compute", "busy"),
    ("comm exposed", "comm", "exposed"),
    ("comm overlapped", "comm", "overlapped"),
    ("memory exposed", "memory", "exposed"),
    ("idle", "idle", "busy"),
)


def summarise(summaries: Iterable[RankSummary], comparison: Comparison) -> str:
    """Return a few readable lines per rank, and some on the ranks together."""
    return "\n".join([*(_summarise_rank(one) for one in summaries), *_summarise_ranks(comparison)])


def _summarise_rank(one: RankSummary) -> str:
    span = one.span[1] - one.span[0]
    if span == 0:
        return f"rank {one.rank}: no work in the trace{_damage(one)}"
    of = f"{one.num_gpu_events} GPU events" if one.is_device else "CPU work"
    lines = [f"rank {one.rank}: {_ms(span).strip()} with {of}{_damage(one)}"]
    for title, category, part in _ROWS:
        busy, exposed = one.busy(category), one.exposed(category)
        time = {"busy": busy, "exposed": exposed, "overlapped": busy - exposed}[part]
        lines.append(f"  {title:<17} {_ms(time)} {100 * time / span:6.2f} %")
    parts = [account for account in one.accounts if account.label.kind != "all" and account.exposed]
    for title, is_idle in (("mostly", False), ("idle because", True)):
        own = sorted((a for a in parts if (a.label.category == "idle") == is_idle), key=lambda a: -a.exposed)
        if own:
            lines.append(
                f"  {title:<17} " + ", ".join(f"{_name(a.label)} {_ms(a.exposed).strip()}" for a in own[:_TOP])
            )
    return "\n".join(lines)


def _summarise_ranks(comparison: Comparison) -> list[str]:
    lines = [
        f"rank {one.rank} is a straggler: computes {100 * (one.compute_excess or 0):.1f} % longer than its peers, "
        f"comes last to {100 * (one.share_last or 0):.0f} % of its collectives"
        for one in comparison.standings
        if one.is_straggler
    ]
    for path in comparison.paths:
        longest = sorted(path.times.items(), key=lambda item: -item[1])[:_TOP]
        parts = ", ".join(f"rank {rank} {_name(label)} {_ms(time).strip()}" for (rank, label), time in longest)
        lines.append(f"critical path of step {path.step}: {parts}")
    return [*lines, *comparison.notes]


def _name(label: tuple[str, str, str | None]) -> str:
    category, kind, group = label
    name = kind if category == "compute" else f"{category}/{kind}"
    return f"{name}[{group}]" if group else name


def _damage(one: RankSummary) -> str:
    said = []
    if one.is_truncated:
        said.append("the file is truncated (was the job killed?)")
    if one.num_damaged_events:
        said.append(_plural(one.num_damaged_events, "damaged event"))
    if one.num_duplicate_events:
        said.append(_plural(one.num_duplicate_events, "duplicate event") + " left out")
    return f"; {', '.join(said)}" if said else ""


def _plural(number: int, thing: str) -> str:
    return f"{number} {thing}{'s' if number > 1 else ''}"


def _ms(time_ns: int) -> str:
    return f"{time_ns / (NS_PER_S / MS_PER_S):12.3f} ms"
