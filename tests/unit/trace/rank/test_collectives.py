"""Which collective a communication event is, and in which process group."""

import pytest

from tests.unit.trace.rank.parsed import communication, parse, since_base_us
from tests.unit.trace.traces import ALL_REDUCE, BASE_NS, GEMM, SEND_RECV, event, kernel, launch, note

GENERIC = "ncclDevKernel_Generic(ncclDevKernelArgs)"


def test_device_collective_from_arguments() -> None:
    args = {"Collective name": "all_to_allv", "Process Group Name": "3", "Process Group Description": "undefined"}
    other = {"Collective name": "send", "Process Group Name": "9", "Process Group Description": "mesh_pp"}
    megatron = {"Process Group Name": "12", "Process Group Description": "TENSOR_MODEL_PARALLEL_GROUP"}
    unknown = {"Process Group Name": "0", "Process Group Description": "undefined"}
    events = [
        kernel(SEND_RECV, 0, 1, **args),
        kernel(SEND_RECV, 1, 1, **other),
        kernel(ALL_REDUCE, 2, 1, **megatron),
        kernel(ALL_REDUCE, 3, 1, **unknown),
    ]
    record = {"groups": [{"role": "ep", "name": "3", "ranks": [0, 1]}], "collectives": []}
    assert communication(events, record) == [
        ("all_to_all", "ep"),
        ("send", "pp"),
        ("all_reduce", "tp"),
        ("all_reduce", None),
    ]


def test_device_collective_arguments_go_before_name_and_annotation() -> None:
    events = [
        event("nccl:broadcast", 0, 5, "gpu_user_annotation", 7),
        kernel(ALL_REDUCE, 1, 3, **{"Collective name": "reduce_scatter"}),
    ]
    assert communication(events) == [("reduce_scatter", None)]


def test_device_collective_from_annotations() -> None:
    events = [
        event("nccl:broadcast", 10, 5, "gpu_user_annotation", 9),
        kernel(GENERIC, 11, 3, stream=9),
        note("nccl:all_to_all", 20, 5),
        launch(22, 5),
        kernel(SEND_RECV, 40, 3, stream=9, correlation=5),
        kernel(GENERIC, 50, 3, stream=9),
    ]
    assert communication(events) == [("broadcast", None), ("all_to_all", None), ("unknown", None)]


def test_device_collective_annotation_of_another_stream_or_thread_tells_nothing() -> None:
    events = [
        event("nccl:broadcast", 10, 5, "gpu_user_annotation", 8),
        note("nccl:all_to_all", 20, 5, tid=2),
        launch(22, 5, tid=1),
        kernel(GENERIC, 11, 3, stream=9, correlation=5),
    ]
    assert communication(events) == [("unknown", None)]


def test_device_collective_annotation_that_names_none_leaves_the_kernels_name() -> None:
    events = [
        event("nccl:coalesced", 0, 9, "gpu_user_annotation", 7),
        kernel(ALL_REDUCE, 1, 3),
        kernel(ALL_REDUCE, 5, 1, **{"Collective name": 7}),
    ]
    assert communication(events) == [("all_reduce", None), ("all_reduce", None)]


def test_device_collectives_of_one_kernel_are_told_apart_in_kernels() -> None:
    groups = [{"Process Group Name": name, "Process Group Description": name} for name in ("tp", "dp", "dp")]
    parsed = parse([kernel(ALL_REDUCE, 10 * i, 5, **args) for i, args in enumerate(groups)])
    assert [(row["name"], row["group"], row["count"]) for row in parsed.kernels] == [
        (ALL_REDUCE, "tp", 1),
        (ALL_REDUCE, "dp", 2),
    ]
    labels = {row["group"]: row["busy_ns"] for row in parsed.intervals if row["category"] == "comm"}
    assert labels == {"tp": 5_000, "dp": 10_000}


def test_device_arguments_on_computation_are_no_collective() -> None:
    assert communication([kernel(GEMM, 0, 1, **{"Collective name": "allreduce", "dtype": "Float"})]) == []


def test_host_send_ends_with_its_call_and_receive_with_its_wait() -> None:
    parsed = parse(
        [
            event("c10d::send", 10, 10),
            note("gloo:send", 15, 300),
            event("c10d::recv_", 400, 10),
            note("gloo:recv", 405, 95),
            note("gloo:send", 600, 50),
        ]
    )
    found = [
        (row["kind"], row["group"], since_base_us(row["t_start_ns"]), row["duration_ns"] / 1000)
        for row in parsed.collectives
    ]
    assert found == [("send", None, 15, 5), ("recv", None, 405, 95), ("send", None, 600, 0)]


def test_host_collectives_take_kind_and_group_of_their_call() -> None:
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
    assert communication(events, record) == [
        ("all_reduce", "tp"),
        ("all_reduce", "dp"),
        ("reduce_scatter", "tp"),
        ("reduce_scatter", "tp"),
    ]


def test_host_collective_without_record_still_tells_reduce_scatter() -> None:
    events = [event("c10d::_reduce_scatter_base_", 0, 5), note("gloo:all_reduce", 9, 20, 5)]
    assert communication(events) == [("reduce_scatter", None)]
    assert [row["name"] for row in parse(events).kernels] == ["gloo:all_reduce"]


def test_host_collective_before_any_call_is_what_it_shows() -> None:
    assert communication([note("gloo:all_gather", 0, 5, 5), event("c10d::allreduce_", 9, 1)]) == [("all_gather", None)]


@pytest.mark.parametrize("backend", ["gloo", "mpi", "ucc"])
def test_host_collective_of_any_backend(backend: str) -> None:
    assert communication([note(f"{backend}:all_reduce", 0, 5, 5)]) == [("all_reduce", None)]
