"""Names of models as published tables spell them: `config/published/models.yaml`."""

import math
import re
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import Annotated

from pydantic import Field

from triplepoint.config.base import Strict
from triplepoint.config.catalogue import Catalogue
from triplepoint.config.yaml_file import read

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
