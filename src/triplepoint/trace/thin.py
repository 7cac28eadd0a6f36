"""Thin a lane of spans for drawing: wide spans stay exact, narrow ones are merged into runs within cells.

The drawn time is divided into equal cells. A span at least as wide as a cell keeps its borders. Of the narrower spans
in a cell, the two labels with most time get one run each, as long as the time of that label. The time of further labels
is added to the second run, then to the first, as long as that cannot turn a minority into a majority. Any time left
after that is drawn as empty (rare: three or more labels with about equal time).

Guarantee for every range of whole cells, that is, for every pixel of a picture `num_cells`, `num_cells / 2`,
`num_cells / 3`, ... pixels wide: if one label (or emptiness) covers more than half of it before thinning, it covers
more of it than any other label after. Proof: in every cell, for any labels M and Z, after(M) - after(Z) >= 2 before(M)
- cell; this also holds for sums over cells. A pixel whose borders are inside cells can be wrong by these two cells. No
thinning to a bounded number of spans could be right for all pixels of all widths.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from triplepoint.trace import Int64

_NEVER = np.iinfo(np.int64).max


class Spans(NamedTuple):
    """Spans of one lane; shape of every array (num_spans,)."""

    start: Int64
    """Unit: ns since 1970."""
    end: Int64
    """Unit: ns since 1970."""
    label: Int64
    """Number of the span's label, given by the caller."""

    def at(self, rows: npt.NDArray | slice) -> "Spans":
        """Return the spans selected by indices, a mask, or a slice."""
        return Spans(self.start[rows], self.end[rows], self.label[rows])

    def then(self, other: "Spans") -> "Spans":
        """Return these spans followed by `other`."""
        return Spans(*(np.concatenate(pair) for pair in zip(self, other, strict=True)))


def no_spans() -> Spans:
    """Return an empty set of spans."""
    empty = np.empty(0, dtype=np.int64)
    return Spans(empty, empty, empty)


class LatestWins:
    """Assigns every instant to the running span that started last; among equal starts, to the one added last.

    So long spans stay visible around shorter ones on top of them. Between calls only spans that may be visible again
    are kept: as many as run at once.
    """

    def __init__(self) -> None:
        self._running = no_spans()

    def add(self, spans: Spans) -> Spans:
        """Add spans, and return the visible pieces up to the start of the last one, in no order.

        Args:
            spans: Sorted by start, none empty, and none before the last span of the previous call.
        """
        if not len(spans.start):
            return no_spans()
        # The running spans were cut up to the start of the last one of the previous call.
        num_running = len(self._running.start)
        all_spans = self._running.then(spans)
        below = _span_below(all_spans)
        pieces = _cut(all_spans, below, max(num_running - 1, 0))
        stack = [len(all_spans.start) - 1]
        while below[stack[-1]] >= 0:
            stack.append(int(below[stack[-1]]))
        self._running = all_spans.at(np.array(stack[::-1]))
        return pieces

    def finish(self) -> Spans:
        """Return the remaining pieces: from the start of the last span on."""
        last = self._running
        self._running = no_spans()
        if not len(last.start):
            return last
        # Each span is visible again from the end of the span on top of it.
        start = np.concatenate((last.end[1:], last.start[-1:]))
        return Spans(start, last.end, last.label)


def _span_below(spans: Spans) -> Int64:
    """Return for each span the one that is visible after it: the latest span before it that ends later; -1 if none."""
    end = np.append(spans.end, _NEVER)  # index -1 refers to this end, which terminates the search
    below = np.arange(-1, len(spans.end), dtype=np.int64)
    below = np.append(below[: len(spans.end)], -1)
    latest_end = np.maximum.accumulate(spans.end)
    below[np.flatnonzero(latest_end[:-1] <= spans.start[1:]) + 1] = -1
    searching = np.flatnonzero(end[below[:-1]] <= spans.end)
    # A candidate that ends too early is replaced by its own candidate, so that distances double in every round.
    while len(searching):
        below[searching] = below[below[searching]]
        searching = searching[end[below[searching]] <= spans.end[searching]]
    return below[:-1]


def _cut(spans: Spans, below: Int64, first: int) -> Spans:
    """Return the visible pieces from the start of span `first` to the start of the last span."""
    owner = np.arange(first, len(spans.start) - 1)
    start, until = spans.start[first:-1], spans.start[first + 1 :]
    starts, ends, owners = [], [], []
    while len(owner):
        end = np.minimum(spans.end[owner], until)
        is_visible = end > start
        starts.append(start[is_visible])
        ends.append(end[is_visible])
        owners.append(owner[is_visible])
        is_left = (end < until) & (below[owner] >= 0)
        start, until, owner = end[is_left], until[is_left], below[owner[is_left]]
    if not owners:
        return no_spans()
    return Spans(np.concatenate(starts), np.concatenate(ends), spans.label[np.concatenate(owners)])


