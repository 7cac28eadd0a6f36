"""Gradient reduction, parameter gathering and the update, by hand."""

from typing import Any

import pytest

from tests.unit.simulate.jobs import (
    LLAMA_LAYER,
    communication_bytes,
    communications,
    gpt,
    job,
    llama,
    mixtral,
    operations,
)
from triplepoint.simulate.fabric import Group
from triplepoint.simulate.job import Job
from triplepoint.simulate.operations import Operation, StageWork
from triplepoint.simulate.work.training import stage_work


def stage(**changes: Any) -> StageWork:
    (found,) = stage_work(job(**({"model": llama()} | changes)))
    return found


def optimizer_bytes(found: StageWork, kind: str) -> float:
    return sum(op.num_bytes for op in found.optimizer if op.kind == kind)


PARAMETERS = llama().num_parameters


def test_gradients_without_sharding_are_reduced_once_in_one_collective() -> None:
    (sync,) = stage(dp=4).gradient_sync
    assert (sync.kind, sync.group, sync.count, sync.is_overlapped) == ("all_reduce", "dp", 1, False)
    assert sync.num_bytes == PARAMETERS * 4


@pytest.mark.parametrize(
    ("stack", "precision", "size"),
    [("megatron-core", "bf16", 4), ("NeMo dgxc v25.02", "bf16", 2), ("Megatron-LM 2021", "fp16", 2), ("", "fp32", 4)],
)
def test_gradient_format_is_that_of_the_software(stack: str, precision: str, size: int) -> None:
    (sync,) = stage(dp=4, stack=stack, precision=precision).gradient_sync
    assert sync.num_bytes == PARAMETERS * size


def test_distributed_optimizer_scatters_gradients_and_gathers_parameters() -> None:
    found = stage(dp=4, data_parallel_sharding="optim")
    assert communication_bytes(found.gradient_sync, "reduce_scatter", "dp") == PARAMETERS * 4
    assert communication_bytes(found.gradient_sync, "all_gather", "dp") == PARAMETERS * 2
    assert optimizer_bytes(found, "adam") == PARAMETERS / 4 * (7 * 4 + 2)
    assert optimizer_bytes(found, "zero") == PARAMETERS * 4


def test_overlapped_gradients_go_in_buckets() -> None:
    large = llama(num_layers=96, hidden_size=2048)
    (sync,) = stage(model=large, dp=4, overlap=frozenset({"grad"})).gradient_sync
    assert sync.is_overlapped
    assert sync.count == round(large.num_parameters / 40e6)
    assert sync.num_bytes * sync.count == pytest.approx(large.num_parameters * 4)


def test_sharded_gradients_are_scattered_in_every_micro_batch() -> None:
    found = stage(dp=4, data_parallel_sharding="optim_grads")
    assert communication_bytes(operations([found], "backward_weight"), "reduce_scatter", "dp") == PARAMETERS * 4
    assert communication_bytes(found.gradient_sync, "all_gather", "dp") == PARAMETERS * 2


def test_sharded_parameters_are_gathered_in_forward_and_backward() -> None:
    found = stage(dp=4, data_parallel_sharding="optim_grads_params", overlap=frozenset({"param"}))
    layers = 8 * LLAMA_LAYER
    forward, backward = operations([found], "forward"), operations([found], "backward_input")
    assert communication_bytes(forward, "all_gather", "dp") == PARAMETERS * 2
    # What is in no layer stays gathered.
    assert communication_bytes(backward, "all_gather", "dp") == layers * 2
    assert all(m.is_overlapped == (m.count == 8) for m in communications(forward, "all_gather", "dp"))
    assert communication_bytes(operations([found], "backward_weight"), "reduce_scatter", "dp") == PARAMETERS * 4
    assert found.gradient_sync == ()


def test_context_parallel_ranks_reduce_gradients_too() -> None:
    (sync,) = stage(dp=4, cp=2).gradient_sync
    assert sync.group == "dp_cp"
    (alone,) = stage(cp=2).gradient_sync
    assert alone.group == "dp_cp"


def test_experts_reduce_over_their_own_ranks() -> None:
    model = mixtral()
    found = stage(model=model, dp=8, ep=4).gradient_sync
    experts = 8 * 3 * 512 * 1536 * 8
    assert communication_bytes(found, "all_reduce", "edp") == experts / 4 * 4
    assert communication_bytes(found, "all_reduce", "dp") == (model.num_parameters - experts) * 4


