# mypy: disallow-subclassing-any=False
"""Build a point's model for DeepSpeed from the native engine's layers: one module for ZeRO, a list for the pipeline."""

import itertools
from functools import partial
from typing import Any

import deepspeed
import torch
import torch.nn.functional as F  # noqa: N812
from deepspeed.pipe import LayerSpec, PipelineModule, TiedLayerSpec
from deepspeed.runtime.pipe.topology import PipeDataParallelTopology
from torch import Tensor, nn

from triplepoint.config.point import Point
from triplepoint.launch.engines import BETAS, LEARNING_RATE, WEIGHT_DECAY, padded_vocab_size
from triplepoint.launch.engines.deepspeed.settings import deepspeed_config, zero_stage
from triplepoint.launch.engines.loop import marker, phase
from triplepoint.launch.engines.native.model import (
    Caller,
    FeedForward,
    Linear,
    Norm,
    Stage,
    TransformerLayer,
    call_plain,
    mean_cross_entropy,
    rotary_tables,
)
from triplepoint.launch.engines.native.moe import MixtureOfExpertsBlock
from triplepoint.launch.engines.native.parameters import add_adapters, freeze, materialise, weights_of

_DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}


def dtype_of(point: Point) -> torch.dtype:
    """Return the type of parameters and activations."""
    return _DTYPES[point.precision]


class Filler:
    """Sets the initial weights of modules that were built on the meta device."""

    def __init__(self, point: Point, device: torch.device) -> None:
        self.point = point
        self._device, self._weights = device, weights_of(point, device)

    def fill(self, module: nn.Module, prefix: str = "") -> None:
        """Allocate a module with its initial weights, and with LoRA freeze all but its adapters.

        The weights are cast to the type that DeepSpeed trains in module by module, so that the whole model is never in
        fp32.

        Args:
            module: Part of the model.
            prefix: Its global name, with a dot at its end.
        """
        point = self.point
        materialise(module, prefix, point.seed, point.model.num_layers, self._device, self._weights)
        if point.lora is not None:
            freeze(module, dtype_of(point))
        module.to(dtype_of(point))


class LanguageModel(nn.Module):
    """The model with its loss: DeepSpeed's engine expects a module that returns the loss."""

    def __init__(self, stage: Stage) -> None:
        super().__init__()
        self.stage = stage

    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        """Return the mean loss of a micro-batch. Unit: nat."""
        return mean_cross_entropy(self.stage(tokens), targets, None)


def build_model(point: Point, device: torch.device) -> LanguageModel:
    """Return the model with its weights. With ZeRO-3 each layer is sharded before the next one is allocated."""
    model, filler = point.model, Filler(point, device)
    with torch.device("meta"):
        layers = {number: make_layer(point, _layer_caller(point, number)) for number in range(model.num_layers)}
        stage = Stage(model, layers, point.sequence_length, dtype_of(point))
    stage.tie()
    for name, layer in stage.layers.items():
        filler.fill(layer, f"layers.{name}.")
        _shard(layer, point)
    filler.fill(stage)
    _shard(stage, point)
    if stage.embedding is not None:
        require_output_gradient(stage.embedding, point)
    return LanguageModel(stage)


def make_layer(point: Point, call_layer: Caller) -> TransformerLayer:
    """Return a layer on torch's default device, with all its experts, and with adapters for LoRA."""
    model = point.model
    feed_forward = FeedForward(model) if model.moe is None else MixtureOfExpertsBlock(model, 0, None)
    layer = TransformerLayer(model, feed_forward, call_layer)
    if point.lora is not None:
        add_adapters([layer], point.lora)
    return layer


def require_output_gradient(embedding: nn.Module, point: Point) -> None:
    """Let the output of a frozen embedding require a gradient, if layers are recomputed.

    DeepSpeed recomputes a layer only if its input requires a gradient.
    """
    if point.lora is not None and point.recompute == "full":
        embedding.register_forward_hook(lambda module, inputs, output: output.requires_grad_())


