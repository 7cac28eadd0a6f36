"""Checks of what was measured: a slow GPU beside its peers, a slow node, and a fabric below its description."""

import statistics
from collections import defaultdict
from collections.abc import Sequence

from triplepoint.doctor.check import Check, Status
from triplepoint.doctor.expected import Expected
from triplepoint.doctor.measure.rows import CollectiveRow, KernelRow
from triplepoint.metrics import bus_factor
from triplepoint.units import GIGA, MIB

SLOW = 1.05
"""GPUs of one type at one power limit differ by a few percent; beyond, the slowest holds up all. Assumed."""
VERY_SLOW = 1.2
"""As much as a GPU that is throttled or has lost a link. Assumed."""
LEAST_SHARE = 0.5
"""Of the bandwidth of the description, in a large all-reduce: rings reach 0.7 to 0.95 of it, see
`efficiency` in `config/collectives/links/`."""
LARGE_BYTES = 64 * MIB


def check_gpu_speed(kernels: Sequence[KernelRow]) -> Check:
    """Return the check that names GPUs slower than the median of all, over all kernels measured."""
    hosts = tuple(dict.fromkeys(row.host for row in kernels))
    if len({(row.host, row.device) for row in kernels}) < 2:
        return Check("gpu speed", "skipped", "nothing to compare", nodes=hosts)
    if not any(row.precision == "bf16" for row in kernels):
        return Check("gpu speed", "skipped", "processors share caches and clocks: no comparison", nodes=hosts)
    slow = {name: ratio for name, ratio in _slowness(kernels).items() if ratio > SLOW}
    if not slow:
        return Check("gpu speed", "ok", f"all within {SLOW - 1:.0%} of the median", nodes=hosts)
    told = ", ".join(f"{name} takes {ratio:.2f} times the median" for name, ratio in slow.items())
    status: Status = "fail" if max(slow.values()) > VERY_SLOW else "warn"
    advice = "exclude it from the measurement; look at its temperature, power limit and clocks"
    return Check("gpu speed", status, told, f"within {SLOW - 1:.0%}", advice, hosts)


def _slowness(kernels: Sequence[KernelRow]) -> dict[str, float]:
    """Return how many times the median of all GPUs each takes, the median over kernels."""
    groups: dict[object, dict[str, float]] = defaultdict(dict)
    for row in kernels:
        groups[row.cls, row.shape, row.num_bytes][f"{row.host} gpu{row.device}"] = row.time_s
    ratios: dict[str, list[float]] = defaultdict(list)
    for times in groups.values():
        median = statistics.median(times.values())
        for name, time_s in times.items():
            ratios[name].append(time_s / median)
    return {name: statistics.median(found) for name, found in ratios.items()}


def check_fabric(collectives: Sequence[CollectiveRow], expected: Expected) -> list[Check]:
    """Return a check of each level of the fabric: what all-reduce reaches there."""
    return [
        _check_level(level, [row for row in collectives if row.level == level], expected)
        for level in dict.fromkeys(row.level for row in collectives)
    ]


def _check_level(level: str, rows: Sequence[CollectiveRow], expected: Expected) -> Check:
    # Groups of the network have members on other hosts than their first: it is said of all.
    hosts = tuple(dict.fromkeys(row.host for row in rows)) if level == "node" else ()
    name = f"{level} bandwidth"
    reduces = [row for row in rows if row.kind == "all_reduce"]
    most = max(row.num_gpus for row in reduces)
    largest = max(row.num_bytes for row in reduces if row.num_gpus == most)
    rates = {row.host: _bus_rate(row) for row in reduces if (row.num_gpus, row.num_bytes) == (most, largest)}
    slowest, median = min(rates, key=rates.__getitem__), statistics.median(rates.values())
    told = f"all_reduce of {largest / MIB:.3g} MiB over {most}: {rates[slowest] / GIGA:.3g} GB/s"
    told += f" at least, on {slowest}" if len(rates) > 1 else ""
    if median / rates[slowest] > VERY_SLOW and expected.has_gpus:
        usual = f"{median / GIGA:.3g} GB/s as other nodes"
        return Check(name, "warn", told, usual, f"look at the links of {slowest}, or exclude it", hosts)
    described = _described(level, expected)
    if described is not None and largest >= LARGE_BYTES and rates[slowest] < LEAST_SHARE * described:
        wanted = f"{LEAST_SHARE:.0%} of {described / GIGA:.3g} GB/s, as described"
        advice = "look at links, adapters and NCCL's choice of them (NCCL_DEBUG=INFO), or correct the description"
        return Check(name, "warn", told, wanted, advice, hosts)
    return Check(name, "ok", told, nodes=hosts)


def _bus_rate(row: CollectiveRow) -> float:
    return float(bus_factor(row.kind, row.num_gpus)) * row.num_bytes / row.time_s


def _described(level: str, expected: Expected) -> float | None:
    """Return the bandwidth described for a level, of a GPU or of a node's adapters; None where it is no yardstick."""
    cluster, gpu = expected.cluster, expected.gpu
    if level == "network" and cluster and cluster.nics_per_node and cluster.nic_bandwidth:
        return cluster.nics_per_node.value * cluster.nic_bandwidth.value
    if level == "node" and gpu and gpu.vendor == "nvidia":
        return gpu.scale_up_bandwidth.value
    return None  # on AMD the sum of a die's links, which no ring uses all of
