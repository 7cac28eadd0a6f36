"""Parser of one trace into the tables of its rank, in one pass over its work and in constant memory."""

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from triplepoint.tables import CATEGORIES, COLLECTIVES, INTERVALS, KERNELS, SEGMENTS, TIMELINE
from triplepoint.trace.arrays import Bool, Int64
from triplepoint.trace.export.thin import Thinner
from triplepoint.trace.export.timeline import LANES, LaneSpans, Look, span_table, thin_lane
from triplepoint.trace.kineto.rows import Rows
from triplepoint.trace.lanes import Step
from triplepoint.trace.rank.accounting import ALL, Accounts, Pieces, find_waits
from triplepoint.trace.rank.collective_rows import CollectiveRows
from triplepoint.trace.rank.launches import LAUNCHED
from triplepoint.trace.rank.phases import PHASES, Phases, cut_windows
from triplepoint.trace.rank.process_groups import GroupRecord, Groups
from triplepoint.trace.rank.rank_summary import SUMMARY, Account, RankSummary, write_summary
from triplepoint.trace.rank.slabs import Slab, slabs
from triplepoint.trace.rank.work import Reading, Work, read_work


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


RANK_TABLES = (KERNELS, INTERVALS, CATEGORIES, COLLECTIVES, SEGMENTS, TIMELINE)
"""Tables in the folder of a rank."""

Append = Callable[[pa.Table], None]
Row = dict[str, Any]


def parse_rank(
    path: Path, rank_of: Callable[[int | None], int], folder: Path, record: GroupRecord, how: Reading
) -> RankSummary:
    """Write the tables and the summary of one rank.

    Args:
        path: Its trace.
        rank_of: Returns its rank, given the one written in the trace or None.
        folder: Where they go; the summary is written last and stands for all.
        record: What the launcher wrote down of its process groups.
        how: How to read the trace.

    Raises:
        UserError: If the trace cannot be read, or nothing tells its rank.
    """
    work = read_work(path, record, how)
    rank = rank_of(work.marks.header.rank)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / SUMMARY).unlink(missing_ok=True)
    with contextlib.ExitStack() as stack:
        append = {
            table.name: stack.enter_context(table.writer(folder / f"{table.name}.parquet")) for table in RANK_TABLES
        }
        parsing = _Parsing(rank, work, record, append, keeps_segments=not how.is_alone)
        for slab in slabs(work.rows.blocks(), keep_duplicates=not work.is_device):
            parsing.add(slab)
        summary = parsing.finish()
    write_summary(folder, summary)
    return summary


