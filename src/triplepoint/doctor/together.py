"""Checks of what nodes found out together: who reported, clocks, the shared folder."""

from collections.abc import Sequence

from triplepoint.doctor.check import Check
from triplepoint.doctor.probe import Report
from triplepoint.units import GIB, MEGA, MIB, MS_PER_S

MOST_OFFSET_S = 0.01
"""A tenth of the default period of telemetry: samples of two nodes would be put in the wrong order. Unit: s."""
SLOW_TO_SEE_S = 5.0
"""The launch stage waits for files of other nodes; with this it still does well. Assumed. Unit: s."""
LEAST_FREE_BYTES = 10 * GIB
"""Traces of one run of 32 GPUs take a gigabyte or so: assumed."""
LEAST_WRITE_BYTES_PER_S = 50 * MEGA
"""Traces of 8 ranks, 100 MB each, would take 16 s and more: assumed."""


def check_together(reports: Sequence[Report], num_nodes: int) -> list[Check]:
    """Return checks of all nodes together.

    Args:
        reports: Of the nodes that left one.
        num_nodes: How many were asked.
    """
    return [_reported(reports, num_nodes), _clocks(reports), _shared(reports), _space(reports), _rate(reports)]


def _reported(reports: Sequence[Report], num_nodes: int) -> Check:
    hosts = tuple(report.facts.host for report in reports)
    problems = "; ".join(f"{report.facts.host}: {report.problem}" for report in reports if report.problem)
    expected = f"{num_nodes} reports without a problem"
    if len(reports) < num_nodes:
        missing = sorted(set(range(num_nodes)) - {report.facts.node for report in reports})
        told = f"no report from node {', '.join(map(str, missing))} of the job"
        advice = "is the results folder shared by all nodes, and the environment on them? see the logs in the folder"
        return Check("nodes", "fail", f"{told}; {problems}" if problems else told, expected, advice, hosts)
    if problems:
        return Check("nodes", "fail", problems, expected, "see the logs in the folder", hosts)
    return Check("nodes", "ok", f"{num_nodes} reported", nodes=hosts)


def _clocks(reports: Sequence[Report]) -> Check:
    met = [(report.facts.host, report.meeting) for report in reports if report.meeting is not None]
    found = {
        host: (meeting.offset_s, meeting.uncertainty_s)
        for host, meeting in met
        if meeting.offset_s is not None and meeting.uncertainty_s is not None
    }
    hosts = tuple(host for host, _ in met)
    if not found:
        return Check("clocks", "skipped", "one node: nothing to compare", nodes=hosts)
    told = ", ".join(
        f"{host} {offset * MS_PER_S:+.3f} ms (+-{doubt * MS_PER_S:.3f})" for host, (offset, doubt) in found.items()
    )
    told = f"against {hosts[0]}: {told}"
    # 0 is node 0 itself. Only what is off beyond doubt counts.
    offsets = [0.0, *(offset for offset, _ in found.values())]
    doubt = max(doubt for _, doubt in found.values())
    if max(offsets) - min(offsets) - doubt > MOST_OFFSET_S:
        expected = f"within {MOST_OFFSET_S * MS_PER_S:.0f} ms"
        return Check("clocks", "warn", told, expected, "start chrony or PTP on all nodes", hosts)
    if doubt > MOST_OFFSET_S:
        return Check("clocks", "warn", told, "known to 10 ms", "the network between nodes is slow or busy", hosts)
    return Check("clocks", "ok", told, nodes=hosts)


def _shared(reports: Sequence[Report]) -> Check:
    met = [(report.facts.host, report.meeting) for report in reports if report.meeting is not None]
    hosts = tuple(host for host, _ in met)
    visits = [(host, meeting) for host, meeting in met if meeting.offset_s is not None]
    if not visits:
        return Check("shared folder", "skipped", "one node: nothing to share", nodes=hosts)
    blind = [host for host, meeting in visits if meeting.sees_after_s is None or meeting.is_seen_after_s is None]
    if blind:
        told = f"a file written on one of {hosts[0]} and {', '.join(blind)} is not seen on the other"
        advice = "use a results folder on a shared file system"
        return Check("shared folder", "fail", told, "seen everywhere", advice, hosts)
    delays = [delay for _, meeting in visits for delay in (meeting.sees_after_s, meeting.is_seen_after_s)]
    slowest = max(delay for delay in delays if delay is not None)
    told = f"a file is seen on other nodes after {slowest * MS_PER_S:.0f} ms at most"
    if slowest > SLOW_TO_SEE_S:
        advice = "raise file_lag_s of the site's file; on NFS mount with a smaller acdirmax or lookupcache=positive"
        return Check("shared folder", "warn", told, f"within {SLOW_TO_SEE_S:.0f} s", advice, hosts)
    return Check("shared folder", "ok", told, nodes=hosts)


def _space(reports: Sequence[Report]) -> Check:
    free = {report.facts.host: report.meeting.free_bytes for report in reports if report.meeting}
    if not free:
        return Check("free space", "skipped", "no node got that far")
    least = min(free.values())
    told = f"{least / GIB:.0f} GiB"
    if least < LEAST_FREE_BYTES:
        expected = f"{LEAST_FREE_BYTES / GIB:.0f} GiB"
        return Check("free space", "warn", told, expected, "free some, or use another results folder", tuple(free))
    return Check("free space", "ok", told, nodes=tuple(free))


def _rate(reports: Sequence[Report]) -> Check:
    rates = {report.facts.host: report.meeting.write_bytes_per_s for report in reports if report.meeting}
    if not rates:
        return Check("write rate", "skipped", "no node got that far")
    slowest = min(rates, key=rates.__getitem__)
    told = f"{rates[slowest] / MIB:.0f} MiB/s"
    if len(rates) > 1:
        told += f" on {slowest}, the slowest of {len(rates)} nodes that write at once"
    if rates[slowest] < LEAST_WRITE_BYTES_PER_S:
        expected = f"{LEAST_WRITE_BYTES_PER_S / MIB:.0f} MiB/s"
        return Check("write rate", "warn", told, expected, "writing traces will take long", tuple(rates))
    return Check("write rate", "ok", told, nodes=tuple(rates))
