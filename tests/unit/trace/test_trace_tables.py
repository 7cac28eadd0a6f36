"""From files to tables: all or none, ranks in order, recorded traces against independent figures."""

import gzip
import shutil
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from tests.unit.trace.traces import event, note, write_trace
from triplepoint.errors import UserError
from triplepoint.tables import INTERVALS, KERNELS, TIMELINE
from triplepoint.trace.tables import summarise, trace_files, trace_run

DATA = Path(__file__).parents[2] / "data" / "traces"
TABLES = {"kernels.parquet": KERNELS, "intervals.parquet": INTERVALS, "timeline.parquet": TIMELINE}


def rank_events(shift_us: float = 0) -> list[dict]:
    return [
        note("ProfilerStep#2", 100 + shift_us, 100),
        note("forward stage=0 microbatch=0", 110 + shift_us, 40),
        event("aten::mm", 120 + shift_us, 20),
        note("gloo:all_reduce", 130 + shift_us, 50, tid=4),
    ]


def quiet(line: str) -> None:
    del line


def test_trace_run_tiny_run_whole_tables(tmp_path: Path) -> None:
    traces = tmp_path / "raw" / "traces"
    write_trace(traces / "rank0.json.gz", rank_events(5))
    write_trace(traces / "rank1.json.gz", rank_events())
    trace_run(tmp_path / "raw", tmp_path / "out", quiet)
    assert sorted(p.name for p in (tmp_path / "out").iterdir()) == sorted(TABLES)
    gemm = {"class": "gemm", "kind": "dense", "group": None, "name": "aten::mm"}
    comm = {"class": "comm", "kind": "all_reduce", "group": None, "name": "gloo:all_reduce"}
    assert KERNELS.read(tmp_path / "out" / "kernels.parquet").to_pylist() == [
        {"rank": rank, "step": 2, **label, "count": 1, "sum_ns": ns, "min_ns": ns, "max_ns": ns}
        for rank in (0, 1)
        for label, ns in ((gemm, 20_000), (comm, 50_000))
    ]
    spans = [
        (r["rank"], r["lane"], r["label"], r["t_start_ns"], r["duration_ns"])
        for r in TIMELINE.read(tmp_path / "out" / "timeline.parquet").to_pylist()
    ]
    assert spans == [
        (0, "comm", "all_reduce", 35_000, 50_000),
        (0, "phase", "forward", 15_000, 40_000),
        (1, "comm", "all_reduce", 30_000, 50_000),
        (1, "phase", "forward", 10_000, 40_000),
    ]
    busy = {
        (r["phase"], r["category"]): (r["busy_ns"], r["exposed_ns"])
        for r in INTERVALS.read(tmp_path / "out" / "intervals.parquet").to_pylist()
        if r["rank"] == 1 and r["busy_ns"]
    }
    assert busy == {
        ("forward", "compute"): (20_000, 20_000),
        ("forward", "comm"): (20_000, 10_000),
        ("forward", "idle"): (10_000, 10_000),
        ("other", "comm"): (30_000, 30_000),
        ("other", "idle"): (30_000, 30_000),
    }


def test_trace_run_ranks_are_in_numeric_order(tmp_path: Path) -> None:
    for rank in (0, 2, 10):
        write_trace(tmp_path / "raw" / "traces" / f"rank{rank}.json.gz", rank_events())
    lines: list[str] = []
    trace_run(tmp_path / "raw", tmp_path, lines.append)
    assert lines == ["trace rank 0 (1 of 3)", "trace rank 2 (2 of 3)", "trace rank 10 (3 of 3)"]
    ranks = KERNELS.read(tmp_path / "kernels.parquet")["rank"].to_pylist()
    assert ranks == [0, 0, 2, 2, 10, 10]


def test_trace_run_one_truncated_trace_writes_nothing(tmp_path: Path) -> None:
    traces = tmp_path / "raw" / "traces"
    write_trace(traces / "rank0.json.gz", rank_events())
    whole = write_trace(traces / "rank1.json.gz", rank_events()).read_bytes()
    (traces / "rank1.json.gz").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(UserError, match=r"rank1\.json\.gz: gzip stream ends after"):
        trace_run(tmp_path / "raw", tmp_path / "out", quiet)
    assert not (tmp_path / "out").exists()


def test_trace_run_disk_full_at_the_second_table_leaves_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_trace(tmp_path / "raw" / "traces" / "rank0.json.gz", rank_events())
    write = pq.write_table
    written: list[Path] = []

    def write_once(content: object, path: Path, **options: object) -> None:
        if written:
            raise OSError(28, "No space left on device", str(path))
        written.append(path)
        write(content, path, **options)

    monkeypatch.setattr("triplepoint.tables.schema.pq.write_table", write_once)
    with pytest.raises(OSError, match="No space left"):
        trace_run(tmp_path / "raw", tmp_path / "out", quiet)
    assert written
    assert list((tmp_path / "out").iterdir()) == []


