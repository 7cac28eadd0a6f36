"""Variant texts: what sets points with the same label apart, so that figures do not take them for repeats."""

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from triplepoint.config.plan import PlanEntry
from triplepoint.config.point import Point
from triplepoint.config.runid import DIGEST_DIGITS, run_label

_MOST_TEXT = 40
"""Longest text; beyond it the digest says as much. Unit: character."""


def find_variants(entries: Iterable[PlanEntry]) -> dict[str, str]:
    """Return a text for each run whose label stands for other points too, the same for its repeats.

    Args:
        entries: All of a plan.
    """
    by_label: dict[str, dict[str, Point]] = {}
    measurements = {entry.run: entry.planned.point.model_copy(update={"repeat": 1}) for entry in entries}
    for point in measurements.values():
        by_label.setdefault(run_label(point), {})[point.digest()] = point
    texts: dict[str, str] = {}
    for points in by_label.values():
        if len(points) > 1:
            texts |= _texts(points)
    found = {run: texts.get(point.digest()) for run, point in measurements.items()}
    return {run: text for run, text in found.items() if text}


def _texts(points: Mapping[str, Point]) -> dict[str, str]:
    """Return what sets each point apart from the others, such as `measured 20`, by digest."""
    flat = {digest: dict(_flatten(point.model_dump(mode="json"))) for digest, point in points.items()}
    keys = list(dict.fromkeys(key for values in flat.values() for key in values))
    varying = [key for key in keys if len({json.dumps(values.get(key)) for values in flat.values()}) > 1]
    texts = {}
    for digest, values in flat.items():
        words = [f"{key.rpartition('.')[2]} {values[key]}".replace("_", " ") for key in varying if key in values]
        text = ", ".join(words)
        texts[digest] = text if 0 < len(text) <= _MOST_TEXT else digest[:DIGEST_DIGITS]
    return texts


def _flatten(content: Mapping[str, Any], place: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in content.items():
        if isinstance(value, Mapping):
            yield from _flatten(value, f"{place}{key}.")
        else:
            yield f"{place}{key}", value
