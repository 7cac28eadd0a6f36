"""The run of one rank on Megatron-Core: process groups, model, steps, traces."""

from typing import Any

import torch.distributed as dist

from triplepoint.config.point import Point
from triplepoint.launch.context import RankContext, StepRecorder
from triplepoint.launch.engines.data import Batcher, open_corpus
from triplepoint.launch.engines.device import BACKENDS, device_name, open_device
from triplepoint.launch.engines.loop import train_steps
from triplepoint.launch.engines.tracing import Role, Tracer, enable_flight_recorder


def run(point: Point, context: RankContext, recorder: StepRecorder) -> dict[str, Any]:
    """Train `point` in this rank and return facts for the manifest; see the engine's `train`."""
    corpus = open_corpus(point)
    device = open_device(point.cluster.device, context.local_rank)
    if device.type == "cpu":
        from triplepoint.launch.engines.megatron.cpu import stand_in_for_cuda

        stand_in_for_cuda()
    is_owner = not dist.is_initialized()
    if is_owner:
        enable_flight_recorder()
        dist.init_process_group(BACKENDS[point.cluster.device])
    groups = open_groups(point)
    from triplepoint.launch.engines.megatron.trainer import MegatronTrainer

    trainer = MegatronTrainer(point, device)
    batcher = Batcher(
        corpus, point.num_microbatches, point.micro_batch_size, point.layout.dp, dict(groups)["dp"].rank()
    )
    tracer = Tracer(point, context, _roles(groups), device)
    train_steps(point, trainer, batcher, tracer, recorder, device)
    facts = {**trainer.facts(), "device_name": device_name(device), **corpus.facts()}
    close_groups(is_owner)
    return facts


def open_groups(point: Point) -> list[tuple[str, dist.ProcessGroup]]:
    """Make Megatron's process groups and return those of this rank with their roles."""
    from megatron.core import parallel_state
    from megatron.core.tensor_parallel import model_parallel_cuda_manual_seed

    from triplepoint.launch.engines.megatron.settings import parallel_sizes

    parallel_state.initialize_model_parallel(**parallel_sizes(point), create_gloo_process_groups=False)
    model_parallel_cuda_manual_seed(point.seed)
    groups = [
        ("tp", parallel_state.get_tensor_model_parallel_group()),
        ("pp", parallel_state.get_pipeline_model_parallel_group()),
        ("dp", parallel_state.get_data_parallel_group()),
        # The distributed optimizer has a group of its own, over context parallel ranks too.
        ("dp", parallel_state.get_data_parallel_group(with_context_parallel=True)),
        ("world", dist.group.WORLD),
    ]
    if point.layout.cp > 1:
        groups.append(("cp", parallel_state.get_context_parallel_group()))
    if point.model.moe is not None:
        groups.append(("ep", parallel_state.get_expert_model_parallel_group()))
        groups.append(("tp", parallel_state.get_expert_tensor_parallel_group()))
        groups.append(("edp", parallel_state.get_expert_data_parallel_group()))
    return groups


def close_groups(is_owner: bool) -> None:
    """Give Megatron's groups up, about 35 a point with threads of their own, and the world where it was made here."""
    from megatron.core import parallel_state

    dist.barrier()
    for group in (parallel_state._global_process_group_list or [])[1:]:
        if group in dist.distributed_c10d._world.pg_map:  # a rank is not in each of them
            dist.destroy_process_group(group)
    parallel_state.destroy_model_parallel()
    if is_owner:
        # Only after a normal end: with a rank gone, this would wait for it.
        dist.destroy_process_group()


def _roles(groups: list[tuple[str, dist.ProcessGroup]]) -> dict[str, Role]:
    return {group.group_name: (role, dist.get_process_group_ranks(group)) for role, group in groups}
