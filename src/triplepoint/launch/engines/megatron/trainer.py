"""One training step of one rank with Megatron-Core's schedules, gradient buffers and optimizer."""

from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist
from megatron.core import parallel_state
from megatron.core.optimizer import get_megatron_optimizer
from megatron.core.pipeline_parallel import get_forward_backward_func
from megatron.core.tensor_parallel import param_is_not_tensor_parallel_duplicate
from megatron.core.transformer.module import param_is_not_shared
from torch import Tensor

from triplepoint.config.point import Point
from triplepoint.launch.engines.markers import marker
from triplepoint.launch.engines.megatron.build import build_chunks
from triplepoint.launch.engines.megatron.settings import optimizer_config, transformer_config
from triplepoint.launch.engines.megatron.weights import fill

Batch = tuple[Tensor, Tensor]


class MegatronTrainer:
    """This rank's part of the model with its optimizer."""

    def __init__(self, point: Point, device: torch.device) -> None:
        self.point, self.device = point, device
        self.config = transformer_config(point)
        self.chunks = build_chunks(point, self.config, device)
        self._fill()
        self.optimizer = get_megatron_optimizer(optimizer_config(point), self.chunks, use_gloo_process_groups=False)
        self.config.grad_scale_func = self.optimizer.scale_loss
        self._run = get_forward_backward_func()
        length = point.sequence_length
        self._positions = torch.arange(length, device=device)
        # Megatron masks where it is true; with a fused attention it makes its own.
        self._mask = torch.ones(1, 1, length, length, dtype=torch.bool, device=device).triu(1)
        self.gradient_norm = 0.0

    @property
    def world(self) -> dist.ProcessGroup:
        """All ranks."""
        assert dist.group.WORLD is not None
        return dist.group.WORLD

    @property
    def has_loss(self) -> bool:
        """Whether this rank computes the loss: it has the last stage."""
        return bool(parallel_state.is_pipeline_last_stage(ignore_virtual=True))

    def step(self, tokens: Tensor, targets: Tensor) -> Tensor:
        """Train on this rank's part of a global batch; see `native.trainer.Trainer.step`."""
        point = self.point
        for chunk in self.chunks:
            chunk.zero_grad_buffer()
        self.optimizer.zero_grad()
        batches = [self._batches(tokens, targets) for _ in self.chunks]
        losses = self._run(
            forward_step_func=self._forward,
            data_iterator=batches if len(batches) > 1 else batches[0],
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
            **self._parameters(),
            "gradient_norm": self.gradient_norm,
            "backend": dist.get_backend(self.world),
            "num_threads": torch.get_num_threads(),
            "layers": type(self.chunks[0].module.decoder.layers[0].self_attention.linear_qkv).__name__,
        }

    def _parameters(self) -> dict[str, int]:
        """Return the number of parameters of the whole model, of those that are trained, and of this rank."""
        held = [(name, parameter) for chunk in self.chunks for name, parameter in chunk.named_parameters()]
        counted = [parameter for name, parameter in held if answers_for(name, parameter)]
        trained = [parameter for parameter in counted if parameter.requires_grad]
        totals = torch.tensor([sum(parameter.numel() for parameter in part) for part in (counted, trained)])
        totals = totals.to(self.device)
        dist.all_reduce(totals)
        return {
            "num_parameters": int(totals[0]),
            "num_parameters_rank": sum(parameter.numel() for _, parameter in held),
            "num_trained_parameters": int(totals[1]),
        }

    def _fill(self) -> None:
        for chunk in self.chunks:
            fill(chunk.module, self.point, self.device)

    def _batches(self, tokens: Tensor, targets: Tensor) -> Iterator[Batch]:
        count = self.point.num_microbatches
        return iter(list(zip(tokens.chunk(count), targets.chunk(count), strict=True)))

    def _forward(self, batches: Iterator[Batch], chunk: Any) -> tuple[Tensor, Any]:
        """Return a chunk's output and what makes its loss, as Megatron's schedules call it."""
        tokens, targets = next(batches)
        with marker("forward"):
            output = chunk(tokens, self._positions.expand_as(tokens), self._mask, labels=targets.clamp(min=0))

        def loss_of(per_token: Tensor) -> tuple[Tensor, Tensor]:
            # A micro-batch is the mean over its tokens, padding left out.
            is_text = targets >= 0
            loss = (per_token.float() * is_text).sum() / is_text.sum().clamp(min=1)
            return loss, loss.detach().clone()

        return output, loss_of


def answers_for(name: str, parameter: Tensor) -> bool:
    """Return whether this rank is the one to count a parameter among those that have the same values of it."""
    if ".experts." in name:
        return bool(parallel_state.get_expert_data_parallel_rank() == 0)
    if parallel_state.get_data_parallel_rank(with_context_parallel=True) > 0:
        return False
    return bool(param_is_not_tensor_parallel_duplicate(parameter) and param_is_not_shared(parameter))
