"""Checks across nodes: agreement, clocks, shared folder, slow GPUs and slow links."""

import statistics
from collections import defaultdict
from collections.abc import Iterable, Sequence

from triplepoint.doctor.check import Check, Expected, NodeFacts, Status, odd_ones
from triplepoint.doctor.measure import CollectiveRow, KernelRow
from triplepoint.doctor.probe import Report
from triplepoint.metrics import bus_factor
from triplepoint.text import percent
from triplepoint.units import GIB, GIGA, MEGA, MIB, MS_PER_S

_GPU_FACTS = {
    "product": "product",
    "memory_bytes": "memory (byte)",
    "power_limit_w": "power limit (W)",
    "clock_limit_mhz": "clock limit (MHz)",
    "max_clock_mhz": "highest clock (MHz)",
    "pcie_generation": "PCIe generation",
    "num_links_up": "links up",
}
"""Facts that all GPUs should have in common, with their names in messages."""


def check_agreement(nodes: Sequence[NodeFacts]) -> list[Check]:
    """Return checks of versions, GPUs and hosts that should be the same on all nodes."""
    if len(nodes) < 2 and not any(len(node.gpus) > 1 for node in nodes):
        return [Check("agreement", "skipped", "one node: nothing to compare", nodes=_hosts(nodes))]
    checks = [
        _agreement(
            "same versions", _version_differences(nodes), "install the same environment and driver everywhere", nodes
        ),
        _agreement("same hosts", _host_differences(nodes), "exclude the odd one, or name a constraint", nodes),
    ]
    if any(node.gpus for node in nodes):
        advice = "drain the odd one, or exclude it from the measurement"
        checks.append(_agreement("same gpus", _gpu_differences(nodes), advice, nodes))
    return checks


def _agreement(name: str, differences: Iterable[str], advice: str, nodes: Sequence[NodeFacts]) -> Check:
    text = "; ".join(differences)
    if text:
        return Check(name, "warn", text, "the same everywhere", advice, _hosts(nodes))
    return Check(name, "ok", f"the same on {len(nodes)} {'node' if len(nodes) == 1 else 'nodes'}", nodes=_hosts(nodes))


def _hosts(nodes: Sequence[NodeFacts]) -> tuple[str, ...]:
    return tuple(node.host for node in nodes)


def _version_differences(nodes: Sequence[NodeFacts]) -> list[str]:
    names = dict.fromkeys(name for node in nodes for name in node.versions)
    return _differences({name: {node.host: node.versions.get(name, "none") for node in nodes} for name in names})


def _gpu_differences(nodes: Sequence[NodeFacts]) -> list[str]:
    return _differences(
        {
            word: {
                f"{node.host} gpu{gpu.index}": value
                for node in nodes
                for gpu in node.gpus
                if (value := getattr(gpu, field)) is not None
            }
            for field, word in _GPU_FACTS.items()
        }
    )


def _host_differences(nodes: Sequence[NodeFacts]) -> list[str]:
    # Firmware keeps a varying part of memory, so equal hosts only agree to a GiB.
    return _differences(
        {
            "GPUs": {node.host: len(node.gpus) for node in nodes},
            "processors": {node.host: node.num_cores for node in nodes},
            "memory (GiB)": {node.host: round(node.memory_bytes / (1 << 30)) for node in nodes},
            "active network ports": {node.host: sum(port.state == "ACTIVE" for port in node.ports) for node in nodes},
        }
    )


def _differences(values: dict[str, dict[str, object]]) -> list[str]:
    """Return a sentence for each quantity that differs, with the owners of uncommon values.

    Args:
        values: Values by name of the quantity and by owner, a host or a GPU.
    """
    sentences = []
    for name, by_owner in values.items():
        if not by_owner:
            continue
        common, others = odd_ones(by_owner)
        if others:
            shown = ", ".join(f"{owner} has {value}" for owner, value in others.items())
            sentences.append(f"{name}: {shown}, most {common}")
    return sentences


SLOW = 1.05
"""Time over the median above which a GPU counts as slow. GPUs of one type at one power limit differ by a few percent,
and the slowest one delays all. Assumption."""
VERY_SLOW = 1.2
"""Time over the median of a GPU that is throttled or has lost a link. Assumption."""
LEAST_SHARE = 0.5
"""Least share of the described bandwidth in a large all-reduce. Rings reach 0.7 to 0.95 of it, see `efficiency` in
`config/collectives/links/`."""
LARGE_BYTES = 64 * MIB
"""Size from which an all-reduce should reach that share. Unit: byte."""


def check_gpu_speed(kernels: Sequence[KernelRow]) -> Check:
    """Return the check for GPUs slower than the median of all GPUs."""
    hosts = tuple(dict.fromkeys(row.host for row in kernels))
    if len({(row.host, row.device) for row in kernels}) < 2:
        return Check("gpu speed", "skipped", "nothing to compare", nodes=hosts)
    if not any(row.precision == "bf16" for row in kernels):
        return Check("gpu speed", "skipped", "processors share caches and clocks: no comparison", nodes=hosts)
    slow = {name: ratio for name, ratio in _time_ratios(kernels).items() if ratio > SLOW}
    if not slow:
        return Check("gpu speed", "ok", f"all within {percent(SLOW - 1, 0)} of the median", nodes=hosts)
    text = ", ".join(f"{name} takes {ratio:.2f} times the median" for name, ratio in slow.items())
    status: Status = "fail" if max(slow.values()) > VERY_SLOW else "warn"
    advice = "exclude it from the measurement; look at its temperature, power limit and clocks"
    return Check("gpu speed", status, text, f"within {percent(SLOW - 1, 0)}", advice, hosts)


