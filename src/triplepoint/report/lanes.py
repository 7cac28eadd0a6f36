"""Timeline of a run for its page: spans of every rank as integers, and the distinct looks of spans with colours."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from triplepoint.figures import marks
from triplepoint.report.payload import steps_of
from triplepoint.tables.traces import TIMELINE
from triplepoint.trace import Int64
from triplepoint.trace.thin import Spans, Thinner

LEVELS = (None, 32000, 8000, 2000, 500)
"""Numbers of cells of a lane, the most detailed first: all spans (None), down to about one cell per two pixels."""
_UNITS = 4_000_000
"""Number of time units in a step. The unit is at least 1 ns; it is 0.1 µs for a step of half a second."""
_MARKS = {"phase": marks.PHASES, "compute": marks.KERNEL_CLASSES, "comm": marks.COMMUNICATION}
_LOOK_COLUMNS = ("lane", "label", "group", "stage", "microbatch")


def describe_lanes(path: Path, num_cells: int | None = None) -> dict[str, Any] | None:
    """Return the spans of the first profiled step of a run; None if it was not traced.

    Args:
        path: File with table `timeline`.
        num_cells: Number of cells of a lane; spans shorter than a cell are merged. None: all spans.

    Raises:
        UserError: If the table is damaged.
    """
    if not path.is_file():
        return None
    rows = TIMELINE.read(path)
    if not rows.num_rows:
        return None
    looks, look = _distinct_looks(rows)
    rank, start = rows["rank"].to_numpy(), rows["t_start_ns"].to_numpy()
    names = sorted({lane_name for lane_name, *_ in looks})
    lane = np.array([names.index(lane_name) for lane_name, *_ in looks])[look]
    order = np.lexsort((start, lane, rank))
    spans = Spans(start, start + rows["duration_ns"].to_numpy(), look).at(order)
    end_ns = max(int(spans.end.max()), 1)
    unit_ns = max(end_ns // _UNITS, 1)
    lanes = []
    for of_rank, members in _lanes_of(rank[order], lane[order]):
        start, end, shown = spans.at(members) if num_cells is None else _thinned(spans.at(members), end_ns, num_cells)
        start, end = (np.rint(time / unit_ns).astype(np.int64) for time in (start, end))
        lanes.append([of_rank, steps_of(start), (end - start).tolist(), shown.tolist()])
    return {
        "cells": num_cells,
        "unit_ns": unit_ns,
        "end": -(-end_ns // unit_ns),
        "looks": looks,
        "colours": [colours(lane, label) for lane, label, *_ in looks],
        "lanes": lanes,
    }


def colours(lane: str, label: str) -> tuple[str, str]:
    """Return the colours of a label for a light and for a dark background."""
    mark = _MARKS.get(lane, {}).get(label)
    return marks.on_grounds(mark.colour if mark else marks.MIDDLE)


def _thinned(spans: Spans, end_ns: int, num_cells: int) -> tuple[Int64, Int64, Int64]:
    """Return start, end and look of the spans of a lane, at most one per cell."""
    thinner = Thinner(0, end_ns, num_cells)
    thinner.add(*spans)
    return thinner.finish()


def _distinct_looks(rows: pa.Table) -> tuple[list[list[Any]], Int64]:
    """Return the distinct looks of spans, values of `_LOOK_COLUMNS`, and the index of the look of each span."""
    key = np.zeros(rows.num_rows, dtype=np.int64)
    for name in _LOOK_COLUMNS:
        column = rows[name].combine_chunks().dictionary_encode(null_encoding="encode")
        key = key * len(column.dictionary) + column.indices.to_numpy()
    _, first, look = np.unique(key, return_index=True, return_inverse=True)
    columns = rows.select(_LOOK_COLUMNS).take(pa.array(first)).to_pydict()
    return [list(values) for values in zip(*columns.values(), strict=True)], look.reshape(-1)


def _lanes_of(rank: Int64, lane: Int64) -> Iterator[tuple[int, slice]]:
    """Yield the rank and the rows of each lane of sorted spans."""
    opens = np.flatnonzero(np.append(True, (np.diff(rank) != 0) | (np.diff(lane) != 0)))
    for first, last in zip(opens.tolist(), [*opens[1:].tolist(), len(rank)], strict=True):
        yield int(rank[first]), slice(first, last)
