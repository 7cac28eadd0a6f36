"""The answer to why a job is slow, from a run or a table of operations."""

import math
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from triplepoint.config.mesh import RankMesh
from triplepoint.config.plan import read_planned_run
from triplepoint.config.point import Point
from triplepoint.errors import UserError
from triplepoint.manifest import NO_STEP, Origin, read_manifest
from triplepoint.text import percent
from triplepoint.units import S_PER_HOUR, counted
from triplepoint.why.explain import CAUSES, LEAST_THROTTLED, OF_HEAT, Finding, explain, explain_clocks
from triplepoint.why.gpus import describe_gpus, explain_heat, lowest_clock
from triplepoint.why.operations import WORK, Operations
from triplepoint.why.operations_table import read_operations
from triplepoint.why.replay import find_order
from triplepoint.why.run_operations import operations_of_steps, places_of_traces
from triplepoint.why.sensed import Sensed, sense
from triplepoint.why.slowdown import Slowdown, find_slowdown
from triplepoint.why.step_times import StepTimes, analyse_step_times
from triplepoint.why.suspects import find_suspects
from triplepoint.why.traced_operations import traced_operations

_HOURS_PER_DAY = 24
_LEAST_UNEVEN = 0.05
"""Smallest time lost to unequal operations that the sentence reports if no worker is an outlier, as a share of the
step. Our choice."""


