"""AMD's rocprof of all generations: recordings by rocprofv3 and rocmProfileData, columns of each, ranks, damage."""

import gzip
import json
import sqlite3
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.unit.trace.profilers.recordings import Event, Recording, write_csv, write_rocprofv3
from triplepoint.errors import UserError
from triplepoint.tables import COLLECTIVES, KERNELS, RANKS
from triplepoint.trace.loose_traces import trace_files, trace_files_as_hta
from triplepoint.trace.parsing import find_run_traces, find_traces
from triplepoint.trace.perfetto import FILE_NAME
from triplepoint.trace.profilers.rocpd import in_blocks
from triplepoint.trace.reader import read_parts
from triplepoint.trace.taxonomy import load_scheme

DATA = Path(__file__).parents[3] / "data" / "traces"

V1 = (
    '"Index","KernelName","gpu-id","queue-id","queue-index","pid","tid","grd","wgr","lds","scr","arch_vgpr","accum_vgpr",'
    '"sgpr","wave_size","sig","obj","DispatchNs","BeginNs","EndNs","CompleteNs","DurationNs"\n'
    '0,"elementwise_kernel",2,0,0,33,33,512,256,0,0,28,4,32,64,"0x0","0x7f",100,200,1000,1100,800\n'
)
"""Columns as rocprof writes them (ROCm 6.0)."""
V2 = (
    "Dispatch_ID,GPU_ID,Queue_ID,PID,TID,Grid_Size,Workgroup_Size,LDS_Per_Workgroup,Scratch_Per_Workitem,Arch_VGPR,"
    "Accum_VGPR,SGPR,Wave_Size,Kernel_Name,Start_Timestamp,End_Timestamp,Correlation_ID\n"
    '0,2,1,33,33,512,256,0,0,28,4,32,64,"elementwise_kernel.kd",200,1000,0\n'
)
"""Columns as rocprofv2 writes them."""
V3 = (
    '"Kind","Agent_Id","Queue_Id","Thread_Id","Dispatch_Id","Kernel_Id","Kernel_Name","Correlation_Id",'
    '"Start_Timestamp","End_Timestamp","Private_Segment_Size","Group_Segment_Size","Workgroup_Size_X",'
    '"Workgroup_Size_Y","Workgroup_Size_Z","Grid_Size_X","Grid_Size_Y","Grid_Size_Z"\n'
    '"KERNEL_DISPATCH",1,1,69,1,16,"elementwise_kernel",1451,200,1000,0,0,256,1,1,512,1,1\n'
)
"""Columns of the first release of rocprofv3 (ROCm 6.2); later ones call an agent `Agent 1` and add columns."""


def trace(path: Path, out: Path) -> list[dict[str, Any]]:
    trace_files([path], out, load_scheme(), lambda line: None, num_jobs=1)
    return KERNELS.read(out / "kernels.parquet").to_pylist()


def gpu_event(name: str, start: int, end: int, **args: Any) -> Event:
    common = {"stream": 1, "correlation": 1, "grid": [2, 1, 1], "block": [256, 1, 1]}
    return Event(name, start, end, 1, common | {"shared memory": 0, "registers per thread": 28} | args)


@pytest.mark.parametrize(("name", "text"), [("results.csv", V1), ("results.csv", V2), ("8_kernel_trace.csv", V3)])
def test_csv_of_every_generation(tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / name).write_text(text)
    (row,) = trace(tmp_path / name, tmp_path / "out")
    assert (row["name"], row["class"], row["count"], row["sum_ns"]) == ("elementwise_kernel", "elementwise", 1, 800)
    assert (row["num_blocks"], row["threads_per_block"]) == (2, 256)


def test_json_of_a_recorded_training_run(tmp_path: Path) -> None:
    path = DATA / "mi350_results.json.gz"
    rows = trace(path, tmp_path / "out")
    document = json.loads(gzip.decompress(path.read_bytes()))["rocprofiler-sdk-tool"][0]
    names = {one["kernel_id"]: one["formatted_kernel_name"] for one in document["kernel_symbols"]}
    expected: Counter[str] = Counter()
    for one in document["buffer_records"]["kernel_dispatch"]:
        expected[names[one["dispatch_info"]["kernel_id"]]] += one["end_timestamp"] - one["start_timestamp"]
    found: Counter[str] = Counter()
    for row in rows:
        found[row["name"]] += row["sum_ns"]
    assert found == expected
    assert read_parts(path)[0].gpu_name == "AMD Instinct MI350X"
    known = sum(row["sum_ns"] for row in rows if row["class"] != "other")
    assert known > 0.99 * sum(row["sum_ns"] for row in rows)