def _shard(module: nn.Module, point: Point) -> None:
    if zero_stage(point) == 3:
        deepspeed.zero.Init(module=module, config_dict_or_path=deepspeed_config(point), dtype=dtype_of(point))


def _layer_caller(point: Point, number: int) -> Caller:
    return _call_recomputed if point.recompute_at(number) == "full" else call_plain


def _call_recomputed(function: Any, x: Tensor, rotary: Tensor | None) -> Tensor:
    return deepspeed.checkpointing.checkpoint(function, x, rotary)


def build_optimizer(model: nn.Module) -> torch.optim.AdamW:
    """Return AdamW with the settings of all engines."""
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    groups = [
        {"params": [parameter for parameter in parameters if _is_matrix(parameter)], "weight_decay": WEIGHT_DECAY},
        {"params": [parameter for parameter in parameters if not _is_matrix(parameter)], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW([group for group in groups if group["params"]], LEARNING_RATE, BETAS, fused=True)


def _is_matrix(parameter: nn.Parameter) -> bool:
    # A parameter that ZeRO-3 has sharded is empty; its shape is in `ds_shape`.
    return len(getattr(parameter, "ds_shape", parameter.shape)) > 1


_PHASES = {
    "ForwardPass": "forward",
    "BackwardPass": "backward",
    "ReduceGrads": "grad_sync",
    "ReduceTiedGrads": "grad_sync",
    "OptimizerStep": "optimizer",
}
"""Span names in traces, by the commands of DeepSpeed's pipeline schedule."""


def build_pipeline(point: Point, device: torch.device) -> PipelineModule:
    """Return this rank's pipeline stage: the layers in `layout.pipeline_layers`, else an even split."""
    layout = point.layout
    pipeline = Pipeline(
        point,
        layers=_layer_specs(Filler(point, device)),
        topology=PipeDataParallelTopology(num_pp=layout.pp, num_dp=layout.dp),
        loss_fn=partial(mean_cross_entropy, group=None),
        partition_method=f"type:{PipelineLayer.__name__}",
        checkpointable_layers=[PipelineLayer.__name__],
    )
    if point.lora is not None:
        # Tied weights are frozen and have no gradients to sum, which DeepSpeed in 16 bits would look for.
        pipeline.tied_comms.clear()
    for parameter in pipeline.parameters():
        # Without ZeRO, DeepSpeed's gradient norm counts parameters without this mark on the first stage only.
        parameter.model_parallel = not getattr(parameter, "ds_pipe_replicated", False)
    return pipeline


class Pipeline(PipelineModule):
    """DeepSpeed's pipeline with `pipeline_layers` and `recompute_layers`, for which DeepSpeed has no options."""

    is_checkpointable_results: list[bool]

    def __init__(self, point: Point, **options: Any) -> None:
        # Before the base class, whose constructor partitions the layers.
        self._point = point
        super().__init__(**options)

    def _partition_layers(self, method: str = "uniform") -> None:
        super()._partition_layers(method)
        if self._point.layout.pipeline_layers:
            layer_indices = self._find_layer_type(PipelineLayer.__name__)
            # The embedding is with the first layer, and norm and head are with the last one.
            first_layers = itertools.accumulate(self._point.layout.pipeline_layers[:-1])
            self.parts = [0, *(layer_indices[layer] for layer in first_layers), len(self._layer_specs)]
            self._set_bounds(self.parts[self.stage_id], self.parts[self.stage_id + 1])

    def _precompute_checkpointable_values(self) -> None:
        super()._precompute_checkpointable_values()
        num_layers_so_far = itertools.accumulate(map(bool, self.is_checkpointable_results))
        self.is_checkpointable_results = [
            is_layer and self._point.recompute_at(count - 1) == "full"
            for is_layer, count in zip(self.is_checkpointable_results, num_layers_so_far, strict=True)
        ]


def annotate_phases(engine: Any) -> None:
    """Annotate the phases of DeepSpeed's pipeline schedule in the trace."""

    def annotate(function: Any, name: str) -> Any:
        calls = itertools.count()

        def annotated(engine: Any, **arguments: Any) -> None:
            is_micro_batch = name in ("forward", "backward")
            span = phase(name, engine.stage_id, next(calls) % engine.micro_batches) if is_micro_batch else name
            with marker(span):
                function(engine, **arguments)

        return annotated

    engine._INSTRUCTION_MAP = {
        command: annotate(function, _PHASES[command.__name__]) if command.__name__ in _PHASES else function
        for command, function in engine._INSTRUCTION_MAP.items()
    }


class Embedding(nn.Module):
    """The token embedding, without positions."""

    def __init__(self, filler: Filler) -> None:
        super().__init__()
        model = filler.point.model
        self.embedding = nn.Embedding(padded_vocab_size(model.vocab_size), model.hidden_size, device="meta")
        filler.fill(self)
        require_output_gradient(self.embedding, filler.point)

    def forward(self, tokens: Tensor) -> Tensor:
        """Return the embedded tokens."""
        return self.embedding(tokens)


class Positions(nn.Module):
    """Learned position embedding, added to the residual stream."""

    def __init__(self, filler: Filler) -> None:
        super().__init__()
        point = filler.point
        self.positions = nn.Embedding(point.sequence_length, point.model.hidden_size, device="meta")
        filler.fill(self)

    def forward(self, x: Tensor) -> Tensor:
        """Return the residual stream with positions."""
        return x + self.positions(torch.arange(x.shape[1], device=x.device))


class Rotary:
    """Rotary tables that the layers of a stage share, computed at their first use."""

    def __init__(self, point: Point) -> None:
        self._point = point
        self._tables: Tensor | None = None

    def on(self, device: torch.device) -> Tensor | None:
        """Return the tables, None if the model has no rotary embedding."""
        point = self._point
        if self._tables is None and point.model.position_embedding == "rope":
            self._tables = rotary_tables(point.model, point.sequence_length, device)
        return self._tables


class PipelineLayer(nn.Module):
    """One transformer layer; DeepSpeed's pipeline calls it with or without recomputation."""

    def __init__(self, filler: Filler, number: int, rotary: Rotary) -> None:
        super().__init__()
        with torch.device("meta"):
            self.layer = make_layer(filler.point, call_plain)
        self._rotary = rotary
        filler.fill(self.layer, f"layers.{number}.")

    def forward(self, x: Tensor) -> Tensor:
        """Return the residual stream after the layer."""
        return self.layer(x, self._rotary.on(x.device))


class FinalNorm(nn.Module):
    """The norm before the head."""

    def __init__(self, filler: Filler) -> None:
        super().__init__()
        with torch.device("meta"):
            self.norm = Norm(filler.point.model)
        filler.fill(self)

    def forward(self, x: Tensor) -> Tensor:
        """Return the normalised residual stream."""
        return self.norm(x)


class Head(nn.Module):
    """The output layer."""

    def __init__(self, filler: Filler) -> None:
        super().__init__()
        model = filler.point.model
        with torch.device("meta"):
            self.head = Linear(model.hidden_size, padded_vocab_size(model.vocab_size), bias=False)
        filler.fill(self)

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits."""
        return self.head(x)


def _layer_specs(filler: Filler) -> list[LayerSpec]:
    """Return the modules of the whole model, in order."""
    model, rotary = filler.point.model, Rotary(filler.point)
    embedding, head = LayerSpec(Embedding, filler), LayerSpec(Head, filler)
    if model.tie_embeddings:
        tied = partial(TiedLayerSpec, "embedding", Embedding, filler, tied_weight_attr="embedding.weight")
        embedding, head = tied(), tied(forward_fn=_tied_logits)
    positions = [LayerSpec(Positions, filler)] if model.position_embedding == "learned" else []
    layers = [LayerSpec(PipelineLayer, filler, number, rotary) for number in range(model.num_layers)]
    return [embedding, *positions, *layers, LayerSpec(FinalNorm, filler), head]


def _tied_logits(tied: Embedding, x: Tensor) -> Tensor:
    return F.linear(x, tied.embedding.weight)
