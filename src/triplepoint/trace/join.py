"""`triplepoint trace --run`: join the ranks' tables: clocks, arrivals, bandwidths, stragglers, paths, timeline."""

import shutil
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from triplepoint.config.plan import read_planned_run
from triplepoint.errors import UserError
from triplepoint.manifest import Manifest, read_manifest
from triplepoint.metrics import BUS_KINDS, algorithm_bandwidth, bus_factor
from triplepoint.status import Status
from triplepoint.tables import CATEGORIES, COLLECTIVES, CRITICAL_PATH, INTERVALS, KERNELS, RANKS, SEGMENTS, TELEMETRY
from triplepoint.trace import Int64
from triplepoint.trace.clocks import Arrivals, Clock
from triplepoint.trace.compare import Comparison, compare_ranks, path_rows
from triplepoint.trace.distinct import distinct_of
from triplepoint.trace.lanes import SUMMARY, Collectives, Lane, Meeting, RankSummary, read_summary
from triplepoint.trace.parsing import PARTS, Progress, check_one_job, check_ranks, parse_part
from triplepoint.trace.perfetto import FILE_NAME, CounterTrack, rank_title, telemetry_counters, write_merged
from triplepoint.trace.taxonomy import Scheme
from triplepoint.trace.timeline import Drawn, DrawnRank, write_timeline
from triplepoint.units import NS_PER_S

_MEETING = ("group_name", "kind", "peer", "group", "num_ranks", "ranks")
"""Columns of `collectives` that are a `Meeting`."""


@dataclass(frozen=True)
class Together:
    """All ranks of a job.

    Attributes:
        summaries: Summary of every rank, by rank.
        comparison: What only all ranks together tell.
        drawn: What time the timeline shows.
    """

    summaries: list[RankSummary]
    comparison: Comparison
    drawn: Drawn


def join_ranks(folders: Sequence[Path], out: Path) -> Together:
    """Write the tables of all ranks.

    Raises:
        UserError: If a folder is not whole.
    """
    by_rank = sorted(((read_summary(folder), folder) for folder in folders), key=lambda one: one[0].rank)
    summaries, folders = [one for one, _ in by_rank], [folder for _, folder in by_rank]
    check_one_job(summaries)
    for table in (KERNELS, INTERVALS, CATEGORIES):
        with table.writer(out / f"{table.name}.parquet") as append:
            for folder in folders:
                for part in table.read_parts(folder / f"{table.name}.parquet"):
                    append(part)
    comparison = _compare(by_rank, out) if len(by_rank) > 1 else _alone(by_rank, out)
    clocks = comparison.clocks
    RANKS.write(out / "ranks.parquet", RANKS.from_rows(comparison.rank_rows()))
    CRITICAL_PATH.write(out / "critical_path.parquet", CRITICAL_PATH.from_rows(path_rows(comparison.paths)))
    return Together(summaries, comparison, _draw(folders, summaries, clocks, out))


def _alone(by_rank: Sequence[tuple[RankSummary, Path]], out: Path) -> Comparison:
    """Write the collectives of one rank, or of none. It tells nothing of others; nothing is held in memory."""
    nothing = np.empty(0, dtype=np.int64)
    comparison = compare_ranks([], [Collectives(one.rank, [], *[nothing] * 4) for one, _ in by_rank])
    with COLLECTIVES.writer(out / "collectives.parquet") as append:
        for _, folder in by_rank:
            for part in COLLECTIVES.read_parts(folder / "collectives.parquet"):
                append(_with_columns(part, _bandwidths(part, part["duration_ns"].to_numpy())))
    return comparison


def _compare(by_rank: Sequence[tuple[RankSummary, Path]], out: Path) -> Comparison:
    """Write the collectives of all ranks with what the ranks tell of them together, and return all they tell."""
    tables = [COLLECTIVES.read(folder / "collectives.parquet").sort_by("t_start_ns") for _, folder in by_rank]
    lanes = [_lane(folder, one) for one, folder in by_rank]
    met = [_collectives(table, one.rank) for table, (one, _) in zip(tables, by_rank, strict=True)]
    comparison = compare_ranks(lanes, met, _peers(tables))
    with COLLECTIVES.writer(out / "collectives.parquet") as append:
        for table, arrived in zip(tables, comparison.arrivals, strict=True):
            append(_with_arrivals(table, arrived, comparison.clocks[arrived.rank]))
    return comparison


def _lane(folder: Path, summary: RankSummary) -> Lane:
    segments = SEGMENTS.read(folder / "segments.parquet")
    start = segments["t_start_ns"].to_numpy()
    return Lane(
        rank=summary.rank,
        steps=summary.steps,
        start=start,
        end=start + segments["duration_ns"].to_numpy(),
        label=segments["label"].to_numpy(),
        labels=[account.label for account in summary.accounts],
    )


def _collectives(table: pa.Table, rank: int) -> Collectives:
    start = table["t_start_ns"].to_numpy()
    distinct, meeting = distinct_of(table, _MEETING)
    return Collectives(
        rank=rank,
        meetings=[
            Meeting(name, kind, peer, role, num_ranks or 0, _numbers(ranks))
            for name, kind, peer, role, num_ranks, ranks in distinct
        ],
        meeting=meeting,
        sequence=table["sequence"].to_numpy(),
        start=start,
        end=start + table["duration_ns"].to_numpy(),
    )


