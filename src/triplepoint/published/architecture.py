"""Model of a published row: a model of the catalogue with the row's changes, or one inferred from shape and size.

`config/published/models.yaml` lists the names of models as published tables spell them.
"""

import math
import re
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise, product
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from triplepoint.config.base import Strict
from triplepoint.config.catalogue import Catalogue
from triplepoint.config.model import ModelConfig
from triplepoint.config.yaml_file import read
from triplepoint.errors import shown
from triplepoint.published.words import Cells, UnreadableError, count, read_count, read_number

_GATED = r"llama|mixtral|mistral|qwen|deepseek|kimi|grok|gpt-?oss|gemma|olmo|dbrx|glm|yi-"
_UNGATED = r"gpt|nemotron|mpt|opt|bloom|mt-nlg|falcon|pythia|neox|turing"
_ALIBI = r"mpt|bloom"
_VARIANT_ERROR = 0.15
"""Log error of the parameter count from which it does not determine the variant, as the row then has fewer layers than
the model that it names."""
_OTHER_MODEL = 0.3
"""Log error of the parameter count from which the row describes another model than the one it names. A choice."""
_PRIOR = 0.02
"""Cost of a choice that is unusual for the family, in log of the parameter count: a gate is 15 %, rounding 2 %."""
_DEFAULT_VOCAB = 50304
"""Vocabulary of GPT-2's tokenizer, padded to a multiple of 128, which most published GPT benchmarks use."""


@dataclass(frozen=True)
class Shape:
    """Shape of the model that a row states; None for blank columns.

    Attributes:
        name: Name of the model.
        hidden: Width of the residual stream.
        layers: Transformer layers.
        heads: Attention heads.
        kv_heads: Heads of keys and values.
        ffn: Inner width of a dense feed-forward block.
        vocab: Size of the vocabulary.
        seq: Tokens per sequence.
        experts: Experts per layer, 0 for none.
        topk: Experts per token.
        moe_ffn: Inner width of one expert.
        num_parameters: Parameters of the whole model. Rows with fewer layers often state those of the full model.
    """

    name: str
    hidden: int | None = None
    layers: int | None = None
    heads: int | None = None
    kv_heads: int | None = None
    ffn: int | None = None
    vocab: int | None = None
    seq: int | None = None
    experts: int | None = None
    topk: int | None = None
    moe_ffn: int | None = None
    num_parameters: float | None = None

    @property
    def missing(self) -> list[str]:
        """Blank columns that an unknown model needs."""
        return [column for column in ("hidden", "layers", "heads") if getattr(self, column) is None]


def read_shape(cells: Cells) -> Shape:
    """Read the shape of the model that a row states.

    Raises:
        UnreadableError: If a cell is no number.
    """
    billions = read_number("params_B", cells.get("params_B", ""))
    positive = {name: count(cells, name) for name in ("hidden", "layers", "heads", "kv_heads", "ffn", "vocab", "seq")}
    # In the columns of experts, 0 stands for none.
    experts = {name: read_count(name, cells.get(name, "")) for name in ("experts", "topk", "moe_ffn")}
    if experts["experts"] == 1:
        experts["experts"] = 0
    name = " ".join(cells.get("model", "").split())[:60]
    return Shape(name, **positive, **experts, num_parameters=billions * 1e9 if billions else None)


def is_of(shape: Shape, known: ModelConfig) -> bool:
    """Return whether a row's shape fits a known model, which may have another number of layers or sequence length."""
    return shape.hidden in (None, known.hidden_size) and shape.heads in (None, known.num_attention_heads)


def adapt(shape: Shape, known: ModelConfig) -> ModelConfig:
    """Return a known model with the changes that the row states.

    The capacity factor of experts is dropped, since tables do not state it for their runs.

    Raises:
        UnreadableError: If the parameter count fits neither the row's shape nor the known model.
    """
    content = known.model_dump(exclude={"moe"})
    stated = {
        "num_layers": shape.layers,
        "num_query_groups": shape.kv_heads,
        "vocab_size": shape.vocab,
        "sequence_length": shape.seq,
    }
    content |= {key: value for key, value in stated.items() if value} | _feed_forward(shape, known)
    content["name"] = _name(shape)
    model = _model(content)
    if shape.num_parameters and min(_size_error(shape, model), _size_error(shape, known)) > _OTHER_MODEL:
        billions = shape.num_parameters / 1e9, model.num_parameters / 1e9
        raise UnreadableError(
            f"params_B is {billions[0]:.3g}, {shown(shape.name)} has {billions[1]:.3g}; write one of them"
        )
    return model


