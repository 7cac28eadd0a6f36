"""What changed from one side to the other: settings, how it was measured, software, hardware."""

import difflib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple, get_args

from triplepoint.compare.sides import Run, Side
from triplepoint.compare.subjects import setting_text
from triplepoint.config.point import SETTINGS, Point, settings_of
from triplepoint.manifest import Manifest, Node
from triplepoint.units import GIB

Area = Literal["settings", "job", "measurement", "software", "hardware"]

_OF_MEASUREMENT = ("seed", "corpus", "tokenizer", "steps", "telemetry_period_s", "weights")
"""Settings that say how a run was measured rather than what was trained."""
_FACTS = {
    "stack": "simulated stack", "cuda": "CUDA", "rocm": "ROCm", "nccl": "NCCL", "backend": "collective backend",
    "collective_settings": "collective settings", "flops_formula": "formula of model FLOPs",
}  # fmt: skip
"""What an engine says of its software, with what it is called."""
_JOB = {
    "command": "command", "script": "script", "job_commit": "commit of the job", "environment": "environment",
    "steps_marked_by": "steps marked by",
}  # fmt: skip
"""What is recorded of a job that something else started, with what it is called."""
_OF_WORDS = (_JOB["command"], _JOB["environment"], _FACTS["collective_settings"])
"""What consists of many words, of which those that differ are said."""
_IDENTITY = "devices by identity"
_UNKNOWN = "not known"
_NOT_IMPORTED = "not imported"
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
    # Ranks of recorded jobs say all that they had imported; a launched run has what is installed.
    absent = _NOT_IMPORTED if all(_says_imports(side) for side in (first, other)) else None
    imported = {name for side in (first, other) for run in side.runs for name in run.manifest.versions}
    found = []
    for area, name in names:
        one, two = (facts.get((area, name), absent if name in imported else None) for facts in both)
        # What one side cannot know is no change.
        if one is None or two is None or one == two:
            continue
        if name == _IDENTITY:
            found.append(_by_number(one, two))
        else:
            found.append(Change(area, name, *(_words_apart(one, two) if name in _OF_WORDS else (one, two))))
    order = get_args(Area)
    return sorted(found, key=lambda change: order.index(change.area))


def _says_imports(side: Side) -> bool:
    return bool(side.runs) and all("script" in run.manifest.facts for run in side.runs)


def _words_apart(first: str, other: str) -> tuple[str, str]:
    """Return the words in which two lines differ, each with the option that it is the value of."""
    lines = first.split(), other.split()
    apart: tuple[list[str], list[str]] = [], []
    for what, *ends in difflib.SequenceMatcher(None, *lines, autojunk=False).get_opcodes():
        if what == "equal":
            continue
        for words, line, begin, end in zip(apart, lines, ends[::2], ends[1::2], strict=True):
            is_value = 0 < begin < end and line[begin - 1].startswith("-") and not line[begin].startswith("-")
            words += line[begin - is_value : end]
    return " ".join(apart[0]) or "none", " ".join(apart[1]) or "none"


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
        **{("job", name): value for name, value in _job([run.manifest for run in side.runs])},
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


def _job(manifests: Sequence[Manifest]) -> Iterator[tuple[str, str]]:
    for name, called in _JOB.items():
        if any(manifest.facts.get(name) for manifest in manifests):
            yield called, _joined(manifest.facts.get(name) for manifest in manifests)


def _software(manifests: Sequence[Manifest]) -> Iterator[tuple[str, str]]:
    for name in dict.fromkeys(name for manifest in manifests for name in manifest.versions):
        yield name, _joined(manifest.versions.get(name) for manifest in manifests)
    for name, called in _FACTS.items():
        if all("recorded_by" in manifest.facts and name not in manifest.facts for manifest in manifests):
            continue
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
