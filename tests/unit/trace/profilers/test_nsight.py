"""Nsight Systems: several GPUs in a file, ranks, collectives by NVTX, counters, other releases, damage."""

import gzip
import json
import re
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from tests.unit.trace.profilers.recordings import (
    GLOBAL_PID,
    NSIGHT_SCHEMA,
    PID,
    START_NS,
    Event,
    Recording,
    write_nsight,
)
from triplepoint.errors import UserError
from triplepoint.tables import COLLECTIVES, KERNELS
from triplepoint.trace.loose_traces import trace_files
from triplepoint.trace.parsing import find_traces
from triplepoint.trace.perfetto import FILE_NAME
from triplepoint.trace.reader import read_parts
from triplepoint.trace.taxonomy import load_scheme

NCCL = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
GENERIC = "ncclDevKernel_Generic(ncclDevKernelArgsStorage<4096ul>)"


def kernel(name: str, start: int, end: int, correlation: int = 1, stream: int = 7) -> Event:
    args = {"stream": stream, "correlation": correlation, "grid": [8, 1, 1], "block": [64, 2, 1]}
    args |= {"shared memory": 1024, "registers per thread": 32}
    return Event(name, START_NS + start, START_NS + end, 1, args)


def recording(*kernels: Event, calls: tuple[Event, ...] = (), ranges: tuple[Event, ...] = ()) -> Recording:
    return Recording(list(kernels), [], list(calls), list(ranges))


def host(name: str, start: int, end: int, correlation: int = 0) -> Event:
    return Event(name, START_NS + start, START_NS + end, 1, {"correlation": correlation})


def change(path: Path, *statements: str) -> Path:
    connection = sqlite3.connect(path)
    for statement in statements:
        connection.execute(statement)
    connection.commit()
    connection.close()
    return path


def trace(path: Path, out: Path, **options: Any) -> list[dict[str, Any]]:
    trace_files([path], out, load_scheme(), lambda line: None, num_jobs=1, **options)
    return KERNELS.read(out / "kernels.parquet").to_pylist()


def test_gpus_of_a_file_are_ranks_in_their_order(tmp_path: Path) -> None:
    path = tmp_path / "node.sqlite"
    for device in (10, 2, 0):
        write_nsight(path, recording(kernel(f"gemm_of_{device}", 0, 10 + device)), device=device, pid=PID + device)
    rows = trace(path, tmp_path / "out")
    assert {(row["rank"], row["name"]) for row in rows} == {(0, "gemm_of_0"), (1, "gemm_of_2"), (2, "gemm_of_10")}
    assert [part.gpu_name for part in read_parts(path)] == ["Tesla V100-SXM2-32GB"] * 3


def test_files_of_nodes_are_ranks_in_the_order_of_their_names(tmp_path: Path) -> None:
    for node, end in (("node10", 8), ("node9", 9)):
        for device in (0, 1):
            done = recording(kernel("gemm", 0, end))
            write_nsight(tmp_path / f"{node}.sqlite", done, device=device, pid=PID + device)
    found = [(file.path.stem, file.rank) for file in find_traces([tmp_path])]
    assert found == [("node9", 0), ("node9", 1), ("node10", 2), ("node10", 3)]


def test_rank_is_that_of_mpi_where_it_was_traced(tmp_path: Path) -> None:
    path = write_nsight(tmp_path / "report.sqlite", recording(kernel("gemm", 0, 9)))
    table = "CREATE TABLE MPI_RANKS (globalPid INTEGER, rank INTEGER)"
    change(path, table, f"INSERT INTO MPI_RANKS VALUES ({GLOBAL_PID}, 5)")
    assert {row["rank"] for row in trace(path, tmp_path / "out")} == {5}


def test_name_gives_the_rank(tmp_path: Path) -> None:
    path = write_nsight(tmp_path / "report_rank3.sqlite", recording(kernel("gemm", 0, 9)))
    assert [file.rank for file in find_traces([path])] == [3]


