"""WattAMeter: columns of text with the time, the duration of the read, and a column for each GPU or processor.

Source: NatLabRockies/WattAMeter, readers/nvml.py and readers/rapl.py.
"""

import re

from triplepoint.importers.cells import read_numbers
from triplepoint.importers.declaration import Content, FileTelemetry, Format, ReadOptions, Source
from triplepoint.importers.rows import HOST
from triplepoint.importers.text import gather
from triplepoint.importers.times import read_times

_HEADER = re.compile(r"^#\s*timestamp\s+reading-time\[ns\]\s*(.*)$", re.MULTILINE)
_TAG = re.compile(r"(\S+?)\[([^\]]*)\]")
_ONE_LINK = "one NVLink of all: asked for without a scope"
_RAPL_RANGES = (65_532_610_987.0, 262_143_328_850.0)
"""`max_energy_range_uj` of AMD's and Intel's processors, 2^32 units of 2^-16 and 2^-14 J. Unit: uJ."""
_COLUMNS = {
    "gpu mw": Source("gpu_power_average_w", "mW", is_draw=True),
    "gpu mj": Source("gpu_energy_j", "mJ"),
    "gpu c": Source("gpu_temp_c", "C"),
    "gpu %gpu": Source("gpu_utilisation", "%"),
    "gpu %mem": Source("gpu_memory_utilisation", "%"),
    "cpu uj": Source("cpu_energy_j", "uJ", wraps_at=_RAPL_RANGES),
    "dram uj": Source("dram_energy_j", "uJ", wraps_at=_RAPL_RANGES),
}
"""Columns by kind of device and unit."""


def _read(content: Content, options: ReadOptions) -> FileTelemetry:
    header = _HEADER.search(content.text)
    assert header is not None
    tags = _TAG.findall(header[1])
    names = ["timestamp", "reading-time", *(f"{name} {unit}" for name, unit in tags)]
    rows = [[] if line.lstrip().startswith("#") else line.split() for line in content.text.splitlines()]
    grid = gather(content, rows, names, options.skip_bad)
    t_ns, clock = read_times(grid.columns[0], content.path, "timestamp", grid.lines)
    telemetry = FileTelemetry([], clock, notes=grid.notes)
    for (name, unit), cells in zip(tags, grid.columns[2:], strict=True):
        kind, _, number = name.partition("-")
        index, _, domain = number.partition("-")
        kind = domain if domain in ("dram", "core", "uncore") else kind
        source = _COLUMNS.get(f"{kind} {unit.lower()}")
        if source is None:
            telemetry.left_out[f"{kind}[{unit}]"] = (
                _ONE_LINK if "X " in unit else "follows from the energy, or has no column here"
            )
            continue
        values = read_numbers(cells, source, "", f"{content.path}: column {name}[{unit}]")
        device, part = (f"gpu{index}", "") if kind == "gpu" else (HOST, name)
        telemetry.series.append(source.series("", device, t_ns, values, part))
    return telemetry


FORMAT = Format(
    name="WattAMeter",
    recorded_by="wattameter --dt-read 0.1",
    columns=_COLUMNS,
    left_out={"TX KiB": _ONE_LINK, "RX KiB": _ONE_LINK},
    times=("timestamp",),
    matches=lambda content: _HEADER.search(content.head) is not None,
    read=_read,
    shows=(
        "Power in mW is taken as NVML's draw, a mean of about 1 s after GA100: its public logs behave so. RAPL energy "
        "of processors wraps, which is undone. NVLink bytes are those of one link and are not taken."
    ),
)
