"""The lanes of all ranks on one clock: table `timeline`, and the merged trace for Perfetto."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from triplepoint.tables import TIMELINE
from triplepoint.trace.export.overlap import Int64
from triplepoint.trace.export.perfetto import CounterTrack, RankTimeline, rank_process, write_perfetto
from triplepoint.trace.export.timeline import LaneSpans, Look, cells_per_lane, span_table, thin_lane
from triplepoint.trace.lanes import Step

_LOOK = list(Look._fields)


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
            lanes = [_aligned(lane, one.align) for lane in _lanes(TIMELINE.read(one.timeline))]
            append(span_table(one.rank, [thin_lane(lane, *drawn, num_cells) for lane in lanes], drawn.start))
    return drawn


def write_merged(
    path: Path, timeline: Path, drawn: Drawn, counters: Sequence[CounterTrack], title: Callable[[int], str]
) -> None:
    """Write the merged trace.

    Args:
        path: File to write.
        timeline: Table `timeline` of all ranks.
        drawn: What time it shows.
        counters: Tracks of power, temperature and clocks, on the common clock.
        title: Returns what a rank is called.
    """
    table = TIMELINE.read(timeline)
    ranks = pc.unique(table["rank"]).to_pylist()
    timelines = (
        RankTimeline(
            rank_process(rank, title(rank)),
            [
                _aligned(lane, lambda time: time + drawn.start)
                for lane in _lanes(table.filter(pc.equal(table["rank"], rank)))
            ],
        )
        for rank in ranks
    )
    first = min([drawn.start, *(int(track.t_ns[0]) for track in counters if len(track.t_ns))])
    write_perfetto(path, timelines, counters, first)


def _lanes(table: pa.Table) -> list[LaneSpans]:
    return [_lane(lane, table.filter(pc.equal(table["lane"], lane))) for lane in pc.unique(table["lane"]).to_pylist()]


def _lane(name: str, table: pa.Table) -> LaneSpans:
    looks: dict[tuple[Any, ...], int] = {}
    rows = zip(*(table[column].to_pylist() for column in _LOOK), strict=True)
    look = np.array([looks.setdefault(row, len(looks)) for row in rows], dtype=np.int64)
    start = table["t_start_ns"].to_numpy()
    return LaneSpans(name, [Look(*row) for row in looks], start, start + table["duration_ns"].to_numpy(), look)


def _aligned(lane: LaneSpans, align: Callable[[Int64], Int64]) -> LaneSpans:
    return replace(lane, start=align(lane.start), end=align(lane.end))
