"""Spans of one lane that may overlap, cut as they stream by so that every instant belongs to one of them."""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Int64 = npt.NDArray[np.int64]

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
