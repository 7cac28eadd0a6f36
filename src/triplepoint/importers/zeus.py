"""Zeus: the CSV of its power monitors, of one GPU (`Time,Power`, mW) or all GPUs (`time,power0,...`, W).

Source: ml-energy/zeus, zeus_monitor/ (until 0.3) and zeus/monitor/power.py (until 0.11).
"""

import re

from triplepoint.errors import UserError
from triplepoint.importers.cells import read_numbers
from triplepoint.importers.declaration import Content, FileTelemetry, Format, ReadOptions, Source
from triplepoint.importers.text import split_csv
from triplepoint.importers.times import read_times

_OLD = Source("gpu_power_average_w", "mW", is_draw=True)
_COLUMNS = {"power": _OLD, "power<n>": Source("gpu_power_average_w", "W", is_draw=True)}
_EPOCHS = re.compile(r"\d{10}\.\d+(,\d+(\.\d+)?)+$")
_WINDOWS = re.compile(r"start_time,window_name,elapsed_time,")
_IN_NAME = re.compile(r"gpu[-_]?(\d+)", re.IGNORECASE)
_POWER = re.compile(r"power(\d+)$")


def _read(content: Content, options: ReadOptions) -> FileTelemetry:
    line = content.first_line.strip()
    if _WINDOWS.match(line):
        raise UserError(
            f"{content.path}: Zeus's log of windows holds energies, no samples; give the windows with --steps, and "
            "power by another recording"
        )
    header = None
    if _EPOCHS.match(line):
        header = ["time", *(f"power{number}" for number in range(line.count(",")))]
    grid = split_csv(content, header, options.skip_bad)
    t_ns, clock = read_times(grid.columns[0], content.path, grid.names[0], grid.lines)
    telemetry = FileTelemetry([], clock, notes=grid.notes)
    named = _IN_NAME.search(content.path.name)
    for name, cells in zip(grid.names[1:], grid.columns[1:], strict=True):
        numbered = _POWER.match(name)
        number = int(numbered[1]) if numbered else int(named[1]) if named else 0
        source = _COLUMNS["power<n>" if numbered else "power"]
        values = read_numbers(cells, source, "", f"{content.path}: column {name}")
        telemetry.series.append(source.series("", f"gpu{number}", t_ns, values))
    return telemetry


def _matches(content: Content) -> bool:
    line = content.first_line.strip()
    is_named = re.search(r"power|zeus", content.path.name, re.IGNORECASE) is not None
    return bool(
        re.fullmatch(r"Time,Power|time(,power\d+)+", line) or _WINDOWS.match(line) or (is_named and _EPOCHS.match(line))
    )


FORMAT = Format(
    name="Zeus",
    recorded_by="zeus_monitor, or PowerMonitor(power_csv_path=...)",
    columns=_COLUMNS,
    times=("time",),
    matches=_matches,
    read=_read,
    shows=(
        "NVML's draw, polled faster than it changes: equal lines are the same reading again. A mean of about 1 s after "
        "GA100. Power alone: no heat, clocks or energy counter."
    ),
)