@pytest.fixture
def matmul(tmp_path: Path) -> Path:
    path = tmp_path / "matmul.rpd"
    path.write_bytes(gzip.decompress((DATA / "mi200_matmul.rpd.gz").read_bytes()))
    return path


def test_rpd_of_a_recorded_matmul(tmp_path: Path, matmul: Path) -> None:
    rows = trace(matmul, tmp_path / "out")
    connection = sqlite3.connect(matmul)
    ((total, count),) = connection.execute("SELECT sum(end - start), count(*) FROM rocpd_op").fetchall()
    assert (sum(row["sum_ns"] for row in rows), sum(row["count"] for row in rows)) == (total, count)
    gemm = next(row for row in rows if row["class"] == "gemm")
    # 1792 x 782 work items by 256 x 1: only hipExtModuleLaunchKernel, which rocBLAS uses, counts them so.
    assert (gemm["kind"], gemm["sum_ns"], gemm["num_blocks"], gemm["threads_per_block"]) == (
        "tensile",
        26211956,
        5474,
        256,
    )
    assert {row["kind"] for row in rows if row["class"] == "memory"} == {"host_to_device", "device_to_host", "memset"}


def test_rpd_samples_are_counters_of_the_merged_trace(tmp_path: Path, matmul: Path) -> None:
    trace(matmul, tmp_path / "out")
    with gzip.open(tmp_path / "out" / FILE_NAME) as file:
        events = json.load(file)["traceEvents"]
    values = {one["args"]["MHz"] for one in events if one["ph"] == "C" and one["name"] == "GPU clock"}
    recorded = sqlite3.connect(matmul).execute("SELECT DISTINCT value FROM rocpd_monitor WHERE monitorType = 'sclk'")
    assert values == {int(value) for (value,) in recorded}
    assert len(values) > 2


def test_results_database_of_rocprof(tmp_path: Path) -> None:
    path = tmp_path / "results.db"
    connection = sqlite3.connect(path)
    columns = '"BeginNs" INTEGER, "EndNs" INTEGER, "dev-id" INTEGER, "queue-id" INTEGER, "Name" TEXT, "pid" INTEGER'
    for table in ("OPS", "COPY"):
        connection.execute(f'CREATE TABLE {table} ({columns}, "tid" INTEGER, "Index" INTEGER)')
    connection.execute(
        'CREATE TABLE HIP (BeginNs INTEGER, EndNs INTEGER, pid INTEGER, tid INTEGER, Name TEXT, "Index" INTEGER)'
    )
    connection.execute("INSERT INTO OPS VALUES (200, 300, 2, 0, 'elementwise_kernel', 517, 517, 117)")
    connection.execute("INSERT INTO COPY VALUES (100, 150, 2, 0, 'CopyHostToDevice', 517, 517, 99)")
    connection.execute("INSERT INTO HIP VALUES (160, 190, 517, 517, 'hipLaunchKernel', 117)")
    connection.commit()
    rows = {(row["class"], row["kind"], row["sum_ns"]) for row in trace(path, tmp_path / "out")}
    assert rows == {("elementwise", "pointwise", 100), ("memory", "host_to_device", 50)}


def test_collective_of_rccl_is_what_its_call_says(tmp_path: Path) -> None:
    generic = "ncclDevKernel_Generic_1(ncclDevKernelArgsStorage<4096ul>)"
    call = Event("hipExtLaunchKernel", 20, 30, 9, {"correlation": 5})
    made = Recording([gpu_event(generic, 100, 200, correlation=5)], [gpu_event("Memcpy DtoD", 0, 9)], [call], [call])
    path = write_rocprofv3(tmp_path, made)
    api = {"Domain": "RCCL_API", "Function": "ncclAllReduce", "Process_Id": 1, "Thread_Id": 9, "Correlation_Id": 4}
    write_csv(tmp_path / "4711_rccl_api_trace.csv", [api | {"Start_Timestamp": 10, "End_Timestamp": 40}])
    trace(path, tmp_path / "out")
    assert [row["kind"] for row in COLLECTIVES.read(tmp_path / "out" / "collectives.parquet").to_pylist()] == [
        "all_reduce"
    ]


