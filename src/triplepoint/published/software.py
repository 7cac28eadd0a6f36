"""Words of published tables for what the software of a run does: how tokens get to experts, what is overlapped."""

import re
from collections.abc import Collection, Mapping
from typing import Any, cast, get_args

from triplepoint.config.point import Offload, Overlap
from triplepoint.config.software import RecomputeModule
from triplepoint.errors import shown
from triplepoint.published.words import Cells, UnreadableError, count, is_blank, read_recompute

COLUMNS = (
    *("attention", "launch", "recompute_modules", "fp8_recipe", "optimizer_moments", "overlap", "dispatch"),
    *("dispatch_precision", "token_nodes"),
)
"""Columns that are read here; a blank one is what the stack usually does."""

_WORDS: Mapping[str, tuple[tuple[str, str], ...]] = {
    "attention": (
        (r"flash[- _]?(attention|attn)?[- _]?v?3|\bfa[- _]?3", "flash3"),
        (r"flash[- _]?(attention|attn)?[- _]?v?2|\bfa[- _]?2|sdpa", "flash2"),
        (r"flash[- _]?(attention|attn)?[- _]?v?1|\bfa[- _]?1", "flash1"),
        (r"cudnn|transformer[- ]?engine|\bte\b", "cudnn"),
        (r"\bck\b|composable|aiter", "ck"),
        (r"unfused|eager|no flash|math", "unfused"),
    ),
    "launch": ((r"graph", "graphs"), (r"compil", "compiled"), (r"eager", "eager")),
    "fp8_recipe": (
        (r"mx-?_?(fp)?8|fp8[-_ ]?mx", "mxfp8"),
        (r"block|sub-?channel|fp8[-_ ]?sc\b|1x128", "blockwise"),
        (r"row", "rowwise"),
        (r"delayed|fp8[-_ ]?ds\b", "delayed"),
        (r"tensor|current|fp8[-_ ]?cs\b", "tensorwise"),
    ),
    "optimizer_moments": ((r"8.?bit|int8", "8bit"), (r"bf16|bfloat16|16.?bit", "bf16"), (r"fp32|float32", "fp32")),
    "dispatch": (
        (r"deep_?-?ep|hybrid_?-?ep|once", "once_per_node"),
        (r"all_?-?\s?to_?-?\s?all|\ba2a\b", "all_to_all"),
    ),
    "dispatch_precision": ((r"fp8|float8|e4m3", "fp8"), (r"bf16|bfloat16|fp16|16.?bit", "bf16")),
}
"""Patterns of a column's cells by what they mean, the first that matches."""


def read_software(cells: Cells) -> dict[str, Any]:
    """Return the settings of a run that its row states of its software.

    Raises:
        UnreadableError: If the words of a cell mean nothing here.
    """
    found: dict[str, Any] = {}
    for column, words in _WORDS.items():
        text = cells.get(column, "").strip()
        if not is_blank(text):
            found[column] = _meant(column, text, words)
    if modules := _modules(cells):
        found["recompute_modules"] = modules
    # As in `FP8-CS` and `MXFP8`.
    if "fp8_recipe" not in found and (recipe := _first(_WORDS["fp8_recipe"], cells.get("precision", ""))):
        found["fp8_recipe"] = recipe
    # As in `torchtitan + torch.compile`.
    if "launch" not in found and (launch := _first(_WORDS["launch"], cells.get("framework", ""))):
        found["launch"] = launch
    # As in `DeepEP, FP8`.
    if "dispatch_precision" not in found and re.search("fp8", cells.get("dispatch", "").lower()):
        found["dispatch_precision"] = "fp8"
    if nodes := count(cells, "token_nodes"):
        found["token_nodes"] = nodes
    return found


def _meant(column: str, text: str, words: tuple[tuple[str, str], ...]) -> str:
    if name := _first(words, text):
        return name
    names = " or ".join(dict.fromkeys(name for _, name in words))
    raise UnreadableError(f"{column} is {shown(text)}, expected {names}")


def _first(words: tuple[tuple[str, str], ...], text: str) -> str | None:
    return next((name for pattern, name in words if re.search(pattern, text.lower())), None)


_MODULES: Mapping[RecomputeModule, str] = {
    "core_attn": r"core[ _-]att(ention|n)|(dot[ -]product )?attention",
    "mla_up_proj": r"mla[ _-]up[ _-]?proj(ections?)?",
    "layernorm": r"(layer|rms)[ _-]?norms?|norms?",
    "moe_act": r"moe[ _-]act(ivations?)?|swiglu",
    "mlp": r"mlp",
    "moe": r"moe",
    "every_other": r"(per-op )?sac|every_other",
}
"""Patterns of one module's name in Megatron-LM, torchtitan and prose."""

