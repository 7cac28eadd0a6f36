"""One rank's input to the analysis across ranks: its summary, its time cut into segments, and its collectives.

All times are nanoseconds since 1970 by the rank's clock.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np

from triplepoint.errors import UserError
from triplepoint.files import write_text
from triplepoint.trace import Int64

_VERSION = "_version"
"""End of the names of versions."""
SUMMARY = "rank.json"
"""Name of the file in the rank's folder."""


class Step(NamedTuple):
    """One profiled step. Unit: ns since 1970."""

    number: int
    start: int
    end: int


class Label(NamedTuple):
    """What a stretch of time went into.

    Attributes:
        category: compute, comm, memory or idle.
        kind: Class of computation (gemm, attention, ...), kind of communication (all_reduce, ...), direction of a copy,
            or the reason for idling (bubble, straggler, host, other).
        group: Role of a collective's process group (tp, pp, dp, cp, ep); None otherwise or where not known.
    """

    category: str
    kind: str
    group: str | None = None


@dataclass(frozen=True)
class Lane:
    """The time of one rank, from its first to its last work: segments that touch, by time, idle ones included.

    Where several things ran at once the segment is the one that counts: compute before comm before memory.

    Attributes:
        rank: Global rank.
        steps: Its profiled steps, by number.
        start: Start of every segment, shape (num_segments,).
        end: End of every segment, shape (num_segments,).
        label: Index into `labels`, shape (num_segments,).
        labels: Distinct labels.
    """

    rank: int
    steps: list[Step]
    start: Int64
    end: Int64
    label: Int64
    labels: list[Label]


class Meeting(NamedTuple):
    """What many collectives of a rank have in common: among whom, and what.

    Attributes:
        group: Name of the process group as the trace has it; None where it does not name it.
        kind: all_reduce, send_recv, ...
        peer: Of a message, the other rank; None where the trace does not tell.
        role: What the group is for (tp, pp, dp, ...); None where not known.
        num_ranks: Size of the process group; 0 where not known.
        ranks: Global ranks of the process group; empty where not known.
    """

    group: str | None
    kind: str
    peer: int | None = None
    role: str | None = None
    num_ranks: int = 0
    ranks: tuple[int, ...] = ()


@dataclass(frozen=True)
class Collectives:
    """The collectives of one rank, by start; shape of every array (num_collectives,).

    Attributes:
        rank: Global rank.
        meetings: Distinct meetings, in the order in which they first appear.
        meeting: Index into `meetings`.
        sequence: How many of this kind, of a message with this peer, the rank had in this group before it in the trace.
        start: When its part began: the kernel's start on a GPU.
        end: When its part ended.
    """

    rank: int
    meetings: list[Meeting]
    meeting: Int64
    sequence: Int64
    start: Int64
    end: Int64


def time_by_label(lane: Lane, begin: int, end: int) -> Int64:
    """Return the time of every label of a lane from `begin` to `end`, touching no segment outside.

    Args:
        lane: The rank's segments.
        begin: From when on. Unit: ns, on the lane's clock.
        end: Until when. Unit: ns, on the lane's clock.

    Returns:
        Shape (num_labels,); less than `end - begin` in all where the lane is shorter. Unit: ns.
    """
    first = np.searchsorted(lane.end, begin, side="right")
    last = np.searchsorted(lane.start, end, side="left")
    times = np.zeros(len(lane.labels), dtype=np.int64)
    if first < last:
        within = slice(first, last)
        length = np.minimum(lane.end[within], end) - np.maximum(lane.start[within], begin)
        np.add.at(times, lane.label[within], length)
    return times


class Account(msgspec.Struct, frozen=True):
    """Time of one label over all work of a rank. Unit: ns."""

    label: Label
    busy: int
    exposed: int


class Job(msgspec.Struct, frozen=True):
    """What a trace says of its job.

    Attributes:
        gpu: Product name of the GPU; None where the trace names none.
        backend: Library of its collectives, as torch names it; None where not told.
        is_simulated: Whether the trace says that it was simulated.
        versions: Versions of software, by name: `nccl`, `hip_driver`, `cuda_runtime`, ...
    """

    gpu: str | None = None
    backend: str | None = None
    is_simulated: bool = False
    versions: dict[str, str] = {}


def job_of(metadata: Mapping[str, Any]) -> Job:
    """Return what the members of a trace beside its events say of its job; what is of another type is not told."""
    devices, group = metadata.get("deviceProperties"), metadata.get("distributedInfo")
    first = devices[0] if isinstance(devices, list) and devices and isinstance(devices[0], dict) else {}
    group = group if isinstance(group, dict) else {}
    name, backend = first.get("name"), group.get("backend")
    return Job(
        name if isinstance(name, str) else None,
        backend if isinstance(backend, str) else None,
        metadata.get("simulated") is True,
        {
            name.removesuffix(_VERSION): str(value)
            for name, value in (*metadata.items(), *group.items())
            if name.endswith(_VERSION) and isinstance(value, str | int | float)
        },
    )


class RankSummary(msgspec.Struct, frozen=True):
    """One analysed trace.

    Attributes:
        path: File it was read from.
        rank: Global rank.
        is_device: Whether the work is a GPU's.
        span: Start of the first and end of the last work. Unit: ns since 1970, on the rank's clock.
        steps: Profiled steps, on the same clock.
        accounts: Time of every label, those of whole categories included; segments number them in this order.
        num_events: Events of the file, of whatever kind.
        num_gpu_events: Kernels, copies and fills; 0 where the work is the CPU's.
        num_damaged_events: Events without a usable time, or saved from damaged text.
        num_duplicate_events: GPU events left out because they are equal to another in everything.
        is_truncated: Whether the file ended early.
        job: What the trace says of its job.
        world_size: Ranks of the job, as the file says; None where it does not.
    """

    path: str
    rank: int
    is_device: bool
    span: tuple[int, int]
    steps: list[Step]
    accounts: list[Account]
    num_events: int
    num_gpu_events: int
    num_damaged_events: int
    num_duplicate_events: int
    is_truncated: bool
    job: Job = Job()
    world_size: int | None = None

    def exposed(self, category: str) -> int:
        """Return the exposed time of a category. Unit: ns."""
        return self._all(category).exposed

    def busy(self, category: str) -> int:
        """Return the time a category was running. Unit: ns."""
        return self._all(category).busy

    def _all(self, category: str) -> Account:
        return next(one for one in self.accounts if one.label.category == category and one.label.kind == "all")


def write_summary(folder: Path, summary: RankSummary) -> None:
    """Write the summary of a rank into its folder."""
    write_text(folder / SUMMARY, msgspec.json.format(msgspec.json.encode(summary)).decode() + "\n")


def read_summary(folder: Path) -> RankSummary:
    """Return the summary in a rank's folder.

    Raises:
        UserError: If it is missing or damaged.
    """
    path = folder / SUMMARY
    try:
        return msgspec.json.decode(path.read_bytes(), type=RankSummary)
    except FileNotFoundError:
        raise UserError(f"{path}: no such file; parse the rank's trace first") from None
    except msgspec.MsgspecError as error:
        raise UserError(f"{path}: not the summary of a rank ({error}); delete {folder} and run again") from None
