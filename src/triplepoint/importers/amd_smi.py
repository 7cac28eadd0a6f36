"""amd-smi metric and amd-smi monitor as CSV or JSON, and monitor as its table, once or repeated (-w).

Memory is in MiB, printed as MB. The power is current_socket_power on MI300 and newer, else average_socket_power.

Source: ROCm/amdsmi, amdsmi_cli/amdsmi_commands.py.
"""

import re
from dataclasses import replace

import numpy as np

from triplepoint.importers.declaration import Content, FileTelemetry, Format, ReadOptions, Source
from triplepoint.importers.json_rows import gather_gpus
from triplepoint.importers.rows import read_rows
from triplepoint.importers.text import Grid, from_header, gather, split_csv

_VRAM = Source("gpu_memory_used_bytes", "MiB", printed="MB")
_CLOCK, _MEMORY_CLOCK = Source("sm_clock_mhz", "MHz"), Source("memory_clock_mhz", "MHz")
_METRIC = {
    "socket_power": Source("gpu_power_w", "W"),
    "total_energy_consumption": Source("gpu_energy_j", "J"),
    "hotspot": Source("gpu_temp_c", "C"),
    "edge": Source("gpu_edge_temp_c", "C"),
    "mem": Source("gpu_memory_temp_c", "C"),
    "gfx_clk": _CLOCK,
    "mem_0_clk": _MEMORY_CLOCK,
    "gfx_activity": Source("gpu_utilisation", "%"),
    "umc_activity": Source("gpu_memory_utilisation", "%"),
    "used_vram": _VRAM,
}
_MONITOR = {
    "power_usage": Source("gpu_power_w", "W"),
    "hotspot_temperature": Source("gpu_temp_c", "C"),
    "memory_temperature": Source("gpu_memory_temp_c", "C"),
    "gfx_clock": _CLOCK,
    "gfx_clk": _CLOCK,
    "mem_clock": _MEMORY_CLOCK,
    "gfx": Source("gpu_utilisation", "%"),
    "mem": Source("gpu_memory_utilisation", "%"),
    "vram_used": _VRAM,
    "max_power": Source("gpu_power_limit_w", "W"),
}
_OTHER = re.compile(
    r"_(min|max)_clk$|_clk_locked$|_deep_sleep$|^(vclk|dclk|fclk|socclk|jpeg|vcn|mm|enc|dec|gfx_busy|\w+_voltage)"
)
_KNOWN = {
    "socket_power", "gfx_activity", "power_usage", "hotspot_temperature", "hotspot", "used_vram",
    "total_energy_consumption",
}  # fmt: skip
_TABLE = re.compile(r"\s*(?:TIMESTAMP\s+)?GPU\s+(?:XCP\s+)?(?:POWER|GPU_T|GFX|MEM|VRAM)")
_CELL = re.compile(r"\S+/ *\S+ GB|\S+(?: (?:W|\S?C|%|[MG]Hz|[KMG]B|Mb/s)(?!\S))?")
"""A cell of the table: a number with its unit, a word, or used and total memory."""
_OF_TABLE = {
    "power": "power_usage",
    "pwr_cap": "max_power",
    **dict.fromkeys(("gpu_temp", "gpu_t"), "hotspot_temperature"),
    **dict.fromkeys(("mem_temp", "mem_t"), "memory_temperature"),
    **dict.fromkeys(("gfx_util", "gfx%"), "gfx"),
    **dict.fromkeys(("mem_util", "mem%"), "mem"),
}
"""Name in the CSV of each column of the table."""
_CLOCKS = re.compile(r"gfx_\d+_clk$")


def _gather(content: Content, options: ReadOptions) -> Grid:
    """Return the columns of a file; the clocks of several dies are averaged to `gfx_clk`."""
    content = from_header(content, _is_header)
    if content.head.lstrip()[:1] in ("[", "{"):
        grid = gather_gpus(content)
    elif _TABLE.match(content.first_line):
        grid = _read_table(content, options)
    else:
        grid = split_csv(content, None, options.skip_bad)
    clocks = [index for index, name in enumerate(grid.names) if _CLOCKS.match(name)]
    if clocks and "gfx_clk" not in grid.names:
        numbers = np.array([[_number(cell) for cell in grid.columns[index]] for index in clocks])
        is_known = np.isfinite(numbers)
        means = np.where(is_known, numbers, 0).sum(axis=0) / np.maximum(is_known.sum(axis=0), 1)
        grid.columns.append(
            [str(mean) if known else "N/A" for mean, known in zip(means, is_known.any(axis=0), strict=True)]
        )
        grid.names.append("gfx_clk")
        grid.units.append("")
    kept = [index for index, name in enumerate(grid.names) if index not in clocks and not _OTHER.search(name)]
    return Grid(
        [grid.names[index] for index in kept],
        [grid.units[index] for index in kept],
        [grid.columns[index] for index in kept],
        grid.notes,
        grid.lines,
    )


def _read_table(content: Content, options: ReadOptions) -> Grid:
    """Return the columns of the table of `amd-smi monitor`, with the names of its CSV."""
    first = content.first_line.split()
    names = [_OF_TABLE.get(name.lower(), name.lower()) for name in first]
    rows = ([] if line.split() == first else _CELL.findall(line) for line in content.text.splitlines())
    return gather(content, rows, names, options.skip_bad)


def _number(cell: str) -> float:
    match = re.match(r"\s*(\d+(?:\.\d+)?)", cell)
    return float(match[1]) if match else np.nan


def _read(content: Content, options: ReadOptions) -> FileTelemetry:
    grid = _gather(content, options)
    is_monitor = "power_usage" in grid.names or "gfx" in grid.names
    return read_rows(grid, replace(FORMAT, columns=_MONITOR if is_monitor else _METRIC), str(content.path))


def _is_header(line: str) -> bool:
    """Return whether a line is the first of a CSV, a table or JSON; repeated output begins with a hint above it."""
    names = {cell.strip().lower() for cell in line.split(",")}
    return line.lstrip()[:1] in ("[", "{") or bool(_TABLE.match(line)) or ("gpu" in names and bool(names & _KNOWN))


def _matches(content: Content) -> bool:
    first = next((line for line in content.head.splitlines() if _is_header(line)), "")
    if first.lstrip()[:1] in ("[", "{"):
        return '"gpu"' in content.head and bool(
            re.search(r'"(socket_power|power_usage|hotspot|gfx_activity|total_energy_consumption)"', content.head)
        )
    return bool(first)


FORMAT = Format(
    name="amd-smi",
    recorded_by="amd-smi metric -p -c -t -u -E -w 1 --csv",
    columns={**_MONITOR, **_METRIC},
    left_out={
        "throttle_status": "no column here for its words",
        "power_management": "no column here for it",
        "xcp": "partitions of a GPU are not told apart",
        "vram_total": "does not change while a job runs",
        "total_vram": "does not change while a job runs",
        "vram_usage": "in GB with one digit; -c or --csv has it in MB",
    },
    is_amd=True,
    times=("timestamp",),
    devices=("gpu",),
    hosts=("hostname", "host", "node"),
    matches=_matches,
    read=_read,
    shows=(
        "Times in whole seconds, power in whole watts. Power is the driver's present socket power on MI300 and newer, "
        "its average before; only the primary die of an MI250 has one. The energy counter (-E) is exact."
    ),
)
