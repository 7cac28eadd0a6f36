"""Architectures known by name: `config/architectures/*.yaml`."""

import re
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from triplepoint.config.base import Strict
from triplepoint.config.model import ModelConfig
from triplepoint.config.yaml_file import read
from triplepoint.errors import UserError

_ABOUT = ("names", "source", "billion", "unsupported")


class Families(Strict):
    """What one file holds: members, and what they share unless they say otherwise."""

    common: dict[str, Any] = {}
    """Keys of a model that members have."""
    members: Annotated[list[dict[str, Any]], Field(min_length=1)]
    """Keys of a model, `names`, `source`, and `billion` parameters as published; or `unsupported`: what is missing."""


@dataclass(frozen=True, eq=False)
class Known:
    """One architecture.

    Attributes:
        names: Words a name holds, in this order, whatever separates them.
        source: Where it is published.
        model: The model; None where it is not simulated.
        billion: Parameters as published, in billions.
        unsupported: Why it is not simulated.
    """

    names: tuple[str, ...]
    source: str
    model: ModelConfig | None = None
    billion: float = 0.0
    unsupported: str = ""


def find_known(name: str, config: Path) -> Known | None:
    """Return the architecture a name means, the one whose words are most; None for a name that is not known.

    Args:
        name: As a table has it: `Llama3-8B`, `meta-llama/Llama-3.1-8B-Instruct`.
        config: Folder of the configuration.
    """
    low = name.lower().replace("_", "-")
    hits = [(len(word), known) for pattern, word, known in _patterns(config) if pattern.search(low)]
    return max(hits, key=lambda hit: hit[0])[1] if hits else None


@lru_cache(maxsize=4)
def read_known(config: Path) -> tuple[Known, ...]:
    """Return all architectures of a configuration folder.

    Raises:
        UserError: If a file is wrong.
    """
    return tuple(_known(path, file, entry) for path, file in _files(config) for entry in file.members)


def _files(config: Path) -> list[tuple[Path, Families]]:
    return [(path, read(Families, path)) for path in sorted((config / "architectures").glob("*.yaml"))]


def _known(path: Path, file: Families, entry: dict[str, Any]) -> Known:
    names, source = tuple(entry.get("names", ())), str(entry.get("source", ""))
    if not names or not source:
        raise UserError(f"{path}: a member without names or source: {entry}; set both")
    if "unsupported" in entry:
        return Known(names, source, unsupported=str(entry["unsupported"]))
    keys = file.common | {key: value for key, value in entry.items() if key not in _ABOUT}
    try:
        model = ModelConfig.model_validate({"name": names[0].replace(" ", "-"), "source": source.ljust(8)} | keys)
    except ValueError as error:
        raise UserError(f"{path}: {names[0]}: {' '.join(str(error).split())}") from None
    return Known(names, source, model, float(entry.get("billion", 0.0)))


@lru_cache(maxsize=4)
def _patterns(config: Path) -> tuple[tuple[re.Pattern[str], str, Known], ...]:
    return tuple((_pattern(name), name, known) for known in read_known(config) for name in known.names)


def _pattern(name: str) -> re.Pattern[str]:
    """Return what finds a name's words in this order, not as part of longer words: `llama 3 8b` in `llama-3-8b-hf`."""
    words = name.split()
    found = re.escape(words[0])
    for before, word in pairwise(words):
        # Digits run together are another number: 33b is not 3 3b.
        found += (r"[-.\s]+v?" if before[-1].isdigit() and word[0].isdigit() else r"[-.\s]*v?") + re.escape(word)
    return re.compile(rf"(?<![a-z0-9]){found}(?![a-z0-9]|\.\d)")
