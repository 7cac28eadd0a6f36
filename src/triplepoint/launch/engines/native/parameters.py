# mypy: disallow-subclassing-any=False
# mypy: disallow-untyped-decorators=False
"""Parameters of a stage: initial weights, of which each rank keeps its part, and LoRA adapters.

Adapters of low rank stand alongside linear layers and are the only parameters that are trained. Every linear layer has
two matrices of its own, queries, keys and values too. Source: Hu et al. 2021, arXiv:2106.09685.
"""

from collections.abc import Iterable, Iterator
from functools import partial

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, Placement, Replicate, Shard, distribute_tensor

from triplepoint.config.task import Lora
from triplepoint.launch.engines.native.model import FeedForward, Linear, TransformerLayer
from triplepoint.launch.engines.weights import Weights, full_parameter


@torch.no_grad()
def materialise(
    module: nn.Module,
    prefix: str,
    seed: int,
    num_layers: int,
    device: torch.device,
    weights: Weights | None = None,
) -> None:
    """Allocate the module's parameters on the device and fill them.

    Args:
        module: Built on the meta device, already split over tensor parallel ranks; its parts that are on a device
            already are left as they are.
        prefix: Global name of the module, with a dot at its end; empty for a stage.
        seed: Seed of the point.
        num_layers: Layers of the whole model, which scale the output projections.
        device: Where the parameters will live.
        weights: Where whole parameters come from. None: they are random, by the seed.
    """
    if weights is None:
        weights = partial(full_parameter, seed=seed, num_layers=num_layers, device=device)
    for name, owner, key in _meta_parameters(module):
        parameter = owner._parameters[key]
        assert parameter is not None
        allocated = nn.Parameter(torch.empty_like(parameter, device=device))
        _fill(allocated, weights(prefix + name, tuple(parameter.shape)))
        _replace(module, parameter, allocated)


def _meta_parameters(module: nn.Module) -> list[tuple[str, nn.Module, str]]:
    """Return name, owning module and key of every distinct parameter still on the meta device."""
    found, seen = [], set()
    for path, owner in module.named_modules():
        for key, parameter in owner.named_parameters(recurse=False):
            if parameter.is_meta and id(parameter) not in seen:
                seen.add(id(parameter))
                found.append((f"{path}.{key}" if path else key, owner, key))
    return found


def _replace(module: nn.Module, old: Tensor, new: nn.Parameter) -> None:
    """Put `new` wherever the module holds `old`: tied embeddings hold it twice."""
    for owner in module.modules():
        for key, parameter in owner.named_parameters(recurse=False, remove_duplicate=False):
            if parameter is old:
                owner.register_parameter(key, new)


def _fill(parameter: Tensor, full: Tensor) -> None:
    if isinstance(parameter, DTensor):
        # Without a source rank each rank cuts its own part, silently.
        part = distribute_tensor(full, parameter.device_mesh, parameter.placements, src_data_rank=None)
        parameter.to_local().copy_(part.to_local())
    else:
        parameter.copy_(full)


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
    """Put adapters alongside the layers that need them, split over tensor parallel ranks as those are."""
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
