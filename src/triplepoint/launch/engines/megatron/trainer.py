"""Training with Megatron-Core in one rank: its process groups, schedules, gradient buffers and optimizer."""

from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist
from megatron.core import parallel_state
from megatron.core.optimizer import get_megatron_optimizer
from megatron.core.pipeline_parallel import get_forward_backward_func
from megatron.core.tensor_parallel import model_parallel_cuda_manual_seed, param_is_not_tensor_parallel_duplicate
from megatron.core.transformer.module import param_is_not_shared
from torch import Tensor

from triplepoint.config.point import Point
from triplepoint.launch.engines import RankContext, StepRecorder
from triplepoint.launch.engines.data import Batcher, open_corpus
from triplepoint.launch.engines.loop import (
    Role,
    Tracer,
    device_name,
    join_group,
    marker,
    open_device,
    train_steps,
)
from triplepoint.launch.engines.megatron.build import build_chunks
from triplepoint.launch.engines.megatron.cuda_stand_ins import stand_in_for_cuda
from triplepoint.launch.engines.megatron.settings import optimizer_config, parallel_sizes, transformer_config
from triplepoint.launch.engines.megatron.weights import fill

MicroBatch = tuple[Tensor, Tensor]
"""Tokens and targets, each of shape (micro_batch_size, sequence)."""


class MegatronTrainer:
    """This rank's part of the model with its optimizer."""

    def __init__(self, point: Point, device: torch.device) -> None:
        self.point, self.device = point, device
        self.config = transformer_config(point)
        self.chunks = build_chunks(point, self.config, device)
        for chunk in self.chunks:
            fill(chunk.module, point, device)
        self.optimizer = get_megatron_optimizer(optimizer_config(point), self.chunks, use_gloo_process_groups=False)
        self.config.grad_scale_func = self.optimizer.scale_loss
        self._run_schedule = get_forward_backward_func()
        length = point.sequence_length
        self._positions = torch.arange(length, device=device)
        # True where attention is masked. Fused attention of Transformer Engine makes its own mask.
        self._mask = torch.ones(1, 1, length, length, dtype=torch.bool, device=device).triu(1)
        self.gradient_norm = 0.0

    @property
    def world(self) -> dist.ProcessGroup:
        """Process group of all ranks."""
        assert dist.group.WORLD is not None
        return dist.group.WORLD

    @property
    def has_loss(self) -> bool:
        """Whether this rank has the last pipeline stage, which computes the loss."""
        return bool(parallel_state.is_pipeline_last_stage(ignore_virtual=True))

    def step(self, tokens: Tensor, targets: Tensor) -> Tensor:
        """Train on this rank's part of a global batch; see `loop.Trainer.step`."""
        point = self.point
        for chunk in self.chunks:
            chunk.zero_grad_buffer()
        self.optimizer.zero_grad()
        iterators = [self._micro_batches(tokens, targets) for _ in self.chunks]
        losses = self._run_schedule(
            forward_step_func=self._forward,
            data_iterator=iterators if len(iterators) > 1 else iterators[0],
            model=self.chunks,
            num_microbatches=point.num_microbatches,
            seq_length=point.sequence_length,
            micro_batch_size=point.micro_batch_size,
            forward_only=False,
        )
        with marker("optimizer"):
            _, norm, _ = self.optimizer.step()
        self.gradient_norm = float(norm or 0.0)
        return torch.stack(losses).mean() if losses else torch.zeros((), device=self.device)

    def global_loss(self, part: Tensor) -> float | None:
        """Return the mean loss of the global batch, None without the last stage. Unit: nat."""
        if not self.has_loss:
            return None
        group = parallel_state.get_data_parallel_group(with_context_parallel=True)
        total = part.detach().clone()
        dist.all_reduce(total, group=group)
        return float(total / group.size())

    def facts(self) -> dict[str, Any]:
        """Return facts for the manifest."""
        return {
            **self._parameter_counts(),
            "gradient_norm": self.gradient_norm,
            "backend": dist.get_backend(self.world),
            "num_threads": torch.get_num_threads(),
            "layers": type(self.chunks[0].module.decoder.layers[0].self_attention.linear_qkv).__name__,
        }

    def _parameter_counts(self) -> dict[str, int]:
        """Return the number of parameters of the whole model, of those that are trained, and of this rank."""
        on_rank = [(name, parameter) for chunk in self.chunks for name, parameter in chunk.named_parameters()]
        counted = [parameter for name, parameter in on_rank if is_counted(name, parameter)]
        trained = [parameter for parameter in counted if parameter.requires_grad]
        totals = torch.tensor([sum(parameter.numel() for parameter in part) for part in (counted, trained)])
        totals = totals.to(self.device)
        dist.all_reduce(totals)
        return {
            "num_parameters": int(totals[0]),
            "num_parameters_rank": sum(parameter.numel() for _, parameter in on_rank),
            "num_trained_parameters": int(totals[1]),
        }

    def _micro_batches(self, tokens: Tensor, targets: Tensor) -> Iterator[MicroBatch]:
        count = self.point.num_microbatches
        return iter(list(zip(tokens.chunk(count), targets.chunk(count), strict=True)))

    def _forward(self, micro_batches: Iterator[MicroBatch], chunk: Any) -> tuple[Tensor, Any]:
        """Run a chunk's forward pass: the `forward_step_func` of Megatron-Core's schedules.

        Returns:
            The chunk's output, and the function that computes the loss from the output of the last chunk.
        """
        tokens, targets = next(micro_batches)
        with marker("forward"):
            output = chunk(tokens, self._positions.expand_as(tokens), self._mask, labels=targets.clamp(min=0))

        def mean_loss(per_token: Tensor) -> tuple[Tensor, Tensor]:
            is_text = targets >= 0
            loss = (per_token.float() * is_text).sum() / is_text.sum().clamp(min=1)
            return loss, loss.detach().clone()

        return output, mean_loss


