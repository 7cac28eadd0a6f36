"""Timelines of all runs encoded for the page: columns of whole numbers and a dictionary of looks, with colours."""

import json
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from triplepoint.figures import old_page as style
from triplepoint.trace import Int64
from triplepoint.trace.perfetto import FILE_NAME
from triplepoint.trace.thin import Spans, Thinner

_PHASES = {
    "forward": style.SKY,
    "backward": style.BLUE,
    "backward_weight": "#4b6fb5",
    "optimizer": style.GREEN,
    "grad_sync": style.YELLOW,
}
_COMPUTE = {
    "gemm": style.BLUE,
    "attention": style.SKY,
    "norm": style.GREEN,
    "elementwise": style.YELLOW,
    "moe": style.PURPLE,
    "conv": "#4b6fb5",
    "optimizer": "#7ac7a8",
    "loss": style.ORANGE,
    "embedding": style.TAN,
}
_LANES = {"phase": _PHASES, "compute": _COMPUTE, "comm": style.COMMS}
_OTHER = "#868d98"

_ON_DARK = {style.BLACK: "#f2f2f2", style.BROWN: "#b5824f", style.BLUE: "#2b8fcc"}
"""What would be hard to see on dark ground."""


def colours(lane: str, label: str) -> tuple[str, str]:
    """Return a label's colour on light ground, and on dark."""
    plain = _LANES.get(lane, {}).get(label, _OTHER)
    return plain, _ON_DARK.get(plain, plain)


LIMIT_BYTES = 4_000_000
"""Size the data of all runs may have: a page of figures is about as large."""

_LEVELS = (8000, 4000, 2000, 1000, 500)
"""Cells of a lane, from all the table holds to about one for two pixels of a screen."""
_CELL_UNITS = 125
"""Times are whole multiples of this part of a cell, never below 1 ns. Spans shorter than half of that are lost."""

_LOOK = ("lane", "label", "group", "stage", "microbatch")


@dataclass(frozen=True)
class EmbeddedLanes:
    """Timelines as they stand in the page.

    Attributes:
        text: JSON, a list of runs; safe inside a `<script>`.
        num_runs: How many there are.
        left_out: Runs that did not fit.
        trace: Where the traces of a run are, with RUN in place of its name.
    """

    text: str
    num_runs: int
    left_out: list[str]
    trace: str


class _Run(NamedTuple):
    """What the page is told of a run, and its spans by rank, lane and time."""

    facts: dict[str, Any]
    rank: Int64
    lane: Int64
    spans: Spans
    looks: list[list[Any]]


def embed_lanes(
    points: list[dict[str, Any]], timeline: pa.Table, results: Path, limit_bytes: int = LIMIT_BYTES
) -> EmbeddedLanes:
    """Return the timelines of the runs that have one.

    Where all together would be too large, those that take more than an equal share are thinned further; only where that
    is not enough, runs are left out, the last ones first, except that a smaller one may still find room.

    Args:
        points: Rows of table `points`.
        timeline: Table `timeline`, the rows of a run together.
        results: Folder of the results.
        limit_bytes: Size `text` may have.
    """
    rows = _rows_of_runs(timeline)
    kept = [point for point in points if point["run"] in rows]
    runs = results / "runs"
    texts: dict[str, str] = {}
    for num_cells in _LEVELS:
        for point in kept:
            run = point["run"]
            if run not in texts or len(texts[run]) > limit_bytes / len(kept):
                texts[run] = _pack(_read_run(point, timeline.slice(*rows[run]), runs / run), num_cells)
        if _size(texts.values()) <= limit_bytes:
            break
    found: list[str] = []
    left_out = [run for run, text in texts.items() if not _keep(text, found, limit_bytes)]
    has_merged = any((runs / run / FILE_NAME).is_file() for run in texts)
    trace = f"{runs / 'RUN'}/{FILE_NAME if has_merged else 'raw/traces/'}"
    return EmbeddedLanes(f"[{','.join(found)}]", len(found), left_out, trace)


