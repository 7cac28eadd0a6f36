"""Table `timeline`: the lanes of one step of every rank, thinned to what the eye can see."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from triplepoint.tables import TIMELINE
from triplepoint.trace import Int64
from triplepoint.trace.distinct import distinct_of
from triplepoint.trace.lanes import Step
from triplepoint.trace.thin import NUM_CELLS, Thinner

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


class DrawnRank(NamedTuple):
    """One rank of a drawing.

    Attributes:
        rank: Global rank.
        step: The step to draw, on the rank's clock.
        timeline: Its rows of `timeline`, with times since 1970 on the rank's clock.
        align: Takes times from the rank's clock to the common one.
    """

    rank: int
    step: Step
    timeline: Path
    align: Callable[[Int64], Int64]


class Drawn(NamedTuple):
    """What was drawn: from when to when on the common clock, both 0 if nothing. Unit: ns since 1970."""

    start: int
    end: int


def write_timeline(path: Path, ranks: Sequence[DrawnRank]) -> Drawn:
    """Write table `timeline` of all ranks and return what time it shows."""
    borders = [one.align(np.array(one.step[1:], dtype=np.int64)) for one in ranks]
    drawn = Drawn(min((int(b[0]) for b in borders), default=0), max((int(b[1]) for b in borders), default=0))
    num_cells = cells_per_lane(len(ranks))
    with TIMELINE.writer(path) as append:
        for one in ranks:
            lanes = [moved_lane(lane, one.align) for lane in read_lanes(TIMELINE.read(one.timeline))]
            append(span_table(one.rank, [thin_lane(lane, *drawn, num_cells) for lane in lanes], drawn.start))
    return drawn


def read_lanes(table: pa.Table) -> list[LaneSpans]:
    """Return the lanes in the rows of one rank of `timeline`."""
    return [_lane(lane, table.filter(pc.equal(table["lane"], lane))) for lane in pc.unique(table["lane"]).to_pylist()]


def _lane(name: str, table: pa.Table) -> LaneSpans:
    looks, look = distinct_of(table, Look._fields)
    start = table["t_start_ns"].to_numpy()
    return LaneSpans(name, [Look(*row) for row in looks], start, start + table["duration_ns"].to_numpy(), look)


def moved_lane(lane: LaneSpans, align: Callable[[Int64], Int64]) -> LaneSpans:
    """Return a lane with its times moved to another clock."""
    return replace(lane, start=align(lane.start), end=align(lane.end))