def _with_arrivals(table: pa.Table, arrived: Arrivals, clock: Clock) -> pa.Table:
    """Return a rank's collectives with what the ranks together tell, on the common clock."""
    unknown = ~arrived.is_known
    moving = table["duration_ns"].to_numpy() - np.where(unknown, 0, arrived.waited_ns)
    columns = {
        "t_start_ns": pa.array(clock.aligned(table["t_start_ns"].to_numpy())),
        "num_seen": pa.array(arrived.num_seen),
        "arrival_lag_ns": pa.array(arrived.lag_ns, mask=unknown),
        "waited_ns": pa.array(arrived.waited_ns, mask=unknown),
        "last_rank": pa.array(arrived.last_rank, mask=unknown),
    }
    return _with_columns(table, columns | _bandwidths(table, moving))


def _bandwidths(table: pa.Table, moving_ns: Int64) -> dict[str, pa.Array]:
    """Return the bandwidth columns of collectives that moved data for so long."""
    size = pc.fill_null(table["size_bytes"], np.nan).to_numpy()
    bandwidth = algorithm_bandwidth(size, np.maximum(moving_ns, 1) / NS_PER_S)
    on_bus = bandwidth * _bus_factors(table)
    return {
        "algorithm_bandwidth_bytes_per_s": pa.array(bandwidth, mask=np.isnan(bandwidth)),
        "bus_bandwidth_bytes_per_s": pa.array(on_bus, mask=np.isnan(on_bus)),
    }


def _with_columns(table: pa.Table, columns: dict[str, pa.Array]) -> pa.Table:
    for name, values in columns.items():
        table = table.set_column(table.column_names.index(name), name, values)
    return table


def _bus_factors(table: pa.Table) -> npt.NDArray[np.float64]:
    """Return what to multiply each algorithm bandwidth by, NaN where the kind has none or the group is not known."""
    factors = np.full(table.num_rows, np.nan)
    num_ranks = pc.fill_null(table["num_ranks"], 0).to_numpy()
    for kind in BUS_KINDS.intersection(pc.unique(table["kind"]).to_pylist()):
        own = pc.equal(table["kind"], kind).to_numpy() & (num_ranks > 0)
        factors[own] = bus_factor(kind, num_ranks[own])
    return factors


def _peers(collectives: Sequence[pa.Table]) -> list[tuple[int, ...]]:
    """Return ranks that have the same work by design: those that reduce gradients with one another."""
    groups: set[tuple[int, ...]] = set()
    for table in collectives:
        of_data = pc.unique(table.filter(pc.equal(table["group"], "dp"))["ranks"]).drop_null().to_pylist()
        groups |= {_numbers(ranks) for ranks in of_data}
    members = [rank for group in groups for rank in group]
    return sorted(groups) if len(members) == len(set(members)) else []


def _numbers(ranks: str | None) -> tuple[int, ...]:
    return tuple(map(int, ranks.split(","))) if ranks else ()


def _draw(folders: Sequence[Path], summaries: Sequence[RankSummary], clocks: dict[int, Clock], out: Path) -> Drawn:
    """Draw the first step, of the ranks that have it."""
    first = min((one.steps[0].number for one in summaries if one.steps), default=None)
    return write_timeline(
        out / "timeline.parquet",
        [
            DrawnRank(one.rank, one.steps[0], folder / "timeline.parquet", clocks[one.rank].aligned)
            for folder, one in zip(folders, summaries, strict=True)
            if one.steps and one.steps[0].number == first
        ],
    )


def join_run(run: Path, parts: Sequence[Path]) -> None:
    """Write the tables of a whole run and its merged trace.

    Args:
        run: Folder of the run.
        parts: Folders that `parse_part` wrote, the run's others are removed; none for all of them.

    Raises:
        UserError: If one of them is not whole, a rank is in two, or the run finished and a traced rank is in none.
    """
    manifest = read_manifest(run / "raw" / "manifest.json")
    folders = [path.parent for part in parts or (run / PARTS).glob("*") for path in part.glob(f"*/{SUMMARY}")]
    ranks = [read_summary(folder).rank for folder in folders]
    check_ranks(zip(folders, ranks, strict=True))
    lost = sorted(set(read_planned_run(run / "point.json").point.traced_ranks) - set(ranks))
    if lost and manifest.status == Status.OK:
        raise UserError(f"{run / PARTS}: ranks {', '.join(map(str, lost))} are not parsed; run 'snakemake all'")
    together = join_ranks(folders, run)
    counters = _counters(run, manifest, together)
    write_merged(
        run / FILE_NAME, run / "timeline.parquet", together.drawn, counters, lambda rank: rank_title(manifest, rank)
    )
    if parts:
        _remove_others(run / PARTS, parts)


def trace_run(
    run: Path, scheme: Scheme, progress: Progress, num_jobs: int | None = None, *, note: Progress | None = None
) -> None:
    """Parse the traces of a run and join them, leaving nothing between: for few and small ones.

    Raises:
        UserError: As `parse_part` and `join_run` do.
    """
    ranks = read_planned_run(run / "point.json").point.traced_ranks
    parse_part(run, range(min(ranks), max(ranks) + 1), scheme, progress, num_jobs, note=note)
    try:
        join_run(run, list((run / PARTS).glob(f"{min(ranks)}-{max(ranks)}")))
    finally:
        shutil.rmtree(run / PARTS)


def _counters(run: Path, manifest: Manifest, together: Together) -> list[CounterTrack]:
    if not manifest.nodes or not together.summaries:
        return []
    return telemetry_counters(TELEMETRY.read(run / "telemetry.parquet"), manifest, *together.drawn)


def _remove_others(folder: Path, kept: Iterable[Path]) -> None:
    """Remove parts that others have taken the place of: their segments are large."""
    names = {path.resolve() for path in kept}
    for part in folder.glob("*"):
        if part.resolve() not in names:
            shutil.rmtree(part)
