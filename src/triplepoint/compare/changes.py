"""Changes between two sides: settings, recorded job, measurement, software and hardware."""

import difflib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple, get_args

from triplepoint.compare.sides import Run, Side
from triplepoint.compare.subjects import setting_text
from triplepoint.config.point import SETTINGS, Point, settings_of
from triplepoint.manifest import Manifest, Node
from triplepoint.units import GIB

Area = Literal["settings", "job", "measurement", "software", "hardware"]

_OF_MEASUREMENT = ("seed", "corpus", "tokenizer", "steps", "telemetry_period_s", "weights")
"""Settings that belong to the measurement, not to the training."""
_FACTS = {
    "stack": "simulated stack", "cuda": "CUDA", "rocm": "ROCm", "nccl": "NCCL", "backend": "collective backend",
    "collective_settings": "collective settings", "flops_formula": "formula of model FLOPs",
}  # fmt: skip
"""Names of facts of the manifest on an engine's software."""
_JOB = {
    "command": "command", "script": "script", "job_commit": "commit of the job", "environment": "environment",
    "steps_marked_by": "steps marked by",
}  # fmt: skip
"""Names of facts of the manifest on a recorded job."""
_OF_WORDS = (_JOB["command"], _JOB["environment"], _FACTS["collective_settings"])
"""Facts of many words; only the words that differ are listed."""
_IDENTITY = "devices by identity"
_UNKNOWN = "not known"
_NOT_IMPORTED = "not imported"
_MOST_HOSTS = 4


class Change(NamedTuple):
    """A fact that differs between the sides, with its values as text."""

    area: Area
    name: str
    first: str
    other: str


def find_changes(first: Side, other: Side) -> list[Change]:
    """Return the differences of two sides. Traces hold only devices, world size, collective library and versions."""
    both = (_facts(first), _facts(other))
    names = {key: None for facts in both for key in facts}
    # A recorded job lists every package that it imported; a launched run lists what is installed.
    absent = _NOT_IMPORTED if all(_lists_imports(side) for side in (first, other)) else None
    packages = {name for side in (first, other) for run in side.runs for name in run.manifest.versions}
    changes = []
    for area, name in names:
        values = [facts.get((area, name), absent if name in packages else None) for facts in both]
        # A fact that one side cannot know is not a change.
        if values[0] is None or values[1] is None or values[0] == values[1]:
            continue
        if name == _IDENTITY:
            texts = _device_counts(values[0], values[1])
        elif name in _OF_WORDS:
            texts = _different_words(values[0], values[1])
        else:
            texts = values[0], values[1]
        changes.append(Change(area, name, *texts))
    order = get_args(Area)
    return sorted(changes, key=lambda change: order.index(change.area))


def _lists_imports(side: Side) -> bool:
    """Return whether all runs of a side are recorded jobs that list their imports."""
    return bool(side.runs) and all("script" in run.manifest.facts for run in side.runs)


def _different_words(first: str, other: str) -> tuple[str, str]:
    """Return the words in which two lines differ; an option's value comes with its option."""
    lines = first.split(), other.split()
    different: tuple[list[str], list[str]] = [], []
    for operation, *ends in difflib.SequenceMatcher(None, *lines, autojunk=False).get_opcodes():
        if operation == "equal":
            continue
        for words, line, begin, end in zip(different, lines, ends[::2], ends[1::2], strict=True):
            is_value = 0 < begin < end and line[begin - 1].startswith("-") and not line[begin].startswith("-")
            words += line[begin - is_value : end]
    return " ".join(different[0]) or "none", " ".join(different[1]) or "none"


def _device_counts(first: str, other: str) -> tuple[str, str]:
    """Return the number of devices of each side, and how many of them are on both sides, from lists of UUIDs."""
    first_devices, other_devices = (set(identities.split()) for identities in (first, other))
    shared = f"{len(first_devices & other_devices)} of them on both sides"
    return f"{len(first_devices)}, {shared}", f"{len(other_devices)}, {shared}"


def _facts(side: Side) -> dict[tuple[Area, str], str]:
    """Return all facts of a side as text, by area and name."""
    if not side.runs:
        return dict(_facts_of_traces(side))
    point = side.runs[0].planned.point
    manifests = [run.manifest for run in side.runs]
    by_area: dict[Area, Iterator[tuple[str, str]]] = {
        "settings": _settings(point),
        "job": _job(manifests),
        "measurement": _measurement(point, side.runs),
        "software": _software(manifests),
        "hardware": _hardware(manifests, point),
    }
    return {(area, name): value for area, facts in by_area.items() for name, value in facts}


def _facts_of_traces(side: Side) -> Iterator[tuple[tuple[Area, str], str]]:
    """Yield the facts that loose traces hold."""
    gpus = sorted({job.gpu for job in side.jobs if job.gpu})
    if gpus:
        yield ("hardware", "device"), ", ".join(gpus)
    if sizes := sorted({summary.world_size for summary in side.summaries if summary.world_size}):
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


def _job(manifests: Sequence[Manifest]) -> Iterator[tuple[str, str]]:
    for name, label in _JOB.items():
        if any(manifest.facts.get(name) for manifest in manifests):
            yield label, _joined(manifest.facts.get(name) for manifest in manifests)


def _software(manifests: Sequence[Manifest]) -> Iterator[tuple[str, str]]:
    for name in dict.fromkeys(name for manifest in manifests for name in manifest.versions):
        yield name, _joined(manifest.versions.get(name) for manifest in manifests)
    for name, label in _FACTS.items():
        if all("recorded_by" in manifest.facts and name not in manifest.facts for manifest in manifests):
            continue
        yield label, _joined(manifest.facts.get(name) for manifest in manifests)
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
    """Yield the results of the doctor's checks of the nodes before the launch."""
    checks = [check for node in nodes for check in node.checks or ()]
    for name in dict.fromkeys(check.name for check in checks):
        yield f"check: {name}", _joined(check.found for check in checks if check.name == name)


def _flat(content: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Yield the values of nested mappings as text, with their keys joined by points."""
    for name, value in content.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", setting_text(value)


def _joined(values: Iterable[Any]) -> str:
    """Return the distinct values as text."""
    return ", ".join(sorted({str(value) for value in values if value not in (None, "")})) or "none"


def _listed(names: Sequence[str]) -> str:
    """Return the first names in a list, and how many more there are."""
    rest = f" and {len(names) - _MOST_HOSTS} more" if len(names) > _MOST_HOSTS else ""
    return ", ".join(names[:_MOST_HOSTS]) + rest
