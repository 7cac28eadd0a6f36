"""Weights that depend neither on the layout nor on the engine: random ones, or those of a checkpoint.

Every full random parameter comes from a generator seeded by the point's seed and the parameter's global name, one at a
time: never more than one full parameter is in memory.
"""

import hashlib
import math
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from triplepoint.config.point import Point
from triplepoint.errors import UserError

Weights = Callable[[str, tuple[int, ...]], Tensor]
"""Gives a whole parameter by its global name and its shape."""

ADAPTER = ".adapter."
"""In the names of LoRA's parameters, which no checkpoint of a model has."""

INITIAL_STD = 0.02
"""Standard deviation of the weights. Source: GPT-2; Megatron-LM, `--init-method-std`, default 0.02."""

OUTPUT_PROJECTIONS = ("attention.output.weight", "down.weight")
"""Matrices that write to the residual stream."""


def weights_of(point: Point, device: torch.device) -> Weights:
    """Return where the weights of a point come from.

    Raises:
        UserError: If its checkpoint cannot be read.
    """
    drawn = partial(full_parameter, seed=point.seed, num_layers=point.model.num_layers, device=device)
    return drawn if point.weights == "random" else _Checkpoint(point, drawn, device)


class _Checkpoint:
    """A file of torch with a tensor under each global name; adapters that are not in it start as they always do."""

    def __init__(self, point: Point, drawn: Weights, device: torch.device) -> None:
        self._point, self._drawn, self._device = point, drawn, device
        self._tensors = _load(Path(point.weights))

    def __call__(self, name: str, shape: tuple[int, ...]) -> Tensor:
        """Return a whole parameter."""
        if name not in self._tensors:
            if ADAPTER in name:
                return self._drawn(name, shape)
            raise self._error(f"has no {name}")
        found = self._tensors[name].to(self._device, torch.float32)
        if tuple(found.shape) == shape:
            return found
        model = self._point.model
        if tuple(found.shape) == (model.vocab_size, *shape[1:]) and shape[0] > model.vocab_size:
            # Ours are padded, see `shared.py`.
            return torch.cat([found, found.new_zeros(shape[0] - model.vocab_size, *shape[1:])])
        raise self._error(f"{name} has shape {tuple(found.shape)}, {model.name} has {shape}")

    def _error(self, problem: str) -> UserError:
        point = self._point
        return UserError(f"{point.weights}: {problem}; use a checkpoint of {point.model.name}, or weights: random")


def _load(path: Path) -> dict[str, Tensor]:
    advice = "expected what torch.save writes of a dictionary of tensors; or use weights: random"
    try:
        content: Any = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except OSError as error:
        raise UserError(f"{path}: {error.strerror or 'cannot be read'}; {advice}") from None
    except Exception as error:  # whatever unpickling foreign bytes raises
        raise UserError(f"{path}: no checkpoint ({type(error).__name__}); {advice}") from None
    if not isinstance(content, dict) or not all(isinstance(value, Tensor) for value in content.values()):
        raise UserError(f"{path}: no dictionary of tensors; {advice}")
    return content


def full_parameter(name: str, shape: tuple[int, ...], seed: int, num_layers: int, device: torch.device) -> Tensor:
    """Return the whole parameter.

    Args:
        name: Its global name, as the native engine's modules have it: `layers.3.attention.query.weight`.
        shape: Its whole shape.
        seed: Seed of the point.
        num_layers: Layers of the whole model, which scale the output projections.
        device: Where it will live.
    """
    if name.endswith(f"{ADAPTER}up"):
        return torch.zeros(shape, device=device)
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
