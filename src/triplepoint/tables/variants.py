"""Column `variant` of table `points`: differences between points that no other column shows.

Without it figures would treat such points as repeats of one measurement.
"""

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from triplepoint.config.plan import DIGEST_DIGITS, PlanEntry, run_label
from triplepoint.config.point import SETTINGS, Point, canonical, settings_of

_PARTS = ("measurement_version", "model", "contents")
"""Keys of a point, other than settings, that affect what is measured."""
_MOST_CHARACTERS = 40
"""Longest text of a variant; a digest replaces a longer one."""


def find_variants(entries: Iterable[PlanEntry]) -> dict[str, str]:
    """Return the variant of each run that has one; repeats have the same.

    All points of one model, cluster, engine and task are distinguished by the same keys, so points measured in the
    same way get the same variant.

    Args:
        entries: All entries of a plan.
    """
    points = {entry.run: entry.planned.point.model_copy(update={"repeat": 1}) for entry in entries}
    groups: dict[str, list[str]] = {}
    for run, point in points.items():
        groups.setdefault(canonical([point.model.name, point.cluster.name, point.engine, point.task]), []).append(run)
    texts: dict[str, str] = {}
    for runs in groups.values():
        texts |= _texts({run: points[run] for run in runs})
    return {run: text for run, text in texts.items() if text}


def _texts(points: Mapping[str, Point]) -> dict[str, str]:
    """Return the variant of each run of a group, such as `measured 20`; empty if no key varies."""
    hidden = {run: dict(_flatten(_hidden(point))) for run, point in points.items()}
    keys = list(dict.fromkeys(key for values in hidden.values() for key in values))
    varying = [key for key in keys if len({json.dumps(values.get(key)) for values in hidden.values()}) > 1]
    texts = {run: _text({key: values.get(key) for key in varying}) for run, values in hidden.items()}
    digests: dict[tuple[str, str], set[str]] = {}
    for run, point in points.items():
        digests.setdefault((run_label(point), texts[run]), set()).add(point.digest())
    for run, point in points.items():
        if len(digests[run_label(point), texts[run]]) > 1:  # the difference is in no key, not even a hidden one
            texts[run] = " ".join(filter(None, [texts[run], point.digest()[:DIGEST_DIGITS]]))
    return texts


def _hidden(point: Point) -> dict[str, Any]:
    """Return the parts and settings of a point that affect what is measured and have no column."""
    content = point.model_dump(mode="json")  # omits keys added later while at their default
    values = settings_of(point) | {"steps": content["steps"]}
    hidden = {name: values[name] for name, setting in SETTINGS.items() if not setting.has_column}
    return {key: content.get(key, getattr(point, key)) for key in _PARTS} | hidden


def _text(varying: Mapping[str, Any]) -> str:
    """Return keys and values as text, or as a digest if the text would be long."""
    words = [
        f"{key.rpartition('.')[2]} {value}".replace("_", " ") for key, value in varying.items() if value is not None
    ]
    text = ", ".join(words)
    if not varying or 0 < len(text) <= _MOST_CHARACTERS:
        return text
    return hashlib.sha256(canonical(dict(varying)).encode()).hexdigest()[:DIGEST_DIGITS]


def _flatten(content: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the values of nested mappings by dotted key."""
    for key, value in content.items():
        if isinstance(value, Mapping):
            yield from _flatten(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value
