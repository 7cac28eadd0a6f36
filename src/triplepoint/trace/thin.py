"""Thinning of a lane of spans for drawing: what is wide enough to see stays exact, the rest becomes runs in cells.

The time looked at is divided into equal cells. A span at least as wide as a cell keeps its borders. Of all shorter ones
in a cell, the two labels with most time there get a run each, as long as their time. Time of further labels goes to the
second run, then to the first, as far as that cannot turn a minority into a majority; only what is left after that is
drawn empty though it was not (rare: three labels or more, about equal).

What holds for every stretch of whole cells, that is, for every pixel of a picture `num_cells`, `num_cells / 2`,
`num_cells / 3`, ... pixels wide: if one label (or emptiness) covers more than half of it before, it covers more of it
than any other after. Proof: in every cell, for any labels M and Z, after(M) - after(Z) >= 2 before(M) - cell; sums keep
that. A pixel that cuts cells at its borders can be wrong about those two; no thinner that keeps a bounded number of
spans could be right about all pixels of all widths.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from triplepoint.trace import Int64

_NEVER = np.iinfo(np.int64).max


class Spans(NamedTuple):
    """Spans of one lane, shape of every array (num_spans,)."""

    start: Int64
    """Unit: ns since 1970."""
    end: Int64
    """Unit: ns since 1970."""
    label: Int64
    """What the caller knows the span's looks by."""

    def at(self, rows: npt.NDArray | slice) -> "Spans":
        """Return the spans in `rows`: numbers, a mask, or a slice."""
        return Spans(self.start[rows], self.end[rows], self.label[rows])

    def then(self, other: "Spans") -> "Spans":
        """Return these spans followed by `other`."""
        return Spans(*(np.concatenate(pair) for pair in zip(self, other, strict=True)))


def no_spans() -> Spans:
    """Return no spans at all."""
    nothing = np.empty(0, dtype=np.int64)
    return Spans(nothing, nothing, nothing)


class LatestWins:
    """Gives every instant to the span that started last among those running, of equal starts to the one given last.

    Long spans stay visible around the short ones that run over them. Kept between calls is only what may still be seen
    again: as many spans as run at once.
    """

    def __init__(self) -> None:
        self._running = no_spans()

    def add(self, spans: Spans) -> Spans:
        """Return what is settled once `spans` are known: pieces up to the start of the last one, in no order.

        Args:
            spans: In order of start, none before the last one of the previous call, none empty.
        """
        if not len(spans.start):
            return no_spans()
        # What was running has been cut up to the start of the last span before these.
        num_known = len(self._running.start)
        known = self._running.then(spans)
        below = _span_below(known)
        pieces = _cut(known, below, max(num_known - 1, 0))
        stack = [len(known.start) - 1]
        while below[stack[-1]] >= 0:
            stack.append(int(below[stack[-1]]))
        self._running = known.at(np.array(stack[::-1]))
        return pieces

    def finish(self) -> Spans:
        """Return the pieces that are left: from the start of the last span on."""
        last = self._running
        self._running = no_spans()
        if not len(last.start):
            return last
        # From the last to the first, each is seen from when the one over it ends.
        start = np.concatenate((last.end[1:], last.start[-1:]))
        return Spans(start, last.end, last.label)


def _span_below(spans: Spans) -> Int64:
    """Return for each span the latest one before it that outlasts it, -1 where there is none: it is seen again next."""
    end = np.append(spans.end, _NEVER)  # a span below of -1 is this one, which ends the search
    below = np.arange(-1, len(spans.end), dtype=np.int64)
    below = np.append(below[: len(spans.end)], -1)
    reached = np.maximum.accumulate(spans.end)
    below[np.flatnonzero(reached[:-1] <= spans.start[1:]) + 1] = -1
    waiting = np.flatnonzero(end[below[:-1]] <= spans.end)
    # A candidate that ends too early hands over its own candidate: distances double from round to round.
    while len(waiting):
        below[waiting] = below[below[waiting]]
        waiting = waiting[end[below[waiting]] <= spans.end[waiting]]
    return below[:-1]


def _cut(spans: Spans, below: Int64, first: int) -> Spans:
    """Return what is seen from the start of span `first` to the start of the last one."""
    owner = np.arange(first, len(spans.start) - 1)
    now, until = spans.start[first:-1], spans.start[first + 1 :]
    starts, ends, owners = [], [], []
    while len(owner):
        end = np.minimum(spans.end[owner], until)
        seen = end > now
        starts.append(now[seen])
        ends.append(end[seen])
        owners.append(owner[seen])
        left = (end < until) & (below[owner] >= 0)
        now, until, owner = end[left], until[left], below[owner[left]]
    if not owners:
        return no_spans()
    return Spans(np.concatenate(starts), np.concatenate(ends), spans.label[np.concatenate(owners)])


def latest_wins(start: Int64, end: Int64) -> Spans:
    """Cut time among spans in any order, as `LatestWins` does.

    Args:
        start: Starts. Unit: ns.
        end: Ends; spans that end no later than they start get nothing. Unit: ns.

    Returns:
        Segments by time, none of them empty; the label of each is the index of the span it belongs to.
    """
    order = np.argsort(start, kind="stable")
    order = order[end[order] > start[order]]
    lane = LatestWins()
    pieces = lane.add(Spans(start[order], end[order], order))
    return join(_by_time(pieces.then(lane.finish())))


