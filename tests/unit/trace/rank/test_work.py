"""What counts as work, and which collective it is."""

import json
from pathlib import Path

import numpy as np

from tests.unit.trace.traces import BASE_NS, event, kernel, note, write_trace
from triplepoint.trace.kineto.reader import read_trace
from triplepoint.trace.rank.collectives import GroupRecord, read_groups
from triplepoint.trace.rank.work import Work, find_work

ALL_REDUCE = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevComm*)"
SEND_RECV = "ncclKernel_SendRecv_RING_SIMPLE_Sum_int8_t(ncclWorkElem)"


def work_of(tmp_path: Path, events: list[dict], record: dict | None = None) -> Work:
    path = write_trace(tmp_path / "rank0.json", events)
    if record is not None:
        (tmp_path / "rank0.groups.json").write_text(json.dumps(record))
    return find_work(read_trace(path), read_groups(tmp_path / "rank0.groups.json"))


def busy_us(work: Work, category: str) -> list[tuple[float, float]]:
    one = work.busy[category]
    return [((s - BASE_NS) / 1000, (e - BASE_NS) / 1000) for s, e in zip(one.start, one.end, strict=True)]


def durations_us(work: Work) -> dict[str, float]:
    sums = np.bincount(work.label, weights=work.duration, minlength=len(work.labels)) / 1000
    return {label.name: total for label, total in zip(work.labels, sums.tolist(), strict=True)}


def collectives(work: Work) -> list[tuple[str, str, str | None]]:
    rows = work.rows_of("comm")
    order = rows[np.argsort(work.start[rows], kind="stable")]
    return [(work.labels[i].name, work.labels[i].kind, work.labels[i].group) for i in work.label[order].tolist()]


def test_find_work_gpu_rows_alone_count(tmp_path: Path) -> None:
    work = work_of(
        tmp_path,
        [
            event("aten::mm", 0, 100),
            event("triton_poi_fused_add_0", 0, 100, stream=7),
            event("cudaDeviceSynchronize", 0, 500, "cuda_sync", stream=7),
            kernel("ampere_sgemm_128x64_nn", 10, 10),
            kernel("ampere_sgemm_128x64_nn", 15, 10, stream=8),
            kernel(ALL_REDUCE, 22, 10, stream=9),
            event("Memcpy DtoD (Device -> Device)", 40, 2, "gpu_memcpy"),
            event("Memset (Device)", 43, 1, "gpu_memset"),
        ],
    )
    assert work.is_device
    assert busy_us(work, "compute") == [(10, 25)]
    assert busy_us(work, "comm") == [(22, 32)]
    assert busy_us(work, "memory") == [(40, 42), (43, 44)]
    assert durations_us(work)["ampere_sgemm_128x64_nn"] == 20


def test_find_work_gpu_collective_from_arguments(tmp_path: Path) -> None:
    args = {"Collective name": "all_to_allv", "Process Group Name": "3", "Process Group Description": "undefined"}
    other = {"Collective name": "send", "Process Group Name": "9", "Process Group Description": "mesh_pp"}
    megatron = {"Process Group Name": "12", "Process Group Description": "TENSOR_MODEL_PARALLEL_GROUP"}
    unknown = {"Process Group Name": "0", "Process Group Description": "default_pg"}
    events = [
        kernel(SEND_RECV, 0, 1, **args),
        kernel(SEND_RECV, 1, 1, **other),
        kernel(ALL_REDUCE, 2, 1, **megatron),
        kernel(ALL_REDUCE, 3, 1, **unknown),
    ]
    record = {"groups": [{"role": "ep", "name": "3", "ranks": [0, 1]}], "collectives": []}
    assert [found[1:] for found in collectives(work_of(tmp_path, events, record))] == [
        ("all_to_all", "ep"),
        ("send", "pp"),
        ("all_reduce", "tp"),
        ("all_reduce", None),
    ]


def test_find_work_gpu_collective_from_annotations(tmp_path: Path) -> None:
    events = [
        event("nccl:broadcast", 10, 5, "gpu_user_annotation", 9),
        kernel("ncclDevKernel_Generic(x)", 11, 3, stream=9),
        note("nccl:all_to_all", 20, 5),
        event("cudaLaunchKernel", 22, 1, "cuda_runtime", correlation=5),
        kernel(SEND_RECV, 40, 3, stream=9, correlation=5),
        kernel("ncclDevKernel_Generic(x)", 50, 3, stream=9),
    ]
    kinds = [kind for _, kind, _ in collectives(work_of(tmp_path, events))]
    assert kinds == ["broadcast", "all_to_all", "unknown"]


