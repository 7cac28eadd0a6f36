"""Results of parsing one rank, as the analysis across ranks reads them: tables, summary, segments of time, collectives.

All times are nanoseconds since 1970 on the rank's clock.
"""

import contextlib
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np
import pyarrow as pa

from triplepoint.errors import UserError
from triplepoint.files import atomic_file, write_text
from triplepoint.tables import Table
from triplepoint.trace import Int64

_VERSION = "_version"
"""Suffix of the names of versions in a trace's metadata."""
SUMMARY = "rank.json"
"""File name of the summary in the rank's folder."""
_FORMAT = pa.ipc.IpcWriteOptions(compression="lz4", use_threads=False)
"""Format of a rank's tables, which are read once and then removed: Parquet takes more than twice the CPU time."""


class Step(NamedTuple):
    """Number, start and end of one profiled step. Unit: ns since 1970."""

    number: int
    start: int
    end: int


class Label(NamedTuple):
    """Use of a rank's time: category, kind and process group.

    Attributes:
        category: compute, comm, memory or idle.
        kind: Class of computation (gemm, attention, ...), kind of communication (all_reduce, ...), direction of a copy,
            or the reason for idling (bubble, straggler, host, other).
        group: Role of the process group of communication (tp, pp, dp, cp, ep); None otherwise or if unknown.
    """

    category: str
    kind: str
    group: str | None = None


@dataclass(frozen=True)
class Segments:
    """The time of one rank from its first to its last work, divided into segments with one label each.

    Segments are sorted by time and adjacent; idle time has segments, too. Where several operations ran at once, the
    label is that of exposed time: compute before comm before memory.

    Attributes:
        rank: Global rank.
        steps: Profiled steps of the rank, by number.
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


class CollectiveSignature(NamedTuple):
    """Kind and process group of collectives or point-to-point transfers of a rank; many of them share one.

    Attributes:
        group: Name of the process group; None if the trace does not have it.
        kind: all_reduce, send_recv, ...
        peer: The other rank of a point-to-point transfer; None if the trace does not name it.
        role: Role of the group (tp, pp, dp, ...); None if unknown.
        num_ranks: Size of the process group; 0 if unknown.
        ranks: Global ranks of the process group; empty if unknown.
    """

    group: str | None
    kind: str
    peer: int | None = None
    role: str | None = None
    num_ranks: int = 0
    ranks: tuple[int, ...] = ()


@dataclass(frozen=True)
class Collectives:
    """The collectives of one rank, sorted by start; shape of every array (num_collectives,).

    Attributes:
        rank: Global rank.
        signatures: Distinct signatures, in the order in which they first appear.
        signature: Index into `signatures`.
        sequence: Number of operations of the same group, kind and peer that this rank's trace has before it.
        start: Start on this rank; on a GPU, the start of the kernel.
        end: End on this rank.
    """

    rank: int
    signatures: list[CollectiveSignature]
    signature: Int64
    sequence: Int64
    start: Int64
    end: Int64


def time_by_label(segments: Segments, begin: int, end: int) -> Int64:
    """Return the time of every label within a window.

    Args:
        segments: The rank's segments.
        begin: Start of the window, on the clock of the segments. Unit: ns.
        end: End of the window, on the clock of the segments. Unit: ns.

    Returns:
        Shape (num_labels,). The sum is less than `end - begin` if the segments do not fill the window. Unit: ns.
    """
    # Only the segments in the window are read: this is called for every stretch of a critical path.
    first = np.searchsorted(segments.end, begin, side="right")
    last = np.searchsorted(segments.start, end, side="left")
    times = np.zeros(len(segments.labels), dtype=np.int64)
    if first < last:
        within = slice(first, last)
        length = np.minimum(segments.end[within], end) - np.maximum(segments.start[within], begin)
        np.add.at(times, segments.label[within], length)
    return times


class Account(msgspec.Struct, frozen=True):
    """Busy and exposed time of one label over all work of a rank. Unit: ns."""

    label: Label
    busy: int
    exposed: int


class Job(msgspec.Struct, frozen=True):
    """Facts about the job from the metadata of a trace.

    Attributes:
        gpu: Product name of the GPU; None if the trace has none.
        backend: Torch's name of the collective library; None if the trace has none.
        is_simulated: Whether the trace comes from the simulator.
        versions: Versions of software by name: `nccl`, `hip_driver`, `cuda_runtime`, ...
    """

    gpu: str | None = None
    backend: str | None = None
    is_simulated: bool = False
    versions: dict[str, str] = {}


def job_of(metadata: Mapping[str, Any]) -> Job:
    """Return the facts about the job in a trace's metadata. Values of an unexpected type are left out."""
    devices, distributed = metadata.get("deviceProperties"), metadata.get("distributedInfo")
    first_device = devices[0] if isinstance(devices, list) and devices and isinstance(devices[0], dict) else {}
    distributed = distributed if isinstance(distributed, dict) else {}
    gpu, backend = first_device.get("name"), distributed.get("backend")
    return Job(
        gpu if isinstance(gpu, str) else None,
        backend if isinstance(backend, str) else None,
        metadata.get("simulated") is True,
        {
            name.removesuffix(_VERSION): str(value)
            for name, value in (*metadata.items(), *distributed.items())
            if name.endswith(_VERSION) and isinstance(value, str | int | float)
        },
    )


