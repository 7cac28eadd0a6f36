"""What collectives call themselves: arguments of kernels, annotations, operators of c10d."""

import pytest

from triplepoint.trace.taxonomy import collective_kind


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        # `Collective name` in a kernel's arguments
        ("allreduce", "all_reduce"),
        ("allreduce_coalesced", "all_reduce"),
        ("allreduce_sparse", "all_reduce"),
        ("_allgather_base", "all_gather"),
        ("all_gather_into_tensor_coalesced", "all_gather"),
        ("_reduce_scatter_base", "reduce_scatter"),
        ("reduce_scatter_tensor_coalesced", "reduce_scatter"),
        ("all_to_all", "all_to_all"),
        ("all_to_allv", "all_to_all"),
        ("alltoall_base", "all_to_all"),
        ("broadcast", "broadcast"),
        ("reduce", "reduce"),
        ("_reduce_oop", "reduce"),
        ("gather", "gather"),
        ("scatter", "scatter"),
        ("barrier", "barrier"),
        ("send", "send"),
        ("recv", "recv"),
        ("pointToPoint", "send_recv"),
        ("wait", None),
        # annotations
        ("nccl:all_reduce", "all_reduce"),
        ("nccl:all_reduce_coalesced", "all_reduce"),
        ("nccl:all_reduce_barrier", "barrier"),
        ("nccl:_all_gather_base", "all_gather"),
        ("nccl:_reduce_scatter_base", "reduce_scatter"),
        ("nccl:all_to_all", "all_to_all"),
        ("nccl:send 0->1", "send"),
        ("nccl:recv 0<-1", "recv"),
        ("nccl:coalesced", None),
        ("gloo:monitoredBarrier", "barrier"),
        # operators
        ("c10d::allreduce_", "all_reduce"),
        ("c10d::allreduce_coalesced_", "all_reduce"),
        ("c10d::allgather_into_tensor_coalesced_", "all_gather"),
        ("c10d::_allgather_base_", "all_gather"),
        ("c10d::_reduce_scatter_base_", "reduce_scatter"),
        ("c10d::reduce_scatter_", "reduce_scatter"),
        ("c10d::reduce_scatter_tensor_coalesced_", "reduce_scatter"),
        ("c10d::alltoall_", "all_to_all"),
        ("c10d::alltoall_base_", "all_to_all"),
        ("c10d::broadcast_", "broadcast"),
        ("c10d::reduce_", "reduce"),
        ("c10d::recv_any_source_", "recv"),
        ("c10d::monitored_barrier_", "barrier"),
        ("_c10d_functional::all_gather_into_tensor", "all_gather"),
        ("_c10d_functional::reduce_scatter_tensor", "reduce_scatter"),
    ],
)
def test_collective_kind_names(name: str, kind: str | None) -> None:
    assert collective_kind(name) == kind
