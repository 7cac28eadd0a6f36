"""A run of the pipeline: its ranks parsed in parts, the parts joined."""

import os
from pathlib import Path
from typing import Any

import pytest

from tests.points import planned, tiny_point, write_run
from tests.unit.trace.profilers.recordings import START_NS, Event, Recording, write_nsight
from tests.unit.trace.traces import event, note, write_trace
from triplepoint.cli import main
from triplepoint.config.point import Layout, Steps
from triplepoint.errors import UserError
from triplepoint.manifest import Manifest, write_manifest
from triplepoint.tables import CATEGORIES, COLLECTIVES, CRITICAL_PATH, INTERVALS, KERNELS, RANKS, TIMELINE
from triplepoint.trace.perfetto import FILE_NAME
from triplepoint.trace.run_parts import parse_part
from triplepoint.trace.run_traces import join_run
from triplepoint.trace.taxonomy import load_scheme

TABLES = (KERNELS, INTERVALS, CATEGORIES, COLLECTIVES, RANKS, CRITICAL_PATH, TIMELINE)


def rank_events(rank: int) -> list[dict]:
    events = [note("ProfilerStep#2", 100, 100), event("aten::mm", 120, 20 + rank)]
    return [*events, note("gloo:all_reduce", 140 + rank, 50 - rank, tid=4)]


def make_run(folder: Path, num_ranks: int = 4, status: Any = "ok", **changes: Any) -> Path:
    """Return the folder of a run whose ranks all left a trace, but for what is changed afterwards."""
    steps = Steps(warmup=1, measured=2, profiled=1)
    point = tiny_point(
        num_gpus=num_ranks, layout=Layout(dp=num_ranks), global_batch_size=num_ranks, steps=steps, **changes
    )
    run = write_run(folder, planned(point))
    for rank in range(num_ranks):
        write_trace(run / "raw" / "traces" / f"rank{rank}.json.gz", rank_events(rank))
    write_manifest(
        run / "raw" / "manifest.json",
        Manifest(
            run="tiny",
            digest=point.digest(),
            status=status,
            evidence=None,
            origin="measured",
            engine="native",
            versions={},
            git_commit=None,
            git_dirty=None,
            seed=1,
            started_at="2026-01-01T00:00:00Z",
            ended_at="2026-01-01T00:00:09Z",
            duration_s=9.0,
            nodes=(),
            facts={},
        ),
    )
    return run


def parse(run: Path, first: int, last: int, lines: list[str] | None = None) -> None:
    said = [] if lines is None else lines
    parse_part(run, range(first, last + 1), load_scheme(), said.append, 1)


def parts(run: Path) -> dict[str, list[str]]:
    """Return the folders of ranks in every part of a run."""
    return {path.name: sorted(inner.name for inner in path.iterdir()) for path in (run / "ranks").glob("*")}


def columns(run: Path, table: Any) -> list[dict]:
    return table.read(run / f"{table.name}.parquet").to_pylist()


def test_parse_and_join_in_parts_equals_in_one(tmp_path: Path) -> None:
    one, other = make_run(tmp_path / "one"), make_run(tmp_path / "other")
    parse(one, 0, 3)
    parse(other, 0, 1)
    parse(other, 2, 3)
    assert parts(one) == {"0-3": ["rank0", "rank1", "rank2", "rank3"]}
    assert parts(other) == {"0-1": ["rank0", "rank1"], "2-3": ["rank2", "rank3"]}
    join_run(one, [])
    join_run(other, [])
    for table in TABLES:
        assert columns(one, table) == columns(other, table), table.name
    assert [row["rank"] for row in columns(one, RANKS)] == [0, 1, 2, 3]
    assert (one / FILE_NAME).is_file()


