"""Why a job is slow: of a run, of a folder of trace tables, or of a table of operations."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from triplepoint.config.mesh import RankMesh
from triplepoint.config.plan import read_planned_run
from triplepoint.config.point import Point
from triplepoint.errors import UserError
from triplepoint.manifest import NO_STEP, read_manifest
from triplepoint.units import S_PER_HOUR, counted
from triplepoint.why.explain import CAUSES, Finding, explain, explain_clocks
from triplepoint.why.gpus import describe_gpus, explain_heat
from triplepoint.why.operations import WORK, Operations
from triplepoint.why.operations_table import read_operations
from triplepoint.why.replay import find_order
from triplepoint.why.run_operations import operations_of_steps, places_of_traces
from triplepoint.why.sensed import Sensed, sense
from triplepoint.why.slowdown import Slowdown, find_slowdown
from triplepoint.why.step_times import StepTimes, study_steps
from triplepoint.why.suspects import find_suspects
from triplepoint.why.traced_operations import traced_operations

_HOURS = 24
"""Of a day."""
_LEAST_UNEVEN = 0.05
"""Share of the step that is lost to unequal operations from which it is said where no worker stands out. Our choice."""


@dataclass(frozen=True)
class Answer:
    """Why a job is slow.

    Attributes:
        name: The job.
        source: What it was told from: traces, one rank (its trace), step times, recording (of no steps), operations.
        num_gpus: GPUs of the job; recorded workers where that is not known.
        num_steps: Steps behind it.
        step_s: Mean time of a step. Unit: s.
        slowdown: What the replay says.
        findings: Causes of slow GPUs, most costly first.
        gpu_power_w: Mean power of a GPU; NaN if not measured. Unit: W.
        heat: What heat explains, in a sentence.
        step_times: What measured steps show by themselves; None of jobs without any.
        gpus: How the hottest GPU and the one of the lowest clock differ from the others, a sentence each.
        unit: What a rank computes on in words: GPU; rank where that is a processor, or not known.
        sensed: What is known of its GPUs, by rank.
        notes: What could not be told, and why.
        step_parts: Of a rank that was traced alone, the largest parts of its step, in words.
        is_by_rank: Whether each replica is one rank: data parallel ranks, or a layout that nobody told.
    """

    name: str
    source: str
    num_gpus: int
    num_steps: int
    step_s: float
    slowdown: Slowdown
    findings: Sequence[Finding]
    gpu_power_w: float
    heat: str
    step_times: StepTimes | None = None
    gpus: tuple[str, ...] = ()
    unit: str = "GPU"
    sensed: tuple[Sensed, ...] = ()
    notes: tuple[str, ...] = ()
    step_parts: str = ""
    is_by_rank: bool = False

    @property
    def sentence(self) -> str:
        """Return the answer in a sentence: what is slow, why, and what it costs."""
        if rows := self.rows():
            first = rows[0]
            cost = f"{'up to ' * first['is_bound']}{first['lost_share']:.1%} of each step"
            hours = f"{first['lost_gpu_hours_per_day']:.3g} {self.unit} hours a day"
            more = f"; {counted(len(rows) - 1, 'smaller cause')} below" if len(rows) > 1 else ""
            rest = self._uneven - sum(row["lost_share"] for row in rows)
            other = f"; other differences between {self.unit}s cost {rest:.0%}" if rest >= _LEAST_UNEVEN else ""
            return f"{first['gpu']} is slow, cause: {first['cause']}; it costs {cost}, {hours}{more}{other}"
        if self.step_parts:
            return f"a step of the one rank that was traced is {self.step_parts}"
        if self.num_gpus == 1:
            return f"there is no other {self.unit} to compare it with"
        if self._uneven >= _LEAST_UNEVEN:
            kind = next(iter(self.slowdown.by_kind))
            return (
                f"no single {self.unit} is slow, but {self.unit}s differ: a step would be {self._uneven:.0%} shorter "
                f"if equal operations lasted equally long, mostly {kind_name(kind)}"
            )
        times = self.step_times
        long_share = times.long_s / times.total_s if times is not None else 0.0
        steps = f"; {times.about_long_steps()}" if times is not None and long_share >= _LEAST_UNEVEN else ""
        return f"no {self.unit} is slow: none stands out from its peers by 2 % or more{steps}"

    @property
    def _uneven(self) -> float:
        """Share of the step that is lost because equal operations last unequally long, as the replay says."""
        return 1 - float(self.slowdown.ideal_s.mean() / self.slowdown.replayed_s.mean()) if self.is_replayed else 0.0

    @property
    def is_replayed(self) -> bool:
        """Whether its operations can be replayed: whole steps of ranks hold nothing to replay."""
        return self.source in ("traces", "operations")

    def rows(self) -> list[dict[str, Any]]:
        """Return rows of table `why`."""
        found = []
        for one in self.findings:
            share = one.lost_s / self.step_s
            power_w = None if math.isnan(self.gpu_power_w) else self.gpu_power_w * self.num_gpus
            found.append(
                {
                    "rank": one.rank,
                    "gpu": one.name,
                    "cause": one.cause,
                    "lost_s": one.lost_s,
                    "lost_share": min(share, 1.0),
                    "lost_gpu_hours_per_day": share * self.num_gpus * _HOURS,
                    "lost_energy_per_day_j": None if power_w is None else share * power_w * _HOURS * S_PER_HOUR,
                    "evidence": one.evidence,
                    "advice": CAUSES[one.cause],
                    "is_bound": one.is_bound,
                }
            )
        return found

    def content(self) -> dict[str, Any]:
        """Return all of it as plain data, keys `CONTENT`; None for what is not known."""
        slow = self.slowdown
        return {
            "answer": self.sentence,
            "name": self.name,
            "source": self.source,
            "num_gpus": self.num_gpus,
            "num_steps": self.num_steps,
            "step_time_s": self.step_s,
            "ideal_step_time_s": float(slow.ideal_s.mean()),
            "slowdown": slow.slowdown,
            "launch_slowdown": slow.launch_slowdown,
            "slowdown_of_steps": slow.of_steps.tolist(),
            "slowdown_by_kind": slow.by_kind,
            "slowdown_by_dp_rank": slow.by_dp,
            "slowdown_by_stage": slow.by_stage,
            "slowest_workers": [{"dp_rank": dp, "stage": stage} for dp, stage in slow.top_workers],
            "share_of_slowest_workers": _known(slow.share_of_workers),
            "share_of_last_stage": _known(slow.share_of_last_stage),
            "gpu_power_w": _known(self.gpu_power_w),
            "heat": self.heat,
            "step_times": None if self.step_times is None else self.step_times.content(),
            "gpus": self.gpus,
            "causes": self.rows(),
            "notes": self.notes,
        }


def kind_name(kind: str) -> str:
    """Return what people call a kind of operation."""
    return "work between collectives" if kind == WORK else kind.removeprefix("other-")


def _known(value: float) -> float | None:
    return value if math.isfinite(value) else None


def why_operations(path: Path) -> Answer:
    """Return why the job of a table of operations is slow; no sensors belong to it.

    Raises:
        UserError: If it is no such table.
    """
    operations = read_operations(path)
    note = "no telemetry belongs to a table of operations: causes are of time alone"
    # Ranks of a tensor parallel group are numbered on, and only the first of each is recorded.
    ranks = sorted(worker.rank for worker in operations.workers)
    between = int(np.diff(ranks).min()) if len(ranks) > 1 else 1
    num_gpus = max(ranks[-1] + between, len(ranks))
    return answer_of(path.name, "operations", operations, {}, num_gpus, lambda place: (), (note,))


def why_run(run: Path, name: str = "", known: tuple[str, ...] = ()) -> Answer:
    """Return why a run is slow: from its traces where it has them, else from step times, and from its telemetry.

    Args:
        run: Folder of the run.
        name: What it is called; its folder's name if empty.
        known: Notes on how the folder came about.

    Raises:
        UserError: If the run did not finish, or a table is missing or damaged.
    """
    manifest = read_manifest(run / "raw" / "manifest.json")
    point = read_planned_run(run / "point.json").point
    num_gpus = sum(len(node.devices) for node in manifest.nodes)
    if not num_gpus:
        raise UserError(
            f"{name or run.name}: its status is {manifest.status}, so there are no steps; name a run that finished"
        )
    place_of = _places(run, point, num_gpus)
    sensed = {one.rank: one for one in sense(run, manifest, lambda rank: place_of(rank)[1])}
    per_node = max(len(node.devices) for node in manifest.nodes)
    steps = operations_of_steps(run, place_of)
    operations, source, notes = _operations(run, steps, place_of, per_node)
    notes = (*known, *notes)
    has_steps = NO_STEP not in manifest.facts
    if source == "step times" and not has_steps:
        source, notes = "recording", (str(manifest.facts[NO_STEP]), *notes)
    num_traced = len(operations.workers)
    if source == "traces" and num_traced < num_gpus:
        notes += (f"{num_traced} of {num_gpus} ranks were traced: others are seen by their sensors alone",)
    ranks: dict[tuple[int, int], list[int]] = {}
    for rank in sensed:
        ranks.setdefault(place_of(rank), []).append(rank)
    found = answer_of(name or run.name, source, operations, sensed, num_gpus, lambda place: ranks.get(place, ()), notes)
    is_cpu = all(device.device == "cpu" for node in manifest.nodes for device in node.devices)
    step_times = study_steps(steps) if has_steps else None
    if step_times is not None and point.recorded is not None and len(point.recorded.marked_ranks) == 1:
        step_times = replace(step_times, ranks=None)
    return replace(found, step_times=step_times, unit="rank" if is_cpu else "GPU")


def _places(run: Path, point: Point, num_gpus: int) -> Callable[[int], tuple[int, int]]:
    """Return what tells replica and stage of a rank: the layout; of a job whose layout nobody told, its traces."""
    mesh = RankMesh(point.layout)
    if point.knows("tp", "pp", "cp") and mesh.num_ranks == num_gpus:
        return lambda rank: (mesh.place(rank).dp, mesh.place(rank).pp)
    traced: dict[int, tuple[int, int]] = {}
    if (run / "timeline.parquet").is_file() and (run / "collectives.parquet").is_file():
        traced = places_of_traces(run)
    return lambda rank: traced.get(rank, (rank, 0))


def _operations(
    run: Path, steps: Operations, place_of: Callable[[int], tuple[int, int]], per_node: int
) -> tuple[Operations, str, tuple[str, ...]]:
    if not (run / "timeline.parquet").is_file():
        return steps, "step times", ("no traces: what ranks do inside of a step is not known",)
    try:
        return traced_operations(run, place_of, per_node), "traces", ()
    except UserError as error:
        return steps, "step times", (f"traces are not used: {str(error).replace(f'{run}/', '')}",)


def answer_of(
    name: str, source: str, operations: Operations, sensed: Mapping[int, Sensed], num_gpus: int,
    ranks_of: Callable[[tuple[int, int]], Sequence[int]], notes: tuple[str, ...],
) -> Answer:  # fmt: skip
    """Return why a job is slow.

    Args:
        name: The job.
        source: What operations are from.
        operations: What its workers did.
        sensed: What is known of its GPUs, by rank; may be empty.
        num_gpus: Their number.
        ranks_of: All ranks of a replica's stage, recorded or not.
        notes: What could not be told.
    """
    order = find_order(operations)
    suspects = find_suspects(operations, order)
    step_s = float(operations.step_time_s.mean())
    findings = explain(suspects, sensed, ranks_of, step_s)
    traced = _traced_ranks(operations, ranks_of) if source == "traces" else set()
    if not traced or not any(one.cause != "network" for one in findings):
        findings = _with_clocks(findings, [one for one in explain_clocks(sensed, step_s) if one.rank not in traced])
    powers = [one.power_w for one in sensed.values() if math.isfinite(one.power_w)]
    power_w = float(np.mean(powers)) if powers else math.nan
    heat = explain_heat(findings, sensed, step_s)
    num_steps = len(operations.steps)
    slowdown = find_slowdown(operations, order)
    findings = within_loss(findings, step_s - float(slowdown.ideal_s.mean()))
    return Answer(
        name, source, num_gpus, num_steps, step_s, slowdown, findings, power_w, heat,
        gpus=tuple(describe_gpus(sensed)), notes=notes, sensed=tuple(sensed.values()),
        is_by_rank=all((worker.dp, worker.stage) == (worker.rank, 0) for worker in operations.workers),
    )  # fmt: skip


def within_loss(findings: Sequence[Finding], lost_s: float) -> list[Finding]:
    """Return findings that together cost no more than the step loses against the ideal one; bounds stay bounds.

    The ideal is a mean over workers, a mended one is as fast as the median of its peers.
    """
    whole_s = sum(one.lost_s for one in findings if not one.is_bound)
    lost_s = max(lost_s, 0.0)  # the marked step may last a little less than what the replay of its traces takes
    if whole_s <= lost_s:
        return list(findings)
    factor = lost_s / whole_s
    return [one if one.is_bound else replace(one, lost_s=factor * one.lost_s) for one in findings]


def _with_clocks(findings: Sequence[Finding], by_clock: Sequence[Finding]) -> list[Finding]:
    """Return findings with those that clocks tell, of one rank the more costly: ranks end their steps together."""
    clock_s = {one.rank: one.lost_s for one in by_clock}
    kept = [one for one in findings if one.lost_s > clock_s.get(one.rank, 0.0)]
    named = {one.rank for one in kept}
    return sorted([*kept, *(one for one in by_clock if one.rank not in named)], key=lambda one: -one.lost_s)


def _traced_ranks(operations: Operations, ranks_of: Callable[[tuple[int, int]], Sequence[int]]) -> set[int]:
    """Return the ranks whose slowness traces would show: of a tensor parallel group one trace shows all."""
    places = {(worker.dp, worker.stage) for worker in operations.workers}
    return {rank for place in places for rank in ranks_of(place)} | {worker.rank for worker in operations.workers}