_POLICY = re.compile(
    r"(some )?whole blocks\b.*|every (second|other) (layer|block)s?|activations cheap to recompute"
    r"|minimal(_\w+)?|save_\w+",
    re.DOTALL,
)
"""Selective recomputation of more or other than modules: of whole blocks, or policies of MaxText."""


def _is_of_policy(text: str) -> bool:
    return _POLICY.fullmatch(_inner(text)) is not None


def _inner(text: str) -> str:
    """Return what `selective` is of: `mlp` of `Selective (mlp)`, `mlp` and `Selective: mlp`."""
    return re.sub(r"^selective( recomputation)?\b[\s:(\[,]*(of )?", "", text.lower().strip()).strip(" ()[]")


def _modules(cells: Cells) -> tuple[RecomputeModule, ...]:
    """Return what selective recomputation repeats: of its own column, or as `recompute` names it."""
    text, known = cells.get("recompute_modules", ""), get_args(RecomputeModule)
    if is_blank(text):
        return _named_modules(cells.get("recompute", ""))
    words = [word for word in re.split(r"[\s,;+\[\]]+", text.lower()) if word]
    if unknown := [word for word in words if word not in known]:
        raise UnreadableError(f"recompute_modules is {shown(' '.join(unknown))}, expected some of {' '.join(known)}")
    return tuple(name for name in known if name in words)


def _named_modules(text: str) -> tuple[RecomputeModule, ...]:
    """Return the modules that a cell `recompute` names; none where it names none, or not exactly what is repeated."""
    if read_recompute(text)[0] != "selective" or is_blank(_inner(text)) or _is_of_policy(text):
        return ()
    found: set[RecomputeModule] = set()
    for word in re.split(r"\s*[,;+&]\s*|\s+and\s+", _inner(text)):
        names = [name for name, pattern in _MODULES.items() if re.fullmatch(pattern, word)]
        # As in `core_attn mlp`.
        if not names and set(word.split()) <= set(_MODULES):
            names = [name for name in _MODULES if name in word.split()]
        if not names:
            known = " ".join(get_args(RecomputeModule))
            raise UnreadableError(f"recompute is {shown(text)}, expected selective of some of {known}")
        found.update(names)
    return tuple(name for name in get_args(RecomputeModule) if name in found)


def states_recompute(cells: Cells) -> bool:
    """Return whether a row says exactly what is recomputed."""
    text = cells.get("recompute", "")
    if not is_blank(cells.get("recompute_modules", "")):
        return True
    return not is_blank(text) and not (read_recompute(text)[0] == "selective" and _is_of_policy(text))


def read_offload(cells: Cells) -> tuple[Offload, ...]:
    """Return what a row says is in the memory of the host. Raises `UnreadableError` if a word means nothing here."""
    words = [word for word in re.split(r"[\s,;+\[\]]+", cells.get("offload", "").lower()) if word]
    if is_blank(cells.get("offload", "")) or words in (["none"], ["no"], ["off"]):
        return ()
    if unknown := [word for word in words if word not in get_args(Offload)]:
        raise UnreadableError(f"offload is {shown(' '.join(unknown))}, expected none, or some of optim activations")
    return tuple(name for name in get_args(Offload) if name in words)


def read_overlap(cells: Cells, usual: Collection[Overlap]) -> frozenset[Overlap] | None:
    """Return the communication a row says is overlapped; None where it says nothing.

    Args:
        cells: The row; a framework with asynchronous tensor parallelism says so in its name.
        usual: What its stack overlaps.

    Raises:
        UnreadableError: If a word means nothing here.
    """
    text = cells.get("overlap", "").strip()
    if is_blank(text):
        is_async = re.search(r"async\w*[-_ ]?(tp|tensor)", cells.get("framework", "").lower())
        return frozenset([*usual, "tp"]) if is_async else None
    words = [word for word in re.split(r"[\s,;+\[\]]+", text.lower()) if word]
    if words in (["none"], ["no"], ["off"]):
        return frozenset()
    if unknown := [word for word in words if word not in get_args(Overlap)]:
        raise UnreadableError(f"overlap is {shown(' '.join(unknown))}, expected none, or some of grad param tp ep")
    return frozenset(cast("list[Overlap]", words))
