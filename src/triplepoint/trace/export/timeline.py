"""The lanes of one step, thinned to what the eye can see, as rows of table `timeline`."""

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from triplepoint.tables import TIMELINE
from triplepoint.trace.export.overlap import Int64
from triplepoint.trace.export.thin import NUM_CELLS, Thinner

LANES = ("phase", "compute", "comm", "memory")
"""From top to bottom: what a rank was told to do, its computation, its communication, its copies and fills."""

_CELLS_PER_RUN = 32_000
_FEWEST_CELLS = 1000
"""No fewer than the pixels a figure has, however many ranks there are."""


class Look(NamedTuple):
    """What spans that are drawn alike have in common.

    Attributes:
        label: forward, backward, optimizer, ... or the kind of computation, communication or copy.
        group: Role of a collective's process group; None otherwise or where not known.
        stage: Pipeline stage of a phase.
        microbatch: Micro-batch of a phase.
    """

    label: str
    group: str | None = None
    stage: int | None = None
    microbatch: int | None = None


@dataclass(frozen=True)
class LaneSpans:
    """Spans of one lane of one rank, shape of every array (num_spans,).

    Attributes:
        lane: One of `LANES`.
        looks: Distinct looks.
        start: By time. Unit: ns since 1970.
        end: Unit: ns since 1970.
        look: Index into `looks`.
    """

    lane: str
    looks: list[Look]
    start: Int64
    end: Int64
    look: Int64


def cells_per_lane(num_ranks: int) -> int:
    """Return into how many cells to thin a lane, so that a run of 32 ranks weighs no more than one of eight."""
    return max(_FEWEST_CELLS, min(NUM_CELLS, _CELLS_PER_RUN // max(num_ranks, 1)))


def thin_lane(lane: LaneSpans, start_ns: int, end_ns: int, num_cells: int = NUM_CELLS) -> LaneSpans:
    """Return a lane cut to a stretch of time and thinned; spans in any order.

    Args:
        lane: What to thin.
        start_ns: Start of the stretch. Unit: ns since 1970.
        end_ns: Its end. Unit: ns since 1970.
        num_cells: See `Thinner`.
    """
    if end_ns <= start_ns:
        return LaneSpans(lane.lane, lane.looks, *(np.empty(0, dtype=np.int64) for _ in range(3)))
    order = np.argsort(lane.start, kind="stable")
    thinner = Thinner(start_ns, end_ns, num_cells)
    thinner.add(lane.start[order], lane.end[order], lane.look[order])
    return LaneSpans(lane.lane, lane.looks, *thinner.finish())


def span_table(rank: int, lanes: list[LaneSpans], origin: int) -> pa.Table:
    """Return the rows of `timeline` of one rank, by lane and time.

    Args:
        rank: Rank the lanes are of.
        lanes: Its thinned lanes.
        origin: When the step began on the earliest rank. Unit: ns since 1970.
    """
    parts = [_lane_table(rank, lane, origin) for lane in sorted(lanes, key=lambda lane: lane.lane)]
    return pa.concat_tables(parts) if parts else TIMELINE.schema().empty_table()


def _lane_table(rank: int, lane: LaneSpans, origin: int) -> pa.Table:
    schema = TIMELINE.schema()
    number = len(lane.start)
    columns: dict[str, Any] = {
        "rank": pa.array(np.full(number, rank)),
        "lane": pa.repeat(lane.lane, number),
        "t_start_ns": pa.array(lane.start - origin),
        "duration_ns": pa.array(lane.end - lane.start),
    }
    look = pa.array(lane.look)
    for name in Look._fields:
        values = pa.array([getattr(one, name) for one in lane.looks], schema.field(name).type)
        columns[name] = values.take(look)
    return pa.table({name: columns[name] for name in schema.names}, schema)
