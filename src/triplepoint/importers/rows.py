"""Turn columns of cells into series, for formats with one line for each time and device."""

import difflib
import re
from collections.abc import Collection, Sequence

import numpy as np

from triplepoint.errors import UserError, nearest, shown
from triplepoint.importers.cells import read_numbers
from triplepoint.importers.declaration import Clock, FileTelemetry, Format
from triplepoint.importers.text import Grid
from triplepoint.importers.times import read_times
from triplepoint.units import NS_PER_S

HOST = "host"
"""Device of metrics of a whole host."""
_NUMBER = re.compile(r"(?:(?:gpu|card|nvidia|device)[ _-]?)?(\d{1,4})$", re.IGNORECASE)
_OTHER_NUMBER = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)(e[-+]?\d+)?", re.IGNORECASE)
"""Number that is not the number of a GPU, if others of its column are."""
_IN_NAME = re.compile(r"(?:gpu|card)[-_]?(\d{1,3})(?!\d|x|gpus)", re.IGNORECASE)
"""Number of a GPU in the name of a file."""
_NEAR = 0.8
"""Similarity of an unknown column to a known one from which it counts as misspelt."""
_CLOSE = 0.25
"""Ratio of the median gap between lines to a long gap below which lines belong to several GPUs read together."""


def read_rows(grid: Grid, declared: Format, where: str) -> FileTelemetry:
    """Return the series of a file with one line for each time and device.

    Args:
        grid: Columns of the file.
        declared: Its format.
        where: The file, for errors.

    Raises:
        UserError: If the file has no known column, or lines of several GPUs without a column that names them.
    """
    indices = _find_columns(grid, declared, where)
    t_ns, clock = _times(grid, declared, where)
    host_column = grid.find(declared.hosts)
    hosts = [""] * len(t_ns) if host_column is None else [cell.strip() for cell in grid.columns[host_column]]
    devices = _devices(grid, declared, t_ns, clock, where)
    keys, key_of_row = np.unique(
        np.array([f"{host}\t{device}" for host, device in zip(hosts, devices, strict=True)]), return_inverse=True
    )
    rows = {tuple(str(key).split("\t")): np.flatnonzero(key_of_row == index) for index, key in enumerate(keys)}
    left_out = _left_out(grid.names, declared, set(indices))
    telemetry = FileTelemetry([], clock, notes=list(grid.notes), left_out=left_out, is_amd=declared.is_amd)
    for index in indices:
        source = declared.columns[grid.names[index]]
        values = read_numbers(grid.columns[index], source, grid.units[index], f"{where}: column {grid.names[index]}")
        for (host, device), chosen in rows.items():
            telemetry.series.append(source.series(host, device, t_ns[chosen], values[chosen]))
    for (host, device), chosen in rows.items():
        facts = {
            fact: grid.columns[grid.names.index(column)][int(chosen[0])].strip()
            for column, fact in declared.facts.items()
            if column in grid.names
        }
        if facts:
            telemetry.facts[host, device] = facts
    return telemetry


def _find_columns(grid: Grid, declared: Format, where: str) -> list[int]:
    """Return the indices of the columns to read, one for each metric that the file has.

    Raises:
        UserError: If it has none.
    """
    index_of: dict[str, int] = {}
    for name, source in declared.columns.items():
        if name in grid.names and source.metric not in index_of:
            index_of[source.metric] = grid.names.index(name)
    if not index_of:
        listed = ", ".join(grid.names[:8]) + (", ..." if len(grid.names) > 8 else "")
        hints = (nearest(name, declared.columns) for name in grid.names)
        hint = next((hint for hint in hints if "did you mean" in hint), "")
        raise UserError(
            f"{where}: no column of {declared.name} is known among {listed}{hint}; name them as the tool does, or say "
            "what they are with --map"
        )
    return list(index_of.values())


def _left_out(names: Sequence[str], declared: Format, read: Collection[int]) -> dict[str, str]:
    """Return the columns that are not read, with the reason; `read` are the indices of those that are."""
    used = {*declared.times, *declared.devices, *declared.hosts, *declared.facts}
    reasons = {}
    for index, name in enumerate(names):
        if index in read or name in used or not name:
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
    """Return the times of lines; the numbers of their samples if the file has no times."""
    index = grid.find(declared.times)
    if index is None:
        return _sample_numbers(grid, declared), Clock(is_naive=False, lacks="time")
    return read_times(grid.columns[index], where, grid.names[index], grid.lines)


def _sample_numbers(grid: Grid, declared: Format) -> np.ndarray:
    """Return the number of the sample of each line; a device that appears again begins the next sample."""
    index = grid.find(declared.devices)
    if index is None:
        return np.arange(len(grid.columns[0]))
    number, seen, numbers = 0, set[str](), []
    for device in grid.columns[index]:
        if device in seen:
            number, seen = number + 1, set()
        seen.add(device)
        numbers.append(number)
    return np.array(numbers)


def _devices(grid: Grid, declared: Format, t_ns: np.ndarray, clock: Clock, where: str) -> Sequence[str]:
    """Return the device of each line, by its column or the file's name. Raises `UserError` if neither tells."""
    index = grid.find(declared.devices)
    if index is not None:
        cells = [cell.strip() for cell in grid.columns[index]]
        distinct = list(dict.fromkeys(cells))
        for cell in distinct:
            if _OTHER_NUMBER.fullmatch(cell) and not _NUMBER.fullmatch(cell):
                row = cells.index(cell)
                line = f":{grid.lines[row]}" if len(grid.lines) else ""
                raise UserError(
                    f"{where}{line}: column {grid.names[index]}: {shown(cell)} is not the number of a GPU; expected 0 "
                    "to 9999: correct the cell"
                )
        names = name_devices(distinct, grid.names[index])
        return [names[cell] for cell in cells]
    if not clock.lacks and _come_in_groups(t_ns):
        raise UserError(
            f"{where}: several lines for one time and no column that tells the GPUs apart; record one of "
            f"{', '.join(declared.devices)} too, or import the GPUs from files of their own"
        )
    in_name = _IN_NAME.search(where.replace("\\", "/").rsplit("/", 1)[-1])
    return [f"gpu{int(in_name[1]) if in_name else 0}"] * len(t_ns)


def _come_in_groups(t_ns: np.ndarray) -> bool:
    """Return whether times come in groups, as those of several devices that are read one after the other."""
    gaps = np.diff(np.sort(t_ns))
    if gaps.size < 2:
        return bool((gaps == 0).any())
    long = np.percentile(gaps, 95)
    return bool(np.median(gaps) < _CLOSE * long and long >= NS_PER_S // 100)


def name_devices(cells: Sequence[str], column: str = "") -> dict[str, str]:
    """Return the device (gpu0, gpu1, ...) of each cell of a column that names GPUs.

    Numbers are kept. PCI addresses are numbered in their order, which is the driver's; other names in the order of the
    file.

    Args:
        cells: Distinct cells.
        column: Name of the column.
    """
    matches = [_NUMBER.fullmatch(cell) for cell in cells]
    if all(matches):
        return {cell: f"gpu{int(match[1])}" for cell, match in zip(cells, matches, strict=True) if match}
    ordered = sorted(cells) if "bus" in column or "pci" in column else cells
    return {cell: f"gpu{number}" for number, cell in enumerate(ordered)}
