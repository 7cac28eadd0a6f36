# mypy: disallow-subclassing-any=False
"""The native engine's layers for DeepSpeed: whole, as ZeRO wraps them, or as the list its pipeline cuts into stages."""

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
from triplepoint.launch.engines.loop import marker
from triplepoint.launch.engines.native.model import (
    FeedForward,
    Linear,
    Norm,
    Run,
    Stage,
    TransformerLayer,
    mean_cross_entropy,
    plain,
    rotary_tables,
)
from triplepoint.launch.engines.native.moe import MixtureOfExpertsBlock
from triplepoint.launch.engines.native.parameters import add_adapters, freeze, materialise, weights_of

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


_PHASES = {
    "ForwardPass": "forward",
    "BackwardPass": "backward",
    "ReduceGrads": "grad_sync",
    "ReduceTiedGrads": "grad_sync",
    "OptimizerStep": "optimizer",
}
"""Names in traces of the commands of DeepSpeed's schedule."""


def build_pipeline(point: Point, device: torch.device) -> PipelineModule:
    """Return this rank's stage, cut out of the list as the layout says, else as evenly as may be."""
    layout = point.layout
    pipeline = Pipeline(
        point,
        layers=_layers(Filler(point, device)),
        topology=PipeDataParallelTopology(num_pp=layout.pp, num_dp=layout.dp),
        loss_fn=partial(mean_cross_entropy, group=None),
        partition_method=f"type:{PipelineLayer.__name__}",
        checkpointable_layers=[PipelineLayer.__name__],
    )
    if point.lora is not None:
        # Tied weights are frozen: there are no gradients to add up, and in 16 bits DeepSpeed would look for some.
        pipeline.tied_comms.clear()
    for parameter in pipeline.parameters():
        # Without ZeRO, DeepSpeed's norm counts what is not marked so on the first stage alone.
        parameter.model_parallel = not getattr(parameter, "ds_pipe_replicated", False)
    return pipeline


class Pipeline(PipelineModule):
    """DeepSpeed's pipeline, which has no option for the layers of each stage or for how many of them are recomputed."""

    is_checkpointable_results: list[bool]

    def __init__(self, point: Point, **options: Any) -> None:
        # First, since the construction that follows cuts the stage out.
        self._point = point
        super().__init__(**options)

    def _partition_layers(self, method: str = "uniform") -> None:
        super()._partition_layers(method)
        if self._point.layout.pipeline_layers:
            places = self._find_layer_type(PipelineLayer.__name__)
            # What comes before the first layer is with it, and what comes after the last one with that.
            firsts = itertools.accumulate(self._point.layout.pipeline_layers[:-1])
            self.parts = [0, *(places[first] for first in firsts), len(self._layer_specs)]
            self._set_bounds(self.parts[self.stage_id], self.parts[self.stage_id + 1])

    def _precompute_checkpointable_values(self) -> None:
        super()._precompute_checkpointable_values()
        places = itertools.accumulate(map(bool, self.is_checkpointable_results))
        self.is_checkpointable_results = [
            is_one and self._point.recompute_at(place - 1) == "full"
            for is_one, place in zip(self.is_checkpointable_results, places, strict=True)
        ]


def annotate_phases(engine: Any) -> None:
    """Name the phases of the engine's schedule in the trace."""

    def named(function: Any, phase: str) -> Any:
        calls = itertools.count()

        def annotated(engine: Any, **arguments: Any) -> None:
            place = f" stage={engine.stage_id} microbatch={next(calls) % engine.micro_batches}"
            with marker(phase + place if phase in ("forward", "backward") else phase):
                function(engine, **arguments)

        return annotated

    engine._INSTRUCTION_MAP = {
        command: named(function, _PHASES[command.__name__]) if command.__name__ in _PHASES else function
        for command, function in engine._INSTRUCTION_MAP.items()
    }


class Embedding(nn.Module):
    """Tokens to the residual stream, without positions."""

    def __init__(self, filler: Filler) -> None:
        super().__init__()
        model = filler.point.model
        self.embedding = nn.Embedding(padded_vocab_size(model.vocab_size), model.hidden_size, device="meta")
        filler.fill(self)
        let_recompute(self.embedding, filler.point)

    def forward(self, tokens: Tensor) -> Tensor:
        """Return the embedded tokens."""
        return self.embedding(tokens)


class Positions(nn.Module):
    """Learned positions, added."""

    def __init__(self, filler: Filler) -> None:
        super().__init__()
        point = filler.point
        self.positions = nn.Embedding(point.sequence_length, point.model.hidden_size, device="meta")
        filler.fill(self)

    def forward(self, x: Tensor) -> Tensor:
        """Return the residual stream with positions."""
        return x + self.positions(torch.arange(x.shape[1], device=x.device))


class Rotary:
    """The rotary tables that the layers of a stage share, made at their first use."""

    def __init__(self, point: Point) -> None:
        self._point = point
        self._tables: Tensor | None = None

    def on(self, device: torch.device) -> Tensor | None:
        """Return the tables, None where the model has no rotary embedding."""
        point = self._point
        if self._tables is None and point.model.position_embedding == "rope":
            self._tables = rotary_tables(point.model, point.sequence_length, device)
        return self._tables


class PipelineLayer(nn.Module):
    """One transformer layer; DeepSpeed recomputes it from outside."""

    def __init__(self, filler: Filler, number: int, rotary: Rotary) -> None:
        super().__init__()
        with torch.device("meta"):
            self.layer = make_layer(filler.point, plain)
        self._rotary = rotary
        filler.fill(self.layer, f"layers.{number}.")

    def forward(self, x: Tensor) -> Tensor:
        """Return the residual stream after the layer."""
        return self.layer(x, self._rotary.on(x.device))


class FinalNorm(nn.Module):
    """The normalisation before the head."""

    def __init__(self, filler: Filler) -> None:
        super().__init__()
        with torch.device("meta"):
            self.norm = Norm(filler.point.model)
        filler.fill(self)

    def forward(self, x: Tensor) -> Tensor:
        """Return the normalised residual stream."""
        return self.norm(x)


class Head(nn.Module):
    """The residual stream to logits."""

    def __init__(self, filler: Filler) -> None:
        super().__init__()
        model = filler.point.model
        with torch.device("meta"):
            self.head = Linear(model.hidden_size, padded_vocab_size(model.vocab_size), bias=False)
        filler.fill(self)

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits."""
        return self.head(x)


def _layers(filler: Filler) -> list[LayerSpec]:
    model, rotary = filler.point.model, Rotary(filler.point)
    first, last = LayerSpec(Embedding, filler), LayerSpec(Head, filler)
    if model.tie_embeddings:
        tied = partial(TiedLayerSpec, "embedding", Embedding, filler, tied_weight_attr="embedding.weight")
        first, last = tied(), tied(forward_fn=_logits)
    positions = [LayerSpec(Positions, filler)] if model.position_embedding == "learned" else []
    layers = [LayerSpec(PipelineLayer, filler, number, rotary) for number in range(model.num_layers)]
    return [first, *positions, *layers, LayerSpec(FinalNorm, filler), last]


def _logits(tied: Embedding, x: Tensor) -> Tensor:
    return F.linear(x, tied.embedding.weight)