def _by_time(spans: Spans) -> Spans:
    return spans.at(np.argsort(spans.start, kind="stable"))


def join(spans: Spans) -> Spans:
    """Return disjoint spans by time with those that touch and have the same label as one."""
    if not len(spans.start):
        return spans
    opens = np.append(True, (spans.start[1:] != spans.end[:-1]) | (spans.label[1:] != spans.label[:-1]))
    closes = np.append(opens[1:], True)
    return Spans(spans.start[opens], spans.end[closes], spans.label[opens])


NUM_CELLS = 4000
"""More than the pixels of a screen or a figure."""


class Thinner:
    """Thins one lane as its spans stream by; memory depends on cells and on spans at once, not on their number.

    Where spans overlap, an instant belongs to the one that started last. A run never bridges a cell that holds nothing,
    reaches no further than the spans it stands for, and the same spans thinned in one call or in many give the same.
    """

    def __init__(self, start_ns: int, end_ns: int, num_cells: int = NUM_CELLS) -> None:
        """Begin.

        Args:
            start_ns: Start of the time looked at; what lies before is cut off. Unit: ns.
            end_ns: Its end, later than its start. Unit: ns.
            num_cells: Cells it is divided into; at most three spans a cell come out. Cells are never below 1 ns.

        Raises:
            ValueError: If there is no time to look at, or no cell.
        """
        if end_ns <= start_ns or num_cells < 1:
            raise ValueError(f"cannot thin {num_cells} cells of {start_ns} to {end_ns} ns")
        self._grid = _Grid(start_ns, end_ns - start_ns, min(num_cells, end_ns - start_ns))
        self._latest = start_ns
        self._lane = LatestWins()
        self._wide: list[Spans] = []
        self._open = _no_shares()
        self._mixes: list[_Mixes] = []

    def add(self, start: Int64, end: Int64, label: Int64) -> None:
        """Take in more spans of the lane.

        Args:
            start: Starts, none before the last one of an earlier call. Shape (num_spans,). Unit: ns.
            end: Ends; a span that ends where it starts covers nothing and is left out. Shape (num_spans,). Unit: ns.
            label: Number of each span's label, from 0. Shape (num_spans,).

        Raises:
            ValueError: If spans are not in order of start.
        """
        first, duration = self._grid.start, self._grid.duration
        start = np.clip(start, first, first + duration)
        end = np.clip(end, first, first + duration)
        if len(start) and (int(start[0]) < self._latest or (start[1:] < start[:-1]).any()):
            raise ValueError("spans of a lane must come in order of start")
        spans = Spans(start, end, label).at(end > start)
        if len(spans.start):
            self._latest = int(spans.start[-1])
            self._take(self._lane.add(spans), self._latest)

    def finish(self) -> tuple[Int64, Int64, Int64]:
        """Return start, end and label of what is left: by time, not overlapping, at most three a cell."""
        grid = self._grid
        self._take(self._lane.finish(), grid.start + grid.duration)
        thinned = _by_time(Spans(*_chain(self._wide))) if self._wide else no_spans()
        if self._mixes:
            runs = _runs(_Mixes(*_chain(self._mixes)), _free(grid, thinned))
            thinned = _by_time(thinned.then(join(_by_time(runs))))
        return thinned.start, thinned.end, thinned.label

    def _take(self, pieces: Spans, settled: int) -> None:
        """Keep wide pieces, divide the others among cells, and mix the cells that end before `settled`."""
        is_wide = self._grid.is_wide(pieces)
        if is_wide.any():
            self._wide.append(pieces.at(is_wide))
            pieces = pieces.at(~is_wide)
        shares = _total(self._open, _share_out(pieces, self._grid))
        done = shares.cell < self._grid.cell(settled)
        if done.any():
            self._mixes.append(_mix(shares.at(done)))
        self._open = shares.at(~done)


