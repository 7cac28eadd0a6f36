"""Omnistat: CSV files of `omnistat-query --export`, with three header lines, then one line for each time.

The header lines are metric, instance and card. Times are local times of the machine that exported.

Source: ROCm/omnistat, docs/installation/user-mode.md and omnistat/query.py (export_metrics).
"""

import csv
import re

from triplepoint.errors import UserError, shown
from triplepoint.importers.cells import read_numbers
from triplepoint.importers.declaration import Content, FileTelemetry, Format, ReadOptions
from triplepoint.importers.prometheus import COLUMNS, LEFT_OUT, OMNISTAT
from triplepoint.importers.rows import HOST
from triplepoint.importers.text import gather
from triplepoint.importers.times import read_times

_FIRST = re.compile(r"metric,(rocm|omnistat|rmsjob|node)_")


def _read(content: Content, options: ReadOptions) -> FileTelemetry:
    lines = list(csv.reader(content.text.splitlines()))
    heads = {row[0]: row[1:] for row in lines[:4] if row}
    if not {"metric", "instance"} <= set(heads):
        raise UserError(
            f"{content.path}: expected lines `metric` and `instance` above the times; export with omnistat-query"
        )
    start = next((number for number, row in enumerate(lines) if row and row[0] == "timestamp"), len(heads) - 1)
    rows: list[list[str]] = [[]] * (start + 1) + lines[start + 1 :]
    grid = gather(content, rows, ["timestamp", *map(str, range(len(heads["metric"])))], options.skip_bad)
    t_ns, clock = read_times(grid.columns[0], content.path, "timestamp", grid.lines)
    telemetry = FileTelemetry([], clock, notes=grid.notes, is_amd=True)
    cards = heads.get("card", [""] * len(heads["metric"]))
    for place, (name, host, card) in enumerate(zip(heads["metric"], heads["instance"], cards, strict=True)):
        source = COLUMNS.get(name)
        if source is None:
            telemetry.left_out[name] = LEFT_OUT.get(name, "not known")
            continue
        values = read_numbers(grid.columns[place + 1], source, "", f"{content.path}: {name}, card {card}")
        if card and not card.isdecimal():
            raise UserError(f"{content.path}: card is {shown(card)}, expected a number; correct the line of cards")
        device = f"gpu{int(card)}" if card else HOST
        telemetry.series.append(source.series(host.rsplit(":", 1)[0], device, t_ns, values))
    return telemetry


FORMAT = Format(
    name="Omnistat",
    recorded_by="omnistat-query --job JOB --interval 1 --export DIR",
    columns=OMNISTAT,
    left_out=LEFT_OUT,
    times=("timestamp",),
    matches=lambda content: _FIRST.match(content.first_line) is not None,
    read=_read,
    shows=(
        "One value each interval of the query, as the exporter last read it. Power is the driver's socket power; "
        "rocm_energy_joules, where it was collected, is exact. Several temperatures of one card come as one column."
    ),
)
