"""The tables of ranks joined: order, late arrivals, bandwidths, and ranks that left less than others."""

from pathlib import Path
from typing import Any

import pytest

from tests.unit.trace.traces import ALL_REDUCE, BASE_NS, GEMM, kernel, note, write_trace
from triplepoint.errors import UserError
from triplepoint.tables import CATEGORIES, COLLECTIVES, CRITICAL_PATH, INTERVALS, KERNELS, RANKS, TIMELINE
from triplepoint.trace.join import JoinedRanks, join_ranks
from triplepoint.trace.parsing import TraceFile, parse_traces
from triplepoint.trace.rank_results import SUMMARY
from triplepoint.trace.taxonomy import load_scheme

TABLES = (KERNELS, INTERVALS, CATEGORIES, COLLECTIVES, RANKS, CRITICAL_PATH, TIMELINE)
GROUP = {"Process Group Name": "1", "Process Group Description": "mesh_dp", "Process Group Ranks": "[0, 1]"}
SIZE = {"In msg nelems": 3000, "Out msg nelems": 3000, "dtype": "BFloat16"}


def rank_events(late_us: float) -> list[dict]:
    """Return a step of 1000 us with ten all-reduces, which end together; a rank may begin its own later."""
    events = [note("ProfilerStep#2", 0, 1000)]
    for at in range(0, 1000, 100):
        events.append(kernel(GEMM, at, 20 + late_us))
        events.append(kernel(ALL_REDUCE, at + 20 + late_us, 60 - late_us, stream=9, **GROUP, **SIZE))
    return events


def parsed(folder: Path, ranks: dict[int, list[dict]]) -> list[Path]:
    """Return the folders of parsed ranks, the last first."""
    files = [TraceFile(write_trace(folder / f"rank{rank}.json", events), rank) for rank, events in ranks.items()]
    folders = [folder / "ranks" / str(file.rank) for file in files]
    parse_traces(files, folders, load_scheme(), lambda line: None, 1, is_whole_job=False)
    return folders[::-1]


def join(folder: Path, ranks: dict[int, list[dict]]) -> tuple[JoinedRanks, dict[str, list[dict[str, Any]]]]:
    together = join_ranks(parsed(folder, ranks), folder / "out")
    assert sorted(path.name for path in (folder / "out").iterdir()) == sorted(f"{t.name}.parquet" for t in TABLES)
    return together, {t.name: t.read(folder / "out" / f"{t.name}.parquet").to_pylist() for t in TABLES}


def test_join_ranks_late_arrival_by_hand(tmp_path: Path) -> None:
    together, tables = join(tmp_path, {0: rank_events(0), 1: rank_events(30)})
    assert [one.rank for one in together.summaries] == [0, 1]
    rows = tables["collectives"]
    assert [row["rank"] for row in rows] == [0] * 10 + [1] * 10
    for early, late in zip(rows[:10], rows[10:], strict=True):
        assert (early["last_rank"], late["last_rank"], early["num_seen"]) == (1, 1, 2)
        assert (early["waited_ns"], early["arrival_lag_ns"]) == (30_000, 0)
        assert (late["waited_ns"], late["arrival_lag_ns"]) == (0, 30_000)
        assert early["t_start_ns"] + 30_000 == late["t_start_ns"]
        # 6000 bytes in the 30 us from the last start to the end; of two ranks the bus carries as much.
        assert early["algorithm_bandwidth_bytes_per_s"] == pytest.approx(6000 / 30e-6)
        assert late["bus_bandwidth_bytes_per_s"] == pytest.approx(6000 / 30e-6)
    assert [row["rank"] for row in tables["ranks"]] == [0, 1]
    assert [row["waited_ns"] for row in tables["ranks"]] == [300_000, 0]
    assert [row["compute_ns"] for row in tables["ranks"]] == [200_000, 500_000]
    assert [row["share_last"] for row in tables["ranks"]] == [0, 1]


def test_join_ranks_critical_path_adds_up_to_the_step(tmp_path: Path) -> None:
    _, tables = join(tmp_path, {0: rank_events(0), 1: rank_events(30)})
    assert sum(row["duration_ns"] for row in tables["critical_path"]) == 1_000_000
    on_late = sum(row["duration_ns"] for row in tables["critical_path"] if row["rank"] == 1)
    assert on_late >= 10 * 50_000, "the late rank's computation is on the path"


