"""Parser of one trace into the tables of its rank, in one pass over its work and in constant memory.

A row of `collectives` says what the rank moved, among whom, and where it met the other ranks.
"""

import contextlib
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from triplepoint.tables import CATEGORIES, COLLECTIVES, INTERVALS, KERNELS, SEGMENTS, TIMELINE
from triplepoint.trace import Bool, Int64
from triplepoint.trace.distinct import distinct_rows
from triplepoint.trace.kineto import Rows
from triplepoint.trace.kineto.reader import Message
from triplepoint.trace.lanes import SUMMARY, Account, RankSummary, Step, job_of, write_summary
from triplepoint.trace.rank.accounting import ALL, Accounts, Pieces, find_waits
from triplepoint.trace.rank.events import LAUNCHED, Slab, slabs
from triplepoint.trace.rank.phases import PHASES, Phases, cut_windows
from triplepoint.trace.rank.process_groups import (
    _ONLY,
    GroupRecord,
    Groups,
    group_ranks,
    group_size,
    message_bytes,
    peer_of,
)
from triplepoint.trace.rank.work import Reading, Work, read_work
from triplepoint.trace.thin import Spans, Thinner, join, no_spans
from triplepoint.trace.timeline import LANES, LaneSpans, Look, span_table, thin_lane

_Counter = tuple[str | None, str, int | None]
"""Process group, kind and, of a message, the other rank: what collectives are numbered by."""

_JOINT = (
    "algorithm_bandwidth_bytes_per_s",
    "bus_bandwidth_bytes_per_s",
    "num_seen",
    "arrival_lag_ns",
    "waited_ns",
    "last_rank",
)
"""Columns that only the ranks together can fill."""


class Drawing:
    """Thins what runs in the first step."""

    def __init__(self, work: Work) -> None:
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
        start, duration, operation = (slab.rows[name][slab.is_begun] for name in ("start", "duration", "operation"))
        label = self._label_of[operation]
        for lane, thinner in self._thinners.items():
            own = self._category[label] == LANES.index(lane)
            thinner.add(start[own], start[own] + duration[own], label[own])

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
_COMPRESSION = "lz4"
"""Of tables that are read once, to be joined: zstd takes twice the CPU time for half the size."""

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
            table.name: stack.enter_context(table.writer(folder / f"{table.name}.parquet", _COMPRESSION))
            for table in RANK_TABLES
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
            job=job_of(header.metadata),
            world_size=header.world_size,
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
        self._last = no_spans()

    def add(self, pieces: Pieces) -> None:
        if self._append is None or len(pieces.label) == 0:
            return
        joined = join(self._last.then(Spans(pieces.times.start, pieces.times.end, pieces.label)))
        self._last = joined.at(slice(-1, None))
        self._write(joined.at(slice(-1)))

    def flush(self) -> None:
        if len(self._last.start):
            self._write(self._last)

    def _write(self, spans: Spans) -> None:
        assert self._append is not None
        start, end, label = spans
        self._append(pa.table({"t_start_ns": start + self._base, "duration_ns": end - start, "label": label}))


class _Told(NamedTuple):
    """What the operation and the arguments of a collective tell, the same for many of them."""

    kind: str
    group: str | None
    group_name: str | None
    num_ranks: int | None
    ranks: str | None
    size_bytes: int | None
    peer: int | None


class CollectiveRows:
    """Makes rows of `collectives`."""

    def __init__(self, work: Work, groups: Groups) -> None:
        self._header = work.marks.header
        self._operations = work.operations.known
        self._groups = groups
        self._steps = sorted(work.steps, key=lambda step: step.start)
        self._names_groups = bool(groups.record.groups) or any(
            one.group_name is not None or group_ranks(one) for one in self._header.messages
        )
        self._known: dict[tuple[int, int], _Told] = {}
        self._sequence: dict[_Counter, int] = defaultdict(int)

    def begin(self, rows: Rows) -> None:
        """Number communication as it begins; rows of `LAUNCHED` by start."""
        told, which = self._told(rows)
        counters: dict[_Counter, int] = {}
        counter = np.array([counters.setdefault((one.group_name, one.kind, one.peer), len(counters)) for one in told])[
            which
        ]
        for key, index in counters.items():
            own = np.flatnonzero(counter == index)
            rows["sequence"][own] = self._sequence[key] + np.arange(len(own))
            self._sequence[key] += len(own)

    def rows(self, rank: int, done: Rows) -> pa.Table:
        """Return the rows of collectives that ended, in the order given.

        Args:
            rank: Rank they are of.
            done: Rows of `LAUNCHED`, communication only, with their exposed time.
        """
        told, which = self._told(done)
        schema = COLLECTIVES.schema()
        columns = {
            name: pa.array([getattr(one, name) for one in told], schema.field(name).type).take(pa.array(which))
            for name in _Told._fields
        }
        return pa.table(
            {
                "rank": np.full(len(done), rank),
                "step": _steps(self._steps, done["start"]),
                "sequence": np.ascontiguousarray(done["sequence"]),
                "t_start_ns": done["start"] + self._header.base_ns,
                "duration_ns": np.ascontiguousarray(done["duration"]),
                "exposed_ns": np.ascontiguousarray(done["exposed"]),
                **columns,
                **{name: pa.nulls(len(done), schema.field(name).type) for name in _JOINT},
            }
        )

    def _told(self, rows: Rows) -> tuple[list[_Told], Int64]:
        """Return what is told of distinct rows, and which of it each row is."""
        distinct, which = distinct_rows(rows["operation"], rows["message"])
        return [self._tell(*pair) for pair in distinct.tolist()], which

    def _tell(self, operation: int, message: int) -> _Told:
        key = (operation, message)
        if key not in self._known:
            kernel, role, _ = self._operations[operation]
            said = self._header.messages[message] if message >= 0 else Message()
            self._known[key] = self._judge(kernel.kind, role, said)
        return self._known[key]

    def _judge(self, kind: str, role: str | None, said: Message) -> _Told:
        recorded = self._groups.of_role(role)
        ranks = group_ranks(said) or (recorded.ranks if recorded else ())
        num_ranks = group_size(said) or len(ranks)
        name = str(said.group_name) if said.group_name is not None else None
        name = name or (f"{role} {','.join(map(str, ranks))}" if ranks else None)
        size = message_bytes(kind, said, num_ranks)
        return _Told(
            kind=kind,
            group=role,
            group_name=name if self._names_groups else _ONLY,
            num_ranks=num_ranks or None,
            ranks=",".join(map(str, ranks)) or None,
            size_bytes=size if size >= 0 else None,
            peer=peer_of(said),
        )


def _steps(steps: list[Step], start: Int64) -> pa.Array:
    """Return the number of the step each time lies in, null between steps."""
    if not steps:
        return pa.nulls(len(start), pa.int64())
    numbers, starts, ends = (np.array(column, dtype=np.int64) for column in zip(*steps, strict=True))
    at = np.searchsorted(starts, start, side="right") - 1
    return pa.array(numbers[at], mask=(at < 0) | (start >= ends[at]))
