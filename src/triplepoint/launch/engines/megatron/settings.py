"""Megatron-Core's configuration objects for a point."""

import importlib.util
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from megatron.core.distributed import DistributedDataParallelConfig
from megatron.core.optimizer import OptimizerConfig
from megatron.core.transformer import TransformerConfig

from triplepoint.config.point import Point
from triplepoint.launch.engines import BETAS, LEARNING_RATE, MAX_GRADIENT_NORM, WEIGHT_DECAY

NORM_EPS = 1e-5
"""Source: Llama 3 and GPT-2 reference code, both 1e-5."""

_DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp8": torch.bfloat16, "fp32": torch.float32}


def has_transformer_engine(point: Point) -> bool:
    """Return whether Transformer Engine is installed and has a GPU to run on."""
    return point.cluster.device != "cpu" and importlib.util.find_spec("transformer_engine") is not None


def uses_distributed_optimizer(point: Point) -> bool:
    """Return whether the optimizer state is sharded over data parallel ranks."""
    return point.layout.data_parallel_sharding != "no_shard"


def uses_megatron_fsdp(point: Point) -> bool:
    """Return whether gradients, and perhaps parameters, are sharded too."""
    return point.layout.dp > 1 and point.layout.data_parallel_sharding in ("optim_grads", "optim_grads_params")


def has_sequence_parallelism(point: Point) -> bool:
    """Return whether activations between tensor parallel regions are split along the sequence."""
    return point.layout.sequence_parallel and point.layout.tp > 1


def dtype_of(point: Point) -> torch.dtype:
    """Return the type of parameters and activations."""
    return _DTYPES[point.precision]


def transformer_config(point: Point) -> TransformerConfig:
    """Return the configuration of the model: architecture, parallelism, precision, kernels, recomputation, experts."""
    option_groups = (_architecture, _parallelism, _precision, _fusions, _recomputation, _experts)
    return TransformerConfig(**{key: value for options in option_groups for key, value in options(point).items()})


def _architecture(point: Point) -> dict[str, Any]:
    model = point.model
    return {
        "num_layers": model.num_layers,
        "hidden_size": model.hidden_size,
        "ffn_hidden_size": model.ffn_hidden_size,
        "num_attention_heads": model.num_attention_heads,
        "num_query_groups": model.num_query_groups,
        "kv_channels": model.head_size,
        "add_bias_linear": model.add_bias,
        "gated_linear_unit": model.activation == "swiglu",
        "activation_func": F.silu if model.activation == "swiglu" else partial(F.gelu, approximate="tanh"),
        "normalization": "RMSNorm" if model.normalization == "rmsnorm" else "LayerNorm",
        "layernorm_epsilon": NORM_EPS,
        "hidden_dropout": 0.0,
        "attention_dropout": 0.0,
    }


def parallel_sizes(point: Point) -> dict[str, int | None]:
    """Return the degrees of parallelism, by the names that Megatron-Core uses for process groups and for the model."""
    layout = point.layout
    return {
        "tensor_model_parallel_size": layout.tp,
        "pipeline_model_parallel_size": layout.pp,
        "virtual_pipeline_model_parallel_size": layout.vp if layout.vp > 1 else None,
        "context_parallel_size": layout.cp,
        "expert_model_parallel_size": layout.ep,
        "expert_tensor_parallel_size": layout.expert_tp,
    }


def _parallelism(point: Point) -> dict[str, Any]:
    layout = point.layout
    return parallel_sizes(point) | {
        "pipeline_model_parallel_layout": _pipeline_layout(layout.pipeline_layers),
        "sequence_parallel": has_sequence_parallelism(point),
        # The initial values are overwritten, but initialisation also marks parameters as split, which gradient norms
        # depend on.
        "perform_initialization": True,
        "tp_comm_overlap": "tp" in point.overlap,
        # With batched sends two stages mix up forward and backward messages. Source: Megatron-LM arguments.py, which
        # asks for overlap_p2p_comm or more than two stages with the interleaved schedule.
        "overlap_p2p_comm": layout.vp > 1,
        "batch_p2p_comm": layout.vp == 1,
        # Gloo reads a tensor after the send call returned, when it would be freed. On a GPU the stream keeps the order.
        "deallocate_pipeline_outputs": point.cluster.device != "cpu",
    }


