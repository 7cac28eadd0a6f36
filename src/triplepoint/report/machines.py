"""Sections of the report on machines, provenance and predictions."""

import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from triplepoint.manifest import Manifest, Node
from triplepoint.text import percent, signed_percent
from triplepoint.units import GIB

Line = tuple[str, str]
"""Term and text."""
_MOST_HOSTS = 8
"""Largest number of hosts that are named in a heading."""


class Machine(NamedTuple):
    """A group of equal hosts: their heading, and lines on their hardware and telemetry."""

    hosts: str
    lines: list[Line]


def describe_machines(manifests: Sequence[Manifest]) -> list[Machine]:
    """Return hardware and telemetry of all hosts, grouped by equal hosts.

    Runs may use different numbers of devices of a host; the description with most devices is kept.
    """
    alike: dict[tuple, set[str]] = {}
    for manifest in manifests:
        for node in manifest.nodes:
            alike.setdefault(describe_node(node, manifest.origin), set()).add(node.host)
    best: dict[tuple[str, ...], tuple] = {}
    for description, hosts in alike.items():
        # Simulated nodes of all clusters have the same names, so their GPUs are part of the key.
        products = dict(description[1]).get("Devices", "").partition(" × ")[2]
        key = (*sorted(hosts), products)
        if key not in best or description[0] > best[key][0]:
            best[key] = description
    # Different groups of hosts may be of one cluster: hosts with the same lines are joined.
    joined: dict[tuple[Line, ...], set[str]] = {}
    for (*names, _), (_, lines) in best.items():
        joined.setdefault(lines, set()).update(names)
    return [Machine(_heading(sorted(hosts), dict(lines)), list(lines)) for lines, hosts in joined.items()]


def _heading(hosts: Sequence[str], lines: Mapping[str, str]) -> str:
    """Return the names of hosts, or the GPUs of simulated nodes, which all have one name."""
    devices = lines.get("Devices", "")
    if devices and "Origin" in lines:
        return f"Simulated node of {devices}"
    rest = f" and {len(hosts) - _MOST_HOSTS} more" if len(hosts) > _MOST_HOSTS else ""
    return ", ".join(hosts[:_MOST_HOSTS]) + rest


def describe_node(node: Node, origin: str) -> tuple[int, tuple[Line, ...]]:
    """Return the number of devices of a node, and the lines on it."""
    devices = {device.device for device in node.devices}
    products = sorted({device.product for device in node.devices if device.product})
    lines = [("Origin", "simulated, from config/clusters")] if origin == "simulated" else []
    if node.num_cores:
        lines.append(("Processors", f"{node.num_cores} logical"))
    if node.memory_bytes:
        lines.append(("Memory", f"{node.memory_bytes / GIB:.1f} GiB"))
    if devices:
        lines.append(("Devices", f"{len(devices)} × {', '.join(products) or 'device that did not name itself'}"))
    if node.telemetry and node.telemetry.measured:
        title = "Telemetry simulated" if origin == "simulated" else "Telemetry measured"
        lines.append((title, ", ".join(node.telemetry.measured)))
    absent: dict[str, list[str]] = {}
    for column, reason in (node.telemetry.absent if node.telemetry else {}).items():
        absent.setdefault(reason, []).append(column)
    absent |= {gap: ["telemetry"] for gap in node.gaps}
    title = "Not simulated" if origin == "simulated" else "Not measured"
    lines += [(title, f"{', '.join(columns)}: {reason}") for reason, columns in absent.items()]
    return len(devices), tuple(lines)


def describe_provenance(manifests: Sequence[Manifest], results: str) -> list[Line]:
    """Return lines on software, commits, times and seeds of launched runs."""
    versions: dict[str, set[str]] = {}
    for manifest in manifests:
        for name, version in manifest.versions.items():
            versions.setdefault(name, set()).add(version)
    starts = sorted(manifest.started_at for manifest in manifests)
    ends = sorted(manifest.ended_at for manifest in manifests)
    return [
        ("Results", results),
        ("Engines", _distinct(manifest.engine for manifest in manifests)),
        ("Commits", _distinct(map(_commit, manifests))),
        ("First launch", starts[0] if starts else "none"),
        ("Last end", ends[-1] if ends else "none"),
        ("Launch time", f"{sum(manifest.duration_s for manifest in manifests):.0f} s over {len(manifests)} runs"),
        ("Seeds", _distinct("not known" if manifest.seed is None else str(manifest.seed) for manifest in manifests)),
        *((name, ", ".join(sorted(values))) for name, values in sorted(versions.items())),
        *describe_facts(manifests),
    ]


def describe_facts(manifests: Iterable[Manifest]) -> list[Line]:
    """Return lines on the facts that launched runs recorded in their manifests, such as NCCL and its settings."""
    lines, manifests = [], list(manifests)
    for name, key in (
        ("Model FLOPs per token", "flops_formula"), ("Collectives", "collective_settings"), ("CUDA", "cuda"),
        ("ROCm", "rocm"), ("NCCL", "nccl"), ("Samples", "samples"),
    ):  # fmt: skip
        if values := sorted({str(manifest.facts[key]) for manifest in manifests if manifest.facts.get(key)}):
            lines.append((name, "; ".join(values)))
    return lines


def _distinct(texts: Iterable[str]) -> str:
    return ", ".join(sorted(set(texts))) or "none"


def _commit(manifest: Manifest) -> str:
    if manifest.git_commit is None:
        return "outside a repository"
    return manifest.git_commit + (" with uncommitted changes" if manifest.git_dirty else "")


def sum_up(points: Sequence[Mapping[str, Any]]) -> list[Line]:
    """Return lines on predictions: errors of each predicted quantity, and reasons for missing predictions."""
    lines = []
    shares = (("Step time", "step_time_error"), ("Memory", "memory_error"), ("GPU power", "gpu_power_error"))
    for word, column in shares:
        errors = [point[column] for point in points if point[column] is not None]
        if errors:
            median, worst = statistics.median(map(abs, errors)), max(errors, key=abs)
            lines.append(
                (word, f"{len(errors)} runs, off by {percent(median)} in the median, {signed_percent(worst)} at worst")
            )
    if errors := [point["gpu_temp_error_c"] for point in points if point["gpu_temp_error_c"] is not None]:
        median, worst = statistics.median(map(abs, errors)), max(errors, key=abs)
        lines.append(
            ("Hottest GPU", f"{len(errors)} runs, off by {median:.1f} K in the median, {worst:+.1f} K at worst")
        )
    inside = [_is_inside(point) for point in points if point["predicted_step_time_lo_s"] and point["step_time_s"]]
    if inside:
        lines.append(("Interval", f"{sum(inside)} of {len(inside)} measured step times lie in the 90 % interval"))
    absent = Counter(point["prediction_absent"] for point in points if point["prediction_absent"])
    lines += [("No prediction", f"{count} runs: {reason}") for reason, count in absent.items()]
    return lines


def _is_inside(point: Mapping[str, Any]) -> bool:
    return bool(point["predicted_step_time_lo_s"] <= point["step_time_s"] <= point["predicted_step_time_hi_s"])
