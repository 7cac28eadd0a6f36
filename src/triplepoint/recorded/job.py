"""A recorded job: its hosts, the device of each rank, and its steps, completed for all ranks."""

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
"""A row of table `steps`: `rank`, `step`, `kind`, `t_start_ns` and `t_end_ns` on its node's clock; others if known."""

_OPTIONAL = ("loss", "num_tokens", "peak_memory_bytes", "reserved_memory_bytes", "t_first_token_ns")
"""Columns of table `steps` that may be unknown."""


class NothingRecordedError(UserError):
    """A recording has neither a sample nor a step."""


@dataclass(frozen=True)
class RecordedGpu:
    """One GPU of a recording."""

    device: str
    """gpu0, gpu1, ... in the driver's order on its host, as in the samples."""
    product: str | None = None
    """Product name of the driver; None if not known."""
    uuid: str | None = None
    """UUID; None if not known."""
    slot: int | None = None
    """Physical slot; None if not known."""
    rank: int | None = None
    """Rank that computed on it; None for all GPUs if ranks are in the order of hosts, then devices."""


@dataclass(frozen=True)
class RecordedNode:
    """Recording of one host: samples in memory, or the file of Triplepoint's sampler."""

    host: str
    gpus: Sequence[RecordedGpu] = ()
    """GPUs that the job used; empty for a job on CPUs."""
    parts: Sequence[Part] = ()
    """Samples of each device in the order of time, on the clock of the steps."""
    recording: Path | None = None
    """`node<N>.arrow` of a sampler, with the files next to it; None if samples are in `parts`, or there are none."""
    period_s: float = 1.0
    """Time between samples of `parts`. Unit: s."""
    absent: Mapping[str, str] = field(default_factory=dict)
    """Columns that `parts` lacks, with the reason."""
    monotonic_ns: int = 0
    """Clock of samples and steps at one instant; both clocks are 0 if it is the wall clock. Unit: ns."""
    wall_ns: int = 0
    """Wall clock (Unix) at the same instant. Unit: ns."""
    num_ranks: int | None = None
    """Ranks on this host, for a job on CPUs; None for one per GPU."""
    num_cores: int | None = None
    """Number of cores of the host; None if not known."""
    memory_bytes: int | None = None
    """Memory of the host; None if not known. Unit: byte."""
    checks: tuple[Any, ...] | None = None
    """Results of the doctor's checks before the job; None without checks."""


class Seat(NamedTuple):
    """A rank on its node.

    Attributes:
        node: Index of the node.
        device: Device of the rank.
    """

    node: int
    device: Device


@dataclass(frozen=True)
class Job:
    """A recorded job, before its steps are completed."""

    described: Description
    """Description by its owner."""
    nodes: Sequence[RecordedNode]
    """Its hosts, in the order of ranks."""
    seats: Sequence[Seat]
    """Node and device of each rank."""
    recordings: Sequence[Recording | None]
    """Samples of each node; None if there are none."""
    source: str
    """Tool that recorded it."""

    def start_ns(self, node: int, rows: Sequence[Row]) -> int:
        """Return the wall clock at the first sample or mark of a node. Unit: ns."""
        return min(self._times(node, rows), default=0) + self.offset_ns(node)

    def end_ns(self, node: int, rows: Sequence[Row]) -> int:
        """Return the wall clock at the last sample or mark of a node. Unit: ns."""
        return max(self._times(node, rows), default=0) + self.offset_ns(node)

    def offset_ns(self, node: int) -> int:
        """Return the wall clock less the node's clock. Unit: ns."""
        return self.nodes[node].wall_ns - self.nodes[node].monotonic_ns

    def window_ns(self, node: int) -> tuple[int, int] | None:
        """Return the times of the first and the last sample of a node; None without samples. Unit: ns."""
        recording = self.recordings[node]
        if recording is None or not recording.samples.num_rows:
            return None
        t_ns = recording.samples["t_ns"].to_numpy()
        return int(t_ns[0]), int(t_ns[-1])

    def _times(self, node: int, rows: Sequence[Row]) -> list[int]:
        """Return the times of the first and last sample and of all marks of a node. Unit: ns."""
        ranks = {seat.device.rank for seat in self.seats if seat.node == node}
        marked = [row[name] for row in rows if row["rank"] in ranks for name in ("t_start_ns", "t_end_ns")]
        return [*(self.window_ns(node) or ()), *marked]


class MarkedSteps(NamedTuple):
    """Steps of a job, the same ones on every rank.

    Attributes:
        rows: Rows of table `steps`.
        has_steps: Whether measured steps were marked; if not, the whole recording is the measured step.
        ranks: Ranks that marked steps.
    """

    rows: list[Row]
    has_steps: bool
    ranks: Literal["all"] | tuple[int, ...]


def seat_ranks(nodes: Sequence[RecordedNode]) -> list[Seat]:
    """Return the node and the device of each rank, in the order of ranks.

    Raises:
        UserError: If only some GPUs have a rank, or the ranks are not 0, 1, ... once each.
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
    """Return the steps of all ranks.

    These are the steps that all ranks with marks have in common. A rank without marks gets those of the first rank with
    marks. If no step is measured, the whole recording is added as one measured step.

    Args:
        rows: Rows of table `steps` of any ranks.
        job: The recorded job.

    Raises:
        UserError: If steps belong to ranks that were not recorded, ranks have no step in common, or there is neither a
            sample nor a step.
    """
    by_rank: dict[int, dict[int, Row]] = defaultdict(dict)
    for row in rows:
        by_rank[row["rank"]][row["step"]] = dict.fromkeys(_OPTIONAL) | row
    if unknown := sorted(set(by_rank) - set(range(len(job.seats)))):
        raise UserError(
            f"{job.source}: steps of rank {unknown[0]}, the recording has {len(job.seats)} ranks; record every host, "
            "or name its GPUs"
        )
    common = set.intersection(*(set(steps) for steps in by_rank.values())) if by_rank else set()
    if by_rank and not common:
        raise UserError(f"{job.source}: no step that ranks {', '.join(map(str, sorted(by_rank)[:8]))} all have")
    first = min(by_rank, default=0)
    completed: list[Row] = []
    for seat in job.seats:
        rank = seat.device.rank
        for step in sorted(common):
            row = by_rank[rank][step] if rank in by_rank else _for_seat(by_rank[first][step], first, seat, job)
            row["kind"] = by_rank[first][step]["kind"]
            completed.append(row)
    has_steps = any(row["kind"] == "measured" for row in completed)
    ranks: Literal["all"] | tuple[int, ...] = "all" if len(by_rank) == len(job.seats) else tuple(sorted(by_rank))
    if not has_steps:
        completed += _whole_recording(job, completed)
    completed.sort(key=lambda row: (row["rank"], row["step"]))
    return MarkedSteps(completed, has_steps, ranks)


def _for_seat(row: Row, rank: int, seat: Seat, job: Job) -> Row:
    """Return a step of one rank as that of another, on its clock and without the first rank's memory."""
    shift_ns = job.offset_ns(job.seats[rank].node) - job.offset_ns(seat.node)
    times = {name: row[name] + shift_ns for name in ("t_start_ns", "t_end_ns")}
    return row | times | {"rank": seat.device.rank, "peak_memory_bytes": None, "reserved_memory_bytes": None}


def _whole_recording(job: Job, rows: Sequence[Row]) -> list[Row]:
    """Return one measured step for each rank: from the first to the last sample, or mark, of its node."""
    number = max((row["step"] for row in rows), default=-1) + 1
    added = []
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
        added.append(dict.fromkeys(_OPTIONAL) | row)
    return added
