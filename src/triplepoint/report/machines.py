"""What the report says of machines, of where numbers come from, and of predictions."""

import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from triplepoint.manifest import Manifest, Node
from triplepoint.units import GIB

Line = tuple[str, str]


class Machine(NamedTuple):
    """Hosts that are alike, and what was measured on them."""

    hosts: str
    lines: list[Line]


def describe_machines(manifests: Sequence[Manifest]) -> list[Machine]:
    """Return what each host is and what was measured on it, hosts that are alike together.

    Runs use different numbers of devices of one host: the account with most devices is kept. Of a simulated node only
    its GPUs are known.
    """
    alike: dict[tuple, set[str]] = {}
    for manifest in manifests:
        for node in manifest.nodes:
            alike.setdefault(describe_node(node, manifest.origin), set()).add(node.host)
    best: dict[tuple[str, ...], tuple] = {}
    for description, hosts in alike.items():
        # Simulated nodes of all clusters have the same names: their GPUs tell them apart.
        products = dict(description[1]).get("Devices", "").partition(" × ")[2]
        key = (*sorted(hosts), products)
        if key not in best or description[0] > best[key][0]:
            best[key] = description
    # Hosts of different groups may be one cluster's: those with the same lines are told once.
    joined: dict[tuple[Line, ...], set[str]] = {}
    for (*names, _), (_, lines) in best.items():
        joined.setdefault(lines, set()).update(names)
    return [Machine(_heading(sorted(hosts), dict(lines)), list(lines)) for lines, hosts in joined.items()]


def _heading(hosts: Sequence[str], lines: Mapping[str, str]) -> str:
    """Return the hosts; of simulated nodes, which all have one name, their GPUs."""
    devices = lines.get("Devices", "")
    return f"Simulated node of {devices}" if devices and "Origin" in lines else _listed(hosts)


def _listed(names: Sequence[str], most: int = 8) -> str:
    rest = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + rest


def describe_node(node: Node, origin: str) -> tuple[int, tuple[Line, ...]]:
    """Return the number of devices of a node, and its lines."""
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
    """Return lines on software, commits, times and seeds of all launched runs."""
    versions: dict[str, set[str]] = {}
    for manifest in manifests:
        for name, version in manifest.versions.items():
            versions.setdefault(name, set()).add(version)
    starts = sorted(manifest.started_at for manifest in manifests)
    ends = sorted(manifest.ended_at for manifest in manifests)
    return [
        ("Results", results),
        ("Engines", _different(manifest.engine for manifest in manifests)),
        ("Commits", _different(map(_commit, manifests))),
        ("First launch", starts[0] if starts else "none"),
        ("Last end", ends[-1] if ends else "none"),
        ("Launch time", f"{sum(manifest.duration_s for manifest in manifests):.0f} s over {len(manifests)} runs"),
        ("Seeds", _different("not known" if manifest.seed is None else str(manifest.seed) for manifest in manifests)),
        *((name, ", ".join(sorted(found))) for name, found in sorted(versions.items())),
        *describe_facts(manifests),
    ]


def describe_facts(manifests: Iterable[Manifest]) -> list[Line]:
    """Return what launched runs say of themselves that belongs to where numbers come from; different answers apart."""
    lines, manifests = [], list(manifests)
    for name, key in (
        ("Model FLOPs per token", "flops_formula"), ("Collectives", "collective_settings"), ("CUDA", "cuda"),
        ("ROCm", "rocm"), ("NCCL", "nccl"), ("Samples", "samples"),
    ):  # fmt: skip
        if found := sorted({str(manifest.facts[key]) for manifest in manifests if manifest.facts.get(key)}):
            lines.append((name, "; ".join(found)))
    return lines


def _different(texts: Iterable[str]) -> str:
    return ", ".join(sorted(set(texts))) or "none"


def _commit(manifest: Manifest) -> str:
    if manifest.git_commit is None:
        return "outside a repository"
    return manifest.git_commit + (" with uncommitted changes" if manifest.git_dirty else "")


def sum_up(points: Sequence[Mapping[str, Any]]) -> list[Line]:
    """Return lines of term and text: of each predicted quantity its error, and why others have no prediction."""
    lines = []
    shares = (("Step time", "step_time_error"), ("Memory", "memory_error"), ("GPU power", "gpu_power_error"))
    for word, column in shares:
        errors = [point[column] for point in points if point[column] is not None]
        if errors:
            median, worst = statistics.median(map(abs, errors)), max(errors, key=abs)
            lines.append((word, f"{len(errors)} runs, off by {median:.1%} in the median, {worst:+.1%} at worst"))
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
