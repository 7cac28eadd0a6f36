"""The lanes of a rank's first profiled step, thinned while its work streams by."""

import numpy as np
import pyarrow as pa

from triplepoint.trace.export.thin import Thinner
from triplepoint.trace.export.timeline import LANES, LaneSpans, Look, span_table, thin_lane
from triplepoint.trace.kineto.rows import Int64
from triplepoint.trace.rank.found import Work
from triplepoint.trace.rank.phases import Phases
from triplepoint.trace.rank.slabs import Slab


class Drawing:
    """Thins what runs in the first step."""

    def __init__(self, work: Work) -> None:
        """Look at the first step of some work; at nothing where it has no step of any length."""
        self._base = work.marks.header.base_ns
        labels = work.operations.labels
        self._label_of = np.array(work.operations.label_of, dtype=np.int64)
        self._category = np.array([LANES.index(label.category) if label.category in LANES else -1 for label in labels])
        self._looks = [Look(label.kind, label.group) for label in labels]
        step = work.steps[0] if work.steps and work.steps[0].end > work.steps[0].start else None
        self._thinners = {lane: Thinner(step.start, step.end) for lane in LANES[1:]} if step else {}
        self._phases = thin_lane(_phase_lane(work.phases), step.start, step.end) if step else None

    def add(self, slab: Slab) -> None:
        """Draw the work that begins in a slab."""
        begun = slab.rows[slab.is_begun]
        label = self._label_of[begun["operation"]]
        for lane, thinner in self._thinners.items():
            own = self._category[label] == LANES.index(lane)
            start = begun["start"][own]
            thinner.add(start, start + begun["duration"][own], label[own])

    def rows(self, rank: int) -> pa.Table:
        """Return rows of `timeline`, with times since 1970 on the rank's clock."""
        lanes = [LaneSpans(lane, self._looks, *one.finish()) for lane, one in self._thinners.items()]
        return span_table(rank, [*lanes, *([self._phases] if self._phases else [])], -self._base)


def _phase_lane(phases: Phases) -> LaneSpans:
    looks: dict[Look, int] = {}
    look: Int64 = np.array(
        [looks.setdefault(Look(tag.label, None, tag.stage, tag.microbatch), len(looks)) for tag in phases.tags],
        dtype=np.int64,
    )
    return LaneSpans("phase", list(looks), phases.start, phases.end, look)