def test_collective_is_what_nccl_marked_around_its_launch(tmp_path: Path) -> None:
    made = recording(
        kernel(GENERIC, 100, 200, 5),
        calls=(host("cudaLaunchKernel", 20, 30, 5),),
        ranges=(host("ncclAllGather", 10, 40),),
    )
    trace(write_nsight(tmp_path / "report.sqlite", made), tmp_path / "out")
    (row,) = COLLECTIVES.read(tmp_path / "out" / "collectives.parquet").to_pylist()
    assert (row["kind"], row["t_start_ns"], row["duration_ns"]) == ("all_gather", START_NS + 100, 100)


def test_fill_is_named_as_kineto_names_it(tmp_path: Path) -> None:
    path = write_nsight(tmp_path / "report.sqlite", recording(kernel("gemm", 0, 9)))
    columns = "start, end, deviceId, contextId, streamId, correlationId, globalPid, value, bytes, memKind"
    change(
        path,
        f"CREATE TABLE CUPTI_ACTIVITY_KIND_MEMSET ({columns})",
        f"INSERT INTO CUPTI_ACTIVITY_KIND_MEMSET VALUES (20, 25, 0, 1, 7, 3, {GLOBAL_PID}, 0, 64, 3)",
    )
    fill = next(row for row in trace(path, tmp_path / "out") if row["class"] == "memory")
    assert (fill["kind"], fill["name"], fill["sum_ns"]) == ("memset", "Memset (Device)", 5)


def test_graph_recorded_as_a_whole_is_work(tmp_path: Path) -> None:
    path = write_nsight(tmp_path / "report.sqlite", recording(kernel("gemm", 0, 9)))
    columns = (
        "start INT, end INT, deviceId INT, contextId INT, streamId INT, correlationId INT, globalPid INT, graphId INT"
    )
    change(
        path,
        f"CREATE TABLE CUPTI_ACTIVITY_KIND_GRAPH_TRACE ({columns})",
        f"INSERT INTO CUPTI_ACTIVITY_KIND_GRAPH_TRACE VALUES (20, 50, 0, 1, 7, 3, {GLOBAL_PID}, 1)",
    )
    rows = {row["name"]: row["sum_ns"] for row in trace(path, tmp_path / "out")}
    assert rows == {"gemm": 9, "CUDA graph": 30}


def test_steps_are_numbered_ranges(tmp_path: Path) -> None:
    made = recording(
        kernel("gemm", 15, 20),
        kernel("gemm", 35, 45),
        ranges=(host("iteration 7", 10, 30), host("iteration 8", 30, 50)),
    )
    rows = trace(write_nsight(tmp_path / "report.sqlite", made), tmp_path / "out")
    assert [(row["step"], row["sum_ns"]) for row in rows] == [(7, 5), (8, 10)]


@pytest.mark.parametrize(("pattern", "steps"), [(r"fwd_bwd", [0, 1]), (r"fwd_bwd (\d+)", [30, 31])])
def test_steps_are_the_ranges_a_pattern_names(tmp_path: Path, pattern: str, steps: list[int]) -> None:
    made = recording(
        kernel("gemm", 15, 20),
        kernel("gemm", 35, 45),
        # The second range of the inner name stands within the first of the outer: only the outer ones are steps.
        ranges=(host("fwd_bwd 30", 10, 30), host("fwd_bwd_inner 1", 12, 14), host("fwd_bwd 31", 30, 50)),
    )
    rows = trace(write_nsight(tmp_path / "r.sqlite", made), tmp_path / "out", steps=re.compile(pattern))
    assert [row["step"] for row in rows] == steps
    with pytest.raises(UserError, match=r"^r\.sqlite: no range is called like 'iter' \(--steps, matched from the"):
        trace(tmp_path / "r.sqlite", tmp_path / "out", steps=re.compile("iter"))


