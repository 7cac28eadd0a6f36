"""The drawn timeline of one step: phases and communication of a rank, thinned to what the eye can see."""

from typing import Any, NamedTuple

from triplepoint.trace.lanes import Step
from triplepoint.trace.rank.phases import Phases
from triplepoint.trace.rank.work import Work

_VISIBLE_SHARE = 1 / 2000
"""Share of a step below which a gap or a span is narrower than a pixel of a wide figure."""
_MOST_SPANS = 5000


class Span(NamedTuple):
    """One drawn span on the wall clock. Unit: ns since 1970."""

    lane: str
    label: str
    group: str | None
    stage: int | None
    microbatch: int | None
    start: int
    end: int

    @property
    def looks(self) -> tuple[Any, ...]:
        """Return what two spans must share to be drawn as one."""
        return self[:5]


def step_spans(step: Step, phases: Phases, work: Work) -> list[Span]:
    """Return the spans of one step: at most 5,000, or as many as look different.

    Spans that look the same and are closer than 1/2000 of the step are joined; a span shorter than that is left out
    only where another of its lane covers it.
    """
    spans = [
        span for span in _phase_spans(phases) + _comm_spans(work) if span.end > step.start and span.start < step.end
    ]
    clipped = [span._replace(start=max(span.start, step.start), end=min(span.end, step.end)) for span in spans]
    duration = step.end - step.start
    visible = max(int(duration * _VISIBLE_SHARE), 1)
    thinned = _drop_covered(_join(clipped, visible), visible)
    # Spans that all look different cannot be joined, however coarse the eye.
    while len(thinned) > _MOST_SPANS and visible < duration:
        visible *= 2
        thinned = _drop_covered(_join(thinned, visible), visible)
    return thinned


def span_rows(rank: int, spans: list[Span], origin: int) -> list[dict[str, Any]]:
    """Return the rows of `timeline`.

    Args:
        rank: Rank the spans are of.
        spans: Its spans.
        origin: When the step began on the earliest rank. Unit: ns since 1970.
    """
    return [
        {
            "rank": rank,
            "lane": span.lane,
            "label": span.label,
            "group": span.group,
            "stage": span.stage,
            "microbatch": span.microbatch,
            "t_start_ns": span.start - origin,
            "duration_ns": span.end - span.start,
        }
        for span in sorted(spans, key=lambda span: (span.lane, span.start, span.end))
    ]


def _phase_spans(phases: Phases) -> list[Span]:
    return [
        Span("phase", tag.label, None, tag.stage, tag.microbatch, start, end)
        for start, end, tag in zip(phases.start.tolist(), phases.end.tolist(), phases.tags, strict=True)
    ]


def _comm_spans(work: Work) -> list[Span]:
    rows = work.rows_of("comm")
    labels = [work.labels[index] for index in work.label[rows].tolist()]
    ends = (work.start[rows] + work.duration[rows]).tolist()
    return [
        Span("comm", label.kind, label.group, None, None, start, end)
        for start, end, label in zip(work.start[rows].tolist(), ends, labels, strict=True)
    ]


def _join(spans: list[Span], visible: int) -> list[Span]:
    """Join spans that look the same with less than `visible` between them. Unit: ns."""
    joined: list[Span] = []
    last: dict[tuple[Any, ...], int] = {}
    for span in sorted(spans, key=lambda span: span.start):
        index = last.get(span.looks)
        if index is not None and span.start - joined[index].end < visible:
            joined[index] = joined[index]._replace(end=max(joined[index].end, span.end))
        else:
            last[span.looks] = len(joined)
            joined.append(span)
    return joined


def _drop_covered(spans: list[Span], visible: int) -> list[Span]:
    """Leave out spans shorter than `visible` that lie within a longer one of their lane. Unit: ns."""
    kept = []
    reached: dict[str, int] = {}
    for span in sorted(spans, key=lambda span: (span.start, -span.end)):
        if span.end - span.start < visible and span.end <= reached.get(span.lane, 0):
            continue
        kept.append(span)
        reached[span.lane] = max(reached.get(span.lane, 0), span.end)
    return kept
