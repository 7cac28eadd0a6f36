# mypy: disallow-subclassing-any=False
"""The whole model as ZeRO wraps it, made of the native engine's layers, and its optimizer."""

from typing import Any

import deepspeed
import torch
from torch import Tensor, nn

from triplepoint.config.point import Point
from triplepoint.launch.engines.deepspeed.settings import deepspeed_config, zero_stage
from triplepoint.launch.engines.native.model import FeedForward, Run, Stage, TransformerLayer, mean_cross_entropy, plain
from triplepoint.launch.engines.native.moe import MixtureOfExpertsBlock
from triplepoint.launch.engines.native.parameters import add_adapters, freeze, materialise
from triplepoint.launch.engines.shared import BETAS, LEARNING_RATE, WEIGHT_DECAY
from triplepoint.launch.engines.weights import weights_of

_DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}


def dtype_of(point: Point) -> torch.dtype:
    """Return the type of parameters and activations."""
    return _DTYPES[point.precision]


class Filler:
    """Gives parts of the model, made on the meta device, their weights."""

    def __init__(self, point: Point, device: torch.device) -> None:
        self.point = point
        self._device, self._weights = device, weights_of(point, device)

    def fill(self, module: nn.Module, prefix: str = "") -> None:
        """Fill a module, see `materialise`, in the type DeepSpeed trains it in: the model is never all in fp32.

        Under LoRA everything but adapters is frozen.
        """
        point = self.point
        materialise(module, prefix, point.seed, point.model.num_layers, self._device, self._weights)
        if point.lora is not None:
            freeze(module, dtype_of(point))
        module.to(dtype_of(point))


class LanguageModel(nn.Module):
    """The whole model, from tokens to the loss: DeepSpeed's engine is called for a loss."""

    def __init__(self, stage: Stage) -> None:
        super().__init__()
        self.stage = stage

    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        """Return the mean loss of a micro-batch. Unit: nat."""
        return mean_cross_entropy(self.stage(tokens), targets, None)


def build_model(point: Point, device: torch.device) -> LanguageModel:
    """Return the model with its weights; with ZeRO-3 each layer is sharded before the next one is made."""
    model, filler = point.model, Filler(point, device)
    with torch.device("meta"):
        layers = {number: make_layer(point, _runner(point, number)) for number in range(model.num_layers)}
        stage = Stage(model, layers, point.sequence_length, dtype_of(point))
    stage.tie()
    for name, layer in stage.layers.items():
        filler.fill(layer, f"layers.{name}.")
        _shard(layer, point)
    filler.fill(stage)
    _shard(stage, point)
    if stage.embedding is not None:
        let_recompute(stage.embedding, point)
    return LanguageModel(stage)


def make_layer(point: Point, run: Run) -> TransformerLayer:
    """Return a layer on the current default device, with all its experts, and adapters under LoRA."""
    model = point.model
    feed_forward = FeedForward(model) if model.moe is None else MixtureOfExpertsBlock(model, 0, None)
    layer = TransformerLayer(model, feed_forward, run)
    if point.lora is not None:
        add_adapters([layer], point.lora)
    return layer


def let_recompute(embedding: nn.Module, point: Point) -> None:
    """Let what a frozen embedding gives have a gradient: DeepSpeed recomputes a layer only if its input has one."""
    if point.lora is not None and point.recompute == "full":
        embedding.register_forward_hook(lambda module, inputs, output: output.requires_grad_())


def _shard(module: nn.Module, point: Point) -> None:
    if zero_stage(point) == 3:
        deepspeed.zero.Init(module=module, config_dict_or_path=deepspeed_config(point), dtype=dtype_of(point))


def _runner(point: Point, number: int) -> Run:
    return _recomputed if point.recompute_at(number) == "full" else plain


def _recomputed(function: Any, x: Tensor, rotary: Tensor | None) -> Tensor:
    return deepspeed.checkpointing.checkpoint(function, x, rotary)


def build_optimizer(model: nn.Module) -> torch.optim.AdamW:
    """Return AdamW as every engine here has it."""
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    # ZeRO-3 has put the values away, and keeps the shape under another name.
    is_matrix = [len(getattr(parameter, "ds_shape", parameter.shape)) > 1 for parameter in parameters]
    pairs = list(zip(parameters, is_matrix, strict=True))
    groups = [
        {"params": [parameter for parameter, is_one in pairs if is_one], "weight_decay": WEIGHT_DECAY},
        {"params": [parameter for parameter, is_one in pairs if not is_one], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW([group for group in groups if group["params"]], LEARNING_RATE, BETAS, fused=True)