@dataclass(frozen=True)
class Answer:
    """Why a job is slow.

    Attributes:
        name: Name of the job.
        source: Basis of the answer: traces; one rank (the trace of a single rank); step times; recording (sensors
            without steps); operations (a table of operations).
        num_gpus: GPUs of the job; the recorded workers if that is not known.
        num_steps: Steps that were analysed.
        step_s: Mean time of a step. Unit: s.
        slowdown: Slowdown by replay.
        findings: Causes of slow GPUs, most costly first.
        gpu_power_w: Mean power of a GPU; NaN if not measured. Unit: W.
        heat: Sentence on the cost of heat.
        step_times: Statistics of measured steps; None for a job without any.
        gpus: Sentences on the hottest GPU and the GPU with the lowest clock.
        unit: Word for the device of a rank: GPU; rank if it is a CPU or not known.
        sensed: Measurements of the GPUs, sorted by rank.
        notes: What could not be determined, and why.
        step_parts: Largest parts of the step of a rank that was traced alone, in words; empty otherwise.
        is_by_rank: Whether each replica is one rank: pure data parallelism, or an unknown layout.
        origin: measured or simulated; None if the tables do not tell.
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
    origin: Origin | None = None

    @property
    def sentence(self) -> str:
        """The answer in a sentence: what is slow, why, and what it costs."""
        if rows := self.rows():
            first = rows[0]
            cost = f"{'up to ' * first['is_bound']}{percent(first['lost_share'])} of each step"
            hours = f"{first['lost_gpu_hours_per_day']:.3g} {self.unit} hours a day"
            more = f"; {counted(len(rows) - 1, 'smaller cause')} below" if len(rows) > 1 else ""
            rest = self._uneven_share - sum(row["lost_share"] for row in rows)
            other = f"; other differences between {self.unit}s cost {percent(rest, 0)}" if rest >= _LEAST_UNEVEN else ""
            are, costs = ("are", "they cost") if first["gpu"].startswith("all ") else ("is", "it costs")
            return f"{first['gpu']} {are} slow, cause: {first['cause']}; {costs} {cost}, {hours}{more}{other}"
        if self.step_parts:
            return f"a step of the one rank that was traced is {self.step_parts}"
        if self.num_gpus == 1:
            return f"there is no other {self.unit} to compare it with"
        if self._uneven_share >= _LEAST_UNEVEN:
            kind = next(iter(self.slowdown.by_kind))
            return (
                f"no single {self.unit} is slow, but {self.unit}s differ: a step would be "
                f"{percent(self._uneven_share, 0)} shorter if equal operations lasted equally long, mostly "
                f"{kind_name(kind)}"
            )
        times = self.step_times
        long_share = times.long_s / times.total_s if times is not None else 0.0
        steps = f"; {times.about_long_steps()}" if times is not None and long_share >= _LEAST_UNEVEN else ""
        clock = lowest_clock({gpu.rank: gpu for gpu in self.sensed})
        lowest = f"; the lowest clock is {clock}" if clock else ""
        return f"no {self.unit} among {self.num_gpus} is found to delay the job{lowest}{steps}"

    @property
    def _uneven_share(self) -> float:
        """Share of the step that is lost because equal operations have unequal durations."""
        return 1 - float(self.slowdown.ideal_s.mean() / self.slowdown.replayed_s.mean()) if self.is_replayed else 0.0

    @property
    def is_replayed(self) -> bool:
        """Whether the replay has a meaning; it has none for whole steps of ranks."""
        return self.source in ("traces", "operations")

    def rows(self) -> list[dict[str, Any]]:
        """Return the rows of table `why`."""
        job_power_w = None if math.isnan(self.gpu_power_w) else self.gpu_power_w * self.num_gpus
        rows = []
        for finding in self.findings:
            share = finding.lost_s / self.step_s
            energy_j = None if job_power_w is None else share * job_power_w * _HOURS_PER_DAY * S_PER_HOUR
            rows.append(
                {
                    "rank": finding.rank,
                    "gpu": finding.name,
                    "cause": finding.cause,
                    "lost_s": finding.lost_s,
                    "lost_share": min(share, 1.0),
                    "lost_gpu_hours_per_day": share * self.num_gpus * _HOURS_PER_DAY,
                    "lost_energy_per_day_j": energy_j,
                    "evidence": finding.evidence,
                    "advice": CAUSES[finding.cause],
                    "is_bound": finding.is_bound,
                }
            )
        return rows

    def content(self) -> dict[str, Any]:
        """Return the answer as plain data for `--json`; None for what is not known."""
        slow = self.slowdown
        return {
            "answer": self.sentence,
            "name": self.name,
            "source": self.source,
            "origin": self.origin,
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
            "share_of_slowest_workers": _none_if_nan(slow.share_of_workers),
            "share_of_last_stage": _none_if_nan(slow.share_of_last_stage),
            "gpu_power_w": _none_if_nan(self.gpu_power_w),
            "heat": self.heat,
            "step_times": None if self.step_times is None else self.step_times.content(),
            "gpus": self.gpus,
            "causes": self.rows(),
            "notes": self.notes,
        }


def kind_name(kind: str) -> str:
    """Return the name of a kind of operation in messages."""
    return "work between collectives" if kind == WORK else kind.removeprefix("other-")


def _none_if_nan(value: float) -> float | None:
    return value if math.isfinite(value) else None


def why_operations(path: Path) -> Answer:
    """Return why the job of a table of operations is slow, without sensors.

    Raises:
        UserError: If the file is no table of operations.
    """
    operations = read_operations(path)
    note = "a table of operations has no telemetry: causes come from times alone"
    # Only the first rank of each tensor parallel group is recorded, so ranks are a group's size apart.
    ranks = sorted(worker.rank for worker in operations.workers)
    tensor_parallel = int(np.diff(ranks).min()) if len(ranks) > 1 else 1
    num_gpus = max(ranks[-1] + tensor_parallel, len(ranks))
    return answer_of(path.name, "operations", operations, {}, num_gpus, lambda place: (), (note,))


def why_run(run: Path, name: str = "", notes: tuple[str, ...] = ()) -> Answer:
    """Return why a run is slow, from its traces, or its step times if it has none, and from its telemetry.

    Args:
        run: Folder of the run.
        name: Name in the answer; the folder's name if empty.
        notes: Notes that the answer repeats.

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
    sensed = {gpu.rank: gpu for gpu in sense(run, manifest, lambda rank: place_of(rank)[1])}
    gpus_per_node = max(len(node.devices) for node in manifest.nodes)
    steps = operations_of_steps(run, place_of)
    operations, source, notes_on_source = _operations(run, steps, place_of, gpus_per_node)
    notes += notes_on_source
    has_steps = NO_STEP not in manifest.facts
    if source == "step times" and not has_steps:
        source, notes = "recording", (str(manifest.facts[NO_STEP]), *notes)
    num_traced = len(operations.workers)
    if source == "traces" and num_traced < num_gpus:
        notes += (f"{num_traced} of {num_gpus} ranks were traced: others are seen by their sensors alone",)
    ranks: dict[tuple[int, int], list[int]] = {}
    for rank in sensed:
        ranks.setdefault(place_of(rank), []).append(rank)
    answer = answer_of(
        name or run.name, source, operations, sensed, num_gpus, lambda place: ranks.get(place, ()), notes
    )
    is_cpu = all(device.device == "cpu" for node in manifest.nodes for device in node.devices)
    step_times = analyse_step_times(steps, manifest.origin) if has_steps else None
    if step_times is not None and point.recorded is not None and len(point.recorded.marked_ranks) == 1:
        step_times = replace(step_times, ranks=None)
    return replace(answer, step_times=step_times, unit="rank" if is_cpu else "GPU", origin=manifest.origin)


