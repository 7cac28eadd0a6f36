"""Settings of the software in published rows: attention kernels, dispatch of tokens, recomputed modules, overlap."""

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
"""Columns of software settings. A blank one has the usual setting of the stack."""

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
"""Patterns of the cells of a column with their meaning. The first match counts."""


def read_software(cells: Cells) -> dict[str, Any]:
    """Return the software settings that a row states, by name.

    Raises:
        UnreadableError: If a cell has no known meaning.
    """
    settings: dict[str, Any] = {}
    for column, patterns in _WORDS.items():
        text = cells.get(column, "").strip()
        if not is_blank(text):
            settings[column] = _setting(column, text, patterns)
    if modules := _modules(cells):
        settings["recompute_modules"] = modules
    # As in `FP8-CS` and `MXFP8`.
    if "fp8_recipe" not in settings and (recipe := _first_match(_WORDS["fp8_recipe"], cells.get("precision", ""))):
        settings["fp8_recipe"] = recipe
    # As in `torchtitan + torch.compile`.
    if "launch" not in settings and (launch := _first_match(_WORDS["launch"], cells.get("framework", ""))):
        settings["launch"] = launch
    # As in `DeepEP, FP8`.
    if "dispatch_precision" not in settings and re.search("fp8", cells.get("dispatch", "").lower()):
        settings["dispatch_precision"] = "fp8"
    if nodes := count(cells, "token_nodes"):
        settings["token_nodes"] = nodes
    return settings


def _setting(column: str, text: str, patterns: tuple[tuple[str, str], ...]) -> str:
    if name := _first_match(patterns, text):
        return name
    names = " or ".join(dict.fromkeys(name for _, name in patterns))
    raise UnreadableError(f"{column} is {shown(text)}, expected {names}")


def _first_match(patterns: tuple[tuple[str, str], ...], text: str) -> str | None:
    return next((name for pattern, name in patterns if re.search(pattern, text.lower())), None)


_MODULES: Mapping[RecomputeModule, str] = {
    "core_attn": r"core[ _-]att(ention|n)|(dot[ -]product )?attention",
    "mla_up_proj": r"mla[ _-]up[ _-]?proj(ections?)?",
    "layernorm": r"(layer|rms)[ _-]?norms?|norms?",
    "moe_act": r"moe[ _-]act(ivations?)?|swiglu",
    "mlp": r"mlp",
    "moe": r"moe",
    "every_other": r"(per-op )?sac|every_other",
}
"""Patterns of module names in Megatron-LM, torchtitan and prose."""

_POLICY = re.compile(
    r"(some )?whole blocks\b.*|every (second|other) (layer|block)s?|activations cheap to recompute"
    r"|minimal(_\w+)?|save_\w+",
    re.DOTALL,
)
"""Selective recomputation by a policy instead of modules, such as whole blocks or the policies of MaxText."""


def _is_policy(text: str) -> bool:
    return _POLICY.fullmatch(_recomputed(text)) is not None


def _recomputed(text: str) -> str:
    """Return the recomputed modules of a cell without `selective`: `mlp` of `Selective (mlp)` and `Selective: mlp`."""
    return re.sub(r"^selective( recomputation)?\b[\s:(\[,]*(of )?", "", text.lower().strip()).strip(" ()[]")


def _modules(cells: Cells) -> tuple[RecomputeModule, ...]:
    """Return the modules that selective recomputation repeats, from `recompute_modules` or `recompute`."""
    text, known = cells.get("recompute_modules", ""), get_args(RecomputeModule)
    if is_blank(text):
        return _modules_in_recompute(cells.get("recompute", ""))
    words = _words(text)
    if unknown := [word for word in words if word not in known]:
        raise UnreadableError(f"recompute_modules is {shown(' '.join(unknown))}, expected some of {' '.join(known)}")
    return tuple(name for name in known if name in words)


def _modules_in_recompute(text: str) -> tuple[RecomputeModule, ...]:
    """Return the modules that a cell `recompute` names; empty where it names none, or a policy."""
    if read_recompute(text)[0] != "selective" or is_blank(_recomputed(text)) or _is_policy(text):
        return ()
    modules: set[RecomputeModule] = set()
    for word in re.split(r"\s*[,;+&]\s*|\s+and\s+", _recomputed(text)):
        names = [name for name, pattern in _MODULES.items() if re.fullmatch(pattern, word)]
        # As in `core_attn mlp`.
        if not names and set(word.split()) <= set(_MODULES):
            names = [name for name in _MODULES if name in word.split()]
        if not names:
            known = " ".join(get_args(RecomputeModule))
            raise UnreadableError(f"recompute is {shown(text)}, expected selective of some of {known}")
        modules.update(names)
    return tuple(name for name in get_args(RecomputeModule) if name in modules)


def _words(text: str) -> list[str]:
    """Return the words of a cell in lower case, without separators and brackets."""
    return [word for word in re.split(r"[\s,;+\[\]]+", text.lower()) if word]


def states_recompute(cells: Cells) -> bool:
    """Return whether a row states exactly what is recomputed."""
    text = cells.get("recompute", "")
    if not is_blank(cells.get("recompute_modules", "")):
        return True
    return not is_blank(text) and not (read_recompute(text)[0] == "selective" and _is_policy(text))


def read_offload(cells: Cells) -> tuple[Offload, ...]:
    """Return the state that a row keeps in host memory. Raises `UnreadableError` on an unknown word."""
    words = _words(cells.get("offload", ""))
    if is_blank(cells.get("offload", "")) or words in (["none"], ["no"], ["off"]):
        return ()
    if unknown := [word for word in words if word not in get_args(Offload)]:
        raise UnreadableError(f"offload is {shown(' '.join(unknown))}, expected none, or some of optim activations")
    return tuple(name for name in get_args(Offload) if name in words)


def read_overlap(cells: Cells, usual: Collection[Overlap]) -> frozenset[Overlap] | None:
    """Return the communication that a row states as overlapped; None where it states nothing.

    Args:
        cells: Text by column. The name of a framework may state asynchronous tensor parallelism.
        usual: Communication that the stack overlaps.

    Raises:
        UnreadableError: If the cell has an unknown word.
    """
    text = cells.get("overlap", "").strip()
    if is_blank(text):
        is_async = re.search(r"async\w*[-_ ]?(tp|tensor)", cells.get("framework", "").lower())
        return frozenset([*usual, "tp"]) if is_async else None
    words = _words(text)
    if words in (["none"], ["no"], ["off"]):
        return frozenset()
    if unknown := [word for word in words if word not in get_args(Overlap)]:
        raise UnreadableError(f"overlap is {shown(' '.join(unknown))}, expected none, or some of grad param tp ep")
    return frozenset(cast("list[Overlap]", words))