def _pipeline_layout(layers: tuple[int, ...]) -> list[list[str]] | None:
    """Return the modules of every stage, in Megatron-Core's names; None for an even split."""
    if not layers:
        return None
    stages = [["decoder"] * count for count in layers]
    return [["embedding", *stages[0]], *stages[1:-1], [*stages[-1], "loss"]]


def _precision(point: Point) -> dict[str, Any]:
    return {
        "pipeline_dtype": dtype_of(point),
        "params_dtype": dtype_of(point),
        "bf16": point.precision in ("bf16", "fp8"),
        "fp16": point.precision == "fp16",
        "fp8": "hybrid" if point.precision == "fp8" else None,
        "use_cpu_initialization": point.cluster.device == "cpu",
    }


def _fusions(point: Point) -> dict[str, Any]:
    is_fused = has_transformer_engine(point)
    return {
        "bias_activation_fusion": is_fused and point.model.activation == "swiglu",
        "bias_dropout_fusion": is_fused,
        "apply_rope_fusion": is_fused and point.model.position_embedding == "rope",
        "masked_softmax_fusion": False,
        "gradient_accumulation_fusion": False,
        "persist_layer_norm": False,
    }


def _recomputation(point: Point) -> dict[str, Any]:
    if point.recompute == "full":
        number = point.recompute_layers
        # "block" recomputes the first layers of a stage; "uniform" with 1 recomputes every layer, one at a time.
        method = {"recompute_method": "block" if number else "uniform", "recompute_num_layers": number or 1}
        return {"recompute_granularity": "full", **method}
    if point.recompute == "selective":
        return {"recompute_granularity": "selective", "recompute_modules": ["core_attn"]}
    return {}


def _experts(point: Point) -> dict[str, Any]:
    moe = point.model.moe
    if moe is None:
        return {}
    return {
        "num_moe_experts": moe.num_experts,
        "moe_router_topk": moe.top_k,
        "moe_router_dtype": "fp32",
        "moe_ffn_hidden_size": point.model.ffn_hidden_size,
        # A balancing loss would depend on the micro-batch of a rank, and every layout must train the same model.
        "moe_router_load_balancing_type": "none",
        "moe_aux_loss_coeff": 0.0,
        "moe_token_dispatcher_type": "alltoall",
        "moe_grouped_gemm": has_transformer_engine(point),
        "moe_expert_capacity_factor": moe.capacity_factor,
    }


def ddp_config(point: Point) -> DistributedDataParallelConfig:
    """Return the configuration of gradient buffers and their reduction."""
    return DistributedDataParallelConfig(
        # Source: Megatron-LM arguments.py: bf16 switches accumulate_allreduce_grads_in_fp32 on.
        grad_reduce_in_fp32=point.precision != "fp16",
        overlap_grad_reduce="grad" in point.overlap,
        overlap_param_gather="param" in point.overlap,
        use_distributed_optimizer=uses_distributed_optimizer(point),
        use_megatron_fsdp=uses_megatron_fsdp(point),
        data_parallel_sharding_strategy=point.layout.data_parallel_sharding
        if uses_megatron_fsdp(point)
        else "no_shard",
    )


def optimizer_config(point: Point) -> OptimizerConfig:
    """Return the configuration of the optimizer, the same as the native engine's."""
    return OptimizerConfig(
        optimizer="adam",
        lr=LEARNING_RATE,
        adam_beta1=BETAS[0],
        adam_beta2=BETAS[1],
        weight_decay=WEIGHT_DECAY,
        clip_grad=MAX_GRADIENT_NORM,
        bf16=point.precision in ("bf16", "fp8"),
        fp16=point.precision == "fp16",
        params_dtype=dtype_of(point),
        use_distributed_optimizer=uses_distributed_optimizer(point),
        overlap_param_gather="param" in point.overlap,
    )
