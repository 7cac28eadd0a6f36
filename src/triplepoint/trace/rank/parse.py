"""Parse the trace of one rank into its tables, in one pass over its work and in constant memory."""

import contextlib
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np
import pyarrow as pa

from triplepoint.errors import UserError
from triplepoint.tables import CATEGORIES, COLLECTIVES, INTERVALS, KERNELS, SEGMENTS, TIMELINE
from triplepoint.trace import Bool, Int64
from triplepoint.trace.distinct import distinct_rows
from triplepoint.trace.kineto import Rows
from triplepoint.trace.kineto.reader import Message
from triplepoint.trace.rank.accounting import ALL, Accounts, Pieces, find_waits
from triplepoint.trace.rank.events import LAUNCHED, Slab, slabs
from triplepoint.trace.rank.phases import PHASES, Phases, cut_windows
from triplepoint.trace.rank.process_groups import (
    DEFAULT_GROUP,
    GroupRecord,
    Groups,
    group_ranks,
    group_size,
    message_bytes,
    peer_of,
)
from triplepoint.trace.rank.work import ReadOptions, Work, read_work
from triplepoint.trace.rank_results import (
    SUMMARY,
    Account,
    RankSummary,
    Step,
    checksums,
    job_of,
    rank_table_writer,
    write_summary,
)
from triplepoint.trace.thin import Spans, Thinner, join, no_spans
from triplepoint.trace.timeline import LANES, LaneSpans, Look, span_table, thin_lane

_SequenceKey = tuple[str | None, str, int | None]
"""Process group, kind and peer: collectives that agree in these are numbered."""

_ACROSS_RANKS = (
    "algorithm_bandwidth_bytes_per_s",
    "bus_bandwidth_bytes_per_s",
    "num_seen",
    "arrival_lag_ns",
    "waited_ns",
    "last_rank",
)
"""Columns of `collectives` that are filled by the analysis across ranks."""


class Drawing:
    """Thins the work of the first step for table `timeline`."""

    def __init__(self, work: Work) -> None:
        self._base = work.marks.header.base_ns
        labels = work.operations.labels
        self._label_of = np.array(work.operations.label_of, dtype=np.int64)
        self._lane_of_label = np.array(
            [LANES.index(label.category) if label.category in LANES else -1 for label in labels]
        )
        self._looks = [Look(label.kind, label.group) for label in labels]
        step = work.steps[0] if work.steps and work.steps[0].end > work.steps[0].start else None
        self._thinners = {lane: Thinner(step.start, step.end) for lane in LANES[1:]} if step else {}
        self._phases = thin_lane(_phase_lane(work.phases), step.start, step.end) if step else None

    def add(self, slab: Slab) -> None:
        """Add the work that begins in a slab."""
        begun = np.flatnonzero(slab.is_begun)
        start, duration, operation = (slab.rows[name][begun] for name in ("start", "duration", "operation"))
        label = self._label_of[operation]
        for lane, thinner in self._thinners.items():
            in_lane = self._lane_of_label[label] == LANES.index(lane)
            thinner.add(start[in_lane], start[in_lane] + duration[in_lane], label[in_lane])

    def rows(self, rank: int) -> pa.Table:
        """Return the rows of `timeline`, with times since 1970 on the rank's clock."""
        lanes = [LaneSpans(lane, self._looks, *thinner.finish()) for lane, thinner in self._thinners.items()]
        return span_table(rank, [*lanes, *([self._phases] if self._phases else [])], -self._base)


def _phase_lane(phases: Phases) -> LaneSpans:
    number_of: dict[Look, int] = {}
    looks = (Look(tag.label, None, tag.stage, tag.microbatch) for tag in phases.tags)
    numbers = np.array([number_of.setdefault(look, len(number_of)) for look in looks], dtype=np.int64)
    return LaneSpans("phase", list(number_of), phases.start, phases.end, numbers)


RANK_TABLES = (KERNELS, INTERVALS, CATEGORIES, COLLECTIVES, SEGMENTS, TIMELINE)
"""Tables in the folder of a rank."""

_LONGEST_NS = 32_000_000_000_000_000
"""Longest work of a rank, a year as for single events; longer sums overflow. Unit: ns."""

Append = Callable[[pa.Table], None]
Row = dict[str, Any]


def parse_rank(
    path: Path, rank_of: Callable[[int | None], int], folder: Path, record: GroupRecord, options: ReadOptions
) -> RankSummary:
    """Write the tables and the summary of one rank.

    Args:
        path: Trace of the rank.
        rank_of: Returns the rank, given the rank in the trace's content or None.
        folder: Folder to write to. The summary is written last: if it is there, the tables are complete.
        record: The launcher's record of process groups.
        options: Options of reading the trace.

    Raises:
        UserError: If the trace cannot be read, or its rank is unknown.
    """
    work = read_work(path, record, options)
    first, last = work.span
    if first + work.marks.header.base_ns < 0 or last - first > _LONGEST_NS:
        raise UserError(
            f"{path}: its work begins before 1970 or lasts over a year; expected times in us since 1970, or since "
            "baseTimeNanoseconds; repair them, or record the trace again"
        )
    rank = rank_of(work.marks.header.rank)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / SUMMARY).unlink(missing_ok=True)
    with contextlib.ExitStack() as stack:
        append = {table.name: stack.enter_context(rank_table_writer(folder, table)) for table in RANK_TABLES}
        tables = _RankTables(rank, work, record, append, keeps_segments=not options.is_alone)
        for slab in slabs(work.rows.blocks(), keep_duplicates=not work.is_device):
            tables.add(slab)
        summary = tables.finish()
    summary = msgspec.structs.replace(summary, checksums=checksums(folder, RANK_TABLES))
    write_summary(folder, summary)
    return summary


