"""Step times of one run: of the gang, of each rank, and the windows telemetry is cut to."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from triplepoint.config.plan import PlanEntry
from triplepoint.errors import UserError
from triplepoint.manifest import Manifest
from triplepoint.tables import STEPS
from triplepoint.units import NS_PER_S


@dataclass(frozen=True)
class RunSteps:
    """The steps of one run; times are of measured steps only."""

    step_time_s: np.ndarray
    """Slowest rank's time of each measured step. Shape (num_measured,). Unit: s."""
    rank_time_s: dict[int, np.ndarray]
    """Each rank's own time of each measured step. Shape (num_measured,). Unit: s."""
    measured: tuple[int, ...]
    """Step numbers."""
    profiled: tuple[int, ...]
    """Step numbers."""
    windows_ns: dict[int, np.ndarray]
    """By node: first start and last end of its ranks in each measured step, on that node's clock.
    Shape (num_measured, 2). Unit: ns."""
    num_tokens: int
    """Tokens of the global batch."""
    losses: tuple[float | None, float | None]
    """Of the first and the last step. Unit: nat."""
    peak_memory_bytes: dict[int, int | None]
    """Highest memory of each rank, None where unknown."""


def read_steps(entry: PlanEntry, manifest: Manifest, path: Path) -> RunSteps:
    """Return the checked steps of a finished run.

    Raises:
        UserError: If a rank or a step is missing; the run is refused rather than averaged over what is there.
    """
    rows = sorted(STEPS.read(path).to_pylist(), key=lambda row: (row["rank"], row["step"]))
    _check_ranks(entry, rows)
    by_rank = {rank: [row for row in rows if row["rank"] == rank] for rank in range(entry.planned.point.num_gpus)}
    measured = _numbers(entry, by_rank, "measured", entry.planned.point.steps.measured)
    profiled = _numbers(entry, by_rank, "profiled", entry.planned.point.steps.profiled)
    kept = {rank: [row for row in own if row["kind"] == "measured"] for rank, own in by_rank.items()}
    start = {rank: np.array([row["t_start_ns"] for row in own]) for rank, own in kept.items()}
    end = {rank: np.array([row["t_end_ns"] for row in own]) for rank, own in kept.items()}
    windows = {
        node: np.stack([np.min([start[r] for r in ranks], axis=0), np.max([end[r] for r in ranks], axis=0)], axis=1)
        for node, ranks in _ranks_by_node(entry, manifest).items()
    }
    rank_time_s = {rank: (end[rank] - start[rank]) / NS_PER_S for rank in kept}
    return RunSteps(
        step_time_s=_gang_time_s(windows, rank_time_s),
        rank_time_s=rank_time_s,
        measured=measured,
        profiled=profiled,
        windows_ns=windows,
        num_tokens=_num_tokens(entry, kept),
        losses=(_loss(rows, rows[0]["step"]), _loss(rows, rows[-1]["step"])),
        peak_memory_bytes={rank: _highest([row["peak_memory_bytes"] for row in own]) for rank, own in by_rank.items()},
    )


def _gang_time_s(windows_ns: dict[int, np.ndarray], rank_time_s: dict[int, np.ndarray]) -> np.ndarray:
    """Return the time of each step: from the first rank's start to the last one's end where all share one clock.

    Across nodes the clocks agree to milliseconds only, which is too coarse for a difference: there it is the longest
    time any rank took.
    """
    if len(windows_ns) == 1:
        (window,) = windows_ns.values()
        return np.asarray((window[:, 1] - window[:, 0]) / NS_PER_S)
    return np.asarray(np.max(list(rank_time_s.values()), axis=0))


def _check_ranks(entry: PlanEntry, rows: list[dict]) -> None:
    expected = set(range(entry.planned.point.num_gpus))
    found = {row["rank"] for row in rows}
    for what, ranks in (("lacks ranks", expected - found), ("has unknown ranks", found - expected)):
        if ranks:
            raise UserError(
                f"run {entry.run}: steps.parquet {what} {_listed(ranks)} (the run has {len(expected)} ranks); "
                "launch it again"
            )


def _numbers(entry: PlanEntry, by_rank: dict[int, list[dict]], kind: str, expected: int) -> tuple[int, ...]:
    """Return the step numbers of one kind, the same on every rank."""
    found = {rank: tuple(row["step"] for row in own if row["kind"] == kind) for rank, own in by_rank.items()}
    short = [rank for rank, steps in found.items() if len(steps) != expected or steps != found[0]]
    if short:
        raise UserError(
            f"run {entry.run}: ranks {_listed(short)} do not have the {expected} {kind} steps of the point "
            f"(rank {short[0]} has steps {list(found[short[0]])}); launch it again"
        )
    return found[0]


def _ranks_by_node(entry: PlanEntry, manifest: Manifest) -> dict[int, list[int]]:
    nodes = {node.node: [device.rank for device in node.devices] for node in manifest.nodes}
    ranks = sorted(rank for own in nodes.values() for rank in own)
    if ranks != list(range(entry.planned.point.num_gpus)):
        raise UserError(
            f"run {entry.run}: the manifest has devices for ranks {_listed(ranks)}, expected one for each of "
            f"{entry.planned.point.num_gpus}; launch it again"
        )
    return {node: own for node, own in nodes.items() if own}


def _num_tokens(entry: PlanEntry, kept: dict[int, list[dict]]) -> int:
    point = entry.planned.point
    planned = point.global_batch_size * point.sequence_length
    found = {row["num_tokens"] for own in kept.values() for row in own}
    if found != {planned}:
        raise UserError(
            f"run {entry.run}: steps of {_listed(found)} tokens, the point has global_batch_size * sequence_length = "
            f"{planned}; launch it again"
        )
    return planned


def _loss(rows: list[dict], step: int) -> float | None:
    """Return the loss of one step; ranks that have it have the same one, that of the global batch."""
    losses = [row["loss"] for row in rows if row["step"] == step and row["loss"] is not None]
    return float(np.mean(losses)) if losses else None


def _highest(values: list[int | None]) -> int | None:
    return max((value for value in values if value is not None), default=None)


def _listed(numbers: set[int] | list[int]) -> str:
    return ", ".join(str(number) for number in sorted(numbers))
