# mypy: disallow-subclassing-any=False
"""Megatron-Core's model for a point: this rank's pipeline chunks, wrapped in its gradient buffers, and LoRA adapters.

Megatron-Core has no adapters, but what they need: its linear layers save no input and compute no gradient for a frozen
weight, and its gradient buffers, optimizer and norm take what requires a gradient alone. Between the two matrices of
an adapter the activation is only as wide as the rank, so tensor parallel ranks communicate there.
"""

from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from megatron.core import parallel_state
from megatron.core.distributed import DistributedDataParallel, finalize_model_grads
from megatron.core.models.gpt import GPTModel
from megatron.core.models.gpt.gpt_layer_specs import (
    get_gpt_layer_local_spec,
    get_gpt_layer_with_transformer_engine_spec,
)
from megatron.core.tensor_parallel import (
    copy_to_tensor_model_parallel_region,
    gather_from_sequence_parallel_region,
    reduce_from_tensor_model_parallel_region,
    reduce_scatter_to_sequence_parallel_region,
    set_tensor_model_parallel_attributes,
)
from megatron.core.transformer import ModuleSpec, TransformerConfig
from megatron.core.transformer.mlp import MLP
from megatron.core.transformer.transformer_block import TransformerBlockSubmodules, get_num_layers_to_build
from torch import Tensor, nn

from triplepoint.config.point import Point
from triplepoint.config.task import Lora
from triplepoint.launch.engines import padded_vocab_size
from triplepoint.launch.engines.megatron.settings import (
    ddp_config,
    has_transformer_engine,
    shares_parameters,
    splits_sequence,
)
from triplepoint.launch.engines.megatron.weights import COLUMN, matrices


class Norm:
    """Torch's norm, its parameters marked so that their gradients are added up over split sequences.

    Megatron's own wrapper of the same norms refuses sequence parallelism; like it, this is called as a class.
    """

    def __new__(cls, config: TransformerConfig, hidden_size: int, eps: float = 1e-5, **_: Any) -> nn.Module:
        """Return the norm of the configuration's kind."""
        kind = nn.RMSNorm if config.normalization == "RMSNorm" else nn.LayerNorm
        norm = kind(hidden_size, eps=eps)
        for parameter in norm.parameters():
            parameter.sequence_parallel = config.sequence_parallel
        return norm


def build_chunks(point: Point, config: TransformerConfig, device: torch.device) -> list[DistributedDataParallel]:
    """Return the model chunks of this rank, one for each virtual stage, without weights yet."""
    chunks = []
    for chunk in range(point.layout.vp):
        stage = chunk if point.layout.vp > 1 else None
        model = _build(point, config, stage).to(device)
        if config.params_dtype != torch.float32:
            model = model.to(config.params_dtype)
        # Only the last chunk's gradients come first in the backward pass and can be reduced alongside the others.
        if shares_parameters(point):
            from megatron.core.distributed.fsdp.mcore_fsdp_adapter import FullyShardedDataParallel

            chunks.append(FullyShardedDataParallel(config, ddp_config(point), model, device=device))
        else:
            chunks.append(DistributedDataParallel(config, ddp_config(point), model, disable_bucketing=chunk > 0))
    _connect(config, chunks, point)
    return chunks


def _build(point: Point, config: TransformerConfig, stage: int | None) -> GPTModel:
    model = point.model
    chunk = GPTModel(
        config=config,
        transformer_layer_spec=_layers(point, config, stage),
        vocab_size=padded_vocab_size(model.vocab_size),
        max_sequence_length=point.sequence_length,
        pre_process=parallel_state.is_pipeline_first_stage(ignore_virtual=False, vp_stage=stage),
        post_process=parallel_state.is_pipeline_last_stage(ignore_virtual=False, vp_stage=stage),
        parallel_output=True,
        share_embeddings_and_output_weights=model.tie_embeddings,
        position_embedding_type="rope" if model.position_embedding == "rope" else "learned_absolute",
        rotary_base=int(model.rope_base),
        vp_stage=stage,
    )
    if point.lora is not None:
        add_adapters(chunk, point, point.lora)
    return chunk


def _layers(point: Point, config: TransformerConfig, stage: int | None) -> Any:
    num_experts = None if point.model.moe is None else point.model.moe.num_experts
    if has_transformer_engine(point):
        spec = get_gpt_layer_with_transformer_engine_spec(num_experts, config.moe_grouped_gemm)
        return spec if point.lora is None else apart_from_norms(spec, point.lora)
    spec = get_gpt_layer_local_spec(num_experts, False, normalization=config.normalization)
    spec.submodules.input_layernorm = Norm
    spec.submodules.pre_mlp_layernorm = Norm
    return TransformerBlockSubmodules([spec] * get_num_layers_to_build(config, vp_stage=stage), Norm)


def apart_from_norms(spec: ModuleSpec, lora: Lora) -> ModuleSpec:
    """Take norms out of Transformer Engine's fused layers that get adapters: an adapter reads what the norm gives."""
    from megatron.core.extensions.transformer_engine_spec_provider import TESpecProvider

    backend, layer = TESpecProvider(), spec.submodules
    if "linear_qkv" in lora.targets:
        layer.input_layernorm = backend.layer_norm()
        layer.self_attention.submodules.linear_qkv = backend.column_parallel_linear()
    if "linear_fc1" in lora.targets and layer.mlp.module is MLP:
        layer.pre_mlp_layernorm = backend.layer_norm()
        layer.mlp.submodules.linear_fc1 = backend.column_parallel_linear()
    return spec


def _connect(config: TransformerConfig, chunks: list[DistributedDataParallel], point: Point) -> None:
    """Tell the schedules how to hold back, start and finish the reductions."""
    config.finalize_model_grads_func = finalize_model_grads
    if "grad" in point.overlap:
        config.no_sync_func = [chunk.no_sync for chunk in chunks]
        if len(chunks) == 1:
            config.no_sync_func = config.no_sync_func[0]


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
    """Freeze a `GPTModel` and put adapters, without weights yet, alongside the layers that need them."""
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
