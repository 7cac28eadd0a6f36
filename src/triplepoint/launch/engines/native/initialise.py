# mypy: disallow-untyped-decorators=False
"""Filling a stage with its weights: each rank keeps its part of every full parameter, without communication."""

from functools import partial

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, distribute_tensor

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
