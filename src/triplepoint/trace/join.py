"""Join the tables of all ranks of a job: clocks, arrivals, bandwidths, stragglers, critical paths, timeline."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from triplepoint.metrics import BUS_KINDS, algorithm_bandwidth, bus_factor
from triplepoint.tables import CATEGORIES, COLLECTIVES, CRITICAL_PATH, INTERVALS, KERNELS, RANKS, SEGMENTS
from triplepoint.trace import Int64
from triplepoint.trace.clocks import Arrivals, Clock
from triplepoint.trace.compare import Comparison, compare_ranks, path_rows
from triplepoint.trace.distinct import distinct_values
from triplepoint.trace.parsing import check_one_job
from triplepoint.trace.rank_results import (
    Collectives,
    CollectiveSignature,
    RankSummary,
    Segments,
    read_rank_parts,
    read_rank_table,
    read_summary,
)
from triplepoint.trace.timeline import DrawnRank, DrawnTime, write_timeline
from triplepoint.units import NS_PER_S

_SIGNATURE_COLUMNS = ("group_name", "kind", "peer", "group", "num_ranks", "ranks")
"""Columns of `collectives` that make a `CollectiveSignature`, in its order."""


@dataclass(frozen=True)
class JoinedRanks:
    """Results of all ranks of a job together.

    Attributes:
        summaries: Summary of every rank, by rank.
        comparison: Results of the analysis across ranks.
        drawn: Time that the timeline shows.
    """

    summaries: list[RankSummary]
    comparison: Comparison
    drawn: DrawnTime


def join_ranks(folders: Sequence[Path], out: Path) -> JoinedRanks:
    """Write the tables of all ranks.

    Args:
        folders: Folders of the ranks, as `parse_rank` wrote them.
        out: Folder to write to.

    Raises:
        UserError: If a rank's folder is incomplete or damaged.
    """
    by_rank = sorted(((read_summary(folder), folder) for folder in folders), key=lambda pair: pair[0].rank)
    summaries, folders = [summary for summary, _ in by_rank], [folder for _, folder in by_rank]
    check_one_job(summaries)
    for table in (KERNELS, INTERVALS, CATEGORIES):
        with table.writer(out / f"{table.name}.parquet") as append:
            for folder in folders:
                for part in read_rank_parts(folder, table):
                    append(part)
    comparison = _compare(by_rank, out) if len(by_rank) > 1 else _write_single_rank(by_rank, out)
    clocks = comparison.clocks
    RANKS.write(out / "ranks.parquet", RANKS.from_rows(comparison.rank_rows()))
    CRITICAL_PATH.write(out / "critical_path.parquet", CRITICAL_PATH.from_rows(path_rows(comparison.paths)))
    return JoinedRanks(summaries, comparison, _draw(folders, summaries, clocks, out))


def _write_single_rank(by_rank: Sequence[tuple[RankSummary, Path]], out: Path) -> Comparison:
    """Write the collectives of at most one rank, part by part, and return an empty comparison."""
    empty = np.empty(0, dtype=np.int64)
    comparison = compare_ranks([], [Collectives(summary.rank, [], *[empty] * 4) for summary, _ in by_rank])
    with COLLECTIVES.writer(out / "collectives.parquet") as append:
        for _, folder in by_rank:
            for part in read_rank_parts(folder, COLLECTIVES):
                append(_with_columns(part, _bandwidths(part, part["duration_ns"].to_numpy())))
    return comparison


def _compare(by_rank: Sequence[tuple[RankSummary, Path]], out: Path) -> Comparison:
    """Compare two ranks or more, and write their collectives with arrivals and bandwidths."""
    tables = [read_rank_table(folder, COLLECTIVES).sort_by("t_start_ns") for _, folder in by_rank]
    segments = [_read_segments(folder, summary) for summary, folder in by_rank]
    collectives = [_collectives(table, summary.rank) for table, (summary, _) in zip(tables, by_rank, strict=True)]
    comparison = compare_ranks(segments, collectives, _peers(tables))
    with COLLECTIVES.writer(out / "collectives.parquet") as append:
        for table, arrivals in zip(tables, comparison.arrivals, strict=True):
            append(_with_arrivals(table, arrivals, comparison.clocks[arrivals.rank]))
    return comparison


def _read_segments(folder: Path, summary: RankSummary) -> Segments:
    segments = read_rank_table(folder, SEGMENTS)
    start = segments["t_start_ns"].to_numpy()
    return Segments(
        rank=summary.rank,
        steps=summary.steps,
        start=start,
        end=start + segments["duration_ns"].to_numpy(),
        label=segments["label"].to_numpy(),
        labels=[account.label for account in summary.accounts],
    )


def _collectives(table: pa.Table, rank: int) -> Collectives:
    start = table["t_start_ns"].to_numpy()
    signatures, signature = distinct_values(table, _SIGNATURE_COLUMNS)
    return Collectives(
        rank=rank,
        signatures=[
            CollectiveSignature(name, kind, peer, role, num_ranks or 0, _parse_ranks(ranks))
            for name, kind, peer, role, num_ranks, ranks in signatures
        ],
        signature=signature,
        sequence=table["sequence"].to_numpy(),
        start=start,
        end=start + table["duration_ns"].to_numpy(),
    )


def _with_arrivals(table: pa.Table, arrivals: Arrivals, clock: Clock) -> pa.Table:
    """Return a rank's collectives on the common clock, with their arrivals and bandwidths."""
    unknown = ~arrivals.is_known
    transfer_ns = table["duration_ns"].to_numpy() - np.where(unknown, 0, arrivals.waited_ns)
    columns = {
        "t_start_ns": pa.array(clock.aligned(table["t_start_ns"].to_numpy())),
        "num_seen": pa.array(arrivals.num_seen),
        "arrival_lag_ns": pa.array(arrivals.lag_ns, mask=unknown),
        "waited_ns": pa.array(arrivals.waited_ns, mask=unknown),
        "last_rank": pa.array(arrivals.last_rank, mask=unknown),
    }
    return _with_columns(table, columns | _bandwidths(table, transfer_ns))


