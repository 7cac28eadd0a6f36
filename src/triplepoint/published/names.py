"""Names of models as published tables spell them: `config/published/models.yaml`."""

import re
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import Annotated

from pydantic import Field

from triplepoint.config.base import Strict
from triplepoint.config.yaml_file import read

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
    """Names by model of `config/models/`: words that a name holds in this order, whatever stands between them."""
    unsupported: list[Unsupported]
    """Models that are not simulated."""


def find_model(name: str, config: Path) -> str | Unsupported | None:
    """Return the model of the catalogue that a name means, the one of most words; None for an unknown name.

    Args:
        name: As a table has it: `Llama3-8B`, `meta-llama/Llama-3.1-8B-Instruct`.
        config: Folder of the configuration.
    """
    low = name.lower().replace("_", "-")
    hits = [(len(words), model) for pattern, words, model in _patterns(config) if pattern.search(low)]
    return max(hits, key=lambda hit: hit[0])[1] if hits else None


@lru_cache(maxsize=4)
def read_names(config: Path) -> Names:
    """Return all names of a configuration folder. Raises `UserError` if the file is missing or wrong."""
    return read(Names, config / "published" / "models.yaml")


@lru_cache(maxsize=4)
def _patterns(config: Path) -> tuple[tuple[re.Pattern[str], str, str | Unsupported], ...]:
    names = read_names(config)
    entries: list[tuple[str | Unsupported, list[str]]] = [*names.models.items()]
    entries += [(entry, entry.names) for entry in names.unsupported]
    return tuple((_pattern(words), words, model) for model, spelled in entries for words in spelled)


def _pattern(name: str) -> re.Pattern[str]:
    """Return what finds a name's words in this order, not as part of longer words: `llama 3 8b` in `llama-3-8b-hf`."""
    words = name.split()
    pattern = re.escape(words[0])
    for before, word in pairwise(words):
        # Digits run together are another number: 33b is not 3 3b.
        pattern += (r"[-.\s]+v?" if before[-1].isdigit() and word[0].isdigit() else r"[-.\s]*v?") + re.escape(word)
    return re.compile(rf"(?<![a-z0-9]){pattern}(?![a-z0-9]|\.\d)")