class _Grid(NamedTuple):
    """The cells: cell k covers ceil(k * duration / num_cells) to ceil((k + 1) * duration / num_cells) from `start`."""

    start: int
    duration: int
    num_cells: int

    def cell(self, time: Int64 | int) -> Int64:
        """Return the cells that hold times of the grid."""
        return (np.asarray(time) - self.start) * self.num_cells // self.duration

    def border(self, cell: Int64) -> Int64:
        """Return where cells begin. Unit: ns."""
        return -(-cell * self.duration // self.num_cells) + self.start

    def is_wide(self, spans: Spans) -> np.ndarray:
        """Return which spans are at least as wide as a cell."""
        return np.asarray((spans.end - spans.start) * self.num_cells >= self.duration)


class _Shares(NamedTuple):
    """Time of short spans, one entry per (cell, label), in that order: shape of every array (num_shares,)."""

    cell: Int64
    label: Int64
    time: Int64
    """Summed. Unit: ns."""
    start: Int64
    """Start of the first. Unit: ns."""
    end: Int64
    """End of the last. Unit: ns."""

    def at(self, rows: np.ndarray) -> "_Shares":
        """Return some of the entries."""
        return _Shares(*(column[rows] for column in self))


def _no_shares() -> _Shares:
    return _Shares(*(np.empty(0, dtype=np.int64) for _ in _Shares._fields))


def _share_out(spans: Spans, grid: _Grid) -> _Shares:
    """Return short spans by cell, in no order; one that lies in two cells is cut in two. It is in three never."""
    cell = grid.cell(spans.start)
    border = grid.border(cell + 1)
    crosses = np.flatnonzero(spans.end > border)
    start = np.concatenate((spans.start, border[crosses]))
    end = np.concatenate((np.minimum(spans.end, border), spans.end[crosses]))
    label = np.concatenate((spans.label, spans.label[crosses]))
    return _Shares(np.concatenate((cell, cell[crosses] + 1)), label, end - start, start, end)


def _total(one: _Shares, other: _Shares) -> _Shares:
    """Return two collections as one, with one entry per cell and label."""
    both = _Shares(*(np.concatenate(pair) for pair in zip(one, other, strict=True)))
    if not len(both.cell):
        return both
    num_labels = int(both.label.max()) + 1
    first_cell = int(both.cell.min())
    key = (both.cell - first_cell) * num_labels + both.label
    order = np.argsort(key, kind="stable")
    sorted_key = key[order]
    opens = np.flatnonzero(np.concatenate(([True], sorted_key[1:] != sorted_key[:-1])))
    return _Shares(
        sorted_key[opens] // num_labels + first_cell,
        sorted_key[opens] % num_labels,
        np.add.reduceat(both.time[order], opens),
        np.minimum.reduceat(both.start[order], opens),
        np.maximum.reduceat(both.end[order], opens),
    )


class _Mixes(NamedTuple):
    """What is in a cell, one entry per cell with short spans, by time: shape of every array (num_cells_used,)."""

    cell: Int64
    start: Int64
    """Start of the first short span. Unit: ns."""
    end: Int64
    """End of the last. Unit: ns."""
    covered: Int64
    """Time of all short spans. Unit: ns."""
    most: Int64
    """Label with most time; of equals the one first seen."""
    most_time: Int64
    """Unit: ns."""
    next: Int64
    """Label with most time after it; the same label where there is no other."""
    third_time: Int64
    """Time of the label after those; 0 where there is none. Unit: ns."""
    is_next_first: np.ndarray
    """Whether the second label is the one first seen."""


def _mix(shares: _Shares) -> _Mixes:
    """Return what there is in each cell of `shares`, which come by cell."""
    order = np.lexsort((shares.label, shares.start, -shares.time, shares.cell))
    cell, label, time, start, end = shares.at(order)
    opens = np.flatnonzero(np.append(True, cell[1:] != cell[:-1]))
    size = np.diff(np.append(opens, len(cell)))
    # Where a cell has fewer labels, its first stands in.
    second, third = opens + (size > 1), opens + 2 * (size > 2)
    return _Mixes(
        cell=cell[opens],
        start=np.minimum.reduceat(start, opens),
        end=np.maximum.reduceat(end, opens),
        covered=np.add.reduceat(time, opens),
        most=label[opens],
        most_time=time[opens],
        next=label[second],
        third_time=np.where(size > 2, time[third], 0),
        is_next_first=start[second] < start[opens],
    )


def _free(grid: _Grid, wide: Spans) -> Int64:
    """Return how much of each cell wide spans leave. Shape (num_cells,). Unit: ns."""
    borders = grid.border(np.arange(grid.num_cells + 1))
    covered = np.concatenate(([0], np.cumsum(wide.end - wide.start)))
    before = np.searchsorted(wide.end, borders, side="right")
    part = np.zeros(len(borders), dtype=np.int64)
    inside = before < len(wide.start)
    part[inside] = np.maximum(borders[inside] - wide.start[before[inside]], 0)
    return np.diff(borders) - np.diff(covered[before] + part)


def _runs(mixes: _Mixes, free: Int64) -> Spans:
    """Return the runs of all cells, in no order.

    The second run grows by the time of further labels, then the first, none beyond what would let it win over the third
    label where that has the majority of a wider pixel: the free time less twice the third's.
    """
    covered, limit = mixes.covered, free[mixes.cell] - 2 * mixes.third_time
    next_time = np.minimum(covered - mixes.most_time, limit)
    most_time = np.minimum(covered - next_time, limit)
    # The run of the label first seen begins where the short spans begin, the other ends where they end.
    most_start = np.where(mixes.is_next_first, mixes.end - most_time, mixes.start)
    next_start = np.where(mixes.is_next_first, mixes.start, mixes.end - next_time)
    has_next = next_time > 0
    return Spans(most_start, most_start + most_time, mixes.most).then(
        Spans(next_start, next_start + next_time, mixes.next).at(has_next)
    )


def _chain(parts: Sequence[tuple[np.ndarray, ...]]) -> Iterator[np.ndarray]:
    """Return each column of many collections as one."""
    return map(np.concatenate, zip(*parts, strict=True))
