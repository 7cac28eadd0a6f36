# mypy: disallow-subclassing-any=False
"""Build a point's model with Megatron-Core: this rank's model chunks in their gradient buffers, with LoRA adapters.

Megatron-Core has no adapters, but it supports frozen weights: its linear layers save no input and compute no gradient
for them, and its gradient buffers, optimizer and norm leave them out. Tensor parallel ranks communicate between the two
matrices of an adapter, where the activation is narrowest.
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
    has_sequence_parallelism,
    has_transformer_engine,
    uses_megatron_fsdp,
)
from triplepoint.launch.engines.megatron.weights import COLUMN_PARALLEL, matrices


class Norm:
    """Torch's RMSNorm or LayerNorm, marked so that Megatron-Core sums gradients over the parts of a split sequence.

    Megatron-Core's own wrapper of these norms refuses sequence parallelism. Its specifications take classes, so this is
    a class, too, and not a function.
    """

    def __new__(cls, config: TransformerConfig, hidden_size: int, eps: float = 1e-5, **_: Any) -> nn.Module:
        """Return the norm in `config.normalization`."""
        norm_class = nn.RMSNorm if config.normalization == "RMSNorm" else nn.LayerNorm
        norm = norm_class(hidden_size, eps=eps)
        for parameter in norm.parameters():
            parameter.sequence_parallel = config.sequence_parallel
        return norm


def build_chunks(point: Point, config: TransformerConfig, device: torch.device) -> list[DistributedDataParallel]:
    """Return the model chunks of this rank, one for each virtual pipeline stage, without weights yet."""
    chunks = []
    for number in range(point.layout.vp):
        vp_stage = number if point.layout.vp > 1 else None
        model = _build_gpt_model(point, config, vp_stage).to(device)
        if config.params_dtype != torch.float32:
            model = model.to(config.params_dtype)
        if uses_megatron_fsdp(point):
            from megatron.core.distributed.fsdp.mcore_fsdp_adapter import FullyShardedDataParallel

            chunks.append(FullyShardedDataParallel(config, ddp_config(point), model, device=device))
        else:
            # Only the first chunk, whose backward pass is last, needs buckets: the reductions of the others overlap
            # with it anyway. Source: Megatron-LM, megatron/training/training.py.
            chunks.append(DistributedDataParallel(config, ddp_config(point), model, disable_bucketing=number > 0))
    _set_gradient_hooks(config, chunks, point)
    return chunks


def _build_gpt_model(point: Point, config: TransformerConfig, vp_stage: int | None) -> GPTModel:
    model = point.model
    chunk = GPTModel(
        config=config,
        transformer_layer_spec=_layer_spec(point, config, vp_stage),
        vocab_size=padded_vocab_size(model.vocab_size),
        max_sequence_length=point.sequence_length,
        pre_process=parallel_state.is_pipeline_first_stage(ignore_virtual=False, vp_stage=vp_stage),
        post_process=parallel_state.is_pipeline_last_stage(ignore_virtual=False, vp_stage=vp_stage),
        parallel_output=True,
        share_embeddings_and_output_weights=model.tie_embeddings,
        position_embedding_type="rope" if model.position_embedding == "rope" else "learned_absolute",
        rotary_base=int(model.rope_base),
        vp_stage=vp_stage,
    )
    if point.lora is not None:
        add_adapters(chunk, point, point.lora)
    return chunk


def _layer_spec(point: Point, config: TransformerConfig, vp_stage: int | None) -> Any:
    num_experts = None if point.model.moe is None else point.model.moe.num_experts
    if has_transformer_engine(point):
        spec = get_gpt_layer_with_transformer_engine_spec(num_experts, config.moe_grouped_gemm)
        return spec if point.lora is None else separate_norms(spec, point.lora)
    spec = get_gpt_layer_local_spec(num_experts, False, normalization=config.normalization)
    spec.submodules.input_layernorm = Norm
    spec.submodules.pre_mlp_layernorm = Norm
    return TransformerBlockSubmodules([spec] * get_num_layers_to_build(config, vp_stage=vp_stage), Norm)


def separate_norms(spec: ModuleSpec, lora: Lora) -> ModuleSpec:
    """Split Transformer Engine's fused norm and linear layers that get adapters: an adapter reads the norm's output."""
    from megatron.core.extensions.transformer_engine_spec_provider import TESpecProvider

    backend, layer = TESpecProvider(), spec.submodules
    if "linear_qkv" in lora.targets:
        layer.input_layernorm = backend.layer_norm()
        layer.self_attention.submodules.linear_qkv = backend.column_parallel_linear()
    if "linear_fc1" in lora.targets and layer.mlp.module is MLP:
        layer.pre_mlp_layernorm = backend.layer_norm()
        layer.mlp.submodules.linear_fc1 = backend.column_parallel_linear()
    return spec


def _set_gradient_hooks(config: TransformerConfig, chunks: list[DistributedDataParallel], point: Point) -> None:
    """Give the schedules the functions that hold back, start and finish gradient reductions."""
    config.finalize_model_grads_func = finalize_model_grads
    if "grad" in point.overlap:
        config.no_sync_func = [chunk.no_sync for chunk in chunks]
        if len(chunks) == 1:
            config.no_sync_func = config.no_sync_func[0]


class ColumnAdapter(nn.Module):
    """Adapters of a column parallel layer, one for each matrix fused in it: `down` whole on each rank, `up` split.

    The matrices `down` of all adapters are one parameter, and so are the `up`, so that the input is read once.
    """

    def __init__(self, point: Point, lora: Lora, target: str) -> None:
        super().__init__()
        fused, tp = matrices(point.model, target), point.layout.tp
        (inputs,) = {inputs for _, inputs in fused.values()}
        self.scale, self.sequence_parallel = lora.alpha / lora.rank, has_sequence_parallelism(point)
        self.num_groups = point.model.num_query_groups // tp if target == "linear_qkv" else 1
        """Query groups of this rank: in the layer's output the queries, key and value of a group are adjacent."""
        self.widths = [outputs // tp for outputs, _ in fused.values()]
        """Outputs of each fused matrix on this rank."""
        self.down = nn.Parameter(torch.empty(len(fused) * lora.rank, inputs))
        self.up = nn.Parameter(torch.empty(sum(self.widths), lora.rank))
        self.down.sequence_parallel = self.sequence_parallel
        set_tensor_model_parallel_attributes(self.up, True, 0, 1)

    def forward(self, x: Tensor) -> Tensor:
        """Return the addition to the layer's output."""
        low_rank = F.linear(x, self.down)
        if self.sequence_parallel:
            low_rank = gather_from_sequence_parallel_region(low_rank)
        else:
            low_rank = copy_to_tensor_model_parallel_region(low_rank)
        pairs = zip((low_rank * self.scale).chunk(len(self.widths), -1), self.up.split(self.widths), strict=True)
        outputs = [F.linear(part, up).unflatten(-1, (self.num_groups, -1)) for part, up in pairs]
        return torch.cat(outputs, -1).flatten(-2)


class RowAdapter(nn.Module):
    """Adapter of a row parallel layer: `down` split, `up` whole on each rank."""

    def __init__(self, point: Point, lora: Lora, target: str) -> None:
        super().__init__()
        ((outputs, inputs),) = matrices(point.model, target).values()
        self.scale, self.sequence_parallel = lora.alpha / lora.rank, has_sequence_parallelism(point)
        self.down = nn.Parameter(torch.empty(lora.rank, inputs // point.layout.tp))
        self.up = nn.Parameter(torch.empty(outputs, lora.rank))
        self.up.sequence_parallel = self.sequence_parallel
        set_tensor_model_parallel_attributes(self.down, True, 1, 1)

    def forward(self, x: Tensor) -> Tensor:
        """Return the addition to the layer's output."""
        low_rank = F.linear(x, self.down)
        if self.sequence_parallel:
            low_rank = reduce_scatter_to_sequence_parallel_region(low_rank)
        else:
            low_rank = reduce_from_tensor_model_parallel_region(low_rank)
        return F.linear(low_rank * self.scale, self.up)


def add_adapters(chunk: Any, point: Point, lora: Lora) -> None:
    """Freeze a `GPTModel` and add adapters, without weights yet, to the layers in `lora.targets`."""
    chunk.requires_grad_(False)
    for layer in chunk.decoder.layers:
        for target, linear in _targets(layer, lora):
            adapter = (ColumnAdapter if target in COLUMN_PARALLEL else RowAdapter)(point, lora, target)
            linear.add_module("adapter", adapter)
            linear.register_forward_hook(_add_adapter_output)
    if chunk.pre_process and point.recompute == "full":
        # A layer is recomputed only if its input requires a gradient; the output of a frozen embedding does not.
        chunk.embedding.register_forward_hook(lambda module, inputs, output: output.requires_grad_())


def _targets(layer: Any, lora: Lora) -> Iterator[tuple[str, nn.Module]]:
    for target in lora.targets:
        block = layer.self_attention if target in ("linear_qkv", "linear_proj") else layer.mlp
        if hasattr(block, target):  # routed experts do not
            yield target, getattr(block, target)


def _add_adapter_output(linear: nn.Module, inputs: tuple[Tensor, ...], output: tuple[Tensor, Tensor | None]) -> Any:
    y, bias = output
    return y + linear.adapter(inputs[0]), bias
