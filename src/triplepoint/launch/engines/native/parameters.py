# mypy: disallow-subclassing-any=False
# mypy: disallow-untyped-decorators=False
"""Initial weights and LoRA adapters: the same values in every layout and engine; each rank keeps its part.

Weights are random or come from a checkpoint. Each random parameter comes from a generator seeded by the point's seed
and the parameter's global name. Parameters are made one at a time, so that no more than one full one is in memory.
With LoRA, low-rank adapters alongside linear layers are the only parameters that are trained. Each linear layer has an
adapter of its own; queries, keys and values are three layers. Source: Hu et al. 2021, arXiv:2106.09685.
"""

import hashlib
import math
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from triplepoint.config.point import Point
from triplepoint.config.task import Lora
from triplepoint.errors import UserError
from triplepoint.launch.engines.native.model import FeedForward, Linear, TransformerLayer
from triplepoint.launch.engines.native.tensor_parallel import Part, parts_of

Weights = Callable[[str, tuple[int, ...]], Tensor]
"""Returns a full parameter by its global name and shape."""

ADAPTER = ".adapter."
"""Part of the names of LoRA's parameters, which a model's checkpoint does not have."""

INITIAL_STD = 0.02
"""Standard deviation of the weights. Source: GPT-2; Megatron-LM, `--init-method-std`, default 0.02."""

OUTPUT_PROJECTIONS = ("attention.output.weight", "down.weight")
"""Matrices that write to the residual stream."""


def weights_of(point: Point, device: torch.device) -> Weights:
    """Return the source of the point's weights: random or a checkpoint.

    Raises:
        UserError: If the checkpoint cannot be read.
    """
    random_weights = partial(full_parameter, seed=point.seed, num_layers=point.model.num_layers, device=device)
    return random_weights if point.weights == "random" else _Checkpoint(point, random_weights, device)


class _Checkpoint:
    """Weights from a file written by torch.save, a tensor under each global name; adapters may be missing from it."""

    def __init__(self, point: Point, random_weights: Weights, device: torch.device) -> None:
        self._point, self._random_weights, self._device = point, random_weights, device
        self._tensors = _load(Path(point.weights))

    def __call__(self, name: str, shape: tuple[int, ...]) -> Tensor:
        """Return a full parameter."""
        if name not in self._tensors:
            if ADAPTER in name:
                return self._random_weights(name, shape)
            raise self._error(f"has no {name}")
        tensor = self._tensors[name].to(self._device, torch.float32)
        if tuple(tensor.shape) == shape:
            return tensor
        model = self._point.model
        if tuple(tensor.shape) == (model.vocab_size, *shape[1:]) and shape[0] > model.vocab_size:
            # The vocabulary is padded here, see `padded_vocab_size`, and not in the checkpoint.
            return torch.cat([tensor, tensor.new_zeros(shape[0] - model.vocab_size, *shape[1:])])
        raise self._error(f"{name} has shape {tuple(tensor.shape)}, {model.name} has {shape}")

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
        raise UserError(f"{path}: not a checkpoint ({type(error).__name__}); {advice}") from None
    if not isinstance(content, dict) or not all(isinstance(value, Tensor) for value in content.values()):
        raise UserError(f"{path}: not a dictionary of tensors; {advice}")
    return content


def full_parameter(name: str, shape: tuple[int, ...], seed: int, num_layers: int, device: torch.device) -> Tensor:
    """Return the random initial value of a full parameter.

    Args:
        name: Global name, as in the native engine's modules: `layers.3.attention.query.weight`.
        shape: Full shape.
        seed: Seed of the point.
        num_layers: Layers of the whole model; output projections are scaled by their number.
        device: Device of the result.
    """
    if name.endswith(f"{ADAPTER}up"):
        return torch.zeros(shape, device=device)
    if len(shape) == 1:
        is_gain = name.endswith("norm.weight")
        return torch.ones(shape, device=device) if is_gain else torch.zeros(shape, device=device)
    std = INITIAL_STD
    if name.endswith(OUTPUT_PROJECTIONS):
        # Each of a layer's two blocks adds to the residual stream. Source: Radford et al. 2019 (GPT-2), section 2.3.
        std /= math.sqrt(2 * num_layers)
    digest = hashlib.sha256(f"{seed}/{name}".encode()).digest()
    generator = torch.Generator(device).manual_seed(int.from_bytes(digest[:7], "big"))
    return torch.randn(shape, generator=generator, device=device) * std