def _feed_forward(shape: Shape, known: ModelConfig) -> dict[str, Any]:
    """Return the feed-forward fields of a model; in a model with experts, column `ffn` belongs to its dense layers."""
    moe = known.moe
    num_experts = shape.experts if shape.experts is not None else (moe.num_experts if moe else 0)
    if not num_experts:
        return {"ffn_hidden_size": shape.ffn or known.dense_ffn_hidden_size}
    experts = {"num_experts": num_experts, "top_k": shape.topk or (moe.top_k if moe else 1)}
    inner = shape.moe_ffn or known.ffn_hidden_size
    if moe is None:
        return {"ffn_hidden_size": inner, "moe": experts}
    if moe.dense_ffn_hidden_size and shape.ffn and shape.ffn != inner:
        experts["dense_ffn_hidden_size"] = shape.ffn
    return {"ffn_hidden_size": inner, "moe": moe.model_dump() | experts | {"capacity_factor": None}}


def build_model(shape: Shape) -> ModelConfig:
    """Return the variant whose parameter count fits best, or the usual variant of the family where none fits.

    Variants differ in a gated feed-forward block and in tied embeddings.

    Raises:
        UnreadableError: If the shape is invalid, such as heads that do not divide the width.
    """
    usual = _is_usually_gated(shape), _is_usually_tied(shape)
    variants = {(gated, tied): _variant(shape, gated, tied) for gated, tied in product((True, False), repeat=2)}
    costs = {
        pair: _size_error(shape, model) + _PRIOR * ((pair[0] != usual[0]) + (pair[1] != usual[1]))
        for pair, model in variants.items()
    }
    best = variants[min(costs, key=lambda pair: costs[pair])]
    return best if _size_error(shape, best) < _VARIANT_ERROR else variants[usual]


def _size_error(shape: Shape, model: ModelConfig) -> float:
    """Return the absolute log error of a model's parameter count; infinite where the row states none."""
    if not shape.num_parameters:
        return math.inf
    return abs(math.log(model.num_parameters / shape.num_parameters))


def _is_usually_gated(shape: Shape) -> bool:
    low = shape.name.lower()
    if re.search(_GATED, low):
        return True
    if re.search(_UNGATED, low):
        return False
    has_groups = shape.kv_heads not in (None, shape.heads)
    return bool(shape.experts) or has_groups or _inner_width(shape) != 4 * (shape.hidden or 0)


def _is_usually_tied(shape: Shape) -> bool:
    return re.search(r"gpt-?[23h\d]|mpt|mt-nlg|opt|bloom", shape.name.lower()) is not None


def _inner_width(shape: Shape) -> int:
    return (shape.moe_ffn if shape.experts else None) or shape.ffn or 4 * (shape.hidden or 0)


def _variant(shape: Shape, is_gated: bool, is_tied: bool) -> ModelConfig:
    low = shape.name.lower()
    is_classic = not is_gated and "nemotron" not in low
    is_alibi = is_classic and re.search(_ALIBI, low) is not None
    content: dict[str, Any] = {
        "name": _name(shape),
        "source": "a row of a table of training runs",
        "num_layers": shape.layers,
        "hidden_size": shape.hidden,
        "ffn_hidden_size": _inner_width(shape),
        "num_attention_heads": shape.heads,
        "num_query_groups": shape.kv_heads or shape.heads,
        "vocab_size": shape.vocab or _DEFAULT_VOCAB,
        "sequence_length": shape.seq,
        "activation": "swiglu" if is_gated else "gelu",
        "normalization": "rmsnorm" if is_gated else "layernorm",
        "position_embedding": "alibi" if is_alibi else "learned" if is_classic else "rope",
        "add_bias": is_classic and not is_alibi,
        "tie_embeddings": is_tied,
        "kv_channels": _head_width(shape),
    }
    if shape.experts:
        content["moe"] = {"num_experts": shape.experts, "top_k": shape.topk or 1}
    return _model(content)


def _head_width(shape: Shape) -> int | None:
    """Return the width of a head in families where it differs from `hidden / heads`; None in others.

    Source:
        config.json of Qwen/Qwen3-30B-A3B (head_dim 128) and openai/gpt-oss-120b (64) on Hugging Face.
    """
    for pattern, width in ((r"qwen-?3", 128), (r"gpt-?oss", 64)):
        if re.search(pattern, shape.name.lower()) and (shape.hidden or 0) // (shape.heads or 1) != width:
            return width
    return None


def _name(shape: Shape) -> str:
    return re.sub(r"[^a-z0-9.-]+", "-", shape.name.lower()).strip("-.")[:64] or "model"


