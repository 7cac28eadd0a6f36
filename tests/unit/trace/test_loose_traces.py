"""Loose traces to tables: all of them or none, whatever the files are called, and clean folders after a refusal."""

import csv
import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.mounts import needs_mounts
from tests.unit.trace.traces import GEMM, event, kernel, note, write_trace
from triplepoint.cli import main
from triplepoint.errors import UserError
from triplepoint.tables import CATEGORIES, COLLECTIVES, CRITICAL_PATH, INTERVALS, KERNELS, RANKS, TIMELINE
from triplepoint.trace.loose_traces import trace_files, trace_files_as_hta
from triplepoint.trace.perfetto import FILE_NAME
from triplepoint.trace.taxonomy import load_scheme

DATA = Path(__file__).parents[2] / "data" / "traces"
TABLES = (KERNELS, INTERVALS, CATEGORIES, COLLECTIVES, RANKS, CRITICAL_PATH, TIMELINE)


def rank_events(shift_us: float = 0) -> list[dict]:
    return [
        note("ProfilerStep#2", 100 + shift_us, 100),
        note("forward stage=0 microbatch=0", 110 + shift_us, 40),
        event("aten::mm", 120 + shift_us, 20),
        note("gloo:all_reduce", 130 + shift_us, 50, tid=4),
    ]


def run(arguments: list[Path], out: Path, **options: Any) -> str:
    return trace_files(arguments, out, load_scheme(), lambda line: None, **{"num_jobs": 1, **options}).summary


def written(out: Path) -> list[str]:
    return sorted(path.name for path in out.iterdir())


def ranks_of(out: Path) -> list[int]:
    return sorted({row["rank"] for row in KERNELS.read(out / "kernels.parquet").to_pylist()})


def test_trace_files_tiny_job_whole_tables(tmp_path: Path) -> None:
    write_trace(tmp_path / "in" / "rank0.json.gz", rank_events(5))
    write_trace(tmp_path / "in" / "rank1.json.gz", rank_events())
    out = tmp_path / "out"
    run([tmp_path / "in"], out)
    assert written(out) == sorted([*(f"{table.name}.parquet" for table in TABLES), FILE_NAME])
    gemm = {"class": "gemm", "kind": "dense", "group": None, "name": "aten::mm"}
    comm = {"class": "comm", "kind": "all_reduce", "group": None, "name": "gloo:all_reduce"}
    found = KERNELS.read(out / "kernels.parquet").to_pylist()
    assert [{name: value for name, value in row.items() if value is not None or name == "group"} for row in found] == [
        {"rank": rank, "step": 2, **label, "count": 1, "sum_ns": ns, "min_ns": ns, "max_ns": ns}
        for rank in (0, 1)
        for label, ns in ((comm, 50_000), (gemm, 20_000))
    ]
    # Clocks of two ranks with one collective cannot be told apart: the first is 5 us late.
    spans = [
        (row["rank"], row["lane"], row["label"], row["t_start_ns"], row["duration_ns"])
        for row in TIMELINE.read(out / "timeline.parquet").to_pylist()
    ]
    assert sorted(spans) == [
        (0, "comm", "all_reduce", 35_000, 50_000),
        (0, "compute", "gemm", 25_000, 20_000),
        (0, "phase", "forward", 15_000, 40_000),
        (1, "comm", "all_reduce", 30_000, 50_000),
        (1, "compute", "gemm", 20_000, 20_000),
        (1, "phase", "forward", 10_000, 40_000),
    ]
    busy = {
        (row["phase"], row["category"]): (row["busy_ns"], row["exposed_ns"])
        for row in CATEGORIES.read(out / "categories.parquet").to_pylist()
        if row["rank"] == 1 and row["busy_ns"]
    }
    assert busy == {
        ("forward", "compute"): (20_000, 20_000),
        ("forward", "comm"): (20_000, 10_000),
        ("forward", "idle"): (10_000, 10_000),
        ("other", "comm"): (30_000, 30_000),
        ("other", "idle"): (30_000, 30_000),
    }


def test_trace_files_csv_stands_beside_every_table(tmp_path: Path) -> None:
    name = 'f<"a", b>\n(int)'
    write_trace(tmp_path / "rank3.json", [kernel(name, 0, 10)])
    run([tmp_path / "rank3.json"], tmp_path / "out", csv=True)
    without = {f"{table.name}.csv" for table in TABLES if table is not TIMELINE} | {"breakdown.csv"}
    assert {one for one in written(tmp_path / "out") if one.endswith(".csv")} == without
    with (tmp_path / "out" / "kernels.csv").open(newline="") as file:
        (row,) = csv.DictReader(file)
    assert (row["rank"], row["name"], row["count"], row["sum_us"]) == ("3", name, "1", "10.000")


