"""Reader of manifests and steps of the runs of a plan; a run without a result is an error."""

from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from triplepoint.config.plan import Plan, PlanEntry
from triplepoint.config.point import Point
from triplepoint.errors import UserError
from triplepoint.manifest import Manifest, read_manifest
from triplepoint.tables import STEPS
from triplepoint.units import NS_PER_S


@dataclass(frozen=True)
class RunSteps:
    """The steps of one run. Times are those of measured steps without interruption."""

    step_time_s: np.ndarray
    """Time of each measured step over all ranks, see `_gang_time_s`. Shape (num_measured,). Unit: s."""
    rank_time_s: dict[int, np.ndarray]
    """Time of each measured step on each rank. Shape (num_measured,). Unit: s."""
    measured: tuple[int, ...]
    """Numbers of the measured steps."""
    profiled: tuple[int, ...]
    """Numbers of the profiled steps."""
    windows_ns: dict[int, np.ndarray]
    """First start and last end among the ranks of a node in each measured step, on that node's clock, by node.
    Shape (num_measured, 2). Unit: ns."""
    profiled_time_s: float | None
    """Time of the first profiled step on the slowest rank; None without profiled steps. Unit: s."""
    num_tokens: int | None
    """Tokens of the global batch; None if not known."""
    has_steps: bool
    """Whether these are steps; if not, the one measured step is the whole recording of a run."""
    marked_ranks: frozenset[int]
    """Ranks that recorded their own step times; in a recorded run others may have the times of one of these."""
    losses: tuple[float | None, float | None]
    """Loss of the first and of the last step. Unit: nat."""
    peak_memory_bytes: dict[int, int | None]
    """Peak memory by rank; None if unknown."""
    reserved_memory_bytes: dict[int, int | None]
    """Peak memory that torch reserved on the GPU, by rank; None if unknown."""
    first_token_s: np.ndarray | None
    """Time to the first token in each measured step, on the slowest rank that records it; None in training.
    Shape (num_measured,). Unit: s."""


def read_steps(entry: PlanEntry, manifest: Manifest, path: Path) -> RunSteps:
    """Return the checked steps of a finished run.

    Raises:
        UserError: If a rank or a step is missing, because averages over the others would be wrong.
    """
    table = STEPS.read(path).sort_by([("rank", "ascending"), ("step", "ascending")])
    point = entry.planned.point
    _check_ranks(entry, pc.unique(table["rank"]).to_pylist())
    measured = _of_kind(entry, table, "measured", point.steps.measured)
    profiled = _of_kind(entry, table, "profiled", point.steps.profiled)
    # All ranks have the same steps, so each row of the matrices is a rank.
    shape = (point.num_gpus, point.steps.measured)
    numbers = measured["step"][: shape[1]].to_pylist()
    undisturbed = [index for index, step in enumerate(numbers) if step not in manifest.interrupted_steps]
    if not undisturbed:
        raise UserError(
            f"run {entry.run}: a rank stood still, suspended or stopped, in every measured step; launch it again"
        )
    start, end = (measured[name].to_numpy().reshape(shape)[:, undisturbed] for name in ("t_start_ns", "t_end_ns"))
    windows = {
        node: np.stack([start[ranks].min(axis=0), end[ranks].max(axis=0)], axis=1)
        for node, ranks in _ranks_by_node(entry, manifest).items()
    }
    rank_time_s = dict(enumerate((end - start) / NS_PER_S))
    return RunSteps(
        step_time_s=_gang_time_s(windows, rank_time_s),
        rank_time_s=rank_time_s,
        measured=tuple(numbers[index] for index in undisturbed),
        profiled=tuple(profiled["step"][: point.steps.profiled].to_pylist()),
        windows_ns=windows,
        profiled_time_s=_first_time_s(profiled),
        num_tokens=_num_tokens(entry, measured),
        has_steps=point.recorded is None or point.recorded.has_steps,
        marked_ranks=_marked(point),
        losses=(_loss(table, table["step"][0].as_py()), _loss(table, table["step"][-1].as_py())),
        peak_memory_bytes=_max_by_rank(table, "peak_memory_bytes"),
        reserved_memory_bytes=_max_by_rank(table, "reserved_memory_bytes"),
        first_token_s=_first_token_s(measured, shape, undisturbed),
    )


