"""The weights of `engines.weights` in Megatron-Core's layout: fused projections, parts of tensor parallel ranks."""

from dataclasses import dataclass, replace
from typing import Any

import torch
from megatron.core import parallel_state
from torch import Tensor

from triplepoint.config.model import ModelConfig
from triplepoint.config.point import Point
from triplepoint.launch.engines import padded_vocab_size
from triplepoint.launch.engines.native.parameters import ADAPTER, weights_of
from triplepoint.launch.engines.native.parameters import Weights as EngineWeights

COLUMN = ("linear_qkv", "linear_fc1")
"""Layers whose outputs are split over tensor parallel ranks; those of the others' inputs are."""


def matrices(model: ModelConfig, target: str) -> dict[str, tuple[int, int]]:
    """Return the matrices that Megatron-Core keeps in one of its layers, by their names in the native engine.

    Returns:
        Outputs and inputs of each.
    """
    hidden, inner = model.hidden_size, model.ffn_hidden_size
    heads, groups = (number * model.head_size for number in (model.num_attention_heads, model.num_query_groups))
    into = ("gate", "up") if model.activation == "swiglu" else ("up",)
    return {
        "linear_qkv": {
            "attention.query": (heads, hidden),
            "attention.key": (groups, hidden),
            "attention.value": (groups, hidden),
        },
        "linear_proj": {"attention.output": (hidden, heads)},
        "linear_fc1": {f"feed_forward.{name}": (inner, hidden) for name in into},
        "linear_fc2": {"feed_forward.down": (hidden, inner)},
    }[target]


@dataclass(frozen=True)
class Weights:
    """Full parameters of a model by the names of the native engine, cut for one tensor parallel rank.

    Attributes:
        point: The point.
        whole: Gives full parameters.
        tp: Ranks that hold a part each.
        rank: This rank's place among them.
    """

    point: Point
    whole: EngineWeights
    tp: int
    rank: int

    @property
    def model(self) -> ModelConfig:
        """The architecture."""
        return self.point.model

    @property
    def of_experts(self) -> "Weights":
        """The same, cut for this rank's place among those that split an expert."""
        tp, rank = parallel_state.get_expert_tensor_parallel_world_size, parallel_state.get_expert_tensor_parallel_rank
        return replace(self, tp=tp(), rank=rank())

    def full(self, name: str, *shape: int) -> Tensor:
        """Return a whole parameter."""
        return self.whole(name, shape)

    def cut(self, whole: Tensor, dim: int) -> Tensor:
        """Return this rank's part along a dimension."""
        return whole.chunk(self.tp, dim)[self.rank]

    def rows(self, name: str) -> Tensor:
        """Rows of a table over the vocabulary, of this rank."""
        return self.cut(self.full(name, padded_vocab_size(self.model.vocab_size), self.model.hidden_size), 0)

    def head(self) -> Tensor:
        """Rows of the output layer of this rank."""
        return self.rows("embedding.weight" if self.model.tie_embeddings else "head.weight")

    def projection(self, prefix: str, key: str) -> Tensor:
        """Queries, keys and values of this rank's groups: in each group its queries, then its key, then its value."""
        groups = self.model.num_query_groups
        parts = [part.unflatten(0, (groups, -1)) for part in self._matrices("linear_qkv", prefix, key)]
        return self.cut(torch.cat(parts, 1), 0).flatten(0, 1)

    def up(self, prefix: str, key: str) -> Tensor:
        """Gate and up projection of this rank, one after the other."""
        return torch.cat([self.cut(part, 0) for part in self._matrices("linear_fc1", prefix, key)])

    def down(self, target: str, prefix: str, key: str) -> Tensor:
        """This rank's inputs of a projection that leads back to the hidden size; every rank has its whole bias."""
        (whole,) = self._matrices(target, prefix, key)
        return whole if key == "bias" else self.cut(whole, 1)

    def _matrices(self, target: str, prefix: str, key: str) -> list[Tensor]:
        """Return the whole weights or biases that Megatron-Core keeps in one of its layers."""
        return [
            self.full(f"{prefix}{name.rpartition('.')[2]}.{key}", *(shape if key == "weight" else shape[:1]))
            for name, shape in matrices(self.model, target).items()
        ]