def _time_ratios(kernels: Sequence[KernelRow]) -> dict[str, float]:
    """Return the time of each GPU over the median of all GPUs, as the median over kernels."""
    times_of: dict[object, dict[str, float]] = defaultdict(dict)
    for row in kernels:
        times_of[row.cls, row.shape, row.num_bytes][f"{row.host} gpu{row.device}"] = row.time_s
    ratios_of: dict[str, list[float]] = defaultdict(list)
    for times in times_of.values():
        median = statistics.median(times.values())
        for name, time_s in times.items():
            ratios_of[name].append(time_s / median)
    return {name: statistics.median(ratios) for name, ratios in ratios_of.items()}


def check_fabric(collectives: Sequence[CollectiveRow], expected: Expected) -> list[Check]:
    """Return a check of the all-reduce bandwidth of each level of the fabric."""
    return [
        _check_level(level, [row for row in collectives if row.level == level], expected)
        for level in dict.fromkeys(row.level for row in collectives)
    ]


def _check_level(level: str, rows: Sequence[CollectiveRow], expected: Expected) -> Check:
    # A group over the network spans hosts, so the check of that level names none.
    hosts = tuple(dict.fromkeys(row.host for row in rows)) if level == "node" else ()
    name = f"{level} bandwidth"
    reduces = [row for row in rows if row.kind == "all_reduce"]
    most = max(row.num_gpus for row in reduces)
    largest = max(row.num_bytes for row in reduces if row.num_gpus == most)
    rates = {row.host: _bus_rate(row) for row in reduces if (row.num_gpus, row.num_bytes) == (most, largest)}
    slowest, median = min(rates, key=rates.__getitem__), statistics.median(rates.values())
    text = f"all_reduce of {largest / MIB:.3g} MiB over {most}: {rates[slowest] / GIGA:.3g} GB/s"
    text += f" at least, on {slowest}" if len(rates) > 1 else ""
    if median / rates[slowest] > VERY_SLOW and expected.has_gpus:
        usual = f"{median / GIGA:.3g} GB/s as other nodes"
        return Check(name, "warn", text, usual, f"look at the links of {slowest}, or exclude it", hosts)
    described = _described_bandwidth(level, expected)
    if described is not None and largest >= LARGE_BYTES and rates[slowest] < LEAST_SHARE * described:
        wanted = f"{percent(LEAST_SHARE, 0)} of {described / GIGA:.3g} GB/s, as described"
        advice = "look at links, adapters and NCCL's choice of them (NCCL_DEBUG=INFO), or correct the description"
        return Check(name, "warn", text, wanted, advice, hosts)
    return Check(name, "ok", text, nodes=hosts)


def _bus_rate(row: CollectiveRow) -> float:
    return float(bus_factor(row.kind, row.num_gpus)) * row.num_bytes / row.time_s


def _described_bandwidth(level: str, expected: Expected) -> float | None:
    """Return the described bandwidth of a GPU or of a node's adapters; None where it is no reference. Unit: byte/s."""
    cluster, gpu, link = expected.cluster, expected.gpu, expected.link
    if level == "network" and cluster and cluster.nics_per_node and cluster.nic_bandwidth:
        return cluster.nics_per_node.value * cluster.nic_bandwidth.value
    # Without a switch between the GPUs, no ring uses all links of a GPU.
    if level == "node" and gpu and link and not (link.usable or link.package):
        return gpu.scale_up_bandwidth.value
    return None


MOST_OFFSET_S = 0.01
"""Largest clock offset between nodes: a tenth of the default period of telemetry. With larger offsets, samples of two
nodes would be put in the wrong order. Unit: s."""
SLOW_TO_SEE_S = 5.0
"""Longest time until other nodes see a file with which the launch stage, which waits for files, works well. Assumption.
Unit: s."""
LEAST_FREE_BYTES = 10 * GIB
"""Least free space. Traces of one run of 32 GPUs take about a gigabyte. Assumption. Unit: byte."""
LEAST_WRITE_BYTES_PER_S = 50 * MEGA
"""Least rate of writing. At this rate traces of 8 ranks with 100 MB each take 16 s. Assumption. Unit: byte/s."""


def check_together(reports: Sequence[Report], num_nodes: int) -> list[Check]:
    """Return the checks that need all nodes: reports, clocks and the shared folder.

    Args:
        reports: Reports of the nodes that left one.
        num_nodes: Number of nodes that were asked for a report.
    """
    return [
        _reported(reports, num_nodes),
        _clocks(reports),
        _shared_folder(reports),
        _space(reports),
        _write_rate(reports),
    ]


