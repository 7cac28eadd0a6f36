"""Traces of one side of a comparison: the parts of a step and its kernels, as means over ranks."""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple, TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from triplepoint.tables import INTERVALS, KERNELS, RANKS
from triplepoint.trace.rank.accounting import ALL
from triplepoint.trace.rank_results import RankSummary
from triplepoint.trace.taxonomy import Kernel
from triplepoint.units import ns_to_s

_Key = TypeVar("_Key")
_NAMES: Mapping[tuple[str, str], str] = {
    ("idle", "host"): "waiting for launches from the CPU",
    ("idle", "straggler"): "idle time for late ranks",
    ("idle", "bubble"): "pipeline bubble",
    ("idle", "other"): "idle time for launches or dependencies",
    ("unprofiled", "all"): "step beyond the profiled one",
}
"""Names of parts whose kind is not a name by itself."""


class Part(NamedTuple):
    """A part of a step, as in table `intervals`: category, kind within it, and role of the process group."""

    category: str
    kind: str
    group: str | None = None


def part_name(part: Part) -> str:
    """Return the name of a part: `gemm`, `exposed all_gather of tp`, `pipeline bubble`."""
    if named := _NAMES.get((part.category, part.kind)):
        return named
    if part.category == "comm":
        kind = "communication of unknown kind" if part.kind == "unknown" else part.kind
        return f"exposed {kind}{f' of {part.group}' if part.group else ''}"
    if part.category == "compute":
        return "other computation" if part.kind == "other" else part.kind
    return f"exposed {part.kind}" if part.category == "memory" else f"idle: {part.kind}"


class KernelName(NamedTuple):
    """A kernel: its part of the step, class, kind, and name in the trace."""

    part: Part
    cls: str
    kind: str
    name: str


class KernelTime(NamedTuple):
    """Number and total duration (s) of the calls of a kernel in a step, means over steps and ranks."""

    num_calls: float
    sum_s: float


class _Tables(NamedTuple):
    """Tables of traced ranks; `ranks` is None if it was not written."""

    intervals: pa.Table
    kernels: pa.Table
    ranks: pa.Table | None


@dataclass(frozen=True)
class Traced:
    """Parts and kernels of profiled steps.

    Attributes:
        steps: Exposed time by part for each profiled step, mean over ranks; the parts add up to the step. Unit: s.
        repeats: Repeat that each step belongs to; shape (num_steps,).
        overlapped: Time by part that computation or earlier communication hides, mean over all steps. Unit: s.
        kernels: Calls of each kernel.
        waited_s: Exposed waiting inside communication, mean over all steps: `bubble` for other stages, `straggler` for
            late ranks; empty if a single rank was traced. Unit: s.
        num_ranks: Number of traced ranks.
        has_steps: Whether the traces mark steps; if not, their whole span counts as one step.
        own_s: Time per step in which a rank neither communicates nor waits for other ranks, by rank; mean over steps.
            Unit: s.
        tables: Tables of the traces; None for several runs, and for traces without steps.
    """

    steps: Sequence[Mapping[Part, float]]
    repeats: Sequence[int]
    overlapped: Mapping[Part, float]
    kernels: Mapping[KernelName, KernelTime]
    waited_s: Mapping[str, float]
    num_ranks: int
    has_steps: bool = True
    own_s: Mapping[int, float] = field(default_factory=dict)
    tables: _Tables | None = None

    def of_rank(self, rank: int) -> "Traced":
        """Return parts and kernels of one rank; those of all ranks if the tables are not known."""
        if self.tables is None:
            return self
        repeat = self.repeats[0] if self.repeats else 1
        tables = (table and table.filter(pc.equal(table["rank"], rank)) for table in self.tables)
        return _from_tables(_Tables(*tables), repeat) or self

    def mean_s(self, part: Part) -> float:
        """Return the exposed time of a part, mean over steps. Unit: s."""
        return sum(step.get(part, 0.0) for step in self.steps) / len(self.steps)

    @property
    def step_s(self) -> float:
        """Return the time of a step, mean over steps and ranks. Unit: s."""
        return sum(sum(step.values()) for step in self.steps) / len(self.steps)


def of_tables(folder: Path, repeat: int = 1) -> Traced | None:
    """Return parts and kernels from the tables in a folder; None if these hold no step."""
    intervals = INTERVALS.read(folder / "intervals.parquet")
    if not len(intervals):
        return None
    ranks = RANKS.read(folder / "ranks.parquet") if (folder / "ranks.parquet").is_file() else None
    return _from_tables(_Tables(intervals, KERNELS.read(folder / "kernels.parquet"), ranks), repeat)