class _RankTables:
    """Writes the tables of one rank from the slabs of its work."""

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
        self._segments = _SegmentWriter(append[SEGMENTS.name] if keeps_segments else None, self._base)

    def add(self, slab: Slab) -> None:
        """Add the next slab."""
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
        """Write the remaining rows and return the summary."""
        self._write_kernels(None)
        first, last = self._work.span
        steps = self._windows.times
        begin = last if self._num_rows or len(steps.start) == 0 else int(steps.start[0])
        self._add_idle(begin, int(steps.end.max(initial=begin)), np.empty(0, dtype=LAUNCHED))
        self._segments.flush()
        interval_rows, category_rows = self._account_rows()
        if category_rows:
            self._append[INTERVALS.name](INTERVALS.from_rows(interval_rows))
            self._append[CATEGORIES.name](CATEGORIES.from_rows(category_rows))
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
        """Account for time of steps before the first or after the last work."""
        if end > begin:
            self._segments.add(self._accounts.add_idle(Slab(begin, end, following[:0], following, 0)))

    def _write_kernels(self, before: int | None) -> None:
        rows = [{"rank": self._rank, **row} for row in self._work.totals.closed(before)]
        if rows:
            self._append[KERNELS.name](KERNELS.from_rows(rows))

    def _account_rows(self) -> tuple[list[Row], list[Row]]:
        """Return the rows of `intervals` and of `categories`."""
        interval_rows, category_rows = [], []
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
                    category_rows.append(row)
                elif busy:
                    interval_rows.append(row | {"kind": label.kind, "group": label.group})
        return interval_rows, category_rows


class _SegmentWriter:
    """Writes table `segments`; adjacent pieces with the same label become one segment."""

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


class _CollectiveFacts(NamedTuple):
    """Columns of `collectives` that follow from operation and arguments, which are the same for many collectives."""

    kind: str
    group: str | None
    group_name: str | None
    num_ranks: int | None
    ranks: str | None
    size_bytes: int | None
    peer: int | None


class CollectiveRows:
    """Builds the rows of `collectives`."""

    def __init__(self, work: Work, groups: Groups) -> None:
        self._header = work.marks.header
        self._operations = work.operations.known
        self._groups = groups
        self._steps = sorted(work.steps, key=lambda step: step.start)
        self._names_groups = bool(groups.record.groups) or any(
            message.group_name is not None or group_ranks(message) for message in self._header.messages
        )
        self._facts_of: dict[tuple[int, int], _CollectiveFacts] = {}
        self._next_sequence: dict[_SequenceKey, int] = defaultdict(int)

    def begin(self, rows: Rows) -> None:
        """Set the sequence numbers of communication that begins: rows of `LAUNCHED`, sorted by start."""
        facts, index = self._facts(rows)
        key_number: dict[_SequenceKey, int] = {}
        keys = [(collective.group_name, collective.kind, collective.peer) for collective in facts]
        number = np.array([key_number.setdefault(key, len(key_number)) for key in keys])[index]
        for key, key_index in key_number.items():
            with_key = np.flatnonzero(number == key_index)
            rows["sequence"][with_key] = self._next_sequence[key] + np.arange(len(with_key))
            self._next_sequence[key] += len(with_key)

    def rows(self, rank: int, done: Rows) -> pa.Table:
        """Return the rows of finished collectives, in the order given.

        Args:
            rank: Global rank.
            done: Rows of `LAUNCHED`, communication only, with their exposed time.
        """
        facts, index = self._facts(done)
        schema = COLLECTIVES.schema()
        columns = {
            name: pa.array([getattr(collective, name) for collective in facts], schema.field(name).type).take(
                pa.array(index)
            )
            for name in _CollectiveFacts._fields
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
                **{name: pa.nulls(len(done), schema.field(name).type) for name in _ACROSS_RANKS},
            }
        )

    def _facts(self, rows: Rows) -> tuple[list[_CollectiveFacts], Int64]:
        """Return the facts about distinct collectives, and the index of each row's."""
        distinct, index = distinct_rows(rows["operation"], rows["message"])
        return [self._facts_about(operation, message) for operation, message in distinct.tolist()], index

    def _facts_about(self, operation: int, message: int) -> _CollectiveFacts:
        key = (operation, message)
        if key not in self._facts_of:
            kernel, role, _ = self._operations[operation]
            arguments = self._header.messages[message] if message >= 0 else Message()
            self._facts_of[key] = self._find_facts(kernel.kind, role, arguments)
        return self._facts_of[key]

    def _find_facts(self, kind: str, role: str | None, arguments: Message) -> _CollectiveFacts:
        recorded = self._groups.of_role(role)
        ranks = group_ranks(arguments) or (recorded.ranks if recorded else ())
        num_ranks = group_size(arguments) or len(ranks)
        name = str(arguments.group_name) if arguments.group_name is not None else None
        name = name or (f"{role} {','.join(map(str, ranks))}" if ranks else None)
        size_bytes = message_bytes(kind, arguments, num_ranks)
        return _CollectiveFacts(
            kind=kind,
            group=role,
            group_name=name if self._names_groups else DEFAULT_GROUP,
            num_ranks=num_ranks or None,
            ranks=",".join(map(str, ranks)) or None,
            size_bytes=size_bytes if size_bytes >= 0 else None,
            peer=peer_of(arguments),
        )


def _steps(steps: list[Step], start: Int64) -> pa.Array:
    """Return the number of the step that each time is in, null between steps."""
    if not steps:
        return pa.nulls(len(start), pa.int64())
    numbers, starts, ends = (np.array(column, dtype=np.int64) for column in zip(*steps, strict=True))
    at = np.searchsorted(starts, start, side="right") - 1
    return pa.array(numbers[at], mask=(at < 0) | (start >= ends[at]))
