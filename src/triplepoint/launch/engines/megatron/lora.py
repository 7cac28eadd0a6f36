# mypy: disallow-subclassing-any=False
"""LoRA beside Megatron-Core's linear layers: adapters split as their layers are, everything else frozen.

Megatron-Core has no adapters, but what they need: its linear layers save no input and compute no gradient for a frozen
weight, and its gradient buffers, optimizer and norm take what requires a gradient alone. Between the two matrices of
an adapter the activation is only as wide as the rank, so that is where tensor parallel ranks talk.
"""

from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from megatron.core.tensor_parallel import (
    copy_to_tensor_model_parallel_region,
    gather_from_sequence_parallel_region,
    reduce_from_tensor_model_parallel_region,
    reduce_scatter_to_sequence_parallel_region,
    set_tensor_model_parallel_attributes,
)
from torch import Tensor, nn

from triplepoint.config.point import Point
from triplepoint.config.task import Lora
from triplepoint.launch.engines.megatron.settings import splits_sequence
from triplepoint.launch.engines.megatron.weights import COLUMN, matrices


class ColumnAdapter(nn.Module):
    """The adapters of a column parallel layer, one for each matrix in it: `down` whole on each rank, `up` split.

    Those of all its matrices are kept in one parameter each, so that the input is read once.
    """

    def __init__(self, point: Point, lora: Lora, target: str) -> None:
        super().__init__()
        parts, tp = matrices(point.model, target), point.layout.tp
        ((inputs),) = {inputs for _, inputs in parts.values()}
        self.scale, self.sequence_parallel = lora.alpha / lora.rank, splits_sequence(point)
        self.num_groups = point.model.num_query_groups // tp if target == "linear_qkv" else 1
        """In the layer's output, queries, key and value of a group follow each other."""
        self.widths = [outputs // tp for outputs, _ in parts.values()]
        self.down = nn.Parameter(torch.empty(len(parts) * lora.rank, inputs))
        self.up = nn.Parameter(torch.empty(sum(self.widths), lora.rank))
        self.down.sequence_parallel = self.sequence_parallel
        set_tensor_model_parallel_attributes(self.up, True, 0, 1)

    def forward(self, x: Tensor) -> Tensor:
        """Return what is added to the layer's output."""
        low = F.linear(x, self.down)
        if self.sequence_parallel:
            low = gather_from_sequence_parallel_region(low)
        else:
            low = copy_to_tensor_model_parallel_region(low)
        pairs = zip((low * self.scale).chunk(len(self.widths), -1), self.up.split(self.widths), strict=True)
        parts = [F.linear(part, up).unflatten(-1, (self.num_groups, -1)) for part, up in pairs]
        return torch.cat(parts, -1).flatten(-2)


class RowAdapter(nn.Module):
    """The adapter of a row parallel layer: `down` split, `up` whole on each rank."""

    def __init__(self, point: Point, lora: Lora, target: str) -> None:
        super().__init__()
        ((outputs, inputs),) = matrices(point.model, target).values()
        self.scale, self.sequence_parallel = lora.alpha / lora.rank, splits_sequence(point)
        self.down = nn.Parameter(torch.empty(lora.rank, inputs // point.layout.tp))
        self.up = nn.Parameter(torch.empty(outputs, lora.rank))
        self.up.sequence_parallel = self.sequence_parallel
        set_tensor_model_parallel_attributes(self.down, True, 1, 1)

    def forward(self, x: Tensor) -> Tensor:
        """Return what is added to the layer's output."""
        low = F.linear(x, self.down)
        if self.sequence_parallel:
            low = reduce_scatter_to_sequence_parallel_region(low)
        else:
            low = reduce_from_tensor_model_parallel_region(low)
        return F.linear(low * self.scale, self.up)


def add_adapters(chunk: Any, point: Point, lora: Lora) -> None:
    """Freeze a `GPTModel` and put adapters, without weights yet, beside the layers that are to have them."""
    chunk.requires_grad_(False)
    for layer in chunk.decoder.layers:
        for target, linear in _targets(layer, lora):
            adapter = (ColumnAdapter if target in COLUMN else RowAdapter)(point, lora, target)
            linear.add_module("adapter", adapter)
            linear.register_forward_hook(_add)
    if chunk.pre_process and point.recompute == "full":
        # A layer is recomputed only if its input has a gradient, and the frozen embedding gives it none.
        chunk.embedding.register_forward_hook(lambda module, inputs, output: output.requires_grad_())


def _targets(layer: Any, lora: Lora) -> Iterator[tuple[str, nn.Module]]:
    for target in lora.targets:
        block = layer.self_attention if target in ("linear_qkv", "linear_proj") else layer.mlp
        if hasattr(block, target):  # routed experts have no layer of their own
            yield target, getattr(block, target)


def _add(linear: nn.Module, inputs: tuple[Tensor, ...], output: tuple[Tensor, Tensor | None]) -> Any:
    y, bias = output
    return y + linear.adapter(inputs[0]), bias
