"""What changed from one side to the other: settings, how it was measured, software, hardware."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple

from triplepoint.compare.sides import Run, Side
from triplepoint.compare.subjects import setting_text
from triplepoint.config.point import SETTINGS, Point, settings_of
from triplepoint.manifest import Manifest, Node
from triplepoint.units import GIB

Area = Literal["settings", "measurement", "software", "hardware"]

_OF_MEASUREMENT = ("seed", "corpus", "tokenizer", "steps", "telemetry_period_s", "weights")
"""Settings that say how a run was measured rather than what was trained."""
_FACTS = {
    "stack": "simulated stack", "cuda": "CUDA", "rocm": "ROCm", "nccl": "NCCL", "backend": "collective backend",
    "collective_settings": "collective settings", "flops_formula": "formula of model FLOPs",
}  # fmt: skip
"""What an engine says of its software, with what it is called."""
_IDENTITY = "devices by identity"
_UNKNOWN = "not known"
_MOST_HOSTS = 4


class Change(NamedTuple):
    """One thing that is not the same on both sides, as text."""

    area: Area
    name: str
    first: str
    other: str


def find_changes(first: Side, other: Side) -> list[Change]:
    """Return what differs; of loose traces their devices, number of GPUs and collective library alone are known."""
    both = (_facts(first), _facts(other))
    names = {key: None for facts in both for key in facts}
    found = []
    for area, name in names:
        one, two = (facts.get((area, name)) for facts in both)
        # What one side cannot know is no change.
        if one is not None and two is not None and one != two:
            found.append(_by_number(one, two) if name == _IDENTITY else Change(area, name, one, two))
    order = ("settings", "measurement", "software", "hardware")
    return sorted(found, key=lambda change: order.index(change.area))


def _by_number(first: str, other: str) -> Change:
    """Return how many devices each side has, and how many of them both have."""
    sides = [set(identities.split()) for identities in (first, other)]
    alike = len(sides[0] & sides[1])
    one, two = (f"{len(side)}, {alike} of them on both sides" for side in sides)
    return Change("hardware", _IDENTITY, one, two)


def _facts(side: Side) -> dict[tuple[Area, str], str]:
    if not side.runs:
        return dict(_of_traces(side))
    point = side.runs[0].planned.point
    return {
        **{("settings", name): value for name, value in _settings(point)},
        **{("measurement", name): value for name, value in _measurement(point, side.runs)},
        **{("software", name): value for name, value in _software([run.manifest for run in side.runs])},
        **{("hardware", name): value for name, value in _hardware([run.manifest for run in side.runs], point)},
    }


def _of_traces(side: Side) -> Iterator[tuple[tuple[Area, str], str]]:
    gpus = sorted({job.gpu for job in side.jobs if job.gpu})
    if gpus:
        yield ("hardware", "device"), ", ".join(gpus)
    if sizes := sorted({one.world_size for one in side.summaries if one.world_size}):
        yield ("settings", "num_gpus"), ", ".join(map(str, sizes))
    if backends := sorted({job.backend for job in side.jobs if job.backend}):
        yield ("software", "collective backend"), ", ".join(backends)
    for name in sorted({name for job in side.jobs for name in job.versions}):
        yield ("software", name), _joined(job.versions.get(name) for job in side.jobs)


def _settings(point: Point) -> Iterator[tuple[str, str]]:
    if point.knows("model"):
        yield "model", point.model.name
        for name, value in _flat(point.model.model_dump(mode="json", exclude={"name", "source"})):
            yield f"model.{name}", value
    yield "cluster", point.cluster.name
    yield "num_gpus", str(point.num_gpus)
    values = settings_of(point)
    for name in SETTINGS:
        if name not in _OF_MEASUREMENT and point.knows(name):
            yield name, setting_text(values[name])


def _measurement(point: Point, runs: Sequence[Run]) -> Iterator[tuple[str, str]]:
    values = settings_of(point)
    for name in filter(point.knows, _OF_MEASUREMENT):
        yield name, setting_text(values[name])
    yield "measurement_version", str(point.measurement_version)
    yield "origin", runs[0].manifest.origin
    yield "power from", _joined(run.row["gpu_power_source"] for run in runs)


def _software(manifests: Sequence[Manifest]) -> Iterator[tuple[str, str]]:
    for name in dict.fromkeys(name for manifest in manifests for name in manifest.versions):
        yield name, _joined(manifest.versions.get(name) for manifest in manifests)
    for name, called in _FACTS.items():
        yield called, _joined(manifest.facts.get(name) for manifest in manifests)
    yield "commit of triplepoint", _joined(manifest.git_commit and manifest.git_commit[:12] for manifest in manifests)


def _hardware(manifests: Sequence[Manifest], point: Point) -> Iterator[tuple[str, str]]:
    nodes = [node for manifest in manifests for node in manifest.nodes]
    products = Counter(device.product or _UNKNOWN for node in manifests[0].nodes for device in node.devices)
    yield "device", ", ".join(sorted(products))
    yield from _flat(point.cluster.model_dump(mode="json", exclude={"name", "device", "gpu"}))
    yield "nodes", str(len(manifests[0].nodes))
    yield "hosts", _listed(sorted({node.host for node in nodes}))
    yield "processors of a node", _joined(node.num_cores or None for node in nodes)
    yield "memory of a node", _joined(node.memory_bytes and f"{node.memory_bytes / GIB:.0f} GiB" for node in nodes)
    if identities := sorted({device.uuid for node in nodes for device in node.devices if device.uuid}):
        yield _IDENTITY, " ".join(identities)
    if switches := sorted({node.placement.switches for node in nodes if node.placement and node.placement.switches}):
        yield "switches", _listed(switches)
    yield from _checks(nodes)


def _checks(nodes: Sequence[Node]) -> Iterator[tuple[str, str]]:
    """Yield what the doctor found of nodes before the launch."""
    names = dict.fromkeys(check.name for node in nodes for check in node.checks or ())
    for name in names:
        yield f"check: {name}", _joined(c.found for node in nodes for c in node.checks or () if c.name == name)


def _flat(content: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    for name, value in content.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", setting_text(value)


def _joined(values: Any) -> str:
    found = sorted({str(value) for value in values if value not in (None, "")})
    return ", ".join(found) or "none"


def _listed(names: Sequence[str]) -> str:
    rest = f" and {len(names) - _MOST_HOSTS} more" if len(names) > _MOST_HOSTS else ""
    return ", ".join(names[:_MOST_HOSTS]) + rest