def _bandwidths(table: pa.Table, transfer_ns: Int64) -> dict[str, pa.Array]:
    """Return the bandwidth columns of collectives.

    Args:
        table: The collectives.
        transfer_ns: Time of each without waiting for other ranks. Unit: ns.
    """
    size = pc.fill_null(table["size_bytes"], np.nan).to_numpy()
    algorithm = algorithm_bandwidth(size, np.maximum(transfer_ns, 1) / NS_PER_S)
    bus = algorithm * _bus_factors(table)
    return {
        "algorithm_bandwidth_bytes_per_s": pa.array(algorithm, mask=np.isnan(algorithm)),
        "bus_bandwidth_bytes_per_s": pa.array(bus, mask=np.isnan(bus)),
    }


def _with_columns(table: pa.Table, columns: dict[str, pa.Array]) -> pa.Table:
    for name, values in columns.items():
        table = table.set_column(table.column_names.index(name), name, values)
    return table


def _bus_factors(table: pa.Table) -> npt.NDArray[np.float64]:
    """Return bus over algorithm bandwidth of each collective; NaN if its kind has no factor or its group is unknown."""
    factors = np.full(table.num_rows, np.nan)
    num_ranks = pc.fill_null(table["num_ranks"], 0).to_numpy()
    for kind in BUS_KINDS.intersection(pc.unique(table["kind"]).to_pylist()):
        of_kind = pc.equal(table["kind"], kind).to_numpy() & (num_ranks > 0)
        factors[of_kind] = bus_factor(kind, num_ranks[of_kind])
    return factors


def _peers(collectives: Sequence[pa.Table]) -> list[tuple[int, ...]]:
    """Return groups of ranks that have the same work by design: the data parallel groups, if no two share a rank."""
    groups: set[tuple[int, ...]] = set()
    for table in collectives:
        data_parallel = pc.unique(table.filter(pc.equal(table["group"], "dp"))["ranks"]).drop_null().to_pylist()
        groups |= {_parse_ranks(ranks) for ranks in data_parallel}
    members = [rank for group in groups for rank in group]
    return sorted(groups) if len(members) == len(set(members)) else []


def _parse_ranks(ranks: str | None) -> tuple[int, ...]:
    return tuple(map(int, ranks.split(","))) if ranks else ()


def _draw(folders: Sequence[Path], summaries: Sequence[RankSummary], clocks: dict[int, Clock], out: Path) -> DrawnTime:
    """Write the timeline of the first step, for the ranks that have it."""
    first = min((summary.steps[0].number for summary in summaries if summary.steps), default=None)
    return write_timeline(
        out / "timeline.parquet",
        [
            DrawnRank(summary.rank, summary.steps[0], folder, clocks[summary.rank].aligned)
            for folder, summary in zip(folders, summaries, strict=True)
            if summary.steps and summary.steps[0].number == first
        ],
    )
