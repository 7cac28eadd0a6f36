"""The collectives of a rank as rows: what each moved, among whom, and where it met the other ranks."""

from collections import defaultdict
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from triplepoint.tables import COLLECTIVES
from triplepoint.trace.arrays import Int64
from triplepoint.trace.kineto.reader import Message
from triplepoint.trace.kineto.rows import Rows
from triplepoint.trace.lanes import Step
from triplepoint.trace.rank.process_groups import Groups, group_ranks, group_size, message_bytes
from triplepoint.trace.rank.work import Work

_Counter = tuple[str | None, str]
"""Process group and kind: what collectives are numbered by."""

_ONLY = "default"
"""Name of the process group of a trace that names none at all: torch's first, of all ranks."""


class _Told(NamedTuple):
    """What the operation and the arguments of a collective tell, the same for many of them."""

    kind: str
    group: str | None
    group_name: str | None
    num_ranks: int | None
    ranks: str | None
    size_bytes: int | None


class CollectiveRows:
    """Makes rows of `collectives`."""

    def __init__(self, work: Work, groups: Groups) -> None:
        """Take the work the rows will be of, and the rank's process groups."""
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
        counter = np.array([counters.setdefault((one.group_name, one.kind), len(counters)) for one in told])[which]
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
        pairs = np.stack((rows["operation"], rows["message"]), axis=1)
        distinct, which = np.unique(pairs, axis=0, return_inverse=True)
        return [self._tell(*pair) for pair in distinct.tolist()], which.reshape(-1)

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
        )


_JOINT = (
    "algorithm_bandwidth_bytes_per_s",
    "bus_bandwidth_bytes_per_s",
    "num_seen",
    "arrival_lag_ns",
    "waited_ns",
    "last_rank",
)
"""Columns that only the ranks together can fill."""


def _steps(steps: list[Step], start: Int64) -> pa.Array:
    """Return the number of the step each time lies in, null between steps."""
    if not steps:
        return pa.nulls(len(start), pa.int64())
    numbers, starts, ends = (np.array(column, dtype=np.int64) for column in zip(*steps, strict=True))
    at = np.searchsorted(starts, start, side="right") - 1
    return pa.array(numbers[at], mask=(at < 0) | (start >= ends[at]))
