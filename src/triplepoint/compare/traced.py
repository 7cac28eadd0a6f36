"""What traces say of one side: the parts of a step and its kernels, means over ranks."""

from collections import defaultdict
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
    ("idle", "other"): "other idle time",
    ("unprofiled", "all"): "measured less profiled step",
}


class Part(NamedTuple):
    """What a stretch of a step went into, as in table `intervals`: category, kind within it, role of the group."""

    category: str
    kind: str
    group: str | None = None


def part_name(part: Part) -> str:
    """Return what a part is called: `gemm`, `exposed all_gather of tp`, `pipeline bubble`."""
    if named := _NAMES.get((part.category, part.kind)):
        return named
    if part.category == "comm":
        kind = "communication of unknown kind" if part.kind == "unknown" else part.kind
        return f"exposed {kind}{f' of {part.group}' if part.group else ''}"
    if part.category == "compute":
        return "other computation" if part.kind == "other" else part.kind
    return f"exposed {part.kind}" if part.category == "memory" else f"idle: {part.kind}"


class KernelName(NamedTuple):
    """A kernel of one part: its class and kind, and its name in the trace."""

    part: Part
    cls: str
    kind: str
    name: str


class KernelTime(NamedTuple):
    """Kernels of one name in a step, means over steps and ranks: occurrences, and summed duration (s)."""

    num_calls: float
    sum_s: float


class _Tables(NamedTuple):
    """Tables of traced ranks; `ranks` is None where none was made."""

    intervals: pa.Table
    kernels: pa.Table
    ranks: pa.Table | None


@dataclass(frozen=True)
class Traced:
    """Parts and kernels of profiled steps.

    Attributes:
        steps: Exposed time by part, of each profiled step the mean over ranks; they add up to the step. Unit: s.
        repeats: Repeat that each of the steps is of, shape (num_steps,).
        overlapped: Time by part that computation or earlier communication hides, mean over all steps. Unit: s.
        kernels: Kernels by name.
        waited_s: Exposed waiting inside communication, mean over all steps: `bubble` for other stages, `straggler` for
            late ranks; empty where a single rank was traced. Unit: s.
        num_ranks: Ranks traced.
        has_steps: Whether the traces mark steps; else their whole span counts as one.
        own_s: Time of a step in which each rank does not wait in communication, by rank, mean over steps. Unit: s.
        tables: Tables it is of, `intervals`, `kernels` and `ranks`; None of several runs, and of whole spans.
    """

    steps: Sequence[Mapping[Part, float]]
    repeats: Sequence[int]
    overlapped: Mapping[Part, float]
    kernels: Mapping[KernelName, KernelTime]
    waited_s: Mapping[str, float]
    num_ranks: int
    has_steps: bool = True
    own_s: Mapping[int, float] = field(default_factory=dict)
    tables: "_Tables | None" = None

    def of_rank(self, rank: int) -> "Traced":
        """Return the same of one rank alone; all of it where its tables are not known."""
        if self.tables is None:
            return self
        repeat = self.repeats[0] if self.repeats else 1
        tables = (table and table.filter(pc.equal(table["rank"], rank)) for table in self.tables)
        return _of(_Tables(*tables), repeat) or self

    def mean_s(self, part: Part) -> float:
        """Return the exposed time of a part, mean over steps. Unit: s."""
        return sum(step.get(part, 0.0) for step in self.steps) / len(self.steps)

    @property
    def step_s(self) -> float:
        """Return the time of a step, mean over steps and ranks. Unit: s."""
        return sum(sum(step.values()) for step in self.steps) / len(self.steps)


def of_tables(folder: Path, repeat: int = 1) -> Traced | None:
    """Return what the tables in a folder say; None where they have no step."""
    intervals = INTERVALS.read(folder / "intervals.parquet")
    if not len(intervals):
        return None
    ranks = RANKS.read(folder / "ranks.parquet") if (folder / "ranks.parquet").is_file() else None
    return _of(_Tables(intervals, KERNELS.read(folder / "kernels.parquet"), ranks), repeat)


