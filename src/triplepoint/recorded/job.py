"""What was recorded of a job: its hosts, the GPU of each rank, and its steps, made whole over all ranks."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple

from triplepoint.errors import UserError
from triplepoint.manifest import Device
from triplepoint.recorded.description import Description
from triplepoint.recording import Part, Recording

Row = dict[str, Any]
"""A row of table `steps`: `rank`, `step`, `kind`, `t_start_ns`, `t_end_ns` on its node's clock; the rest if known."""

_OPTIONAL = ("loss", "num_tokens", "peak_memory_bytes", "reserved_memory_bytes", "t_first_token_ns")


class NothingRecordedError(UserError):
    """A recording has neither a sample nor a step."""


@dataclass(frozen=True)
class RecordedGpu:
    """One GPU of a recording."""

    device: str
    """gpu0, gpu1, ... in the driver's order on its host, as in the samples."""
    product: str | None = None
    """Product name as the driver gives it; None where not known."""
    uuid: str | None = None
    slot: int | None = None
    """Physical slot, where known."""
    rank: int | None = None
    """Rank that computed on it. None for all: ranks go by host, then by device."""


@dataclass(frozen=True)
class RecordedNode:
    """What was recorded of one host: samples in memory, or the file of Triplepoint's own sampler."""

    host: str
    gpus: Sequence[RecordedGpu] = ()
    """GPUs that worked for the job; none on cpu."""
    parts: Sequence[Part] = ()
    """Samples: each device's in time order, times on the clock that steps are on."""
    recording: Path | None = None
    """`node<N>.arrow` of a sampler, with the files beside it; None where `parts` holds the samples, or there are
    none."""
    period_s: float = 1.0
    """Time between samples of `parts`. Unit: s."""
    absent: Mapping[str, str] = field(default_factory=dict)
    """Columns that `parts` lacks, each with the reason."""
    monotonic_ns: int = 0
    """Clock of samples and steps at one instant; 0, as `wall_ns`, where that clock is the wall clock. Unit: ns."""
    wall_ns: int = 0
    """Wall clock (Unix) at the same instant. Unit: ns."""
    num_ranks: int | None = None
    """Ranks on this host, on cpu only. None: one for each GPU."""
    num_cores: int | None = None
    memory_bytes: int | None = None
    checks: tuple[Any, ...] | None = None
    """What the doctor read of it before; None where it did not."""


class Seat(NamedTuple):
    """A rank on its node.

    Attributes:
        node: Index of the node.
        device: Its device, with the rank.
    """

    node: int
    device: Device


@dataclass(frozen=True)
class Job:
    """A job that was recorded, before its steps are made whole."""

    described: Description
    nodes: Sequence[RecordedNode]
    seats: Sequence[Seat]
    """By rank."""
    recordings: Sequence[Recording | None]
    """Samples of each node; None where there are none."""
    source: str
    """What it was recorded by."""

    def start_ns(self, node: int, rows: Sequence[Row]) -> int:
        """Return the wall clock at which what is known of a node begins. Unit: ns."""
        return min(self._times(node, rows), default=0) + self.offset_ns(node)

    def end_ns(self, node: int, rows: Sequence[Row]) -> int:
        """Return the wall clock at which it ends. Unit: ns."""
        return max(self._times(node, rows), default=0) + self.offset_ns(node)

    def offset_ns(self, node: int) -> int:
        """Return the wall clock less the node's own. Unit: ns."""
        return self.nodes[node].wall_ns - self.nodes[node].monotonic_ns

    def window_ns(self, node: int) -> tuple[int, int] | None:
        """Return the times of the first and the last sample of a node; None without samples. Unit: ns."""
        recording = self.recordings[node]
        if recording is None or not recording.samples.num_rows:
            return None
        t_ns = recording.samples["t_ns"].to_numpy()
        return int(t_ns[0]), int(t_ns[-1])

    def _times(self, node: int, rows: Sequence[Row]) -> list[int]:
        ranks = {seat.device.rank for seat in self.seats if seat.node == node}
        marked = [row[name] for row in rows if row["rank"] in ranks for name in ("t_start_ns", "t_end_ns")]
        return [*(self.window_ns(node) or ()), *marked]


class MarkedSteps(NamedTuple):
    """Steps of a job, the same ones on every rank.

    Attributes:
        rows: Rows of table `steps`.
        has_steps: Whether measured steps were marked; if not, the measured step is the whole recording.
        ranks: Ranks with marks of their own.
    """

    rows: list[Row]
    has_steps: bool
    ranks: Literal["all"] | tuple[int, ...]


