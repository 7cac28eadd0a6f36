# mypy: disallow-subclassing-any=False
"""LoRA: adapters of low rank beside linear layers, the only parameters that are trained.

Every linear layer has an adapter with two matrices of its own, queries, keys and values too.
Source: Hu et al. 2021, arXiv:2106.09685.
"""

from collections.abc import Iterable, Iterator

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, Placement, Replicate, Shard, distribute_tensor

from triplepoint.config.task import Lora
from triplepoint.launch.engines.native.model import FeedForward, Linear, TransformerLayer


class Adapter(nn.Module):
    """Down to the rank and up to the output, scaled; `up` starts at zero, so that at first it adds nothing."""

    def __init__(self, inputs: int, outputs: int, lora: Lora) -> None:
        super().__init__()
        self.down = nn.Parameter(torch.empty(lora.rank, inputs))
        self.up = nn.Parameter(torch.empty(outputs, lora.rank))
        self.scale = lora.alpha / lora.rank

    def forward(self, x: Tensor) -> Tensor:
        """Return what is added to the layer's output."""
        return F.linear(F.linear(x, self.down.to(x.dtype)), self.up.to(x.dtype)) * self.scale


def add_adapters(layers: Iterable[TransformerLayer], lora: Lora) -> None:
    """Put adapters beside the layers that are to have them, split over tensor parallel ranks as those are."""
    for layer in layers:
        for linear in _targets(layer, lora):
            outputs, inputs = linear.weight.shape
            adapter = Adapter(inputs, outputs, lora)
            if isinstance(linear.weight, DTensor):
                _split(adapter, linear.weight)
            linear.add_module("adapter", adapter)


def freeze(module: nn.Module, dtype: torch.dtype) -> None:
    """Keep everything but adapters from being trained, in the type it is used in; harmless if called again."""
    frozen: dict[int, nn.Parameter] = {}
    for owner in module.modules():
        if isinstance(owner, Adapter):
            continue
        for key, parameter in list(owner.named_parameters(recurse=False, remove_duplicate=False)):
            if parameter.requires_grad and not parameter.is_meta:
                # Tied embeddings are there twice.
                kept = frozen.setdefault(id(parameter), nn.Parameter(parameter.detach().to(dtype), requires_grad=False))
                owner.register_parameter(key, kept)


def _targets(layer: TransformerLayer, lora: Lora) -> Iterator[Linear]:
    attention, feed_forward = layer.attention, layer.feed_forward
    if "linear_qkv" in lora.targets:
        yield from (attention.query, attention.key, attention.value)
    if "linear_proj" in lora.targets:
        yield attention.output
    if not isinstance(feed_forward, FeedForward):
        return  # routed experts
    if "linear_fc1" in lora.targets:
        yield from (linear for linear in (feed_forward.gate, feed_forward.up) if linear is not None)
    if "linear_fc2" in lora.targets:
        yield feed_forward.down


def _split(adapter: Adapter, weight: DTensor) -> None:
    (placement,) = weight.placements
    places: tuple[Placement, Placement] = (Replicate(), Shard(0))
    if isinstance(placement, Shard) and placement.dim == 1:
        places = Shard(1), Replicate()
    for name, place in zip(("down", "up"), places, strict=True):
        whole = getattr(adapter, name)
        part = distribute_tensor(whole, weight.device_mesh, [place], src_data_rank=None)
        adapter.register_parameter(name, nn.Parameter(part))