def _reported(reports: Sequence[Report], num_nodes: int) -> Check:
    hosts = tuple(report.facts.host for report in reports)
    problems = "; ".join(f"{report.facts.host}: {report.problem}" for report in reports if report.problem)
    expected = f"{num_nodes} reports without a problem"
    if len(reports) < num_nodes:
        missing = sorted(set(range(num_nodes)) - {report.facts.node for report in reports})
        text = f"no report from node {', '.join(map(str, missing))} of the job"
        advice = "is the results folder shared by all nodes, and the environment on them? see the logs in the folder"
        return Check("nodes", "fail", f"{text}; {problems}" if problems else text, expected, advice, hosts)
    if problems:
        return Check("nodes", "fail", problems, expected, "see the logs in the folder", hosts)
    return Check("nodes", "ok", f"{num_nodes} reported", nodes=hosts)


def _clocks(reports: Sequence[Report]) -> Check:
    meetings = [(report.facts.host, report.meeting) for report in reports if report.meeting is not None]
    offset_of = {
        host: (meeting.offset_s, meeting.uncertainty_s)
        for host, meeting in meetings
        if meeting.offset_s is not None and meeting.uncertainty_s is not None
    }
    hosts = tuple(host for host, _ in meetings)
    if not offset_of:
        return Check("clocks", "skipped", "one node: nothing to compare", nodes=hosts)
    text = ", ".join(
        f"{host} {offset * MS_PER_S:+.3f} ms (+-{uncertainty * MS_PER_S:.3f})"
        for host, (offset, uncertainty) in offset_of.items()
    )
    text = f"against {hosts[0]}: {text}"
    # The offset of node 0 is 0. Only offsets beyond the uncertainty count.
    offsets = [0.0, *(offset for offset, _ in offset_of.values())]
    most_uncertain = max(uncertainty for _, uncertainty in offset_of.values())
    if max(offsets) - min(offsets) - most_uncertain > MOST_OFFSET_S:
        expected = f"within {MOST_OFFSET_S * MS_PER_S:.0f} ms"
        return Check("clocks", "warn", text, expected, "start chrony or PTP on all nodes", hosts)
    if most_uncertain > MOST_OFFSET_S:
        return Check(
            "clocks", "warn", text, "uncertainty up to 10 ms", "the network between nodes is slow or busy", hosts
        )
    return Check("clocks", "ok", text, nodes=hosts)


def _shared_folder(reports: Sequence[Report]) -> Check:
    meetings = [(report.facts.host, report.meeting) for report in reports if report.meeting is not None]
    hosts = tuple(host for host, _ in meetings)
    visits = [(host, meeting) for host, meeting in meetings if meeting.offset_s is not None]
    if not visits:
        return Check("shared folder", "skipped", "one node: nothing to share", nodes=hosts)
    apart = [host for host, meeting in visits if meeting.sees_after_s is None or meeting.is_seen_after_s is None]
    if apart:
        text = f"a file written on one of {hosts[0]} and {', '.join(apart)} is not seen on the other"
        advice = "use a results folder on a shared file system"
        return Check("shared folder", "fail", text, "seen everywhere", advice, hosts)
    delays = [delay for _, meeting in visits for delay in (meeting.sees_after_s, meeting.is_seen_after_s)]
    slowest = max(delay for delay in delays if delay is not None)
    text = f"a file is seen on other nodes after {slowest * MS_PER_S:.0f} ms at most"
    if slowest > SLOW_TO_SEE_S:
        advice = "raise file_lag_s of the site's file; on NFS mount with a smaller acdirmax or lookupcache=positive"
        return Check("shared folder", "warn", text, f"within {SLOW_TO_SEE_S:.0f} s", advice, hosts)
    return Check("shared folder", "ok", text, nodes=hosts)


def _space(reports: Sequence[Report]) -> Check:
    free = {report.facts.host: report.meeting.free_bytes for report in reports if report.meeting}
    if not free:
        return Check("free space", "skipped", "no node got that far")
    least = min(free.values())
    text = f"{least / GIB:.0f} GiB"
    if least < LEAST_FREE_BYTES:
        expected = f"{LEAST_FREE_BYTES / GIB:.0f} GiB"
        return Check("free space", "warn", text, expected, "free some, or use another results folder", tuple(free))
    return Check("free space", "ok", text, nodes=tuple(free))


def _write_rate(reports: Sequence[Report]) -> Check:
    rates = {report.facts.host: report.meeting.write_bytes_per_s for report in reports if report.meeting}
    if not rates:
        return Check("write rate", "skipped", "no node got that far")
    slowest = min(rates, key=rates.__getitem__)
    text = f"{rates[slowest] / MIB:.0f} MiB/s"
    if len(rates) > 1:
        text += f" on {slowest}, the slowest of {len(rates)} nodes that write at once"
    if rates[slowest] < LEAST_WRITE_BYTES_PER_S:
        expected = f"{LEAST_WRITE_BYTES_PER_S / MIB:.0f} MiB/s"
        return Check("write rate", "warn", text, expected, "writing traces will take long", tuple(rates))
    return Check("write rate", "ok", text, nodes=tuple(rates))
