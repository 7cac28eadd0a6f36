"""The model that a row of a table means: gated or not, tied or not, from its shape, its size and its name."""

import math
import re
from dataclasses import dataclass
from itertools import product

from triplepoint.config.model import MixtureOfExperts, ModelConfig
from triplepoint.simulate.predict.spelling import UnreadableError

_GATED = r"llama|mixtral|mistral|qwen|deepseek|kimi|grok|gpt-?oss|gemma|olmo|dbrx|glm|yi-"
_UNGATED = r"gpt|nemotron|mpt|opt|bloom|mt-nlg|falcon|pythia|neox|turing"
_ALIBI = r"mpt|bloom"
_TRUSTED = 0.15
"""A parameter count this far off, in log, says nothing about the variant: the row is a proxy with fewer layers."""
_PRIOR = 0.02
"""What going against the habit of a family costs, in log of the parameter count: half a gate is 15 %, rounding 2 %."""


@dataclass(frozen=True)
class Shape:
    """The numbers of a row that make the model; `ffn` is of one expert where there are experts."""

    name: str
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    ffn: int
    vocab: int
    seq: int
    experts: int = 0
    topk: int = 0
    num_parameters: float | None = None


class WideHeads(ModelConfig):
    """A model whose heads are not `hidden_size / num_attention_heads` wide."""

    head_width: int
    """Width of one attention head."""

    @property
    def head_size(self) -> int:
        """Width of one attention head."""
        return self.head_width

    @property
    def _attention_parameters(self) -> int:
        heads = 2 * self.num_attention_heads + 2 * self.num_query_groups
        return self.hidden_size * heads * self.head_width


def build_model(shape: Shape) -> ModelConfig:
    """Return the model: the variant whose parameter count fits best, that of its family where none does.

    Raises:
        UnreadableError: If the shape is of no transformer, such as heads that do not divide the width.
    """
    low = shape.name.lower()
    habit = _is_gated_by_habit(shape), _is_tied_by_habit(low)
    variants = {(gated, tied): _variant(shape, gated, tied) for gated, tied in product((True, False), repeat=2)}
    best = min(variants, key=lambda pair: _misfit(shape, variants[pair]) + _PRIOR * _differences(pair, habit))
    return variants[best] if _misfit(shape, variants[best]) < _TRUSTED else variants[habit]


def _misfit(shape: Shape, model: ModelConfig) -> float:
    if not shape.num_parameters:
        return math.inf
    return abs(math.log(model.num_parameters / shape.num_parameters))


def _differences(one: tuple[bool, ...], other: tuple[bool, ...]) -> int:
    return sum(a != b for a, b in zip(one, other, strict=True))


def _is_gated_by_habit(shape: Shape) -> bool:
    low = shape.name.lower()
    if re.search(_GATED, low):
        return True
    if re.search(_UNGATED, low):
        return False
    return bool(shape.experts) or shape.kv_heads != shape.heads or shape.ffn != 4 * shape.hidden


def _is_tied_by_habit(low: str) -> bool:
    return re.search(r"gpt-?[23h\d]|mpt|mt-nlg|opt|bloom", low) is not None


def _variant(shape: Shape, is_gated: bool, is_tied: bool) -> ModelConfig:
    low = shape.name.lower()
    is_classic = not is_gated and "nemotron" not in low
    content = {
        "name": re.sub(r"[^a-z0-9.-]+", "-", low).strip("-.") or "model",
        "source": "a row of a table of training runs",
        "num_layers": shape.layers,
        "hidden_size": shape.hidden,
        "ffn_hidden_size": shape.ffn,
        "num_attention_heads": shape.heads,
        "num_query_groups": shape.kv_heads,
        "vocab_size": shape.vocab,
        # ALiBi has no table of positions.
        "sequence_length": 1 if is_classic and re.search(_ALIBI, low) else shape.seq,
        "activation": "swiglu" if is_gated else "gelu",
        "normalization": "rmsnorm" if is_gated else "layernorm",
        "position_embedding": "learned" if is_classic else "rope",
        "add_bias": is_classic and re.search(_ALIBI, low) is None,
        "tie_embeddings": is_tied,
    }
    if shape.experts:
        content["moe"] = MixtureOfExperts(num_experts=shape.experts, top_k=shape.topk)
    _check(shape)
    width = _head_width(shape)
    if width is None:
        return ModelConfig.model_validate(content)
    return WideHeads.model_validate(content | {"head_width": width})


def _head_width(shape: Shape) -> int | None:
    """Return the width of a head where the family is known to set it apart from `hidden / heads`.

    Source:
        config.json of Qwen/Qwen3-30B-A3B (head_dim 128), openai/gpt-oss-120b (64), google/gemma-2-27b (128) and
        mistralai/Mistral-Nemo-Base-2407 (128) on Hugging Face.
    """
    known = ((r"qwen-?3", 128), (r"gpt-?oss", 64), (r"gemma-?2-?27b", 128), (r"nemo-?(base|instruct|12b)", 128))
    for pattern, width in known:
        if re.search(pattern, shape.name.lower()) and shape.hidden // shape.heads != width:
            return width
    return None


def _check(shape: Shape) -> None:
    if shape.hidden % shape.heads:
        raise UnreadableError(f"hidden {shape.hidden} is not divisible by heads {shape.heads}")
    if shape.heads % shape.kv_heads:
        raise UnreadableError(f"heads {shape.heads} is not divisible by kv_heads {shape.kv_heads}")
    if shape.experts and not 1 <= shape.topk <= shape.experts:
        raise UnreadableError(f"topk is {shape.topk}, expected 1 to experts {shape.experts}")