def test_trace_files_rank_from_name_then_from_content(tmp_path: Path) -> None:
    named = write_trace(tmp_path / "job_rank-12.json", rank_events(), distributedInfo={"rank": 3})
    inside = write_trace(tmp_path / "worker_b.json", rank_events(), distributedInfo={"rank": 3}, of="another process")
    alone = write_trace(tmp_path / "toy.json", rank_events())
    run([named, inside], tmp_path / "both")
    assert ranks_of(tmp_path / "both") == [3, 12]
    run([alone], tmp_path / "one")
    assert ranks_of(tmp_path / "one") == [0]
    with pytest.raises(UserError, match=r"toy\.json: neither its name"):
        run([alone, named], tmp_path / "out")
    assert not (tmp_path / "out").exists()


def refused(tmp_path: Path, arguments: list[Path], message: str) -> None:
    """Check that both ways of reading refuse some files, and leave a new folder away and an old one as it was."""
    (tmp_path / "old").mkdir()
    (tmp_path / "old" / "kernels.parquet").write_text("mine")
    for out in (tmp_path / "out", tmp_path / "old"):
        with pytest.raises(UserError, match=message):
            run(arguments, out)
        with pytest.raises(UserError, match=message):
            trace_files_as_hta(arguments, out, lambda line: None)
    assert not (tmp_path / "out").exists()
    assert written(tmp_path / "old") == ["kernels.parquet"]
    assert (tmp_path / "old" / "kernels.parquet").read_text() == "mine"


def test_trace_files_same_rank_by_name_is_refused(tmp_path: Path) -> None:
    paths = [write_trace(tmp_path / folder / "rank1.json", rank_events()) for folder in "ab"]
    refused(tmp_path, paths, r"b/rank1\.json: rank 1 is also in .*a/rank1\.json")


def test_trace_files_same_rank_as_written_is_refused(tmp_path: Path) -> None:
    paths = [
        write_trace(tmp_path / name, rank_events(), distributedInfo={"rank": 1}, of=name)
        for name in ("a.json", "b.json")
    ]
    refused(tmp_path, paths, r"b\.json: rank 1 is also in .*a\.json")


def test_trace_files_one_of_two_unreadable_is_refused(tmp_path: Path) -> None:
    paths = [write_trace(tmp_path / f"rank{rank}.json", rank_events()) for rank in (0, 1)]
    paths[1].write_text('{"no": "events"}')
    refused(tmp_path, paths, r"rank1\.json: no `traceEvents` in it")


def test_trace_files_missing_file_or_nothing_is_refused(tmp_path: Path) -> None:
    refused(tmp_path, [tmp_path / "rank0.json"], r"rank0\.json: no such trace file")
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match="no trace files"):
        run([tmp_path / "empty"], tmp_path / "out")


def test_trace_files_damaged_record_of_groups_is_refused(tmp_path: Path) -> None:
    path = write_trace(tmp_path / "rank0.json.gz", rank_events())
    (tmp_path / "rank0.groups.json").write_text('{"groups": [')
    with pytest.raises(UserError, match=r"rank0\.groups\.json: not a record of process groups"):
        run([path], tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_trace_files_truncated_trace_is_what_is_left_of_it(tmp_path: Path) -> None:
    path = write_trace(tmp_path / "rank0.json", [kernel(GEMM, 10 * i, 5) for i in range(300)])
    path.write_bytes(path.read_bytes()[:20_000])
    said = run([path], tmp_path / "out")
    assert "the file is truncated" in said
    (row,) = KERNELS.read(tmp_path / "out" / "kernels.parquet").to_pylist()
    assert 0 < row["count"] < 300


@pytest.mark.parametrize("options", [[], ["--parity", "hta"]])
def test_trace_of_damaged_files_alone_exits_2_and_one_whole_file_makes_it_0(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], options: list[str]
) -> None:
    folder = tmp_path / "traces"
    folder.mkdir()
    path = write_trace(folder / "rank0.json", [kernel(GEMM, 10 * i, 5) for i in range(300)])
    path.write_bytes(path.read_bytes()[:20_000])
    words = ["trace", str(folder), "--out", str(tmp_path / "out"), "--jobs", "1", "--json", *options]
    assert main(words) == 2
    told = capsys.readouterr()
    damage = json.loads(told.out)["damaged"]["rank0.json"]
    assert damage.startswith("the file is truncated")
    assert f"triplepoint: rank0.json: {damage}; the tables hold what could be read\n" in told.err
    assert (tmp_path / "out" / "kernels.csv" if options else tmp_path / "out" / "kernels.parquet").is_file()
    write_trace(folder / "rank1.json", [kernel(GEMM, 10 * i, 5) for i in range(300)])
    assert main(words) == 0
    assert list(json.loads(capsys.readouterr().out)["damaged"]) == ["rank0.json"]