def is_counted(name: str, parameter: Tensor) -> bool:
    """Return whether this rank, of all with the same values of a parameter, counts it in the size of the model."""
    if ".experts." in name:
        return bool(parallel_state.get_expert_data_parallel_rank() == 0)
    if parallel_state.get_data_parallel_rank(with_context_parallel=True) > 0:
        return False
    return bool(param_is_not_tensor_parallel_duplicate(parameter) and param_is_not_shared(parameter))


def run(point: Point, context: RankContext, recorder: StepRecorder) -> dict[str, Any]:
    """Train this rank's part of `point` and return facts for the manifest; see `Engine.train`."""
    corpus = open_corpus(point)
    device = open_device(point.cluster.device, context.local_rank)
    if device.type == "cpu":
        stand_in_for_cuda()
    is_owner = not dist.is_initialized()
    if is_owner:
        join_group(point.cluster.device)
    groups = open_groups(point)
    trainer = MegatronTrainer(point, device)
    dp, dp_rank = point.layout.dp, dict(groups)["dp"].rank()
    batcher = Batcher(corpus, point.num_microbatches, point.micro_batch_size, dp, dp_rank)
    tracer = Tracer(point, context, _roles(groups), device)
    train_steps(point, trainer, batcher, tracer, recorder, device)
    facts = {**trainer.facts(), "device_name": device_name(device), **corpus.facts()}
    close_groups(is_owner)
    return facts


def open_groups(point: Point) -> list[tuple[str, dist.ProcessGroup]]:
    """Create Megatron-Core's process groups and return those of this rank with their roles."""
    parallel_state.initialize_model_parallel(**parallel_sizes(point), create_gloo_process_groups=False)
    model_parallel_cuda_manual_seed(point.seed)
    groups = [
        ("tp", parallel_state.get_tensor_model_parallel_group()),
        ("pp", parallel_state.get_pipeline_model_parallel_group()),
        ("dp", parallel_state.get_data_parallel_group()),
        # The distributed optimizer has its own group, which includes context parallel ranks.
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
    """Destroy Megatron-Core's process groups: about 35 a point, each with threads of its own.

    Args:
        is_owner: Whether the group of all ranks was created for this point, and is destroyed too.
    """
    dist.barrier()
    for group in (parallel_state._global_process_group_list or [])[1:]:
        if group in dist.distributed_c10d._world.pg_map:  # this rank is not in all of them
            dist.destroy_process_group(group)
    parallel_state.destroy_model_parallel()
    if is_owner:
        # Only after a normal end: if a rank has failed, this would wait for it forever.
        dist.destroy_process_group()


def _roles(groups: list[tuple[str, dist.ProcessGroup]]) -> dict[str, Role]:
    return {group.group_name: (role, dist.get_process_group_ranks(group)) for role, group in groups}
