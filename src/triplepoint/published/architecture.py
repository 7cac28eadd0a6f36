"""Model of a published row: one of the catalogue changed as the row states, else inferred from its shape and size.

Names of models as published tables spell them stand in `config/published/models.yaml`.
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
_TRUSTED = 0.15
"""A parameter count this far off, in log, says nothing about the variant: the row is a proxy with fewer layers."""
_OTHER_MODEL = 0.3
"""A parameter count this far off, in log, is of another model than the one that is named: a choice."""
_PRIOR = 0.02
"""What going against the habit of a family costs, in log of the parameter count: half a gate is 15 %, rounding 2 %."""
_DEFAULT_VOCAB = 50304
"""Of GPT-2's tokenizer, padded to 128: what most published GPT benchmarks take where they do not say."""


@dataclass(frozen=True)
class Shape:
    """The numbers of a row that make the model, None where they are blank.

    Attributes:
        name: Name of the model.
        ffn: Inner width of a dense feed-forward block.
        experts: Experts of a layer, 0 for none.
        moe_ffn: Inner width of one expert.
        num_parameters: Of the whole model; shapes with fewer layers often state that of the full one.
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
        """Columns without which an unknown model cannot be worked out."""
        return [column for column in ("hidden", "layers", "heads") if getattr(self, column) is None]


def read_shape(cells: Cells) -> Shape:
    """Return the shape of the model that a row states.

    Raises:
        UnreadableError: If a cell is no number.
    """
    billions = read_number("params_B", cells.get("params_B", ""))
    whole = {name: count(cells, name) for name in ("hidden", "layers", "heads", "kv_heads", "ffn", "vocab", "seq")}
    # 0 stands for none there.
    others = {name: read_count(name, cells.get(name, "")) for name in ("experts", "topk", "moe_ffn")}
    if others["experts"] == 1:
        others["experts"] = 0
    name = " ".join(cells.get("model", "").split())[:60]
    return Shape(name, **whole, **others, num_parameters=billions * 1e9 if billions else None)


def is_of(shape: Shape, known: ModelConfig) -> bool:
    """Return whether a row's shape may be that of a known model, with fewer layers or a longer sequence perhaps."""
    widths = (known.hidden_size, known.num_attention_heads)
    return all(stated in (None, width) for stated, width in zip((shape.hidden, shape.heads), widths, strict=True))


def adapt(shape: Shape, known: ModelConfig) -> ModelConfig:
    """Return a known model changed as the row states.

    A capacity factor of experts is a choice of a training run, which tables do not state: experts are dropless.

    Raises:
        UnreadableError: If the parameter count is neither that of the row's shape nor of the whole model.
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
    if shape.num_parameters and min(_misfit(shape, model), _misfit(shape, known)) > _OTHER_MODEL:
        billions = shape.num_parameters / 1e9, model.num_parameters / 1e9
        raise UnreadableError(
            f"params_B is {billions[0]:.3g}, {shown(shape.name)} has {billions[1]:.3g}; write one of them"
        )
    return model


def _feed_forward(shape: Shape, known: ModelConfig) -> dict[str, Any]:
    """Return the widths and experts; dense layers among those of experts have the column `ffn`."""
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
    has_groups = shape.kv_heads not in (None, shape.heads)
    return bool(shape.experts) or has_groups or _inner(shape) != 4 * (shape.hidden or 0)


def _is_tied_by_habit(low: str) -> bool:
    return re.search(r"gpt-?[23h\d]|mpt|mt-nlg|opt|bloom", low) is not None


def _inner(shape: Shape) -> int:
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
        "ffn_hidden_size": _inner(shape),
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
    """Return the width of a head where the family is known to set it apart from `hidden / heads`.

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
    """Return the model of plain data, contradictions reported by column."""
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
"""Sizes in names are rounded and may leave embeddings out: those of Gemma 2 2B differ by 0.27, in log."""
_Names = Annotated[list[str], Field(min_length=1)]


class Unsupported(Strict):
    """A model that tables name and that is not simulated."""

    names: _Names
    """As those of `Names.models`."""
    because: str
    """What it has that is not simulated."""
    source: Annotated[str, Field(min_length=8)]
    """Where the architecture is published."""


class Names(Strict):
    """Content of `config/published/models.yaml`."""

    models: dict[str, _Names]
    """Names by model of `config/models/`: words that stand in a name in this order, side by side."""
    unsupported: list[Unsupported]
    """Models that are not simulated."""
    variants: _Names
    """Words that may stand between those of a name: fine-tuning that leaves the architecture as it is."""
    others: _Names
    """Words that make any name, unless it is listed with them, that of another model."""


def find_model(name: str, config: Path) -> str | Unsupported | None:
    """Return the model of the catalogue that a name means; None for a name that is unknown or could be of two.

    Of several entries found in a name that of most words counts. A name that states another size is not of the model.

    Args:
        name: As a table has it: `Llama3-8B`, `meta-llama/Llama-3.1-8B-Instruct`.
        config: Folder of the configuration.
    """
    low = name.lower().replace("_", "-")
    hits = []
    for pattern, num_words, model in _patterns(config):
        if found := pattern.search(low):
            rest = f"{low[: found.start()]} {low[found.end() :]}"
            if not _is_other(rest, model, config):
                hits.append((num_words, model))
    most = max((num_words for num_words, _ in hits), default=0)
    best = [model for num_words, model in hits if num_words == most]
    return best[0] if best and all(model == best[0] for model in best) else None


def _is_other(rest: str, model: str | Unsupported, config: Path) -> bool:
    """Return whether what stands around the words of a model makes a name that of another one."""
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
    """Return all names of a configuration folder. Raises `UserError` if the file is missing or wrong."""
    return read(Names, config / "published" / "models.yaml")


@lru_cache(maxsize=4)
def _patterns(config: Path) -> tuple[tuple[re.Pattern[str], int, str | Unsupported], ...]:
    names = read_names(config)
    entries: list[tuple[str | Unsupported, list[str]]] = [*names.models.items()]
    entries += [(entry, entry.names) for entry in names.unsupported]
    between = "|".join(map(re.escape, names.variants))
    return tuple(
        (_pattern(words, between), len(words.split()), model) for model, spelled in entries for words in spelled
    )


def _pattern(name: str, between: str) -> re.Pattern[str]:
    """Return what finds a name's words in this order, not as part of longer words: `llama 3 8b` in `llama-3-8b-hf`.

    Args:
        name: The words.
        between: Words that may stand between them, as alternatives of a pattern.
    """
    words = name.split()
    pattern = re.escape(words[0])
    for before, word in pairwise(words):
        # Digits run together are another number: 33b is not 3 3b.
        close = r"[-.\s]+" if before[-1].isdigit() and word[0].isdigit() else r"[-.\s]*"
        pattern += rf"(?:{close}|[-\s]+(?:(?:{between})[-\s]+)+)v?{re.escape(word)}"
    return re.compile(rf"(?<![a-z0-9]){pattern}(?![a-z0-9]|\.\d)")