def latest_wins(start: Int64, end: Int64) -> Spans:
    """Assign every instant to one of the spans running, as `LatestWins` does.

    Args:
        start: Starts in any order. Unit: ns.
        end: Ends; spans that end no later than they start get no time. Unit: ns.

    Returns:
        Segments by time, none of them empty; the label of each is the index of its span.
    """
    order = np.argsort(start, kind="stable")
    order = order[end[order] > start[order]]
    lane = LatestWins()
    pieces = lane.add(Spans(start[order], end[order], order))
    return join(_by_time(pieces.then(lane.finish())))


def _by_time(spans: Spans) -> Spans:
    return spans.at(np.argsort(spans.start, kind="stable"))


def join(spans: Spans) -> Spans:
    """Merge adjacent spans with the same label; the spans are disjoint and sorted by time."""
    if not len(spans.start):
        return spans
    opens = np.append(True, (spans.start[1:] != spans.end[:-1]) | (spans.label[1:] != spans.label[:-1]))
    closes = np.append(opens[1:], True)
    return Spans(spans.start[opens], spans.end[closes], spans.label[opens])


NUM_CELLS = 4000
"""Default number of cells: more than the pixels of a screen or a figure."""


class Thinner:
    """Thins one lane from a stream of spans. Memory grows with cells and simultaneous spans, not with all spans.

    Where spans overlap, an instant belongs to the one that started last. A run never covers an empty cell, and extends
    no further than the spans it replaces. The result does not depend on how spans are divided among calls.
    """

    def __init__(self, start_ns: int, end_ns: int, num_cells: int = NUM_CELLS) -> None:
        """Start with no spans.

        Args:
            start_ns: Start of the drawn time; earlier parts of spans are cut off. Unit: ns.
            end_ns: End of the drawn time, after its start. Unit: ns.
            num_cells: Number of cells, each at least 1 ns long. The result has at most three spans per cell.

        Raises:
            ValueError: If the drawn time or the number of cells is not positive.
        """
        if end_ns <= start_ns or num_cells < 1:
            raise ValueError(f"cannot thin {num_cells} cells of {start_ns} to {end_ns} ns")
        self._grid = _Grid(start_ns, end_ns - start_ns, min(num_cells, end_ns - start_ns))
        self._latest_start = start_ns
        self._lane = LatestWins()
        self._wide: list[Spans] = []
        self._open_shares = _no_shares()
        """Time of narrow spans in cells that are not complete yet."""
        self._mixes: list[_Mixes] = []

    def add(self, start: Int64, end: Int64, label: Int64) -> None:
        """Add more spans of the lane.

        Args:
            start: Starts, sorted, none before the last one of an earlier call. Shape (num_spans,). Unit: ns.
            end: Ends; empty spans are left out. Shape (num_spans,). Unit: ns.
            label: Number of each span's label, from 0. Shape (num_spans,).

        Raises:
            ValueError: If spans are not in order of start.
        """
        first, duration = self._grid.start, self._grid.duration
        start = np.clip(start, first, first + duration)
        end = np.clip(end, first, first + duration)
        if len(start) and (int(start[0]) < self._latest_start or (start[1:] < start[:-1]).any()):
            raise ValueError("spans of a lane must come in order of start")
        spans = Spans(start, end, label).at(end > start)
        if len(spans.start):
            self._latest_start = int(spans.start[-1])
            self._add_pieces(self._lane.add(spans), self._latest_start)

    def finish(self) -> tuple[Int64, Int64, Int64]:
        """Return start, end and label of the thinned spans: by time, disjoint, at most three per cell."""
        grid = self._grid
        self._add_pieces(self._lane.finish(), grid.start + grid.duration)
        thinned = _by_time(Spans(*_concatenate(self._wide))) if self._wide else no_spans()
        if self._mixes:
            runs = _runs(_Mixes(*_concatenate(self._mixes)), _free_time(grid, thinned))
            thinned = _by_time(thinned.then(join(_by_time(runs))))
        return thinned.start, thinned.end, thinned.label

    def _add_pieces(self, pieces: Spans, complete_until: int) -> None:
        """Keep wide pieces, divide the others among cells, and close the cells that end before `complete_until`."""
        is_wide = self._grid.is_wide(pieces)
        if is_wide.any():
            self._wide.append(pieces.at(is_wide))
            pieces = pieces.at(~is_wide)
        shares = _merge_shares(self._open_shares, _shares(pieces, self._grid))
        is_complete = shares.cell < self._grid.cell(complete_until)
        if is_complete.any():
            self._mixes.append(_mix(shares.at(is_complete)))
        self._open_shares = shares.at(~is_complete)