def test_traces_of_a_run_may_be_of_another_profiler(tmp_path: Path) -> None:
    run = make_run(tmp_path, num_ranks=2)
    traces = run / "raw" / "traces"
    for path in traces.iterdir():
        path.unlink()
    made = Recording([], [], [], [Event("step 2", START_NS, START_NS + 100, 1, {})])
    args = {"stream": 7, "correlation": 1, "grid": [1, 1, 1], "block": [32, 1, 1]}
    args |= {"shared memory": 0, "registers per thread": 32}
    for device in (0, 1):
        gemm = Event("ampere_sgemm_128x64_nn", START_NS + 10, START_NS + 50 + device, 1, args)
        write_nsight(traces / "rank0-1.sqlite", made._replace(kernels=[gemm]), device=device, pid=100 + device)
    parse(run, 0, 0)
    parse(run, 1, 1)
    join_run(run, [])
    rows = [(row["rank"], row["step"], row["class"], row["sum_ns"]) for row in columns(run, KERNELS)]
    assert rows == [(0, 2, "gemm", 40), (1, 2, "gemm", 41)]


def test_parse_part_again_replaces_what_was_there(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    parse(run, 0, 3)
    (run / "ranks" / "0-3" / "rank9").mkdir()
    parse(run, 0, 3)
    assert parts(run) == {"0-3": ["rank0", "rank1", "rank2", "rank3"]}


def test_parse_part_beyond_the_last_rank_takes_what_there_is(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    parse(run, 3, 10)
    parse(run, 20, 30)
    assert parts(run) == {"3-10": ["rank3"], "20-30": []}


def test_parse_part_of_a_finished_run_needs_all_its_traces(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    (run / "raw" / "traces" / "rank2.json.gz").unlink()
    parse(run, 0, 1)
    with pytest.raises(
        UserError, match=r"traces: no trace of ranks 2 \(rank2\.json\.gz, \.\.\.\); launch the run again"
    ):
        parse(run, 0, 3)
    assert parts(run) == {"0-1": ["rank0", "rank1"]}


def test_parse_part_needs_only_the_ranks_that_were_to_be_traced(tmp_path: Path) -> None:
    run = make_run(tmp_path, trace_ranks=(0, 3))
    for rank in (1, 2):
        (run / "raw" / "traces" / f"rank{rank}.json.gz").unlink()
    parse(run, 0, 3)
    join_run(run, [])
    assert [row["rank"] for row in columns(run, RANKS)] == [0, 3]


def test_parse_part_of_a_finished_run_refuses_a_trace_that_is_cut_off(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    path = run / "raw" / "traces" / "rank1.json.gz"
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(UserError, match=r"rank1\.json\.gz: truncated, after \d+ events; copy it again"):
        parse(run, 0, 3)
    assert not (run / "ranks" / "0-3").exists()


@pytest.mark.parametrize("status", ["oom", "crashed"])
def test_parse_part_of_a_run_that_failed_takes_what_is_left(tmp_path: Path, status: str) -> None:
    run = make_run(tmp_path, status=status)
    path = run / "raw" / "traces" / "rank1.json.gz"
    path.write_bytes(path.read_bytes()[:-20])
    (run / "raw" / "traces" / "rank2.json.gz").unlink()
    parse(run, 0, 3)
    join_run(run, [])
    assert [row["rank"] for row in columns(run, RANKS)] == [0, 1, 3]
    for left in (run / "raw" / "traces").iterdir():
        left.unlink()
    parse(run, 0, 3)
    join_run(run, [])
    assert all(columns(run, table) == [] for table in TABLES)


def test_parse_part_tells_of_damaged_events(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    bad = event("aten::mm", 150, -1)
    path = write_trace(run / "raw" / "traces" / "rank1.json.gz", [*rank_events(1), bad])
    lines: list[str] = []
    parse(run, 0, 3, lines)
    assert [line.startswith(f"{path}: 1 of 4 events") for line in lines] == [True]


def test_parse_part_damaged_record_of_groups_is_refused(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    (run / "raw" / "traces" / "rank0.groups.json").write_text("[")
    with pytest.raises(UserError, match=r"rank0\.groups\.json: not a record of process groups"):
        parse(run, 0, 3)
    assert not (run / "ranks" / "0-3").exists()


def test_join_run_lacking_a_rank_is_refused(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    parse(run, 0, 1)
    with pytest.raises(UserError, match=r"ranks: ranks 2, 3 are not parsed; run 'snakemake all'"):
        join_run(run, [])
    assert not (run / "kernels.parquet").exists()


def test_join_run_rank_in_two_parts_is_refused(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    parse(run, 0, 3)
    parse(run, 0, 1)
    with pytest.raises(UserError, match=r"rank [01] is also in .*/rank[01];"):
        join_run(run, [])


def test_join_run_ranks_of_another_run_are_refused_and_kept(tmp_path: Path) -> None:
    other = make_run(tmp_path / "other")
    other = other.rename(other.with_name("another"))
    run = make_run(tmp_path / "results")
    for each in (run, other):
        parse(each, 0, 3)
    with pytest.raises(
        UserError, match=r"another/ranks/0-3/rank0: of another run, parsed from .+, expected .+ of tiny;"
    ):
        join_run(run, [other / "ranks" / "0-3"])
    assert parts(run) == parts(other) and not (run / "ranks.parquet").exists()


def test_join_run_tables_damaged_or_of_another_rank_are_refused(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    parse(run, 0, 3)
    table = run / "ranks" / "0-3" / "rank1" / "segments.arrow"
    whole = table.read_bytes()
    damaged = bytearray(whole)
    damaged[len(whole) // 2] ^= 64
    for content in (bytes(damaged), whole[:-8], b"", (table.parents[1] / "rank2" / table.name).read_bytes()):
        table.write_bytes(content)
        with pytest.raises(
            UserError, match=r"rank1/segments\.arrow: not the table of .+; delete \S+ranks/0-3 and run "
        ):
            join_run(run, [])
    table.unlink()
    os.mkfifo(table)
    with pytest.raises(UserError, match=r"rank1/segments\.arrow: no such file; delete "):
        join_run(run, [])
    assert not (run / "ranks.parquet").exists()


def test_join_run_named_parts_alone_stay(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    for first, last in ((0, 3), (0, 1), (2, 3)):
        parse(run, first, last)
    join_run(run, [run / "ranks" / "0-1", run / "ranks" / "2-3"])
    assert sorted(parts(run)) == ["0-1", "2-3"]
    assert [row["rank"] for row in columns(run, RANKS)] == [0, 1, 2, 3]


def test_parse_and_trace_as_commands(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = make_run(tmp_path / "results")
    results = ["--results", str(tmp_path / "results")]
    assert main(["parse", "tiny", "0-1", "--jobs", "1", *results]) == 0
    assert main(["trace", "--run", "tiny", *results]) == 2
    assert main(["parse", "tiny", "2-3", "--jobs", "2", *results]) == 0
    assert main(["trace", "--run", "tiny", *results]) == 0
    assert [row["rank"] for row in columns(run, RANKS)] == [0, 1, 2, 3]
    errors = capsys.readouterr().err
    assert errors.count("triplepoint: ") == 1
    assert "ranks 2, 3 are not parsed" in errors


@pytest.mark.parametrize("words", [["3-1"], ["x"], ["1"], ["-1-2"], ["0-1", "--jobs", "0"]])
def test_parse_ranks_that_are_none_are_one_line(
    tmp_path: Path, words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    run = make_run(tmp_path / "results")
    try:
        status = main(["parse", "--results", str(tmp_path / "results"), "tiny", *words])
    except SystemExit as stop:  # argparse says itself what it cannot read
        status = int(str(stop.code))
    assert status == 2
    assert "parse: " in capsys.readouterr().err
    assert not (run / "ranks").exists()