def _marked(point: Point) -> frozenset[int]:
    """Return the ranks that recorded their own step times."""
    marked = "all" if point.recorded is None else point.recorded.marked_ranks
    return frozenset(range(point.num_gpus) if marked == "all" else marked)


def _gang_time_s(windows_ns: dict[int, np.ndarray], rank_time_s: dict[int, np.ndarray]) -> np.ndarray:
    """Return the time of each step: on one node, from the first rank's start to the last rank's end.

    Clocks of different nodes agree to milliseconds only, which is too coarse for a difference. So on several nodes it
    is the longest time of a rank.
    """
    if len(windows_ns) == 1:
        (window,) = windows_ns.values()
        return np.asarray((window[:, 1] - window[:, 0]) / NS_PER_S)
    return np.asarray(np.max(list(rank_time_s.values()), axis=0))


def _first_time_s(profiled: pa.Table) -> float | None:
    """Return the time of the first of these steps on the slowest rank; None without steps. Unit: s."""
    if not profiled.num_rows:
        return None
    first = profiled.filter(pc.equal(profiled["step"], pc.min(profiled["step"])))
    return float((first["t_end_ns"].to_numpy() - first["t_start_ns"].to_numpy()).max()) / NS_PER_S


def _check_ranks(entry: PlanEntry, ranks: list[int]) -> None:
    """Raise `UserError` unless the steps have exactly the ranks of the point."""
    expected, actual = set(range(entry.planned.point.num_gpus)), set(ranks)
    for what, wrong in (("lacks ranks", expected - actual), ("has unknown ranks", actual - expected)):
        if wrong:
            raise UserError(
                f"run {entry.run}: steps.parquet {what} {_listed(wrong)} (the run has {len(expected)} ranks); "
                "launch it again"
            )


def _of_kind(entry: PlanEntry, table: pa.Table, kind: str, expected: int) -> pa.Table:
    """Return the rows of one kind of steps. Raises `UserError` unless every rank has the same `expected` steps."""
    rows = table.filter(pc.equal(table["kind"], kind))
    num_ranks = entry.planned.point.num_gpus
    rank, step = rows["rank"].to_numpy(), rows["step"].to_numpy()
    borders = np.searchsorted(rank, np.arange(num_ranks + 1))
    first = step[: borders[1]]
    if len(step) == num_ranks * expected and np.array_equal(rank, np.repeat(np.arange(num_ranks), expected)):
        wrong = np.flatnonzero((step.reshape(num_ranks, expected) != first).any(axis=1)).tolist()
    else:
        by_rank = [step[low:high] for low, high in pairwise(borders)]
        wrong = [
            index for index, steps in enumerate(by_rank) if len(steps) != expected or not np.array_equal(steps, first)
        ]
    if wrong:
        steps_of_first = step[borders[wrong[0]] : borders[wrong[0] + 1]].tolist()
        raise UserError(
            f"run {entry.run}: ranks {_listed(wrong)} do not have the {expected} {kind} steps of the point "
            f"(rank {wrong[0]} has steps {steps_of_first}); launch it again"
        )
    return rows


def _ranks_by_node(entry: PlanEntry, manifest: Manifest) -> dict[int, list[int]]:
    """Return the ranks of each node that has some. Raises `UserError` unless the manifest has all ranks."""
    nodes = {node.node: [device.rank for device in node.devices] for node in manifest.nodes}
    ranks = sorted(rank for on_node in nodes.values() for rank in on_node)
    if ranks != list(range(entry.planned.point.num_gpus)):
        raise UserError(
            f"run {entry.run}: the manifest has devices for ranks {_listed(ranks)}, expected one for each of "
            f"{entry.planned.point.num_gpus}; launch it again"
        )
    return {node: on_node for node, on_node in nodes.items() if on_node}


def _num_tokens(entry: PlanEntry, measured: pa.Table) -> int | None:
    """Return the tokens of a step; None if not known. Raises `UserError` if the steps had another number."""
    point = entry.planned.point
    if not point.knows("global_batch_size", "sequence_length"):
        return None
    planned = point.num_tokens
    recorded = set(pc.unique(measured["num_tokens"]).to_pylist())
    if recorded != {planned}:
        raise UserError(
            f"run {entry.run}: steps of {_listed(recorded)} tokens, the point has global_batch_size * sequence_length "
            f"= {planned}; launch it again"
        )
    return planned