def _places(run: Path, point: Point, num_gpus: int) -> Callable[[int], tuple[int, int]]:
    """Return a function from rank to replica and stage: by the layout, or by the traces if the layout is not known."""
    mesh = RankMesh(point.layout)
    if point.knows("tp", "pp", "cp") and mesh.num_ranks == num_gpus:
        return lambda rank: (mesh.place(rank).dp, mesh.place(rank).pp)
    traced: dict[int, tuple[int, int]] = {}
    if (run / "timeline.parquet").is_file() and (run / "collectives.parquet").is_file():
        traced = places_of_traces(run)
    return lambda rank: traced.get(rank, (rank, 0))


def _operations(
    run: Path, steps: Operations, place_of: Callable[[int], tuple[int, int]], gpus_per_node: int
) -> tuple[Operations, str, tuple[str, ...]]:
    """Return the operations of the traces, or whole steps if there are no usable traces; the source; and notes."""
    if not (run / "timeline.parquet").is_file():
        return steps, "step times", ("no traces: what ranks do inside of a step is not known",)
    try:
        return traced_operations(run, place_of, gpus_per_node), "traces", ()
    except UserError as error:
        return steps, "step times", (f"traces are not used: {str(error).replace(f'{run}/', '')}",)


def answer_of(
    name: str, source: str, operations: Operations, sensed: Mapping[int, Sensed], num_gpus: int,
    ranks_of: Callable[[tuple[int, int]], Sequence[int]], notes: tuple[str, ...],
) -> Answer:  # fmt: skip
    """Return why a job is slow.

    Args:
        name: Name of the job.
        source: Source of the operations, as in `Answer`.
        operations: Operations of its workers.
        sensed: Measurements of its GPUs, by rank; may be empty.
        num_gpus: Number of its GPUs.
        ranks_of: Returns all ranks of a place (replica and stage), recorded or not.
        notes: What could not be determined, and why.
    """
    order = find_order(operations)
    suspects = find_suspects(operations, order, sensed)
    step_s = float(operations.step_time_s.mean())
    findings = explain(suspects, sensed, ranks_of, step_s)
    traced = _traced_ranks(operations, ranks_of) if source == "traces" else set()
    findings = _with_needed_clocks(findings, operations, sensed, traced)
    powers = [gpu.power_w for gpu in sensed.values() if math.isfinite(gpu.power_w)]
    power_w = float(np.mean(powers)) if powers else math.nan
    heat = explain_heat(findings, sensed, step_s)
    num_steps = len(operations.steps)
    slowdown = find_slowdown(operations, order)
    notes += _note_on_clocks(findings, sensed)
    return Answer(
        name, source, num_gpus, num_steps, step_s, slowdown, findings, power_w, heat,
        gpus=tuple(describe_gpus(sensed)), notes=notes, sensed=tuple(sensed.values()),
        is_by_rank=all((worker.dp, worker.stage) == (worker.rank, 0) for worker in operations.workers),
    )  # fmt: skip


