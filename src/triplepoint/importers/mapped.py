"""Plain CSV files of any tool, by a mapping that the user writes: `--map FILE.yaml`."""

import csv
import io
import json
import re
from datetime import UTC, datetime
from fnmatch import fnmatch
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import Field, model_validator

from triplepoint.config.base import Strict, parse
from triplepoint.config.yaml_file import read_yaml
from triplepoint.errors import UserError, nearest, shown
from triplepoint.importers.declaration import Asked, Content, Format, Found, Source
from triplepoint.importers.rows import read_rows
from triplepoint.importers.text import Grid, gather, split_name
from triplepoint.tables.telemetry import METRICS


class MappedColumn(Strict):
    """One of our columns in a file of another tool."""

    column: str
    """Its name there, without a unit in brackets."""
    unit: str
    """Unit of its numbers: W, mW, J, mJ, C, MHz, %, 1, MiB, byte, byte/s and the like."""
    wraps_at: float | None = None
    """Where a counter starts again at 0, in that unit; none where it does not."""


class Mapping(Strict):
    """What the columns of a CSV are."""

    files: str = "*"
    """Files it is for: a pattern of their names, such as `node*.csv`."""
    separator: str = Field(",", min_length=1, max_length=1)
    """What stands between cells."""
    header: tuple[str, ...] | None = None
    """Names of the columns where the file has no header."""
    time: str
    """Column with the time."""
    time_format: str | None = None
    """Format of times as Python's strptime takes it, where they are none that are known: `%d.%m.%Y %H:%M:%S`."""
    device: str | None = None
    """Column that tells the GPUs apart. None: one GPU a file, numbered by its name."""
    host: str | None = None
    """Column with the host. None: by folder or file name."""
    columns: dict[str, MappedColumn] = Field(min_length=1)
    """By our column of table `telemetry`."""

    @model_validator(mode="after")
    def _check(self) -> "Mapping":
        for metric, mapped in self.columns.items():
            if metric not in METRICS:
                raise ValueError(f"{metric} is not a column of telemetry{nearest(metric, METRICS)}")
            if Source(metric, mapped.unit).factor() is None:
                raise ValueError(f"the unit {mapped.unit!r} does not fit {metric}")
        return self


def draft_mapping(content: Content) -> str:
    """Return what a mapping of a CSV could be, by words in its header, as YAML in one line; '' where they do not tell.

    It is a draft: its owner knows what the columns hold.
    """
    header = next(csv.reader([content.first_line], skipinitialspace=True), [])
    names = [split_name(cell)[0] for cell in header]
    time = next((name for name in names if re.search(r"time|date", name)), None)
    device = next(
        (name for name in names if re.fullmatch(r"(gpu|card|device)?_?(id|index|idx|num|number)?", name)), None
    )
    columns: dict[str, dict[str, str]] = {}
    for name in names:
        metric, unit = next(((metric, unit) for words, metric, unit in _MEANT if re.search(words, name)), ("", ""))
        if metric and metric not in columns and name not in (time, device):
            said = re.search(_UNIT_AT_END, name)
            told = next((one for one in _UNIT_NAMES if said and one.lower() == said[1]), unit)
            columns[metric] = {"column": name, "unit": told if Source(metric, told).factor() is not None else unit}
    if time is None or not columns:
        return ""
    return json.dumps({"time": time} | ({"device": device} if device else {}) | {"columns": columns})


_MEANT = (
    (r"power.*(limit|cap|max)|(limit|cap|max).*power", "gpu_power_limit_w", "W"),
    (r"power|watt", "gpu_power_w", "W"),
    (r"energy|joule", "gpu_energy_j", "J"),
    (r"(mem|hbm|vram).*temp|temp.*(mem|hbm|vram)", "gpu_memory_temp_c", "C"),
    (r"temp", "gpu_temp_c", "C"),
    (r"(mem|vram|fb).*used|used.*(mem|vram|fb)", "gpu_memory_used_bytes", "MiB"),
    (r"mem.*(util|activity)|(util|activity).*mem", "gpu_memory_utilisation", "%"),
    (r"util|activity", "gpu_utilisation", "%"),
    (r"mem.*cl(oc)?k|cl(oc)?k.*mem", "memory_clock_mhz", "MHz"),
    (r"cl(oc)?k", "sm_clock_mhz", "MHz"),
)
"""Words of columns that people write, with what they mostly mean: our column and its unit."""
_UNIT_NAMES = ("W", "mW", "kW", "J", "mJ", "kJ", "Wh", "kWh", "MHz", "GHz", "MiB", "GiB", "MB", "GB")
_UNIT_AT_END = rf"[_ .-]({'|'.join(_UNIT_NAMES).lower()})$"


def read_mapping(path: Path) -> Format:
    """Return the format that a mapping declares.

    Raises:
        UserError: If it names a column that is none of ours, or a unit that does not fit.
    """
    mapping = parse(Mapping, read_yaml(path), path)
    sources = {
        mapped.column.strip().lower(): Source(
            metric, mapped.unit, wraps_at=(mapped.wraps_at,) if mapped.wraps_at else ()
        )
        for metric, mapped in mapping.columns.items()
    }
    declared = Format(
        name=f"CSV by {path.name}",
        recorded_by="any tool",
        columns=sources,
        times=(mapping.time.lower(),),
        devices=(mapping.device.lower(),) if mapping.device else (),
        hosts=(mapping.host.lower(),) if mapping.host else (),
        matches=partial(_matches, mapping),
        read=lambda content, asked: Found([]),
        shows="What the tool's documentation says of its columns.",
    )
    return _with_reader(declared, mapping)


def _with_reader(declared: Format, mapping: Mapping) -> Format:
    values: dict[str, Any] = {name: getattr(declared, name) for name in declared.__dataclass_fields__}
    return Format(**values | {"read": partial(_read, mapping, declared)})


def _matches(mapping: Mapping, content: Content) -> bool:
    is_text = content.path.name.lower().removesuffix(".gz").endswith((".csv", ".txt", ".log", ".tsv", ".dat"))
    return fnmatch(content.path.name, mapping.files) and (mapping.files != "*" or is_text)


def _read(mapping: Mapping, declared: Format, content: Content, asked: Asked) -> Found:
    rows = csv.reader(io.StringIO(content.text), delimiter=mapping.separator, skipinitialspace=True)
    grid = gather(content, rows, list(mapping.header) if mapping.header else None, asked.skip_bad)
    wanted = [mapping.time, *(one.column for one in mapping.columns.values()), mapping.device, mapping.host]
    for name in wanted:
        if name is not None and name.strip().lower() not in grid.names:
            raise UserError(
                f"{content.path}: no column {shown(name)}, which --map names{nearest(name.lower(), grid.names)}"
            )
    if mapping.time_format:
        _parse_times(grid, mapping, content)
    found = read_rows(grid, declared, str(content.path))
    found.left_out = dict.fromkeys(found.left_out, "not mapped")
    return found


def _parse_times(grid: Grid, mapping: Mapping, content: Content) -> None:
    """Put times that strptime reads in the place of their cells."""
    place, made = grid.names.index(mapping.time.strip().lower()), []
    for cell in grid.columns[place]:
        try:
            time = datetime.strptime(cell.strip(), mapping.time_format or "")
        except ValueError:
            raise UserError(
                f"{content.path}: {shown(cell)} is not a time of the format {mapping.time_format!r} in --map"
            ) from None
        made.append(
            time.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S.%fZ")
            if time.tzinfo
            else time.strftime("%Y-%m-%d %H:%M:%S.%f")
        )
    grid.columns[place] = np.array(made).tolist()
