"""Studies: `config/studies/*.yaml`, and their expansion to the settings of every point."""

import itertools
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from triplepoint.config.base import Strict, parse
from triplepoint.config.settings import Settings
from triplepoint.errors import UserError, nearest

LAYOUT = "layout"
"""The one key that is not a setting: a mapping of settings that belong together."""

MOST_POINTS = 20_000
"""Of a study, repeats included: eighty times what all studies here have together."""

Mapped = dict[str, Any]


class Sweep(Strict):
    """The product of some axes over fixed settings."""

    set: Mapped = {}
    """Settings of every point of the sweep."""
    axes: dict[str, Annotated[list[Any], Field(min_length=1)]] = {}
    """Values of each setting that varies; the points are their product, the last axis fastest. `layout` takes mappings
    of settings that vary together."""


class Study(Strict):
    """A question, as the set of points that answers it."""

    description: Annotated[str, Field(min_length=8)]
    """What the study asks, in a sentence or two."""
    defaults: Mapped = {}
    """Settings of every point, unless its sweep says otherwise."""
    sweeps: Annotated[list[Sweep], Field(min_length=1)]
    """Sweeps whose points together make the study."""


def expand(study: Study, where: Path) -> Iterator[Settings]:
    """Yield the settings of every point of a study, in order, duplicates included.

    Axes win over `set`, `set` over `defaults`; beside each of them, its `layout` wins.

    Args:
        study: The study.
        where: Its file, named in errors.

    Raises:
        UserError: If a key or a value is not a setting, if two axes set the same key, or if there are too many points.
    """
    _refuse_too_many(sum(math.prod(map(len, sweep.axes.values())) for sweep in study.sweeps), where)
    num_points = 0
    defaults = _flatten(study.defaults, "defaults", where)
    for number, sweep in enumerate(study.sweeps):
        place = f"sweeps.{number}"
        fixed = defaults | _flatten(sweep.set, f"{place}.set", where)
        axes = [_values(key, values, f"{place}.axes", where) for key, values in sweep.axes.items()]
        _refuse_overlap(axes, f"{place}.axes", where)
        for chosen in itertools.product(*axes):
            settings = parse(Settings, _merge(fixed, *chosen), where)
            num_points += settings.repeats
            _refuse_too_many(num_points, where)
            yield settings


def _refuse_too_many(num_points: int, where: Path) -> None:
    if num_points > MOST_POINTS:
        raise UserError(
            f"{where}: {num_points} points or more, a study has at most {MOST_POINTS}; shorten its axes, or vary fewer "
            "of them together"
        )


def _values(key: str, values: list[Any], place: str, where: Path) -> list[Mapped]:
    return [_flatten({key: value}, place, where) for value in values]


def _flatten(settings: Mapping[str, Any], place: str, where: Path) -> Mapped:
    """Return plain settings, with the mapping under `layout` merged into them."""
    known = [*Settings.model_fields, LAYOUT]
    for key in settings:
        if key not in known:
            raise UserError(f"{where}: unknown key '{place}.{key}'{nearest(str(key), known)}")
    flat = {key: value for key, value in settings.items() if key != LAYOUT}
    if LAYOUT not in settings:
        return flat
    layout = settings[LAYOUT]
    if not isinstance(layout, dict):
        raise UserError(f"{where}: {place}.{LAYOUT}: expected a mapping such as {{tp: 2, pp: 4}}, found {layout!r}")
    if LAYOUT in layout:
        raise UserError(f"{where}: unknown key '{place}.{LAYOUT}.{LAYOUT}'; a layout cannot hold another")
    return flat | _flatten(layout, f"{place}.{LAYOUT}", where)


def _refuse_overlap(axes: list[list[Mapped]], place: str, where: Path) -> None:
    seen: set[str] = set()
    for axis in axes:
        keys = set().union(*axis)
        if twice := sorted(seen & keys):
            raise UserError(f"{where}: {place}: two axes set '{twice[0]}'; vary it in one of them")
        seen |= keys


def _merge(*parts: Mapped) -> Mapped:
    merged: Mapped = {}
    for part in parts:
        merged |= part
    return merged