class _Grid(NamedTuple):
    """The cells: cell k covers ceil(k * duration / num_cells) to ceil((k + 1) * duration / num_cells) after `start`."""

    start: int
    duration: int
    num_cells: int

    def cell(self, time: Int64 | int) -> Int64:
        """Return the cell of each time."""
        return (np.asarray(time) - self.start) * self.num_cells // self.duration

    def border(self, cell: Int64) -> Int64:
        """Return the start of each cell. Unit: ns."""
        return -(-cell * self.duration // self.num_cells) + self.start

    def is_wide(self, spans: Spans) -> np.ndarray:
        """Return which spans are at least as wide as a cell."""
        return np.asarray((spans.end - spans.start) * self.num_cells >= self.duration)


class _Shares(NamedTuple):
    """Time of narrow spans per cell and label, sorted by both; shape of every array (num_shares,)."""

    cell: Int64
    label: Int64
    time: Int64
    """Sum over spans. Unit: ns."""
    start: Int64
    """Start of the first span. Unit: ns."""
    end: Int64
    """End of the last span. Unit: ns."""

    def at(self, rows: np.ndarray) -> "_Shares":
        """Return the entries selected by indices or a mask."""
        return _Shares(*(column[rows] for column in self))


def _no_shares() -> _Shares:
    return _Shares(*(np.empty(0, dtype=np.int64) for _ in _Shares._fields))


def _shares(spans: Spans, grid: _Grid) -> _Shares:
    """Return narrow spans by cell, in no order. A span across a border is cut in two; it never covers three cells."""
    cell = grid.cell(spans.start)
    border = grid.border(cell + 1)
    crosses = np.flatnonzero(spans.end > border)
    start = np.concatenate((spans.start, border[crosses]))
    end = np.concatenate((np.minimum(spans.end, border), spans.end[crosses]))
    label = np.concatenate((spans.label, spans.label[crosses]))
    return _Shares(np.concatenate((cell, cell[crosses] + 1)), label, end - start, start, end)


def _merge_shares(one: _Shares, other: _Shares) -> _Shares:
    """Merge two sets of shares into one with one entry per cell and label."""
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
    """Narrow spans of each cell that has any, sorted by time; shape of every array (num_cells_used,)."""

    cell: Int64
    start: Int64
    """Start of the first narrow span. Unit: ns."""
    end: Int64
    """End of the last narrow span. Unit: ns."""
    covered: Int64
    """Time of all narrow spans. Unit: ns."""
    first_label: Int64
    """Label with most time; among equals the one that starts first."""
    first_time: Int64
    """Time of that label. Unit: ns."""
    second_label: Int64
    """Label with second most time; the first label if there is no other."""
    third_time: Int64
    """Time of the label with third most time; 0 if there is none. Unit: ns."""
    second_starts_first: np.ndarray
    """Whether the second label starts before the first one."""


def _mix(shares: _Shares) -> _Mixes:
    """Return the labels with most time in each cell of `shares`, which are sorted by cell."""
    order = np.lexsort((shares.label, shares.start, -shares.time, shares.cell))
    cell, label, time, start, end = shares.at(order)
    opens = np.flatnonzero(np.append(True, cell[1:] != cell[:-1]))
    size = np.diff(np.append(opens, len(cell)))
    # In a cell with fewer labels the first one is used instead.
    second, third = opens + (size > 1), opens + 2 * (size > 2)
    return _Mixes(
        cell=cell[opens],
        start=np.minimum.reduceat(start, opens),
        end=np.maximum.reduceat(end, opens),
        covered=np.add.reduceat(time, opens),
        first_label=label[opens],
        first_time=time[opens],
        second_label=label[second],
        third_time=np.where(size > 2, time[third], 0),
        second_starts_first=start[second] < start[opens],
    )


def _free_time(grid: _Grid, wide: Spans) -> Int64:
    """Return the time of each cell without wide spans. Shape (num_cells,). Unit: ns."""
    borders = grid.border(np.arange(grid.num_cells + 1))
    covered = np.concatenate(([0], np.cumsum(wide.end - wide.start)))
    before = np.searchsorted(wide.end, borders, side="right")
    part = np.zeros(len(borders), dtype=np.int64)
    inside = before < len(wide.start)
    part[inside] = np.maximum(borders[inside] - wide.start[before[inside]], 0)
    return np.diff(borders) - np.diff(covered[before] + part)


def _runs(mixes: _Mixes, free: Int64) -> Spans:
    """Return the runs of all cells, in no order.

    The second run grows by the time of further labels, then the first. Neither exceeds the free time minus twice the
    time of the third label: beyond that it could win over a third label with the majority of a wider pixel.
    """
    covered, limit = mixes.covered, free[mixes.cell] - 2 * mixes.third_time
    second_time = np.minimum(covered - mixes.first_time, limit)
    first_time = np.minimum(covered - second_time, limit)
    # The label that starts first gets the beginning of the time covered by narrow spans, the other one its end.
    first_start = np.where(mixes.second_starts_first, mixes.end - first_time, mixes.start)
    second_start = np.where(mixes.second_starts_first, mixes.start, mixes.end - second_time)
    has_second = second_time > 0
    return Spans(first_start, first_start + first_time, mixes.first_label).then(
        Spans(second_start, second_start + second_time, mixes.second_label).at(has_second)
    )


def _concatenate(parts: Sequence[tuple[np.ndarray, ...]]) -> Iterator[np.ndarray]:
    """Concatenate each column of several tuples of columns."""
    return map(np.concatenate, zip(*parts, strict=True))