def _size(texts: Collection[str]) -> int:
    """Return the size of a list of texts, with brackets and commas. Unit: byte."""
    return sum(map(len, texts)) + len(texts) + 1


def _keep(text: str, found: list[str], limit_bytes: int) -> bool:
    """Add a text to those found if it still fits, and return whether it did."""
    if _size([*found, text]) > limit_bytes:
        return False
    found.append(text)
    return True


def _rows_of_runs(timeline: pa.Table) -> dict[str, tuple[int, int]]:
    """Return first row and number of rows of each run."""
    run = timeline["run"].combine_chunks().dictionary_encode()
    codes = run.indices.to_numpy()
    opens = np.flatnonzero(np.append(True, codes[1:] != codes[:-1])[: len(codes)])
    sizes = np.diff(np.append(opens, len(codes)))
    names = run.dictionary.to_pylist()
    return {names[codes[at]]: (at, size) for at, size in zip(opens.tolist(), sizes.tolist(), strict=True)}


def _read_run(point: dict[str, Any], rows: pa.Table, folder: Path) -> _Run:
    looks, look = _distinct_looks(rows)
    rank, start = rows["rank"].to_numpy(), rows["t_start_ns"].to_numpy()
    lanes = sorted({found[0] for found in looks})
    lane = np.array([lanes.index(found[0]) for found in looks])[look]
    order = np.lexsort((start, lane, rank))
    spans = Spans(start, start + rows["duration_ns"].to_numpy(), look).at(order)
    facts = {
        "run": point["run"],
        "model": point["model"],
        "origin": point["origin"],
        "trace": str(folder / FILE_NAME) if (folder / FILE_NAME).is_file() else None,
    }
    return _Run(facts, rank[order], lane[order], spans, looks)


def _distinct_looks(rows: pa.Table) -> tuple[list[list[Any]], Int64]:
    """Return the distinct looks of a run's spans, and the number of each span's look."""
    key = np.zeros(rows.num_rows, dtype=np.int64)
    for name in _LOOK:
        column = rows[name].combine_chunks().dictionary_encode(null_encoding="encode")
        key = key * len(column.dictionary) + column.indices.to_numpy()
    _, first, look = np.unique(key, return_index=True, return_inverse=True)
    columns = rows.select(_LOOK).take(pa.array(first)).to_pydict()
    return [list(found) for found in zip(*columns.values(), strict=True)], look.reshape(-1)


def _pack(run: _Run, num_cells: int) -> str:
    """Return a run as JSON: of each span the distance to the one before it in its lane, its length, its look."""
    end_ns = int(run.spans.end.max())
    unit_ns = max(end_ns // (_CELL_UNITS * num_cells), 1)
    lanes = []
    for rank, rows in _lanes_of(run):
        thinner = Thinner(0, max(end_ns, 1), num_cells)
        thinner.add(*run.spans.at(rows))
        start, end, look = thinner.finish()
        start, end = (np.rint(time / unit_ns).astype(np.int64) for time in (start, end))
        seen = end > start
        start, end = start[seen], end[seen]
        gap = start - np.append(0, end[:-1])[: len(end)]
        lanes.append([rank, gap.tolist(), (end - start).tolist(), look[seen].tolist()])
    content = run.facts | {
        "cells": num_cells,
        "unit_ns": unit_ns,
        "end": -(-end_ns // unit_ns),
        "looks": run.looks,
        "colours": [colours(lane, label) for lane, label, *_ in run.looks],
        "lanes": lanes,
    }
    # What a run or a label is called must not end the script it stands in.
    return json.dumps(content, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")


def _lanes_of(run: _Run) -> Iterator[tuple[int, slice]]:
    """Return rank and rows of each lane."""
    opens = np.flatnonzero(np.append(True, (np.diff(run.rank) != 0) | (np.diff(run.lane) != 0)))
    for first, last in zip(opens.tolist(), [*opens[1:].tolist(), len(run.rank)], strict=True):
        yield int(run.rank[first]), slice(first, last)