@torch.no_grad()
def materialise(
    module: nn.Module,
    prefix: str,
    seed: int,
    num_layers: int,
    device: torch.device,
    weights: Weights | None = None,
) -> None:
    """Allocate a module's parameters on the device and set their initial values.

    Args:
        module: Built on the meta device and already split over tensor parallel ranks. Parameters that are on a device
            already stay as they are.
        prefix: Global name of the module, with a dot at its end; empty for a stage.
        seed: Seed of the point.
        num_layers: Layers of the whole model; output projections are scaled by their number.
        device: Device of the parameters.
        weights: Source of full parameters. None: random by the seed.
    """
    if weights is None:
        weights = partial(full_parameter, seed=seed, num_layers=num_layers, device=device)
    for name, owner, key in _meta_parameters(module):
        parameter = owner._parameters[key]
        assert parameter is not None
        allocated, part = nn.Parameter(torch.empty_like(parameter, device=device)), parts_of(owner).get(key)
        if part is None:
            allocated.copy_(weights(prefix + name, tuple(parameter.shape)))
        else:
            allocated.copy_(part.of(weights(prefix + name, part.full_shape(tuple(parameter.shape)))))
        _replace(module, parameter, allocated)


def _meta_parameters(module: nn.Module) -> list[tuple[str, nn.Module, str]]:
    """Return name, owning module and key of every distinct parameter that is still on the meta device."""
    parameters, seen = [], set()
    for path, owner in module.named_modules():
        for key, parameter in owner.named_parameters(recurse=False):
            if parameter.is_meta and id(parameter) not in seen:
                seen.add(id(parameter))
                parameters.append((f"{path}.{key}" if path else key, owner, key))
    return parameters


def _replace(module: nn.Module, old: Tensor, new: nn.Parameter) -> None:
    """Replace a parameter wherever the module has it: with tied embeddings in two places."""
    for owner in module.modules():
        for key, parameter in owner.named_parameters(recurse=False, remove_duplicate=False):
            if parameter is old:
                owner.register_parameter(key, new)


class Adapter(nn.Module):
    """LoRA adapter of a linear layer: `down` to the rank, `up` to the output. It starts as zero, since `up` does.

    Attributes:
        parts: How it is split over tensor parallel ranks: `up` by outputs or `down` by inputs, like the layer.
    """

    parts: dict[str, Part]

    def __init__(self, inputs: int, outputs: int, lora: Lora) -> None:
        super().__init__()
        self.parts = {}
        self.down = nn.Parameter(torch.empty(lora.rank, inputs))
        self.up = nn.Parameter(torch.empty(outputs, lora.rank))
        self.scale = lora.alpha / lora.rank

    def forward(self, x: Tensor) -> Tensor:
        """Return the addition to the layer's output."""
        return F.linear(F.linear(x, self.down.to(x.dtype)), self.up.to(x.dtype)) * self.scale


def add_adapters(layers: Iterable[TransformerLayer], lora: Lora) -> None:
    """Add adapters to the linear layers in `lora.targets`, split over tensor parallel ranks like those layers."""
    for layer in layers:
        for linear in _targets(layer, lora):
            outputs, inputs = linear.weight.shape
            adapter = Adapter(inputs, outputs, lora)
            if (part := parts_of(linear).get("weight")) is not None:
                # `inputs` and `outputs` are those of this rank's part.
                adapter.parts = {"up" if part.dim == 0 else "down": part}
            linear.add_module("adapter", adapter)


def freeze(module: nn.Module, dtype: torch.dtype) -> None:
    """Freeze all parameters except adapters, and keep them in `dtype`. May be called more than once."""
    frozen: dict[int, nn.Parameter] = {}
    for owner in module.modules():
        if isinstance(owner, Adapter):
            continue
        for key, parameter in list(owner.named_parameters(recurse=False, remove_duplicate=False)):
            if parameter.requires_grad and not parameter.is_meta:
                # Tied embeddings come up twice and stay one parameter.
                constant = nn.Parameter(parameter.detach().to(dtype), requires_grad=False)
                owner.register_parameter(key, frozen.setdefault(id(parameter), constant))


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
