"""Why a job is slow: of a run, of a folder of trace tables, or of a table of operations."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from triplepoint.config.mesh import RankMesh
from triplepoint.config.plan import read_planned_run
from triplepoint.config.point import Point
from triplepoint.errors import UserError
from triplepoint.manifest import NO_STEP, read_manifest
from triplepoint.units import S_PER_HOUR
from triplepoint.why.explain import CAUSES, OF_HEAT, Finding, explain, explain_clocks
from triplepoint.why.operations import Float, Operations
from triplepoint.why.recorded_operations import read_operations
from triplepoint.why.replay import find_order
from triplepoint.why.run_operations import operations_of_steps, places_of_traces
from triplepoint.why.sensed import Sensed, sense, sense_traces
from triplepoint.why.slowdown import Slowdown, find_slowdown
from triplepoint.why.suspects import find_suspects
from triplepoint.why.traced_operations import traced_operations

_NO_HEAT = 0.001
"""Share of the step below which heat is said to cost nothing."""
_HOURS = 24
"""Of a day."""
_LEAST_GPUS = 4
"""GPUs a rank correlation is said of."""


@dataclass(frozen=True)
class Answer:
    """Why a job is slow.

    Attributes:
        name: The job.
        source: What it was told from: traces, step times, a recording without steps, or operations.
        num_gpus: GPUs of the job; recorded workers where that is not known.
        num_steps: Steps behind it.
        step_s: Mean time of a step. Unit: s.
        slowdown: What the replay says.
        findings: Causes of slow GPUs, most costly first.
        gpu_power_w: Mean power of a GPU; NaN if not measured. Unit: W.
        heat: What heat explains, in a sentence.
        notes: What could not be told, and why.
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
    notes: tuple[str, ...] = ()

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
            "causes": self.rows(),
            "notes": self.notes,
        }


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


def why_run(run: Path) -> Answer:
    """Return why a run is slow: from its traces where it has them, else from step times, and from its telemetry.

    Raises:
        UserError: If the run did not finish, or a table is missing or damaged.
    """
    manifest = read_manifest(run / "raw" / "manifest.json")
    point = read_planned_run(run / "point.json").point
    num_gpus = sum(len(node.devices) for node in manifest.nodes)
    if not num_gpus:
        raise UserError(
            f"{run.name}: its status is {manifest.status}, so no rank took a step; name a run that finished"
        )
    place_of = _places(run, point, num_gpus)
    sensed = {one.rank: one for one in sense(run, manifest, lambda rank: place_of(rank)[1])}
    per_node = max(len(node.devices) for node in manifest.nodes)
    operations, source, notes = _operations(run, place_of, per_node)
    if source == "step times" and NO_STEP in manifest.facts:
        source, notes = "recording", (str(manifest.facts[NO_STEP]), *notes)
    num_traced = len(operations.workers)
    if source == "traces" and num_traced < num_gpus:
        notes += (f"{num_traced} of {num_gpus} ranks were traced: others are seen by their sensors alone",)
    ranks: dict[tuple[int, int], list[int]] = {}
    for rank in sensed:
        ranks.setdefault(place_of(rank), []).append(rank)
    return answer_of(run.name, source, operations, sensed, num_gpus, lambda place: ranks.get(place, ()), notes)


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
    run: Path, place_of: Callable[[int], tuple[int, int]], per_node: int
) -> tuple[Operations, str, tuple[str, ...]]:
    steps = operations_of_steps(run, place_of)
    if (run / "timeline.parquet").is_file():
        try:
            return traced_operations(run, place_of, per_node), "traces", _said_of_steps(steps)
        except UserError as error:
            note = f"traces are not used: {error}"
    else:
        note = "no traces: what ranks do inside of a step is not known"
    return steps, "step times", (note, *_said_of_steps(steps))


def _said_of_steps(steps: Operations) -> tuple[str, ...]:
    """Return how measured steps differ, in one note; none of a single step."""
    times_s = steps.step_time_s
    usual_s, worst = float(np.median(times_s)), int(times_s.argmax())
    if len(times_s) < 2:
        return ()
    over = f"the slowest, step {steps.steps[worst]}, {times_s[worst]:.4g} s ({times_s[worst] / usual_s - 1:+.1%})"
    return (f"the {len(times_s)} measured steps, which no profiler slows, take {usual_s:.4g} s in the median; {over}",)


def why_traces(folder: Path) -> Answer:
    """Return why the job of a folder that `triplepoint trace --out` wrote is slow.

    Raises:
        UserError: If a table is missing or damaged, or no passes were traced.
    """
    places = places_of_traces(folder)
    # Nodes are not known of loose traces: all of a job count as on one.
    operations = traced_operations(folder, lambda rank: places.get(rank, (rank, 0)), max(len(places), 1))
    note = "no telemetry beside the traces: causes are of time alone"
    ranks = [worker.rank for worker in operations.workers]
    sensed = sense_traces(folder, ranks)
    return answer_of(folder.name, "traces", operations, sensed, len(ranks), lambda place: (), (note,))


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
    heat = _heat(findings, sensed, step_s)
    num_steps = len(operations.steps)
    slowdown = find_slowdown(operations, order)
    return Answer(name, source, num_gpus, num_steps, step_s, slowdown, findings, power_w, heat, notes)


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


def _heat(findings: Sequence[Finding], sensed: Mapping[int, Sensed], step_s: float) -> str:
    """Return what heat explains, with how temperature and clock go together over GPUs."""
    lost_s = sum(one.lost_s for one in findings if one.cause in OF_HEAT)
    known = [one for one in sensed.values() if math.isfinite(one.temp_c) and math.isfinite(one.clock_mhz)]
    if len(known) < _LEAST_GPUS:
        return f"Heat is judged from {_LEAST_GPUS} GPUs with temperature and clock on; {len(known)} have both here."
    rho = _rank_correlation([one.temp_c for one in known], [one.clock_mhz for one in known])
    over = f"over {len(known)} GPUs temperature and clock have a rank correlation of {rho:.2f}"
    if math.isnan(rho):
        over = f"the {len(known)} GPUs do not differ in temperature or in clock"
    if lost_s < _NO_HEAT * step_s:
        return f"Heat explains nothing here: no GPU is slow because of it; {over}."
    return f"Heat explains {lost_s / step_s:.1%} of the step; {over}."


def _rank_correlation(one: Sequence[float], other: Sequence[float]) -> float:
    """Return Spearman's rank correlation; NaN where one of both has a single value."""

    def ranked(values: Sequence[float]) -> Float:
        return np.array([np.mean(np.flatnonzero(np.sort(values) == value)) for value in values])

    both = np.stack([ranked(one), ranked(other)])
    apart = both - both.mean(axis=1, keepdims=True)
    length = float(np.prod(np.sqrt((apart**2).sum(axis=1))))
    return float((apart[0] * apart[1]).sum() / length) if length else math.nan