def seat_ranks(nodes: Sequence[RecordedNode]) -> list[Seat]:
    """Return the node and the device of every rank, by rank.

    Raises:
        UserError: If some GPUs have a rank and others none, or the ranks are not 0, 1, ... each once.
    """
    seats: list[Seat] = []
    for number, node in enumerate(nodes):
        for gpu in node.gpus:
            rank = len(seats) if gpu.rank is None else gpu.rank
            device = Device(rank=rank, device=gpu.device, product=gpu.product, uuid=gpu.uuid, slot=gpu.slot)
            seats.append(Seat(number, device))
        for _ in range(0 if node.gpus else node.num_ranks or 1):
            seats.append(Seat(number, Device(rank=len(seats), device="cpu", product=None)))
    seats.sort(key=lambda seat: seat.device.rank)
    ranks = [seat.device.rank for seat in seats]
    if ranks != list(range(len(ranks))):
        raise UserError(
            f"ranks of the recorded GPUs are {', '.join(map(str, ranks[:16]))}; expected each of 0 to "
            f"{len(ranks) - 1} once, or no rank at all"
        )
    return seats


def mark_steps(rows: Sequence[Row], job: Job) -> MarkedSteps:
    """Return the steps of all ranks: those that all marked ranks have, and for ranks without marks one rank's.

    Where no measured step is marked, one stands for the whole recording.

    Raises:
        UserError: If steps are of ranks that were not recorded, of unlike numbers, or there is nothing at all.
    """
    by_rank: dict[int, dict[int, Row]] = defaultdict(dict)
    for row in rows:
        by_rank[row["rank"]][row["step"]] = dict.fromkeys(_OPTIONAL) | row
    if strange := sorted(set(by_rank) - set(range(len(job.seats)))):
        raise UserError(
            f"{job.source}: steps of rank {strange[0]}, the recording has {len(job.seats)} ranks; record every host, "
            "or name its GPUs"
        )
    common = set.intersection(*(set(steps) for steps in by_rank.values())) if by_rank else set()
    if by_rank and not common:
        raise UserError(f"{job.source}: no step that ranks {', '.join(map(str, sorted(by_rank)[:8]))} all have")
    first = min(by_rank, default=0)
    whole: list[Row] = []
    for seat in job.seats:
        rank = seat.device.rank
        for step in sorted(common):
            whole.append(by_rank[rank][step] if rank in by_rank else _on(by_rank[first][step], first, seat, job))
            whole[-1]["kind"] = by_rank[first][step]["kind"]
    has_steps = any(row["kind"] == "measured" for row in whole)
    ranks: Literal["all"] | tuple[int, ...] = "all" if len(by_rank) == len(job.seats) else tuple(sorted(by_rank))
    if not has_steps:
        whole += _windows(job, whole)
    whole.sort(key=lambda row: (row["rank"], row["step"]))
    return MarkedSteps(whole, has_steps, ranks)


def _on(row: Row, rank: int, seat: Seat, job: Job) -> Row:
    """Return the marks of one rank on the clock of another, without what is of that rank alone."""
    moved_ns = job.offset_ns(job.seats[rank].node) - job.offset_ns(seat.node)
    ends = {name: row[name] + moved_ns for name in ("t_start_ns", "t_end_ns")}
    return row | ends | {"rank": seat.device.rank, "peak_memory_bytes": None, "reserved_memory_bytes": None}


def _windows(job: Job, rows: Sequence[Row]) -> list[Row]:
    """Return one step for every rank that is the whole recording of its node, or the time of its profiled steps."""
    number = max((row["step"] for row in rows), default=-1) + 1
    found = []
    if not rows and not any(job.window_ns(node) for node in range(len(job.nodes))):
        raise NothingRecordedError(
            f"{job.source}: has neither a sample nor a step, and a run needs one of them; record again"
        )
    for seat in job.seats:
        marked = [row[name] for row in rows if row["rank"] == seat.device.rank for name in ("t_start_ns", "t_end_ns")]
        window = job.window_ns(seat.node) or ((min(marked), max(marked)) if marked else None)
        if window is None:
            raise UserError(
                f"{job.source}: {job.nodes[seat.node].host} has neither a sample nor a step; record it too, or leave "
                "it out"
            )
        start_ns, end_ns = window
        row = {"rank": seat.device.rank, "step": number, "kind": "measured", "t_start_ns": start_ns, "t_end_ns": end_ns}
        found.append(dict.fromkeys(_OPTIONAL) | row)
    return found