def test_trace_run_without_traces_is_refused_unless_allowed(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no traces"):
        trace_run(tmp_path / "raw", tmp_path / "out", quiet)
    trace_run(tmp_path / "raw", tmp_path / "out", quiet, allow_empty=True)
    for name, table in TABLES.items():
        assert table.read(tmp_path / "out" / name).num_rows == 0


def test_trace_run_damaged_record_of_groups_is_refused(tmp_path: Path) -> None:
    traces = tmp_path / "raw" / "traces"
    write_trace(traces / "rank0.json.gz", rank_events())
    (traces / "rank0.groups.json").write_text('{"groups": [')
    with pytest.raises(UserError, match=r"rank0\.groups\.json: not a record of process groups"):
        trace_run(tmp_path / "raw", tmp_path / "out", quiet)


def test_trace_files_rank_from_name_then_from_content(tmp_path: Path) -> None:
    named = write_trace(tmp_path / "job_rank-12.json", rank_events(), distributedInfo={"rank": 3})
    written = write_trace(tmp_path / "worker_b.json", rank_events(), distributedInfo={"rank": 3})
    alone = write_trace(tmp_path / "toy.json", rank_events())
    assert [one.rank for one in trace_files([named, written], None)] == [3, 12]
    assert [one.rank for one in trace_files([alone], None)] == [0]
    with pytest.raises(UserError, match=r"toy\.json: neither its name"):
        trace_files([alone, named], None)


def test_trace_files_same_rank_twice_is_refused(tmp_path: Path) -> None:
    first = write_trace(tmp_path / "a" / "rank1.json", rank_events())
    second = write_trace(tmp_path / "b" / "rank1.json", rank_events())
    with pytest.raises(UserError, match=r"b/rank1\.json: rank 1 is also in .*a/rank1\.json"):
        trace_files([first, second], tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_trace_files_folder_skips_records_of_groups(tmp_path: Path) -> None:
    for rank in (0, 1):
        shutil.copy(DATA / f"gloo_rank{rank}.json.gz", tmp_path)
        shutil.copy(DATA / f"gloo_rank{rank}.groups.json", tmp_path)
    assert [one.rank for one in trace_files([tmp_path], None)] == [0, 1]
    with pytest.raises(UserError, match="no trace files"):
        trace_files([tmp_path / "gloo_rank0.groups.json"], None)


@pytest.mark.parametrize(
    ("name", "span_us", "compute_us", "idle_us"),
    # HolisticTraceAnalysis 0.6.1, temporal breakdown over all steps, its rounding of nanoseconds off.
    [("dlrm_v100_rank0", 13009.0, 1034.0, 6419.0), ("mi250_toy_rank0", 8911.887, 110.881, 8762.845)],
)
def test_trace_files_gpu_totals_equal_hta(name: str, span_us: float, compute_us: float, idle_us: float) -> None:
    text = summarise(trace_files([DATA / f"{name}.json.gz"], None))
    numbers = {line.split("  ")[1].strip(): line for line in text.splitlines()[1:]}
    assert f"{span_us / 1000:.3f} ms of GPU work" in text
    assert f" {compute_us / 1000:.3f} ms" in numbers["compute"]
    assert f" {idle_us / 1000:.3f} ms" in numbers["idle"]


def test_trace_files_recorded_gloo_kinds_and_groups(tmp_path: Path) -> None:
    trace_files([DATA / "gloo_rank0.json.gz", DATA / "gloo_rank1.json.gz"], tmp_path)
    comm = {
        (r["rank"], r["kind"], r["group"]): r["count"]
        for r in KERNELS.read(tmp_path / "kernels.parquet").to_pylist()
        if r["class"] == "comm" and r["step"] == 3
    }
    # By hand from the script that made it: per step two sends, six gradients, and one of each other kind.
    expected = {("all_reduce", "dp"): 6, ("reduce_scatter", "dp"): 1, ("all_gather", "dp"): 1}
    expected |= {(kind, "world"): 1 for kind in ("all_to_all", "broadcast", "barrier")}
    assert comm == {
        **{(rank, *key): count for rank in (0, 1) for key, count in expected.items()},
        (0, "send", "pp"): 2,
        (1, "recv", "pp"): 2,
    }


def test_trace_files_recorded_gloo_adds_up_to_the_step(tmp_path: Path) -> None:
    trace_files([DATA / "gloo_rank0.json.gz"], tmp_path)
    rows = [r for r in INTERVALS.read(tmp_path / "intervals.parquet").to_pylist() if r["step"] == 2]
    assert sum(r["exposed_ns"] for r in rows) == 20_670_045, "ProfilerStep#2 lasts 20670.045 us in the file"
    assert b'"dur": 20670.045' in gzip.decompress((DATA / "gloo_rank0.json.gz").read_bytes())
