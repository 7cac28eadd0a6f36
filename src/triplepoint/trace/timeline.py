"""Table `timeline`: the lanes of one step of every rank, thinned to the resolution of a figure."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from triplepoint.tables import TIMELINE
from triplepoint.trace import Int64
from triplepoint.trace.distinct import distinct_values
from triplepoint.trace.rank_results import Step, read_rank_table
from triplepoint.trace.thin import NUM_CELLS, Thinner

LANES = ("phase", "compute", "comm", "memory")
"""Lanes of a rank from top to bottom: annotated phases, computation, communication, copies and fills."""

_CELLS_PER_RUN = 32_000
_MIN_CELLS = 1000
"""Cells of a lane, whatever the number of ranks: the pixels of a figure."""


class Look(NamedTuple):
    """Appearance of a span: spans of one look are drawn alike.

    Attributes:
        label: forward, backward, optimizer, ... or the kind of computation, communication or copy.
        group: Role of the process group of communication; None otherwise or if unknown.
        stage: Pipeline stage of a phase.
        microbatch: Micro-batch of a phase.
    """

    label: str
    group: str | None = None
    stage: int | None = None
    microbatch: int | None = None


@dataclass(frozen=True)
class LaneSpans:
    """Spans of one lane of one rank; shape of every array (num_spans,).

    Attributes:
        lane: One of `LANES`.
        looks: Distinct looks.
        start: Starts. Unit: ns since 1970.
        end: Ends. Unit: ns since 1970.
        look: Index into `looks`.
    """

    lane: str
    looks: list[Look]
    start: Int64
    end: Int64
    look: Int64


def cells_per_lane(num_ranks: int) -> int:
    """Return the number of cells to thin a lane to, so that a run of 32 ranks needs no more space than one of eight."""
    return max(_MIN_CELLS, min(NUM_CELLS, _CELLS_PER_RUN // max(num_ranks, 1)))


def thin_lane(lane: LaneSpans, start_ns: int, end_ns: int, num_cells: int = NUM_CELLS) -> LaneSpans:
    """Cut a lane to a window and thin it.

    Args:
        lane: Spans in any order.
        start_ns: Start of the window. Unit: ns since 1970.
        end_ns: End of the window. Unit: ns since 1970.
        num_cells: Number of cells, see `Thinner`.
    """
    if end_ns <= start_ns:
        return LaneSpans(lane.lane, lane.looks, *(np.empty(0, dtype=np.int64) for _ in range(3)))
    order = np.argsort(lane.start, kind="stable")
    thinner = Thinner(start_ns, end_ns, num_cells)
    thinner.add(lane.start[order], lane.end[order], lane.look[order])
    return LaneSpans(lane.lane, lane.looks, *thinner.finish())


def span_table(rank: int, lanes: list[LaneSpans], origin: int) -> pa.Table:
    """Return the rows of one rank for table `timeline`, by lane and time.

    Args:
        rank: Global rank.
        lanes: Thinned lanes of the rank.
        origin: Start of the step on the first rank. Unit: ns since 1970.
    """
    parts = [_lane_table(rank, lane, origin) for lane in sorted(lanes, key=lambda lane: lane.lane)]
    return pa.concat_tables(parts) if parts else TIMELINE.schema().empty_table()


def _lane_table(rank: int, lane: LaneSpans, origin: int) -> pa.Table:
    schema = TIMELINE.schema()
    num_spans = len(lane.start)
    columns: dict[str, Any] = {
        "rank": pa.array(np.full(num_spans, rank)),
        "lane": pa.repeat(lane.lane, num_spans),
        "t_start_ns": pa.array(lane.start - origin),
        "duration_ns": pa.array(lane.end - lane.start),
    }
    look = pa.array(lane.look)
    for name in Look._fields:
        values = pa.array([getattr(distinct, name) for distinct in lane.looks], schema.field(name).type)
        columns[name] = values.take(look)
    return pa.table({name: columns[name] for name in schema.names}, schema)


class DrawnRank(NamedTuple):
    """One rank of the timeline.

    Attributes:
        rank: Global rank.
        step: Step to draw, on the rank's clock.
        folder: Folder of the rank's tables; times of `timeline` there are since 1970 on the rank's clock.
        align: Converts times from the rank's clock to the common clock.
    """

    rank: int
    step: Step
    folder: Path
    align: Callable[[Int64], Int64]


class DrawnTime(NamedTuple):
    """Start and end of the drawn time on the common clock, both 0 if nothing is drawn. Unit: ns since 1970."""

    start: int
    end: int


def write_timeline(path: Path, ranks: Sequence[DrawnRank]) -> DrawnTime:
    """Write table `timeline` of all ranks and return the time it shows."""
    borders = [rank.align(np.array(rank.step[1:], dtype=np.int64)) for rank in ranks]
    drawn = DrawnTime(min((int(b[0]) for b in borders), default=0), max((int(b[1]) for b in borders), default=0))
    num_cells = cells_per_lane(len(ranks))
    with TIMELINE.writer(path) as append:
        for rank in ranks:
            lanes = [moved_lane(lane, rank.align) for lane in read_lanes(read_rank_table(rank.folder, TIMELINE))]
            append(span_table(rank.rank, [thin_lane(lane, *drawn, num_cells) for lane in lanes], drawn.start))
    return drawn


def read_lanes(table: pa.Table) -> list[LaneSpans]:
    """Return the lanes in one rank's rows of table `timeline`."""
    return [_lane(lane, table.filter(pc.equal(table["lane"], lane))) for lane in pc.unique(table["lane"]).to_pylist()]


def _lane(name: str, table: pa.Table) -> LaneSpans:
    looks, look = distinct_values(table, Look._fields)
    start = table["t_start_ns"].to_numpy()
    return LaneSpans(name, [Look(*row) for row in looks], start, start + table["duration_ns"].to_numpy(), look)


def moved_lane(lane: LaneSpans, align: Callable[[Int64], Int64]) -> LaneSpans:
    """Return a lane with its times converted to another clock."""
    return replace(lane, start=align(lane.start), end=align(lane.end))
