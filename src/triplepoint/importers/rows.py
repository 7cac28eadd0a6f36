"""From columns of cells to series: for formats with one line for each time and device."""

import difflib
import re
from collections.abc import Sequence

import numpy as np

from triplepoint.errors import UserError, nearest
from triplepoint.importers.cells import read_numbers
from triplepoint.importers.declaration import Clock, Format, Found
from triplepoint.importers.text import Grid
from triplepoint.importers.times import read_times
from triplepoint.units import NS_PER_S

HOST = "host"
_NUMBER = re.compile(r"(?:gpu|card|nvidia|device)?[ _-]?(\d{1,4})$", re.IGNORECASE)
_IN_NAME = re.compile(r"(?:gpu|card)[-_]?(\d{1,3})(?!\d|x|gpus)", re.IGNORECASE)
"""Number of a GPU in the name of a file of its own."""
_NEAR = 0.8
"""Likeness of an unknown column to a known one from which on it is taken for misspelt."""
_CLOSE = 0.25
"""Gap between lines, over a long one, below which lines without a GPU's name are of several GPUs at one time."""


def read_rows(grid: Grid, declared: Format, where: str, device: str = "") -> Found:
    """Return the series of a file with one line for each time and device.

    Args:
        grid: Its columns.
        declared: Its format.
        where: The file, for errors.
        device: Device of all lines, for formats that do not tell in the file.

    Raises:
        UserError: If it has no time, no column that is known, or lines of several GPUs that nothing tells apart.
    """
    sources = choose(grid, declared, where)
    t_ns, clock = _times(grid, declared, where)
    hosts = _labels(grid, declared.hosts, len(t_ns))
    devices = [device] * len(t_ns) if device else _devices(grid, declared, t_ns, clock, where)
    keys, places = np.unique(
        np.array([f"{host}\t{name}" for host, name in zip(hosts, devices, strict=True)]), return_inverse=True
    )
    found = Found([], clock, notes=list(grid.notes), left_out=leave_out(grid.names, declared, sources.values()))
    found.is_amd = declared.is_amd
    rows = {tuple(str(key).split("\t")): np.flatnonzero(places == number) for number, key in enumerate(keys)}
    for place in sources.values():
        source = declared.columns[grid.names[place]]
        values = read_numbers(grid.columns[place], source, grid.units[place], f"{where}: column {grid.names[place]}")
        for (host, name), chosen in rows.items():
            found.series.append(source.series(host, name, t_ns[chosen], values[chosen]))
    for (host, name), chosen in rows.items():
        said = {
            fact: grid.columns[grid.names.index(column)][int(chosen[0])].strip()
            for column, fact in declared.facts.items()
            if column in grid.names
        }
        if said:
            found.facts[host, name] = said
    return found


def choose(grid: Grid, declared: Format, where: str) -> dict[str, int]:
    """Return the place of the column for each of our metrics that the file has.

    Raises:
        UserError: If it has none.
    """
    chosen: dict[str, int] = {}
    for name, source in declared.columns.items():
        if name in grid.names and source.metric not in chosen:
            chosen[source.metric] = grid.names.index(name)
    if not chosen:
        listed = ", ".join(grid.names[:8]) + (", ..." if len(grid.names) > 8 else "")
        raise UserError(
            f"{where}: no column of {declared.name} is known among {listed}{_meant(grid.names, declared)}; name "
            "them as the tool does, or say what they are with --map"
        )
    return chosen


def _meant(names: Sequence[str], declared: Format) -> str:
    hints = (nearest(name, declared.columns) for name in names)
    return next((hint for hint in hints if "did you mean" in hint), "")


def leave_out(names: Sequence[str], declared: Format, taken: object) -> dict[str, str]:
    """Return the columns that were not taken, each with the reason."""
    places = set(taken)  # type: ignore[call-overload]
    used = {*declared.times, *declared.devices, *declared.hosts, *declared.facts}
    reasons = {}
    for place, name in enumerate(names):
        if place in places or name in used or not name:
            continue
        if name in declared.columns:
            reasons[name] = f"another column is taken for {declared.columns[name].metric}"
        elif name in declared.left_out:
            reasons[name] = declared.left_out[name]
        else:
            close = difflib.get_close_matches(name, declared.columns, n=1, cutoff=_NEAR)
            reasons[name] = "not known" + (f" (did you mean {close[0]!r}?)" if close else "")
    return reasons


def _times(grid: Grid, declared: Format, where: str) -> tuple[np.ndarray, Clock]:
    place = grid.find(declared.times)
    if place is None:
        return _rounds(grid, declared), Clock(is_naive=False, lacks="time")
    return read_times(grid.columns[place], f"{where}: column {grid.names[place]}")


def _rounds(grid: Grid, declared: Format) -> np.ndarray:
    """Return the number of the sample each line is of: a device that comes again begins the next one."""
    place = grid.find(declared.devices)
    if place is None:
        return np.arange(len(grid.columns[0]))
    number, seen, found = 0, set[str](), []
    for name in grid.columns[place]:
        if name in seen:
            number, seen = number + 1, set()
        seen.add(name)
        found.append(number)
    return np.array(found)


def _labels(grid: Grid, names: Sequence[str], num: int) -> Sequence[str]:
    place = grid.find(names)
    return [""] * num if place is None else [cell.strip() for cell in grid.columns[place]]


def _devices(grid: Grid, declared: Format, t_ns: np.ndarray, clock: Clock, where: str) -> Sequence[str]:
    place = grid.find(declared.devices)
    if place is not None:
        cells = [cell.strip() for cell in grid.columns[place]]
        named = name_devices(list(dict.fromkeys(cells)), grid.names[place])
        return [named[cell] for cell in cells]
    if not clock.lacks and is_of_several(t_ns):
        raise UserError(
            f"{where}: several lines for one time and no column that tells the GPUs apart; record one of "
            f"{', '.join(declared.devices)} too, or import the GPUs from files of their own"
        )
    in_name = _IN_NAME.search(where.replace("\\", "/").rsplit("/", 1)[-1])
    return [f"gpu{int(in_name[1]) if in_name else 0}"] * len(t_ns)


def is_of_several(t_ns: np.ndarray) -> bool:
    """Return whether lines come in bunches: of several devices, read one after the other."""
    gaps = np.diff(np.sort(t_ns))
    if gaps.size < 2:
        return bool((gaps == 0).any())
    long = np.percentile(gaps, 95)
    return bool(np.median(gaps) < _CLOSE * long and long >= NS_PER_S // 100)


def name_devices(cells: Sequence[str], column: str = "") -> dict[str, str]:
    """Return gpu0, gpu1, ... for what a column calls them.

    Numbers are kept. PCI addresses go in their order, which is the driver's; other names in the order of the file.

    Args:
        cells: Distinct cells.
        column: Name of the column.
    """
    matches = [_NUMBER.fullmatch(cell) for cell in cells]
    if all(matches):
        return {cell: f"gpu{int(match[1])}" for cell, match in zip(cells, matches, strict=True) if match}
    ordered = sorted(cells) if "bus" in column or "pci" in column else cells
    return {cell: f"gpu{number}" for number, cell in enumerate(ordered)}