def _model(content: dict[str, Any]) -> ModelConfig:
    """Return the model with the given fields. Raises `UnreadableError` that names the columns of a contradiction."""
    hidden, heads, groups = (content[key] for key in ("hidden_size", "num_attention_heads", "num_query_groups"))
    if not (content.get("kv_channels") or content.get("latent")) and hidden % heads:
        raise UnreadableError(f"hidden {hidden} is not divisible by heads {heads}")
    if heads % groups:
        raise UnreadableError(f"heads {heads} is not divisible by kv_heads {groups}")
    moe = content.get("moe")
    if moe and moe["top_k"] > moe["num_experts"]:
        raise UnreadableError(f"topk is {moe['top_k']}, expected 1 to experts {moe['num_experts']}")
    return ModelConfig.model_validate(content)


_SIZE = re.compile(r"(?<![a-z0-9.])(\d+(?:\.\d+)?)([bm])(?![a-z0-9])")
_SAME_SIZE = 0.3
"""Log difference up to which a size in a name fits a model. Sizes in names are rounded and may leave out embeddings;
that of Gemma 2 2B is 0.27 off."""
_Names = Annotated[list[str], Field(min_length=1)]


class Unsupported(Strict):
    """A model that tables name and that the simulator does not support."""

    names: _Names
    """Names of the model, as in `Names.models`."""
    because: str
    """Unsupported part of its architecture."""
    source: Annotated[str, Field(min_length=8)]
    """Publication of the architecture."""


class Names(Strict):
    """Content of `config/published/models.yaml`."""

    models: dict[str, _Names]
    """Names of each model of `config/models/`: words that follow each other in this order."""
    unsupported: list[Unsupported]
    """Models that the simulator does not support."""
    variants: _Names
    """Words that may stand between the words of a name, such as fine-tuning that leaves the architecture unchanged."""
    others: _Names
    """Words that turn a name into that of another model, unless the name is listed with them."""


def find_model(name: str, config: Path) -> str | Unsupported | None:
    """Return the model of the catalogue with a name; None for a name that is unknown or ambiguous.

    Where several entries match, the one with the most words counts. A name that states another size does not match.

    Args:
        name: Name as a table spells it, such as `Llama3-8B` or `meta-llama/Llama-3.1-8B-Instruct`.
        config: Folder of the configuration.
    """
    low = name.lower().replace("_", "-")
    matches = []
    for pattern, num_words, model in _patterns(config):
        if match := pattern.search(low):
            rest = f"{low[: match.start()]} {low[match.end() :]}"
            if not _is_other_model(rest, model, config):
                matches.append((num_words, model))
    most = max((num_words for num_words, _ in matches), default=0)
    best = [model for num_words, model in matches if num_words == most]
    return best[0] if best and all(model == best[0] for model in best) else None


def _is_other_model(rest: str, model: str | Unsupported, config: Path) -> bool:
    """Return whether the rest of a name, without the words of a model, belongs to another model."""
    if set(re.findall("[a-z]+", rest)) & set(read_names(config).others):
        return True
    if isinstance(model, Unsupported):
        return False
    sizes = [float(size) * {"b": 1e9, "m": 1e6}[unit] for size, unit in _SIZE.findall(rest)]
    return any(abs(math.log(size / _num_parameters(model, config))) > _SAME_SIZE for size in sizes if size)


@lru_cache(maxsize=1024)
def _num_parameters(model: str, config: Path) -> float:
    return Catalogue(config).model(model).num_parameters


@lru_cache(maxsize=4)
def read_names(config: Path) -> Names:
    """Read `published/models.yaml` of a configuration folder. Raises `UserError` if it is missing or invalid."""
    return read(Names, config / "published" / "models.yaml")


@lru_cache(maxsize=4)
def _patterns(config: Path) -> tuple[tuple[re.Pattern[str], int, str | Unsupported], ...]:
    """Return the pattern, the number of words and the model of every name in a configuration folder."""
    names = read_names(config)
    entries: list[tuple[str | Unsupported, list[str]]] = [*names.models.items()]
    entries += [(entry, entry.names) for entry in names.unsupported]
    between = "|".join(map(re.escape, names.variants))
    return tuple(
        (_pattern(name, between), len(name.split()), model) for model, spellings in entries for name in spellings
    )


def _pattern(name: str, between: str) -> re.Pattern[str]:
    """Return a pattern of a name's words in this order and not within longer words: `llama 3 8b` in `llama-3-8b-hf`.

    Args:
        name: Words of the name.
        between: Alternatives of a pattern, for the words that may stand between those of the name.
    """
    words = name.split()
    pattern = re.escape(words[0])
    for before, word in pairwise(words):
        # Two numbers need a separator: 33b is not 3 3b.
        separator = r"[-.\s]+" if before[-1].isdigit() and word[0].isdigit() else r"[-.\s]*"
        pattern += rf"(?:{separator}|[-\s]+(?:(?:{between})[-\s]+)+)v?{re.escape(word)}"
    return re.compile(rf"(?<![a-z0-9]){pattern}(?![a-z0-9]|\.\d)")
