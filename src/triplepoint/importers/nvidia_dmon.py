"""nvidia-smi dmon: columns of text or CSV (--format csv), with or without date and time (-o DT).

Source: nvidia-smi dmon -h (driver 580). Memory is in MiB, printed as MB.
"""

import re

from triplepoint.importers.declaration import Asked, Content, Format, Found, Source
from triplepoint.importers.rows import read_rows
from triplepoint.importers.text import Grid, gather

_HEADER = re.compile(r"^#\s*(?:(?:Date|Time)[,\s]+)*gpu[,\s]", re.IGNORECASE | re.MULTILINE)
_UNITS = re.compile(r"#\s*(?:YYYY\S*\s+|HH\S*\s+)*Idx[,\s]", re.IGNORECASE)
_NO_COUNT = "a sample of 20 ms, not a count"
_COLUMNS = {
    "pwr": Source("gpu_power_average_w", "W", is_draw=True),
    "gtemp": Source("gpu_temp_c", "C"),
    "temp": Source("gpu_temp_c", "C"),
    "mtemp": Source("gpu_memory_temp_c", "C"),
    "sm": Source("gpu_utilisation", "%"),
    "mem": Source("gpu_memory_utilisation", "%"),
    "mclk": Source("memory_clock_mhz", "MHz"),
    "pclk": Source("sm_clock_mhz", "MHz"),
    "fb": Source("gpu_memory_used_bytes", "MiB", printed="MB"),
    "smutil": Source("gpu_sm_activity", "%"),
    "tensor": Source("gpu_tensor_activity", "%"),
    "dram": Source("gpu_dram_activity", "%"),
}
_LEFT_OUT = {
    "rxpci": _NO_COUNT,
    "txpci": _NO_COUNT,
    **dict.fromkeys(("enc", "dec", "jpg", "ofa", "bar1", "ccpm"), "no column here for it"),
    **dict.fromkeys(("pviol", "tviol"), "a share and a flag of the last second; the counters of --query-gpu tell more"),
    **dict.fromkeys(("sbecc", "dbecc", "pci"), "errors since the last line, not since the driver was loaded"),
}


def _read(content: Content, asked: Asked) -> Found:
    lines = content.text.splitlines()
    header = next(line for line in lines if _HEADER.match(line))
    names = _cells(header.lower())
    units = next((_cells(line) for line in lines if _UNITS.match(line)), [])
    rows = [[] if line.lstrip().startswith("#") else _cells(line) for line in lines]
    grid = gather(content, rows, names, asked.skip_bad)
    if len(units) == len(names):
        grid.units = [unit if name in _COLUMNS else "" for name, unit in zip(names, units, strict=True)]
    return read_rows(_with_time(grid), FORMAT, str(content.path))


def _cells(line: str) -> list[str]:
    return line.lstrip("# \t").replace(",", " ").split()


def _with_time(grid: Grid) -> Grid:
    """Return the columns with date and time as one."""
    if "date" in grid.names and "time" in grid.names:
        day, clock = grid.names.index("date"), grid.names.index("time")
        stamps = [
            f"{date[:4]}-{date[4:6]}-{date[6:]} {time}" if date.isdigit() else f"{date} {time}"
            for date, time in zip(grid.columns[day], grid.columns[clock], strict=True)
        ]
        grid.columns[clock] = stamps
    return grid


FORMAT = Format(
    name="nvidia-smi dmon",
    recorded_by="nvidia-smi dmon -s pucm -o DT",
    columns=_COLUMNS,
    left_out=_LEFT_OUT,
    times=("time", "date"),
    devices=("gpu",),
    matches=lambda content: _HEADER.search(content.head) is not None,
    read=_read,
    shows=(
        "pwr is the power.draw of nvidia-smi: a mean of about 1 s after GA100. Whole watts, times in whole seconds; "
        "without -o DT there are no times. PCIe throughput is a sample of 20 ms and is not taken."
    ),
)