def _from_tables(tables: _Tables, repeat: int) -> Traced | None:
    """Return parts and kernels from tables of one run; None if these hold no step."""
    intervals = tables.intervals
    rank_steps = intervals.group_by(["step", "rank"]).aggregate([])
    if not len(rank_steps):
        return None
    num_ranks = Counter(rank_steps["step"].to_pylist())
    exposed: dict[int, dict[Part, float]] = {step: {} for step in sorted(num_ranks)}
    overlapped: dict[Part, float] = defaultdict(float)
    keys = ["step", "category", "kind", "group"]
    summed = intervals.group_by(keys).aggregate([("exposed_ns", "sum"), ("overlapped_ns", "sum")])
    for row in summed.to_pylist():
        part, step = Part(row["category"], row["kind"], row["group"]), row["step"]
        exposed[step][part] = ns_to_s(row["exposed_ns_sum"]) / num_ranks[step]
        overlapped[part] += ns_to_s(row["overlapped_ns_sum"]) / num_ranks[step] / len(num_ranks)
    kernels = tables.kernels.filter(pc.is_in(tables.kernels["step"], pa.array(list(num_ranks), pa.int64())))
    return Traced(
        steps=list(exposed.values()),
        repeats=[repeat] * len(exposed),
        overlapped=overlapped,
        kernels=_kernels(kernels, len(rank_steps)),
        waited_s=_waited_s(tables.ranks, len(rank_steps)),
        num_ranks=max(num_ranks.values()),
        own_s=_own_s(intervals),
        tables=tables,
    )


def _own_s(intervals: pa.Table) -> dict[int, float]:
    """Return `Traced.own_s` of each rank. Unit: s."""
    steps_of = {rank: set[int]() for rank in pc.unique(intervals["rank"]).to_pylist()}
    for rank, step in zip(intervals["rank"].to_pylist(), intervals["step"].to_pylist(), strict=True):
        steps_of[rank].add(step)
    is_wait = pc.or_(
        pc.equal(intervals["category"], "comm"), pc.is_in(intervals["kind"], pa.array(["straggler", "bubble"]))
    )
    summed = intervals.filter(pc.invert(is_wait)).group_by("rank").aggregate([("exposed_ns", "sum")]).to_pylist()
    own_ns = {row["rank"]: row["exposed_ns_sum"] for row in summed}
    return {rank: ns_to_s(own_ns.get(rank, 0)) / len(steps) for rank, steps in steps_of.items()}


def of_spans(folder: Path, summaries: Sequence[RankSummary]) -> Traced:
    """Return parts and kernels from the tables of traces without steps: the span of each rank counts as one step."""
    exposed: dict[Part, float] = defaultdict(float)
    overlapped: dict[Part, float] = defaultdict(float)
    for summary in summaries:
        for account in summary.accounts:
            if account.label.kind != ALL:
                exposed[Part(*account.label)] += ns_to_s(account.exposed) / len(summaries)
                overlapped[Part(*account.label)] += ns_to_s(account.busy - account.exposed) / len(summaries)
    kernels = _kernels(KERNELS.read(folder / "kernels.parquet"), len(summaries))
    return Traced([exposed], [1], overlapped, kernels, {}, len(summaries), has_steps=False)


def of_repeats(traced: Sequence[Traced]) -> Traced | None:
    """Return the steps of several repeats together, and means of all else over repeats; None without repeats."""
    if len(traced) < 2:
        return next(iter(traced), None)
    kernels: dict[KernelName, KernelTime] = {}
    for name in {name: None for repeat in traced for name in repeat.kernels}:
        times = [repeat.kernels.get(name, KernelTime(0.0, 0.0)) for repeat in traced]
        kernels[name] = KernelTime(*(sum(values) / len(traced) for values in zip(*times, strict=True)))
    return Traced(
        steps=[step for repeat in traced for step in repeat.steps],
        repeats=[number for repeat in traced for number in repeat.repeats],
        overlapped=_means([repeat.overlapped for repeat in traced]),
        kernels=kernels,
        waited_s=_means([repeat.waited_s for repeat in traced]),
        num_ranks=max(repeat.num_ranks for repeat in traced),
        has_steps=all(repeat.has_steps for repeat in traced),
    )


def _means(mappings: Sequence[Mapping[_Key, float]]) -> dict[_Key, float]:
    """Return the mean of each key over mappings; a key that one lacks is 0 there."""
    keys = {key: None for mapping in mappings for key in mapping}
    return {key: sum(mapping.get(key, 0.0) for mapping in mappings) / len(mappings) for key in keys}


def _kernels(kernels: pa.Table, num_rank_steps: int) -> dict[KernelName, KernelTime]:
    """Return the calls of each kernel, divided by the number of steps times ranks."""
    summed = kernels.group_by(["class", "kind", "group", "name"]).aggregate([("count", "sum"), ("sum_ns", "sum")])
    times: dict[KernelName, KernelTime] = {}
    for row in summed.to_pylist():
        name = KernelName(part_of(row["class"], row["kind"], row["group"]), row["class"], row["kind"], row["name"])
        times[name] = KernelTime(row["count_sum"] / num_rank_steps, ns_to_s(row["sum_ns_sum"]) / num_rank_steps)
    return times


def part_of(cls: str, kind: str, group: str | None) -> Part:
    """Return the part of a step that a kernel belongs to, by its class, kind and group in table `kernels`."""
    category = Kernel(cls, kind).category
    if category == "compute":
        return Part(category, cls)
    return Part(category, kind, group if category == "comm" else None)


def _waited_s(ranks: pa.Table | None, num_rank_steps: int) -> dict[str, float]:
    """Return `Traced.waited_s`. Unit: s."""
    if ranks is None or len(ranks) <= 1:
        return {}
    return {name: ns_to_s(pc.sum(ranks[f"{name}_ns"]).as_py()) / num_rank_steps for name in ("bubble", "straggler")}