def _note_on_clocks(findings: Sequence[Finding], sensed: Mapping[int, Sensed]) -> tuple[str, ...]:
    """Return a note if clocks would fall once the slow GPUs are repaired, since GPUs wait less at their power limit.

    If watts grow with the cube of the clock and their mean stays, the step time is proportional to that at equal
    clocks raised to 2/3. So at least two thirds of a cost are saved; idle power and steps that are not all computation
    save more.
    """
    num_capped = sum(gpu.throttled.get("power_cap_share", 0.0) >= LEAST_THROTTLED for gpu in sensed.values())
    if not num_capped or all(finding.is_bound for finding in findings):
        return ()
    return (
        f"costs are those at the clocks of this run: {num_capped} of {len(sensed)} GPUs are held by their power limit "
        "at times, and their clocks fall when they wait less, so a repair may save a third less",
    )


def _with_needed_clocks(
    findings: Sequence[Finding], operations: Operations, sensed: Mapping[int, Sensed], traced: Collection[int]
) -> list[Finding]:
    """Return the findings with those by clocks that operations do not show.

    Args:
        findings: Findings by operations.
        operations: Operations of the job.
        sensed: Measurements of its GPUs, by rank.
        traced: Ranks whose slowness the traces show.
    """
    by_clock = explain_clocks(sensed, float(operations.step_time_s.mean()))
    found = list(findings)
    if not traced or all(finding.cause == "network" for finding in found):
        found = _with_clocks(found, [finding for finding in by_clock if finding.rank not in traced])
    if all(finding.cause != "degraded" for finding in found):
        # Stages too few or too different to compare do not hide what the hardware itself reports.
        found = _with_clocks(found, [finding for finding in by_clock if finding.cause == "degraded"])
    if not _has_peers(operations):
        named = {finding.rank for finding in found}
        hot = [finding for finding in by_clock if finding.cause in OF_HEAT and finding.rank not in named]
        found = _with_clocks(found, [finding for finding in hot if math.isnan(sensed[finding.rank].compute_s)])
    return found


def _with_clocks(findings: Sequence[Finding], by_clock: Sequence[Finding]) -> list[Finding]:
    """Return both kinds of findings, for each rank only the more costly kind: ranks end their steps together."""
    clock_s = {finding.rank: finding.lost_s for finding in by_clock}
    kept = [finding for finding in findings if finding.lost_s > clock_s.get(finding.rank, 0.0)]
    kept_ranks = {finding.rank for finding in kept}
    added = [finding for finding in by_clock if finding.rank not in kept_ranks]
    return sorted([*kept, *added], key=lambda finding: -finding.lost_s)


def _has_peers(operations: Operations) -> bool:
    """Return whether every stage has two replicas or more, whose computation can be compared."""
    stages = Counter(stage for _, stage in {(worker.dp, worker.stage) for worker in operations.workers})
    return min(stages.values(), default=0) > 1


def _traced_ranks(operations: Operations, ranks_of: Callable[[tuple[int, int]], Sequence[int]]) -> set[int]:
    """Return the ranks whose slowness the traces show; one trace shows that of its whole tensor parallel group."""
    places = {(worker.dp, worker.stage) for worker in operations.workers}
    return {rank for place in places for rank in ranks_of(place)} | {worker.rank for worker in operations.workers}