def _first_token_s(measured: pa.Table, shape: tuple[int, int], undisturbed: list[int]) -> np.ndarray | None:
    """Return the time to the first token in each undisturbed step, see `RunSteps.first_token_s`."""
    # Only ranks of the last stage record it; the others have nulls.
    time_s = pc.divide(pc.subtract(measured["t_first_token_ns"], measured["t_start_ns"]), float(NS_PER_S))
    by_rank = time_s.to_numpy().reshape(shape)[:, undisturbed]
    is_recorded = ~np.isnan(by_rank).all(axis=0)
    return np.nanmax(by_rank, axis=0) if is_recorded.all() else None


def _loss(table: pa.Table, step: int) -> float | None:
    """Return the loss of one step, which is the global batch's on all ranks that have it; None if none has."""
    loss = pc.mean(table.filter(pc.equal(table["step"], step))["loss"]).as_py()
    return None if loss is None else float(loss)


def _max_by_rank(table: pa.Table, column: str) -> dict[int, int | None]:
    """Return the maximum of a column by rank."""
    highest = table.group_by("rank").aggregate([(column, "max")])
    return dict(zip(highest["rank"].to_pylist(), highest[f"{column}_max"].to_pylist(), strict=True))


def _listed(numbers: set[int] | list[int]) -> str:
    return ", ".join(str(number) for number in sorted(numbers))


def read_outcomes(plan: Plan, runs: Path) -> dict[str, Manifest]:
    """Return the manifest of every valid run of a plan, by run id.

    Args:
        plan: The plan.
        runs: Folder with one folder per run.

    Raises:
        UserError: If a run was not launched, was measured for another point, or failed.
    """
    paths = {entry.run: runs / entry.run / "raw" / "manifest.json" for entry in plan.valid}
    missing = [run for run, path in paths.items() if not path.is_file()]
    if missing:
        more = f" (and {len(missing) - 1} more runs without one)" if missing[1:] else ""
        raise UserError(
            f"run {missing[0]}: no manifest at {paths[missing[0]]}{more}; it was not launched or did not finish: "
            "run 'snakemake all'"
        )
    outcomes = {}
    for entry in plan.valid:
        manifest = read_manifest(paths[entry.run])
        _check(entry, manifest)
        outcomes[entry.run] = manifest
    return outcomes


def explain(manifest: Manifest) -> str:
    """Return in one line why a run is not ok: rank, host and message of the evidence."""
    evidence = manifest.evidence
    if evidence is None:
        return f"{manifest.status}, no evidence was recorded"
    who = "the job" if evidence.rank is None else f"rank {evidence.rank}"
    return " ".join(f"{who} on {evidence.host}: {evidence.message}".split())


def _check(entry: PlanEntry, manifest: Manifest) -> None:
    """Raise `UserError` if a manifest belongs to another point or is a failure."""
    if manifest.digest != entry.planned.digest:
        raise UserError(
            f"run {entry.run}: measured for another point (digest {manifest.digest[:12]}, planned "
            f"{entry.planned.digest[:12]}); launch it again: run 'snakemake all'"
        )
    if not manifest.is_result and entry.planned.point.recorded is None:
        raise UserError(
            f"run {entry.run}: {manifest.status}: {explain(manifest)}; that is a failure, not a result: launch it again"
        )


def measured_step_s(folder: Path) -> float | None:
    """Return the median measured step of a run; None where there is no run or it was simulated. Unit: s.

    Raises:
        UserError: If it has no measured step, as a recording may.
    """
    manifest = folder / "raw" / "manifest.json"
    if not manifest.is_file() or read_manifest(manifest).origin != "measured":
        return None
    return float(np.median(step_times_s(folder)))


def step_times_s(folder: Path) -> np.ndarray:
    """Return measured steps of a run in order, of their slowest rank; shape (num_measured,). Unit: s."""
    steps = STEPS.read(folder / "raw" / "steps.parquet")
    columns = {name: steps[name].to_numpy(zero_copy_only=False) for name in ("step", "kind", "t_start_ns", "t_end_ns")}
    of = columns["kind"] == "measured"
    if not of.any():
        raise UserError(f"{folder.name}: no measured steps; launch the run again")
    number, time_ns = columns["step"][of], (columns["t_end_ns"] - columns["t_start_ns"])[of].astype(float)
    return np.array([time_ns[number == one].max() for one in np.unique(number)]) / NS_PER_S