def test_join_ranks_tables_are_by_rank_whatever_the_order(tmp_path: Path) -> None:
    _, tables = join(tmp_path, {rank: rank_events(0) for rank in (0, 2, 10)})
    for name in ("kernels", "intervals", "categories", "collectives", "ranks", "timeline"):
        ranks = [row["rank"] for row in tables[name]]
        assert ranks == sorted(ranks)
        assert set(ranks) == {0, 2, 10}


def test_join_ranks_one_alone_has_no_critical_path(tmp_path: Path) -> None:
    together, tables = join(tmp_path, {3: rank_events(0)})
    assert tables["critical_path"] == []
    assert tables["ranks"] == []
    assert together.comparison.paths == []
    assert {row["num_seen"] for row in tables["collectives"]} <= {None, 1}
    assert len(tables["kernels"]) == 2


def test_join_ranks_of_none_writes_empty_tables(tmp_path: Path) -> None:
    together, tables = join(tmp_path, {})
    assert together.summaries == []
    assert all(rows == [] for rows in tables.values())


@pytest.mark.parametrize("lacking", [[], [kernel(GEMM, 5, 0)], [note("ProfilerStep#7", 0, 10), kernel(GEMM, 1, 1)]])
def test_join_ranks_rank_that_lacks_the_step_leaves_the_others(tmp_path: Path, lacking: list[dict]) -> None:
    _, tables = join(tmp_path, {0: rank_events(0), 1: rank_events(30), 2: lacking})
    assert {row["rank"] for row in tables["timeline"]} == {0, 1}
    assert [row["rank"] for row in tables["ranks"]] == [0, 1, 2]
    assert {row["rank"] for row in tables["kernels"]} == ({0, 1, 2} if lacking else {0, 1})
    assert [row["num_seen"] for row in tables["collectives"]] == [2] * 20


def test_join_ranks_timeline_starts_with_the_step(tmp_path: Path) -> None:
    _, tables = join(tmp_path, {0: rank_events(0), 1: rank_events(30)})
    starts = {(row["rank"], row["lane"]): row["t_start_ns"] for row in reversed(tables["timeline"])}
    assert starts == {(0, "compute"): 0, (0, "comm"): 20_000, (1, "compute"): 0, (1, "comm"): 50_000}


def test_join_ranks_clock_ahead_is_taken_off(tmp_path: Path) -> None:
    folders = parsed(tmp_path, {0: rank_events(0), 2: rank_events(0)})
    ahead = TraceFile(write_trace(tmp_path / "rank1.json", rank_events(0), baseTimeNanoseconds=BASE_NS + 7_000_000), 1)
    parse_traces([ahead], [tmp_path / "ranks" / "1"], load_scheme(), lambda line: None, 1, is_whole_job=False)
    join_ranks([*folders, tmp_path / "ranks" / "1"], tmp_path / "out")
    ranks = RANKS.read(tmp_path / "out" / "ranks.parquet").to_pylist()
    offsets = {row["rank"]: row["clock_offset_ns"] for row in ranks}
    assert (offsets[1] - offsets[0], offsets[2] - offsets[0]) == (7_000_000, 0)
    rows = COLLECTIVES.read(tmp_path / "out" / "collectives.parquet").to_pylist()
    starts = [[row["t_start_ns"] for row in rows if row["rank"] == rank] for rank in (0, 1)]
    assert starts[0] == starts[1]


def test_join_ranks_folder_that_is_not_whole_is_refused(tmp_path: Path) -> None:
    folders = parsed(tmp_path, {0: rank_events(0), 1: rank_events(0)})
    (folders[0] / "kernels.arrow").unlink()
    with pytest.raises(UserError, match=r"1/kernels\.arrow: no such file; delete "):
        join_ranks(folders, tmp_path / "out")
    (folders[0] / SUMMARY).unlink()
    with pytest.raises(UserError, match=rf"1/{SUMMARY}: no such file"):
        join_ranks(folders, tmp_path / "out")