def test_processes_with_a_gpu_each_are_ranks_in_the_order_of_their_gpus(tmp_path: Path) -> None:
    for pid, agent in ((900, 3), (901, 2)):
        (tmp_path / f"{pid}_kernel_trace.csv").write_text(
            V3.replace('"KERNEL_DISPATCH",1', f'"KERNEL_DISPATCH",{agent}')
        )
    assert [(file.path.name, file.rank) for file in find_traces([tmp_path])] == [
        ("901_kernel_trace.csv", 0),
        ("900_kernel_trace.csv", 1),
    ]
    (tmp_path / "902_kernel_trace.csv").write_text(V3.replace('"KERNEL_DISPATCH",1', '"KERNEL_DISPATCH",2') + "\n")
    with pytest.raises(UserError, match=r"neither its name \(rank<N>\) nor what is in it says which rank it is of"):
        trace_files([tmp_path], tmp_path / "out", load_scheme(), lambda line: None, num_jobs=1)


def test_hosts_that_started_months_apart_are_aligned_by_their_collectives(tmp_path: Path) -> None:
    apart_ns = 7_000_000_000_000_000
    for rank, first_ns in ((0, 10**15), (1, 10**15 + apart_ns)):
        reduced = [
            gpu_event("ncclDevKernel_AllReduce_Sum_f32_RING_LL", first_ns + 1000 * index, first_ns + 1000 * index + 500)
            for index in range(20)
        ]
        made = Recording(reduced, [gpu_event("Memcpy DtoD", first_ns, first_ns + 9)], reduced[:1], reduced[:1])
        write_rocprofv3(tmp_path / "made", made)
        for path in (tmp_path / "made").iterdir():
            path.rename(tmp_path / path.name.replace("4711", f"rank{rank}"))
    trace_files([tmp_path], tmp_path / "out", load_scheme(), lambda line: None, num_jobs=1)
    rows = RANKS.read(tmp_path / "out" / "ranks.parquet").to_pylist()
    assert [row["clock_offset_ns"] for row in rows] == [0, apart_ns]


def test_traces_of_a_run_may_be_of_other_profilers(tmp_path: Path) -> None:
    (tmp_path / "rank2_kernel_trace.csv").write_text(V3)
    (tmp_path / "rank0.csv").write_text(V2)
    two = V2 + '1,3,1,33,33,512,256,0,0,28,4,32,64,"elementwise_kernel.kd",200,1000,0\n'
    (tmp_path / "ranks4-5.csv").write_text(two)
    found = [(file.path.name, file.rank) for file in find_run_traces(tmp_path)]
    assert found == [("rank0.csv", 0), ("rank2_kernel_trace.csv", 2), ("ranks4-5.csv", 4), ("ranks4-5.csv", 5)]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "Kernel_Name,Start_Timestamp\n",
            r"no column End_Timestamp or EndNs, which a kernel trace needs.*--timestamp on'$",
        ),
        (V2.split("\n")[0] + "\n", r"no work of a GPU in it; record it with"),
        (
            V2.replace("1000,0", "soon,0"),
            r"column End_Timestamp holds 'soon', expected whole numbers; export it again$",
        ),
    ],
)
def test_damage_is_one_line(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "results.csv"
    path.write_text(text)
    with pytest.raises(UserError, match=rf"^results\.csv: .*{message}"):
        trace(path, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_last_line_cut_off_costs_no_other(tmp_path: Path) -> None:
    path = tmp_path / "results.csv"
    path.write_text(V2 + '1,2,1,33,33,512,256,0,0,28,4,32,64,"elementwi')
    said = trace_files([path], tmp_path / "out", load_scheme(), lambda line: None, num_jobs=1).summary
    assert "with 1 GPU events; 1 damaged event" in said


def test_cut_json_is_one_line(tmp_path: Path) -> None:
    whole = gzip.decompress((DATA / "mi350_results.json.gz").read_bytes())
    (tmp_path / "cut_results.json").write_bytes(whole[:200_000])
    with pytest.raises(UserError, match=r"^cut_results\.json: damaged JSON of rocprofv3 \(.*\); copy it again"):
        trace(tmp_path / "cut_results.json", tmp_path / "out")


def test_parity_with_hta_is_for_kineto(tmp_path: Path) -> None:
    (tmp_path / "results.csv").write_text(V2)
    with pytest.raises(UserError, match=r"--parity hta reads only traces of Kineto"):
        trace_files_as_hta([tmp_path / "results.csv"], tmp_path / "out", lambda line: None)


def test_in_blocks_by_hand() -> None:
    sizes = np.array([[1024, 2, 1, 256, 2, 1], [1000, 1, 1, 256, 1, 1], [-1, -1, -1, -1, -1, -1]])
    assert in_blocks(sizes).tolist() == [[4, 1, 1], [4, 1, 1], [-1, -1, -1]]
