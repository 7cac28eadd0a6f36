"""Initial weights in Megatron-Core's layout: fused projections, split over tensor parallel ranks.

The full parameters are those of the native engine, see `native/parameters.py`.
"""

from dataclasses import dataclass, replace
from typing import Any

import torch
from megatron.core import parallel_state
from torch import Tensor

from triplepoint.config.model import ModelConfig
from triplepoint.config.point import Point
from triplepoint.launch.engines import padded_vocab_size
from triplepoint.launch.engines.native.parameters import ADAPTER, Weights, weights_of

COLUMN_PARALLEL = ("linear_qkv", "linear_fc1")
"""Layers split by outputs over tensor parallel ranks; the other linear layers are split by inputs."""


def matrices(model: ModelConfig, target: str) -> dict[str, tuple[int, int]]:
    """Return the matrices that Megatron-Core fuses in one linear layer.

    Args:
        model: The architecture.
        target: Megatron-Core's name of the layer, such as linear_qkv.

    Returns:
        Number of outputs and of inputs of each matrix, by the native engine's name.
    """
    hidden, inner = model.hidden_size, model.ffn_hidden_size
    query_width, kv_width = (heads * model.head_size for heads in (model.num_attention_heads, model.num_query_groups))
    fc1 = ("gate", "up") if model.activation == "swiglu" else ("up",)
    return {
        "linear_qkv": {
            "attention.query": (query_width, hidden),
            "attention.key": (kv_width, hidden),
            "attention.value": (kv_width, hidden),
        },
        "linear_proj": {"attention.output": (hidden, query_width)},
        "linear_fc1": {f"feed_forward.{name}": (inner, hidden) for name in fc1},
        "linear_fc2": {"feed_forward.down": (hidden, inner)},
    }[target]


@dataclass(frozen=True)
class RankWeights:
    """The parts of a model's parameters that one tensor parallel rank has.

    Attributes:
        point: The training run.
        full_weights: Source of full parameters, by the native engine's names.
        tp: Number of ranks that split a parameter.
        rank: Number of this rank among them.
    """

    point: Point
    full_weights: Weights
    tp: int
    rank: int

    @property
    def model(self) -> ModelConfig:
        """The architecture."""
        return self.point.model

    @property
    def of_experts(self) -> "RankWeights":
        """The same for experts, which are split over the expert tensor parallel ranks."""
        tp, rank = parallel_state.get_expert_tensor_parallel_world_size, parallel_state.get_expert_tensor_parallel_rank
        return replace(self, tp=tp(), rank=rank())

    def full(self, name: str, *shape: int) -> Tensor:
        """Return a full parameter."""
        return self.full_weights(name, shape)

    def part(self, full: Tensor, dim: int) -> Tensor:
        """Return this rank's part of a full parameter along a dimension."""
        return full.chunk(self.tp, dim)[self.rank]

    def vocabulary_rows(self, name: str) -> Tensor:
        """Return this rank's rows of a matrix over the vocabulary."""
        return self.part(self.full(name, padded_vocab_size(self.model.vocab_size), self.model.hidden_size), 0)

    def head(self) -> Tensor:
        """Return this rank's rows of the output layer."""
        return self.vocabulary_rows("embedding.weight" if self.model.tie_embeddings else "head.weight")

    def qkv(self, prefix: str, key: str) -> Tensor:
        """Return the fused query, key and value projection of this rank's groups.

        The rows of a group are adjacent: its queries, then its key, then its value.
        """
        groups = self.model.num_query_groups
        by_group = [full.unflatten(0, (groups, -1)) for full in self._fused("linear_qkv", prefix, key)]
        return self.part(torch.cat(by_group, 1), 0).flatten(0, 1)

    def gate_and_up(self, prefix: str, key: str) -> Tensor:
        """Return this rank's rows of the gate, if there is one, followed by those of the up projection."""
        return torch.cat([self.part(full, 0) for full in self._fused("linear_fc1", prefix, key)])

    def row_parallel(self, target: str, prefix: str, key: str) -> Tensor:
        """Return this rank's columns of a projection to the hidden size, or its whole bias, which every rank has."""
        (full,) = self._fused(target, prefix, key)
        return full if key == "bias" else self.part(full, 1)

    def _fused(self, target: str, prefix: str, key: str) -> list[Tensor]:
        """Return the full weights or biases that Megatron-Core fuses in one linear layer."""
        return [
            self.full(f"{prefix}{name.rpartition('.')[2]}.{key}", *(shape if key == "weight" else shape[:1]))
            for name, shape in matrices(self.model, target).items()
        ]