def fill(chunk: Any, point: Point, device: torch.device) -> None:
    """Put the weights of a point into one chunk of this rank's model.

    Raises:
        KeyError: If the chunk has a parameter that no weight is known for.
    """
    tp, rank = point.layout.tp, parallel_state.get_tensor_model_parallel_rank()
    weights = Weights(point, weights_of(point, device), tp, rank)
    held = 0 if point.model.moe is None else point.model.moe.num_experts // point.layout.ep
    first_expert = held * parallel_state.get_expert_model_parallel_rank() if held else 0
    first_layer = chunk.decoder.layers[0].layer_number - 1
    with torch.no_grad():
        for name, parameter in chunk.named_parameters():
            parameter.copy_(_find(name, first_layer, first_expert, weights).to(parameter.dtype))


def _find(name: str, first_layer: int, first_expert: int, weights: Weights) -> Tensor:
    model = weights.model
    whole = {
        "embedding.word_embeddings.weight": lambda: weights.rows("embedding.weight"),
        "embedding.position_embeddings.weight": lambda: weights.full(
            "positions.weight", weights.point.sequence_length, model.hidden_size
        ),
        "decoder.final_layernorm.weight": lambda: weights.full("norm.weight", model.hidden_size),
        "decoder.final_layernorm.bias": lambda: weights.full("norm.bias", model.hidden_size),
        "output_layer.weight": weights.head,
    }
    if name in whole:
        return whole[name]()
    _, _, number, rest = name.split(".", 3)
    return _layer(rest, f"layers.{first_layer + int(number)}.", first_expert, weights)


_NORMS = {
    "input_layernorm": "attention_norm",
    "self_attention.linear_qkv.layer_norm": "attention_norm",
    "pre_mlp_layernorm": "feed_forward_norm",
    "mlp.linear_fc1.layer_norm": "feed_forward_norm",
}
"""Norms by Megatron's names: alone, or fused into the projection that follows (Transformer Engine)."""


def _layer(rest: str, layer: str, first_expert: int, weights: Weights) -> Tensor:
    model = weights.model
    for place, norm in _NORMS.items():
        if rest.startswith(place) and rest[len(place)] in "._":
            return weights.full(f"{layer}{norm}.{rest[len(place) + 1 :]}", model.hidden_size)
    if ADAPTER in rest:
        place, key = rest.split(ADAPTER)
        return _adapter(place.rsplit(".", 1)[1], key, layer, weights)
    place, key = rest.rsplit(".", 1)
    if place == "self_attention.linear_qkv":
        return weights.projection(f"{layer}attention.", key)
    if place == "self_attention.linear_proj":
        return weights.down("linear_proj", f"{layer}attention.", key)
    if place == "mlp.router":
        assert model.moe is not None
        return weights.full(f"{layer}feed_forward.router.weight", model.moe.num_experts, model.hidden_size)
    if place.startswith("mlp.experts.local_experts."):
        number, part = place.removeprefix("mlp.experts.local_experts.").split(".")
        expert = f"{layer}feed_forward.experts.{first_expert + int(number)}."
        return _feed_forward(part, key, expert, weights.of_experts)
    return _feed_forward(place.removeprefix("mlp."), key, f"{layer}feed_forward.", weights)


def _adapter(target: str, key: str, layer: str, weights: Weights) -> Tensor:
    """Return this rank's part of a matrix of the adapters alongside a layer, see `build.py`."""
    assert weights.point.lora is not None
    rank, parts = weights.point.lora.rank, matrices(weights.model, target)

    def down(name: str) -> Tensor:
        return weights.full(f"{layer}{name}{ADAPTER}down", rank, parts[name][1])

    def up(name: str) -> Tensor:
        return weights.full(f"{layer}{name}{ADAPTER}up", parts[name][0], rank)

    if target in COLUMN:
        return torch.cat([down(name) if key == "down" else weights.cut(up(name), 0) for name in parts])
    (name,) = parts
    return weights.cut(down(name), 1) if key == "down" else up(name)


def _feed_forward(part: str, key: str, prefix: str, weights: Weights) -> Tensor:
    if part == "linear_fc1":
        return weights.up(prefix, key)
    if part != "linear_fc2":
        raise KeyError(f"no weight is known for {prefix}{part}.{key}")
    return weights.down(part, prefix, key)