def test_sampled_metrics_are_counters_of_the_merged_trace(tmp_path: Path) -> None:
    path = write_nsight(tmp_path / "report.sqlite", recording(kernel("gemm", 0, 1000)), device=1)
    change(
        path,
        "CREATE TABLE TARGET_INFO_GPU_METRICS (typeId INT, sourceId INT, typeName TEXT, metricId INT, metricName TEXT)",
        "INSERT INTO TARGET_INFO_GPU_METRICS VALUES (513, 1, 'H100', 3, 'SM Clock Frequency [MHz]')",
        "INSERT INTO TARGET_INFO_GPU_METRICS VALUES (512, 1, 'H100', 3, 'SM Clock Frequency [MHz]')",
        "CREATE TABLE GPU_METRICS (timestamp INT, typeId INT, metricId INT, value INT)",
        "INSERT INTO GPU_METRICS VALUES (100, 513, 3, 1980), (600, 513, 3, 1755), (200, 512, 3, 345)",
    )
    trace(path, tmp_path / "out")
    with gzip.open(tmp_path / "out" / FILE_NAME) as file:
        events = json.load(file)["traceEvents"]
    samples = [(one["name"], one["ts"], one["args"]) for one in events if one["ph"] == "C"]
    assert samples == [("SM Clock Frequency", 0.1, {"MHz": 1980}), ("SM Clock Frequency", 0.6, {"MHz": 1755})]


def test_older_release_without_processes_and_geometry(tmp_path: Path) -> None:
    path = tmp_path / "old.sqlite"
    change(
        path,
        "CREATE TABLE StringIds (id INTEGER PRIMARY KEY, value TEXT)",
        f"INSERT INTO StringIds VALUES (1, '{NCCL}')",
        "CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start INT, end INT, deviceId INT, streamId INT, shortName INT)",
        "INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES (10, 30, 0, 7, 1)",
    )
    (row,) = trace(path, tmp_path / "out")
    assert (row["kind"], row["sum_ns"], row["num_blocks"], row["threads_per_block"]) == ("all_reduce", 20, None, None)


def test_damage_is_one_line(tmp_path: Path) -> None:
    empty = tmp_path / "empty.sqlite"
    sqlite3.connect(empty).executescript(NSIGHT_SCHEMA)
    with pytest.raises(UserError, match=r"^empty\.sqlite: no work of a GPU in it; record it with 'nsys --trace=cuda'"):
        find_traces([empty])
    other = change(tmp_path / "other.sqlite", "CREATE TABLE bookmarks (id INT)")
    with pytest.raises(UserError, match=r"^other\.sqlite: a SQLite file of no known profiler \(tables: bookmarks\)"):
        find_traces([other])
    whole = write_nsight(tmp_path / "report.sqlite", recording(*(kernel("gemm", i, i + 1) for i in range(2000))))
    for size in (600, 5000, len(whole.read_bytes()) - 4096):
        cut = tmp_path / "cut.sqlite"
        cut.write_bytes(whole.read_bytes()[:size])
        with pytest.raises(UserError, match=r"^cut\.sqlite: damaged database \(.*\); export it again$"):
            trace(cut, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_kernel_that_ends_before_it_begins_is_counted(tmp_path: Path) -> None:
    path = write_nsight(tmp_path / "report.sqlite", recording(kernel("gemm", 0, 9), kernel("gemm", 20, 15)))
    said = trace_files([path], tmp_path / "out", load_scheme(), lambda line: None, num_jobs=1).summary
    assert "with 1 GPU events; 1 damaged event" in said


def test_wrong_types_are_damage(tmp_path: Path) -> None:
    path = write_nsight(tmp_path / "report.sqlite", recording(kernel("gemm", 0, 9)))
    change(path, "UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET start = 'soon'")
    with pytest.raises(UserError, match=r"^report\.sqlite: damaged database \(.*\); export it again$"):
        trace(path, tmp_path / "out")


@pytest.mark.parametrize(
    ("name", "advice"),
    [
        ("report.nsys-rep", r"or its export by 'nsys export --type sqlite'$"),
        ("results.pftrace", r"or what 'rocprofv3 --output-format csv' writes$"),
        ("8_hip_api_trace.csv", r"or a kernel trace of rocprof \(\*_kernel_trace\.csv, results\.csv\)$"),
    ],
)
def test_other_files_of_profilers_are_refused_with_what_to_do(tmp_path: Path, name: str, advice: str) -> None:
    (tmp_path / name).write_bytes(b'"Domain","Function","Process_Id"\n')
    with pytest.raises(UserError, match=advice):
        trace(tmp_path / name, tmp_path / "out")
