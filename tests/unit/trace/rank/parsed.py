"""Reads and parses built traces, and gives back what tests look at."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple
from unittest import mock

from tests.unit.trace.traces import BASE_NS, write_trace
from triplepoint.tables import CATEGORIES, COLLECTIVES, INTERVALS, KERNELS, SEGMENTS, TIMELINE
from triplepoint.trace.kineto.external_sort import Sorter
from triplepoint.trace.rank.parse import parse_rank
from triplepoint.trace.rank.process_groups import GroupRecord, read_groups
from triplepoint.trace.rank.work import ReadOptions, Work, read_work
from triplepoint.trace.rank_results import RankSummary, read_rank_table
from triplepoint.trace.taxonomy import load_scheme

Rows = list[dict[str, Any]]


class Parsed(NamedTuple):
    """The summary and the tables of one rank, as rows."""

    summary: RankSummary
    kernels: Rows
    intervals: Rows
    categories: Rows
    collectives: Rows
    segments: Rows
    timeline: Rows

    @property
    def idle_us(self) -> dict[str, float]:
        """Return idle time by its reason."""
        return {
            one.label.kind: one.exposed / 1000
            for one in self.summary.accounts
            if one.label.category == "idle" and one.label.kind != "all" and one.exposed
        }


@contextmanager
def sorters_of(capacity: int) -> Iterator[None]:
    """Let sorters keep no more than some rows in memory."""
    with mock.patch.object(Sorter.__init__, "__defaults__", (capacity,)):
        yield


def parse_path(path: Path, folder: Path, record: Path | None = None) -> Parsed:
    """Parse a trace as rank 5 into a folder."""
    how = ReadOptions(load_scheme(), folder)
    groups = read_groups(record) if record else GroupRecord()
    summary = parse_rank(path, lambda written: 5, folder, groups, how)
    tables = (KERNELS, INTERVALS, CATEGORIES, COLLECTIVES, SEGMENTS, TIMELINE)
    return Parsed(summary, *(read_rank_table(folder, table).to_pylist() for table in tables))


def parse(events: list[dict], record: dict | None = None, capacity: int | None = None, **top: Any) -> Parsed:
    """Parse a built trace, with the launcher's record of process groups if there is one."""
    with TemporaryDirectory() as folder:
        path = write_trace(Path(folder) / "t.json", events, **top)
        groups = _write_record(Path(folder), record)
        if capacity is None:
            return parse_path(path, Path(folder) / "out", groups)
        with sorters_of(capacity):
            return parse_path(path, Path(folder) / "out", groups)


def work_of(folder: Path, events: list[dict], record: dict | None = None, **top: Any) -> Work:
    """Return the work of a built trace."""
    path = write_trace(folder / "t.json", events, **top)
    groups = _write_record(folder, record)
    return read_work(path, read_groups(groups) if groups else GroupRecord(), ReadOptions(load_scheme(), folder))


def _write_record(folder: Path, record: dict | None) -> Path | None:
    if record is None:
        return None
    path = folder / "t.groups.json"
    path.write_text(json.dumps(record))
    return path


def work_rows(work: Work) -> list[tuple[str, str, str | None, float, float]]:
    """Return (name, kind, group, start, end) of every row of work, by start. Unit: us."""
    known = work.operations.known
    found = []
    for block in work.rows.blocks():
        columns = (block["operation"], block["start"], block["start"] + block["duration"])
        for number, start, end in zip(*(column.tolist() for column in columns), strict=True):
            operation = known[number]
            found.append((operation.name, operation.kernel.kind, operation.group, start / 1000, end / 1000))
    return found


def communication(events: list[dict], record: dict | None = None, **top: Any) -> list[tuple[str, str | None]]:
    """Return (kind, group) of the collectives of a built trace, by start."""
    rows = sorted(parse(events, record, **top).collectives, key=lambda row: row["t_start_ns"])
    return [(row["kind"], row["group"]) for row in rows]


def since_base_us(time_ns: int) -> float:
    """Return a time of a table since the base of built traces."""
    return (time_ns - BASE_NS) / 1000