def fill(chunk: Any, point: Point, device: torch.device) -> None:
    """Set the initial weights of one model chunk of this rank.

    Raises:
        KeyError: If the chunk has a parameter of an unknown name.
    """
    tp, rank = point.layout.tp, parallel_state.get_tensor_model_parallel_rank()
    weights = RankWeights(point, weights_of(point, device), tp, rank)
    num_local_experts = 0 if point.model.moe is None else point.model.moe.num_experts // point.layout.ep
    first_expert = num_local_experts * parallel_state.get_expert_model_parallel_rank() if num_local_experts else 0
    first_layer = chunk.decoder.layers[0].layer_number - 1
    with torch.no_grad():
        for name, parameter in chunk.named_parameters():
            parameter.copy_(_initial_value(name, first_layer, first_expert, weights).to(parameter.dtype))


def _initial_value(name: str, first_layer: int, first_expert: int, weights: RankWeights) -> Tensor:
    """Return this rank's part of a parameter.

    Args:
        name: Megatron-Core's name. Its layer number counts from the first layer of the chunk, its expert number from
            the first expert of the rank.
        first_layer: Global number of the chunk's first layer.
        first_expert: Global number of the rank's first expert.
        weights: Parameters of the model.
    """
    model = weights.model
    outside_layers = {
        "embedding.word_embeddings.weight": lambda: weights.vocabulary_rows("embedding.weight"),
        "embedding.position_embeddings.weight": lambda: weights.full(
            "positions.weight", weights.point.sequence_length, model.hidden_size
        ),
        "decoder.final_layernorm.weight": lambda: weights.full("norm.weight", model.hidden_size),
        "decoder.final_layernorm.bias": lambda: weights.full("norm.bias", model.hidden_size),
        "output_layer.weight": weights.head,
    }
    if name in outside_layers:
        return outside_layers[name]()
    _, _, layer_number, name_in_layer = name.split(".", 3)
    return _layer_value(name_in_layer, f"layers.{first_layer + int(layer_number)}.", first_expert, weights)


_NORMS = {
    "input_layernorm": "attention_norm",
    "self_attention.linear_qkv.layer_norm": "attention_norm",
    "pre_mlp_layernorm": "feed_forward_norm",
    "mlp.linear_fc1.layer_norm": "feed_forward_norm",
}
"""Native names of norms by Megatron-Core's: separate, or fused into the next projection (Transformer Engine)."""


def _layer_value(name: str, layer: str, first_expert: int, weights: RankWeights) -> Tensor:
    """Return this rank's part of a parameter of one layer.

    Args:
        name: Megatron-Core's name within the layer.
        layer: Native name of the layer, with a dot at its end.
        first_expert: Global number of the rank's first expert.
        weights: Parameters of the model.
    """
    model = weights.model
    for megatron_norm, norm in _NORMS.items():
        if name.startswith(megatron_norm) and name[len(megatron_norm)] in "._":
            return weights.full(f"{layer}{norm}.{name[len(megatron_norm) + 1 :]}", model.hidden_size)
    if ADAPTER in name:
        linear, key = name.split(ADAPTER)
        return _adapter_value(linear.rsplit(".", 1)[1], key, layer, weights)
    module, key = name.rsplit(".", 1)
    if module == "self_attention.linear_qkv":
        return weights.qkv(f"{layer}attention.", key)
    if module == "self_attention.linear_proj":
        return weights.row_parallel("linear_proj", f"{layer}attention.", key)
    if module == "mlp.router":
        assert model.moe is not None
        return weights.full(f"{layer}feed_forward.router.weight", model.moe.num_experts, model.hidden_size)
    if module.startswith("mlp.experts.local_experts."):
        number, linear = module.removeprefix("mlp.experts.local_experts.").split(".")
        expert = f"{layer}feed_forward.experts.{first_expert + int(number)}."
        return _feed_forward_value(linear, key, expert, weights.of_experts)
    return _feed_forward_value(module.removeprefix("mlp."), key, f"{layer}feed_forward.", weights)


def _adapter_value(target: str, key: str, layer: str, weights: RankWeights) -> Tensor:
    """Return this rank's part of `down` or `up` of the adapters of one linear layer, as `build.py` lays them out."""
    assert weights.point.lora is not None
    rank, fused = weights.point.lora.rank, matrices(weights.model, target)

    def down(name: str) -> Tensor:
        return weights.full(f"{layer}{name}{ADAPTER}down", rank, fused[name][1])

    def up(name: str) -> Tensor:
        return weights.full(f"{layer}{name}{ADAPTER}up", fused[name][0], rank)

    if target in COLUMN_PARALLEL:
        return torch.cat([down(name) if key == "down" else weights.part(up(name), 0) for name in fused])
    (name,) = fused
    return weights.part(down(name), 1) if key == "down" else up(name)


def _feed_forward_value(linear: str, key: str, prefix: str, weights: RankWeights) -> Tensor:
    if linear == "linear_fc1":
        return weights.gate_and_up(prefix, key)
    if linear != "linear_fc2":
        raise KeyError(f"no weight is known for {prefix}{linear}.{key}")
    return weights.row_parallel(linear, prefix, key)