def _of(tables: "_Tables", repeat: int) -> Traced | None:
    intervals = tables.intervals
    pairs = intervals.group_by(["step", "rank"]).aggregate([])
    if not len(pairs):
        return None
    ranks_of: dict[int, int] = defaultdict(int)
    for step in pairs["step"].to_pylist():
        ranks_of[step] += 1
    exposed: dict[int, dict[Part, float]] = {step: {} for step in sorted(ranks_of)}
    overlapped: dict[Part, float] = defaultdict(float)
    keys = ["step", "category", "kind", "group"]
    summed = intervals.group_by(keys).aggregate([("exposed_ns", "sum"), ("overlapped_ns", "sum")])
    for row in summed.to_pylist():
        part, num_ranks = Part(row["category"], row["kind"], row["group"]), ranks_of[row["step"]]
        exposed[row["step"]][part] = ns_to_s(row["exposed_ns_sum"]) / num_ranks
        overlapped[part] += ns_to_s(row["overlapped_ns_sum"]) / num_ranks / len(ranks_of)
    kernels = tables.kernels.filter(pc.is_in(tables.kernels["step"], pa.array(list(ranks_of), pa.int64())))
    return Traced(
        steps=list(exposed.values()),
        repeats=[repeat] * len(exposed),
        overlapped=overlapped,
        kernels=_kernels(kernels, len(pairs)),
        waited_s=_waited(tables.ranks, len(pairs)),
        num_ranks=max(ranks_of.values()),
        own_s=_own_s(intervals),
        tables=tables,
    )


def _own_s(intervals: pa.Table) -> dict[int, float]:
    """Return the time of a step in which each rank neither communicates nor waits for other ranks. Unit: s."""
    num_steps = {rank: set[int]() for rank in pc.unique(intervals["rank"]).to_pylist()}
    for rank, step in zip(intervals["rank"].to_pylist(), intervals["step"].to_pylist(), strict=True):
        num_steps[rank].add(step)
    is_wait = pc.or_(
        pc.equal(intervals["category"], "comm"), pc.is_in(intervals["kind"], pa.array(["straggler", "bubble"]))
    )
    summed = intervals.filter(pc.invert(is_wait)).group_by("rank").aggregate([("exposed_ns", "sum")]).to_pylist()
    own_ns = {row["rank"]: row["exposed_ns_sum"] for row in summed}
    return {rank: ns_to_s(own_ns.get(rank, 0)) / len(steps) for rank, steps in num_steps.items()}


def of_spans(folder: Path, summaries: Sequence[RankSummary]) -> Traced:
    """Return what the tables of traces without steps say: the whole span of each rank is one step."""
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
    """Return the steps of several runs together, kernels and other means over runs; None where there are none."""
    if len(traced) < 2:
        return next(iter(traced), None)
    num = len(traced)
    kernels: dict[KernelName, KernelTime] = {}
    for name in {name: None for one in traced for name in one.kernels}:
        times = [one.kernels.get(name, KernelTime(0.0, 0.0)) for one in traced]
        kernels[name] = KernelTime(*(sum(values) / num for values in zip(*times, strict=True)))
    return Traced(
        steps=[step for one in traced for step in one.steps],
        repeats=[repeat for one in traced for repeat in one.repeats],
        overlapped=_means([one.overlapped for one in traced]),
        kernels=kernels,
        waited_s=_means([one.waited_s for one in traced]),
        num_ranks=max(one.num_ranks for one in traced),
        has_steps=all(one.has_steps for one in traced),
    )


def _means(found: Sequence[Mapping[_Key, float]]) -> dict[_Key, float]:
    keys = {key: None for one in found for key in one}
    return {key: sum(one.get(key, 0.0) for one in found) / len(found) for key in keys}


def _kernels(kernels: pa.Table, num: int) -> dict[KernelName, KernelTime]:
    """Return kernels by name, counts and sums over a number of steps of ranks."""
    summed = kernels.group_by(["class", "kind", "group", "name"]).aggregate([("count", "sum"), ("sum_ns", "sum")])
    found: dict[KernelName, KernelTime] = {}
    for row in summed.to_pylist():
        key = KernelName(part_of(row["class"], row["kind"], row["group"]), row["class"], row["kind"], row["name"])
        found[key] = KernelTime(row["count_sum"] / num, ns_to_s(row["sum_ns_sum"]) / num)
    return found


def part_of(cls: str, kind: str, group: str | None) -> Part:
    """Return the part of a step that a kernel belongs to, by its class, kind and group as in table `kernels`."""
    category = Kernel(cls, kind).category
    if category == "compute":
        return Part(category, cls)
    return Part(category, kind, group if category == "comm" else None)


def _waited(ranks: pa.Table | None, num: int) -> dict[str, float]:
    if ranks is None or len(ranks) <= 1:
        return {}
    return {name: ns_to_s(pc.sum(ranks[f"{name}_ns"]).as_py()) / num for name in ("bubble", "straggler")}