@pytest.mark.parametrize("name", ["rank0 (copy).json", "rank0;touch x.json", "rank0\n.json", "rank0'\"$(id).json"])
def test_trace_odd_file_names_are_names(
    tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write_trace(tmp_path / name, rank_events())
    assert main(["trace", name, "--out", "out dir"]) == 0
    assert ranks_of(tmp_path / "out dir") == [0]
    (tmp_path / name).write_text("{}")
    assert main(["trace", name, "--out", "out 2"]) == 2
    line = capsys.readouterr().err
    assert line.startswith("triplepoint: rank0")
    assert len(line.splitlines()) == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([name, "out dir"])


def test_trace_files_folder_skips_records_of_groups(tmp_path: Path) -> None:
    for rank in (0, 1):
        shutil.copy(DATA / f"gloo_rank{rank}.json.gz", tmp_path)
        shutil.copy(DATA / f"gloo_rank{rank}.groups.json", tmp_path)
    run([tmp_path], tmp_path / "out", num_jobs=2)
    assert ranks_of(tmp_path / "out") == [0, 1]
    rows = COLLECTIVES.read(tmp_path / "out" / "collectives.parquet").to_pylist()
    assert {row["num_seen"] for row in rows if row["group"] == "dp"} == {2}


@pytest.mark.parametrize(
    ("name", "span_us", "compute_us", "idle_us"),
    # HolisticTraceAnalysis 0.6.1, temporal breakdown over all steps, its rounding of nanoseconds off.
    [("dlrm_v100_rank0", 13009.0, 1034.0, 6419.0), ("mi250_toy_rank0", 8911.887, 110.881, 8762.845)],
)
def test_trace_files_gpu_totals_equal_hta(
    tmp_path: Path, name: str, span_us: float, compute_us: float, idle_us: float
) -> None:
    text = run([DATA / f"{name}.json.gz"], tmp_path)
    numbers = {line.split("  ")[1].strip(): line for line in text.splitlines() if line.startswith("  ")}
    assert f"rank 0: {span_us / 1000:.3f} ms with" in text
    assert f" {compute_us / 1000:.3f} ms" in numbers["compute"]
    assert f" {idle_us / 1000:.3f} ms" in numbers["idle"]


def test_trace_files_disk_full_at_the_second_table_leaves_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_trace(tmp_path / "rank0.json", rank_events())

    def full(*anything: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("triplepoint.trace.join._draw", full)
    with pytest.raises(OSError, match="No space left"):
        run([path], tmp_path / "out")
    assert not (tmp_path / "out").exists()


@needs_mounts
@pytest.mark.parametrize("options", ["", "--csv", "--parity hta"])
def test_trace_full_disk_is_one_line_and_leaves_nothing(tmp_path: Path, options: str) -> None:
    path = write_trace(tmp_path / "rank0.json", [kernel(f"{GEMM}_{i}", 2 * i, 1) for i in range(5000)])
    small = tmp_path / "small"
    small.mkdir()
    command = f"{sys.executable} -m triplepoint trace {path} --out {small} {options}"
    script = f"mount -t tmpfs -o size=8k tmpfs {small} && {command}; status=$?; find {small} -mindepth 1; exit $status"
    done = subprocess.run(["unshare", "-rm", "sh", "-c", script], capture_output=True, text=True)
    assert done.returncode == 2, done.stderr
    assert "no space left on the device" in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""


def test_trace_sorting_on_a_full_disk_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_trace(tmp_path / "rank0.json", rank_events())

    def full(*anything: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("triplepoint.trace.rank.work.TraceRows", full)
    with pytest.raises(OSError, match="No space left"):
        run([path], tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["trace"], "name either traces with --out DIR, or a run with --run RUN"),
        (["trace", "x.json"], "--out DIR is missing"),
        (["trace", "x.json", "--out", "o", "--jobs", "0"], "--jobs: found '0', expected a whole number from 1 to 4096"),
        (["trace", "x.json", "--out", "o"], "no such trace file"),
    ],
)
def test_trace_words_that_do_not_fit_are_one_line(
    tmp_path: Path, words: list[str], said: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(words) == 2
    error = capsys.readouterr().err
    assert said in error
    assert len(error.splitlines()) == 1
    assert list(tmp_path.iterdir()) == []