def test_find_work_cpu_counts_self_time_of_operators(tmp_path: Path) -> None:
    work = work_of(
        tmp_path,
        [
            note("forward stage=0 microbatch=0", 0, 100),
            event("autograd::engine::evaluate_function: MmBackward0", 0, 50),
            event("MmBackward0", 2, 46),
            event("aten::linear", 5, 20),
            event("aten::mm", 10, 10),
            event("c10d::allreduce_", 30, 10),
            event("aten::copy_", 33, 2),
            event("aten::mul", 8, 4, tid=2),
        ],
    )
    assert not work.is_device
    assert durations_us(work) == {"aten::linear": 10, "aten::mm": 10, "aten::copy_": 2, "aten::mul": 4}
    assert busy_us(work, "compute") == [(5, 25)]
    assert busy_us(work, "memory") == [(33, 35)]


def test_find_work_cpu_send_ends_with_its_call_and_receive_with_its_wait(tmp_path: Path) -> None:
    work = work_of(
        tmp_path,
        [
            event("c10d::send", 10, 10),
            note("gloo:send", 15, 300),
            event("c10d::recv_", 400, 10),
            note("gloo:recv", 405, 95),
            note("gloo:send", 600, 50),
        ],
    )
    assert busy_us(work, "comm") == [(15, 20), (405, 500)]
    assert [(kind, group) for _, kind, group in collectives(work)] == [("send", None), ("recv", None), ("send", None)]


def test_find_work_cpu_collectives_take_kind_and_group_of_their_call(tmp_path: Path) -> None:
    tp, dp = 1131, 1132
    events = [
        event("c10d::allreduce_", 10, 5, **{"Input Dims": [[[8, 4]], []]}),
        event("c10d::_reduce_scatter_base_", 20, 5, **{"Input Dims": [[16], [32], []]}),
        event("c10d::allreduce_", 40, 5, **{"Input Dims": [[[100]], []]}),
        event("c10d::_reduce_scatter_base_", 50, 5, **{"Input Dims": [[16], [32], []]}),
        note("gloo:all_reduce", 12, 20, tp) | {"args": {"Input Dims": [[8, 4]]}},
        # Queued behind the first of its group, after a call of the other group.
        note("gloo:all_reduce", 42, 20, dp) | {"args": {"Input Dims": [[100]]}},
        note("gloo:all_reduce", 45, 20, tp) | {"args": {"Input Dims": [[32]]}},
        note("gloo:all_reduce", 66, 20, tp) | {"args": {"Input Dims": [[32]]}},
    ]
    times = [("tp", 11), ("tp", 22), ("dp", 44), ("tp", 52), ("dp", 9999)]
    record = {
        "groups": [{"role": "tp", "name": "1", "ranks": [0]}, {"role": "dp", "name": "2", "ranks": [0]}],
        "collectives": [
            {"role": role, "op": "gloo:all_reduce", "seq": 1, "t_ns": BASE_NS + t * 1000} for role, t in times
        ],
    }
    assert [found[1:] for found in collectives(work_of(tmp_path, events, record))] == [
        ("all_reduce", "tp"),
        ("all_reduce", "dp"),
        ("reduce_scatter", "tp"),
        ("reduce_scatter", "tp"),
    ]


def test_find_work_cpu_without_record_still_tells_reduce_scatter(tmp_path: Path) -> None:
    events = [event("c10d::_reduce_scatter_base_", 0, 5), note("gloo:all_reduce", 9, 20, 5)]
    path = write_trace(tmp_path / "t.json", events)
    assert collectives(find_work(read_trace(path), GroupRecord())) == [("gloo:all_reduce", "reduce_scatter", None)]


def test_find_work_empty_trace_is_no_work(tmp_path: Path) -> None:
    work = work_of(tmp_path, [])
    assert work.span == (0, 0)
    assert [work.busy[category].length for category in work.busy] == [0, 0, 0]