class _Parsing:
    """The tables of one rank while its work streams by."""

    def __init__(
        self, rank: int, work: Work, record: GroupRecord, append: dict[str, Append], *, keeps_segments: bool
    ) -> None:
        self._rank = rank
        self._work = work
        self._append = append
        self._base = work.marks.header.base_ns
        self._windows = cut_windows(work.steps, work.phases)
        self._accounts = Accounts(work.operations, self._windows, find_waits(work.marks))
        self._drawing = Drawing(work)
        self._collectives = CollectiveRows(work, Groups(record, work.marks.header))
        self._is_comm = np.isin(work.operations.label_of, work.operations.of_category("comm"))
        self._num_rows = 0
        self._num_duplicates = 0
        self._segments = _Segments(append[SEGMENTS.name] if keeps_segments else None, self._base)

    def add(self, slab: Slab) -> None:
        """Take the next slab."""
        if self._num_rows == 0:
            self._add_idle(int(self._windows.times.start.min(initial=slab.begin)), slab.begin, slab.rows[:1])
        is_comm: Bool = self._is_comm[slab.rows["operation"]]
        begun = np.flatnonzero(slab.is_begun & is_comm)
        comm = slab.rows[begun]
        self._collectives.begin(comm)
        slab.rows["sequence"][begun] = comm["sequence"]
        self._drawing.add(slab)
        self._segments.add(self._accounts.add(slab))
        done = slab.rows[slab.is_done & is_comm]
        if len(done):
            self._append[COLLECTIVES.name](self._collectives.rows(self._rank, done))
        self._num_rows += int(slab.is_begun.sum())
        self._num_duplicates += slab.num_dropped
        if self._work.is_device:
            self._work.totals.add(slab.rows[slab.is_begun])
            self._write_kernels(slab.begin)

    def finish(self) -> RankSummary:
        """Write what is left."""
        self._write_kernels(None)
        first, last = self._work.span
        steps = self._windows.times
        begin = last if self._num_rows or len(steps.start) == 0 else int(steps.start[0])
        self._add_idle(begin, int(steps.end.max(initial=begin)), np.empty(0, dtype=LAUNCHED))
        self._segments.flush()
        parts, totals = self._account_rows()
        if totals:
            self._append[INTERVALS.name](INTERVALS.from_rows(parts))
            self._append[CATEGORIES.name](CATEGORIES.from_rows(totals))
        self._append[TIMELINE.name](self._drawing.rows(self._rank))
        header = self._work.marks.header
        return RankSummary(
            path=str(header.path),
            rank=self._rank,
            is_device=self._work.is_device,
            span=(first + self._base, last + self._base),
            steps=[Step(step.number, step.start + self._base, step.end + self._base) for step in self._work.steps],
            accounts=[Account(label, *times) for label, times in self._accounts.totals().items()],
            num_events=header.num_events,
            num_gpu_events=self._num_rows if self._work.is_device else 0,
            num_damaged_events=header.num_damaged,
            num_duplicate_events=self._num_duplicates,
            is_truncated=header.is_truncated,
        )

    def _add_idle(self, begin: int, end: int, following: Rows) -> None:
        """Take time of steps without any work."""
        if end > begin:
            self._segments.add(self._accounts.add_idle(Slab(begin, end, following[:0], following, 0)))

    def _write_kernels(self, before: int | None) -> None:
        rows = [{"rank": self._rank, **row} for row in self._work.totals.closed(before)]
        if rows:
            self._append[KERNELS.name](KERNELS.from_rows(rows))

    def _account_rows(self) -> tuple[list[Row], list[Row]]:
        """Return the rows of `intervals` and of `categories`."""
        parts, totals = [], []
        for account, times in self._accounts.accounts():
            step, phase = divmod(account, len(PHASES))
            for label, (busy, exposed) in times.items():
                row = {
                    "rank": self._rank,
                    "step": self._work.steps[step].number,
                    "phase": PHASES[phase],
                    "category": label.category,
                    "busy_ns": busy,
                    "exposed_ns": exposed,
                    "overlapped_ns": busy - exposed,
                }
                if label.kind == ALL:
                    totals.append(row)
                elif busy:
                    parts.append(row | {"kind": label.kind, "group": label.group})
        return parts, totals


class _Segments:
    """Writes pieces of time, those of one label that touch as one."""

    def __init__(self, append: Append | None, base_ns: int) -> None:
        self._append = append
        self._base = base_ns
        self._last = (0, 0, -1)

    def add(self, pieces: Pieces) -> None:
        if self._append is None or len(pieces.label) == 0:
            return
        start, end, label = pieces.times.start, pieces.times.end, pieces.label
        last_start, last_end, last_label = self._last
        if last_label >= 0:
            start = np.concatenate(([last_start], start))
            end = np.concatenate(([last_end], end))
            label = np.concatenate(([last_label], label))
        opens = np.concatenate(([True], (label[1:] != label[:-1]) | (start[1:] != end[:-1])))
        closes = np.concatenate((opens[1:], [True]))
        start, end, label = start[opens], end[closes], label[opens]
        self._last = (int(start[-1]), int(end[-1]), int(label[-1]))
        self._write(start[:-1], end[:-1], label[:-1])

    def flush(self) -> None:
        start, end, label = self._last
        if label >= 0:
            self._write(np.array([start]), np.array([end]), np.array([label]))

    def _write(self, start: np.ndarray, end: np.ndarray, label: np.ndarray) -> None:
        assert self._append is not None
        self._append(pa.table({"t_start_ns": start + self._base, "duration_ns": end - start, "label": label}))