class RankSummary(msgspec.Struct, frozen=True):
    """Summary of one parsed trace.

    Attributes:
        path: The trace file.
        rank: Global rank.
        is_device: Whether the work is that of a GPU, and not that of the CPU.
        span: Start of the first and end of the last work. Unit: ns since 1970, on the rank's clock.
        steps: Profiled steps, on the same clock.
        accounts: Time of every label; labels of whole categories (kind `all`) included. Segments refer to labels by
            their position here.
        num_events: All events of the file.
        num_gpu_events: Kernels, copies and fills; 0 if the work is that of the CPU.
        num_damaged_events: Events without a usable time, or recovered from damaged text.
        num_duplicate_events: GPU events left out because another one is identical.
        is_truncated: Whether the file ended early.
        job: Facts about the job.
        world_size: Number of ranks of the job in the file; None if it has none.
        checksums: CRC-32 of the file of every table, by name.
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
    checksums: dict[str, int] = {}

    def exposed(self, category: str) -> int:
        """Return the exposed time of a category. Unit: ns."""
        return self._of_category(category).exposed

    def busy(self, category: str) -> int:
        """Return the busy time of a category. Unit: ns."""
        return self._of_category(category).busy

    def _of_category(self, category: str) -> Account:
        labelled = (account for account in self.accounts if account.label.kind == "all")
        return next(account for account in labelled if account.label.category == category)


def write_summary(folder: Path, summary: RankSummary) -> None:
    """Write the summary of a rank to its folder."""
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
        raise _missing(path) from None
    except msgspec.MsgspecError as error:
        raise _damaged(path, f"the summary of a rank ({error})") from None


@contextlib.contextmanager
def rank_table_writer(folder: Path, table: Table) -> Iterator[Callable[[pa.Table], None]]:
    """Yield a function that checks and appends rows to a table of a rank, which appears when the block succeeds."""
    path = _table_path(folder, table)
    with atomic_file(path) as scratch, pa.ipc.new_file(scratch, table.schema(), options=_FORMAT) as file:
        yield lambda rows: file.write_table(table.check(rows, path))


def read_rank_parts(folder: Path, table: Table) -> Iterator[pa.Table]:
    """Yield the rows of a table of a rank in the parts in which they were appended, one at a time in memory.

    Raises:
        UserError: If the table is missing, damaged, of another rank or of another version.
    """
    path = _table_path(folder, table)
    if _checksum(path) != read_summary(folder).checksums.get(table.name):
        raise _damaged(path, "the table of this rank, or not whole")
    # The parts keep the file mapped for as long as they need it.
    file = pa.ipc.open_file(pa.memory_map(str(path)), options=pa.ipc.IpcReadOptions(use_threads=False))
    if file.schema != table.schema():
        raise _damaged(path, "of this version of Triplepoint")
    for index in range(file.num_record_batches):
        yield pa.Table.from_batches([file.get_batch(index)])


def read_rank_table(folder: Path, table: Table) -> pa.Table:
    """Return a table of a rank. Raises `UserError` as `read_rank_parts`."""
    return pa.concat_tables([table.schema().empty_table(), *read_rank_parts(folder, table)]).combine_chunks()


def checksums(folder: Path, tables: Iterable[Table]) -> dict[str, int]:
    """Return the CRC-32 of the file of every table of a rank, by name."""
    return {table.name: _checksum(_table_path(folder, table)) for table in tables}


def _checksum(path: Path) -> int:
    """Return the CRC-32 of a table's file: damaged content would be read as other numbers, or end the process."""
    if not path.is_file():
        raise _missing(path)
    try:
        with pa.memory_map(str(path)) as file:
            return zlib.crc32(file.read_buffer())
    except OSError as error:
        raise _damaged(path, f"readable: {error}") from None


def _table_path(folder: Path, table: Table) -> Path:
    return folder / f"{table.name}.arrow"


def _missing(path: Path) -> UserError:
    return UserError(f"{path}: no such file; {_remedy(path)}")


def _damaged(path: Path, what: str) -> UserError:
    return UserError(f"{path}: not {what}; {_remedy(path)}")


def _remedy(path: Path) -> str:
    """Return how the rank is parsed again: ranks are parsed in parts, each in a folder."""
    return f"delete {path.parents[1]} and run 'snakemake all', or 'triplepoint trace --run RUN --parse', again"
