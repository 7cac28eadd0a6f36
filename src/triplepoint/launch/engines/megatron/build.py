"""Megatron-Core's model for a point: this rank's pipeline chunks, wrapped in its gradient buffers."""

from typing import Any

import torch
from megatron.core import parallel_state
from megatron.core.distributed import DistributedDataParallel, finalize_model_grads
from megatron.core.models.gpt import GPTModel
from megatron.core.models.gpt.gpt_layer_specs import (
    get_gpt_layer_local_spec,
    get_gpt_layer_with_transformer_engine_spec,
)
from megatron.core.transformer import ModuleSpec, TransformerConfig
from megatron.core.transformer.mlp import MLP
from megatron.core.transformer.transformer_block import TransformerBlockSubmodules, get_num_layers_to_build
from torch import nn

from triplepoint.config.point import Point
from triplepoint.config.task import Lora
from triplepoint.launch.engines.megatron.lora import add_adapters
from triplepoint.launch.engines.megatron.settings import ddp_config, has_transformer_engine, shares_parameters
from triplepoint.launch.engines.vocabulary import padded_vocab_size


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
        # Only the last chunk's gradients come first in the backward pass and can be reduced beside the others.
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
