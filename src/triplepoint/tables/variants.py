"""Differences between points that are in no column of `points`: figures would take them for one measurement."""

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from triplepoint.config.plan import DIGEST_DIGITS, PlanEntry, run_label
from triplepoint.config.point import SETTINGS, Point, canonical, settings_of

_PARTS = ("measurement_version", "model", "contents")
"""Parts of a point that decide what is measured and are no settings."""
_MOST_TEXT = 40
"""Longest text; beyond it a digest says as much. Unit: character."""


def find_variants(entries: Iterable[PlanEntry]) -> dict[str, str]:
    """Return a text for each run that figures would compare with runs measured differently; repeats share it.

    All points of one model, cluster, engine and task are told apart by the same keys, so that those that were measured
    alike stay together.

    Args:
        entries: All of a plan.
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
    """Return what sets each run's point apart from the others of its group, such as `measured 20`."""
    hidden = {run: dict(_flatten(_hidden(point))) for run, point in points.items()}
    keys = list(dict.fromkeys(key for values in hidden.values() for key in values))
    varying = [key for key in keys if len({json.dumps(values.get(key)) for values in hidden.values()}) > 1]
    texts = {run: _text({key: values.get(key) for key in varying}) for run, values in hidden.items()}
    places: dict[tuple[str, str], set[str]] = {}
    for run, point in points.items():
        places.setdefault((run_label(point), texts[run]), set()).add(point.digest())
    for run, point in points.items():
        if len(places[run_label(point), texts[run]]) > 1:  # by what is not even a difference in what is measured
            texts[run] = " ".join(filter(None, [texts[run], point.digest()[:DIGEST_DIGITS]]))
    return texts


def _hidden(point: Point) -> dict[str, Any]:
    """Return what decides what is measured and has no column."""
    content = point.model_dump(mode="json")  # which leaves out what is as it was before there was a choice
    values = settings_of(point) | {"steps": content["steps"]}
    hidden = {name: values[name] for name, setting in SETTINGS.items() if not setting.has_column}
    return {key: content.get(key, getattr(point, key)) for key in _PARTS} | hidden


def _text(varying: Mapping[str, Any]) -> str:
    words = [
        f"{key.rpartition('.')[2]} {value}".replace("_", " ") for key, value in varying.items() if value is not None
    ]
    text = ", ".join(words)
    if not varying or 0 < len(text) <= _MOST_TEXT:
        return text
    return hashlib.sha256(canonical(dict(varying)).encode()).hexdigest()[:DIGEST_DIGITS]


def _flatten(content: Mapping[str, Any], place: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in content.items():
        if isinstance(value, Mapping):
            yield from _flatten(value, f"{place}{key}.")
        else:
            yield f"{place}{key}", value
