"""Weights that depend neither on the layout nor on the engine.

Every full parameter comes from a generator seeded by the point's seed and the parameter's global name, one at a time:
never more than one full parameter is in memory.
"""

import hashlib
import math

import torch
from torch import Tensor

INITIAL_STD = 0.02
"""Standard deviation of the weights. Source: GPT-2; Megatron-LM, `--init-method-std`, default 0.02."""

OUTPUT_PROJECTIONS = ("attention.output.weight", "down.weight")
"""Matrices that write to the residual stream."""


def full_parameter(name: str, shape: tuple[int, ...], seed: int, num_layers: int, device: torch.device) -> Tensor:
    """Return the whole parameter.

    Args:
        name: Its global name, as the native engine's modules have it: `layers.3.attention.query.weight`.
        shape: Its whole shape.
        seed: Seed of the point.
        num_layers: Layers of the whole model, which scale the output projections.
        device: Where it will live.
    """
    if len(shape) == 1:
        is_gain = name.endswith("norm.weight")
        return torch.ones(shape, device=device) if is_gain else torch.zeros(shape, device=device)
    std = INITIAL_STD
    if name.endswith(OUTPUT_PROJECTIONS):
        # Two blocks per layer add to the residual stream. Source: Radford et al. 2019 (GPT-2), section 2.3.
        std /= math.sqrt(2 * num_layers)
    digest = hashlib.sha256(f"{seed}/{name}".encode()).digest()
    generator = torch.Generator(device).manual_seed(int.from_bytes(digest[:7], "big"))
    return torch.randn(shape, generator=generator, device=device) * std