def test_sequence_parallel_ranks_add_up_gradients_of_norms() -> None:
    found = stage(tp=2, sequence_parallel=True).gradient_sync
    assert communication_bytes(found, "all_reduce", "tp") == (8 * 2 + 1) * 512 * 4


def test_both_ends_of_a_tied_pipeline_add_up_the_table() -> None:
    def between_ends(found: StageWork) -> float:
        return communication_bytes(found.gradient_sync, "send_recv", "pp")

    first, middle, *_, last = stage_work(job(gpt(), pp=4, tp=2))
    assert between_ends(first) == between_ends(last) == 4096 * 512 / 2 * 4
    assert between_ends(middle) == 0


def test_one_rank_sends_nothing() -> None:
    found = stage()
    everything: list[Operation] = [*operations([found]), *found.gradient_sync]
    assert not [op for op in everything if hasattr(op, "group")]


def test_group_of_covers_the_ranks() -> None:
    one = job(mixtral(), tp=2, cp=2, dp=8, pp=4, ep=4)
    assert one.mesh.group("tp") == Group(2, 1)
    assert one.mesh.group("cp") == Group(2, 2)
    assert one.mesh.group("dp") == Group(8, 4)
    assert one.mesh.group("pp") == Group(4, 32)
    assert one.mesh.group("ep") == Group(4, 2)
    assert one.mesh.group("edp") == Group(4, 8)
    assert one.mesh.group("etp").size * one.mesh.group("ep").size * one.mesh.group("edp").size == 32


def hybrid(sharding: str, **changes: object) -> Job:
    return job(llama(), dp=16, data_parallel_sharding=sharding, shard_size=4, **changes)


def test_hybrid_sharding_shares_out_inside_and_adds_up_across() -> None:
    one, number = hybrid("optim_grads_params"), llama().num_parameters
    found = operations(stage_work(one))
    assert communication_bytes(found, "all_gather", "dp_shard") == pytest.approx(2 * number * 2, rel=0.1)
    assert communication_bytes(found, "reduce_scatter", "dp_shard") == 4 * number
    assert communication_bytes(found, "all_reduce", "dp_copy") == 4 * number / 4
    (stage,) = stage_work(hybrid("optim"))
    assert communication_bytes(stage.gradient_sync, "reduce_scatter", "dp_shard") == 4 * number
    assert communication_bytes(stage.gradient_sync, "all_reduce", "dp_copy") == 4 * number / 4
    assert communication_bytes(stage.gradient_sync, "all_gather", "dp_shard") == 2 * number


def test_hybrid_sharding_groups_are_neighbours_and_their_likes() -> None:
    one = hybrid("optim", tp=2, cp=2)
    assert one.mesh.group("dp_shard") == Group(4 * 2, 2)
    assert one.mesh.group("dp_copy") == Group(4, 2 * 8)
    experts = job(mixtral(), dp=16, ep=4, data_parallel_sharding="optim", shard_size=4, sequence_parallel=True)
    assert (experts.mesh.group("edp_shard"), experts.mesh.group("edp_copy")) == (Group(1, 4), Group(4, 4))


def test_sharding_over_all_is_no_hybrid() -> None:
    assert stage_work(job(llama(), dp=4, data_parallel_sharding="optim", shard_size=4)) == stage_work(
        job(llama(), dp=4, data_parallel_sharding="optim")
    )
    assert stage_work(job(llama(), dp=4, shard_size=2)) == stage_work(job(llama(), dp=4))


def test_kept_parameters_are_gathered_once_for_both_passes() -> None:
    sharding = {"dp": 4, "data_parallel_sharding": "optim_grads_params"}
    again, kept = (stage_work(job(llama(), keeps_gathered=keeps, **sharding)) for keeps in (False, True))
    layers = 2 * 8 * LLAMA_LAYER
    assert communication_bytes(operations(again, "backward_input"), "all_gather", "dp") == layers
    assert communication_bytes(operations(kept, "backward_input"), "all_gather", "dp") == 0
    assert operations(kept, "forward") == operations(again, "forward")
