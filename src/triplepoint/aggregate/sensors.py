"""Reads `results/sensors/*.json`: a card of a sensor, or a trial of what sampling costs, each."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from triplepoint.errors import UserError

Card = Mapping[str, Any]
"""A sensor card, as `triplepoint characterise` writes it."""


@dataclass(frozen=True)
class Sensors:
    """Sensor cards and trials of the sampler's cost, by file name without suffix."""

    cards: Mapping[str, Card]
    overheads: Mapping[str, Mapping[str, Mapping[str, float]]]
    """By file and training loop: number of pairs, change of step time, and its interval."""

    def card_of(self, uuid: str | None, product: str | None) -> Card | None:
        """Return the card of a GPU, or else of one of the same product, if there is one."""
        for key, wanted in (("uuid", uuid), ("product", product)):
            for card in self.cards.values():
                if wanted is not None and card.get(key) == wanted:
                    return card
        return None


NONE = Sensors({}, {})


def read_sensors(folder: Path) -> Sensors:
    """Return all cards and trials in `folder`, which need not exist.

    Raises:
        UserError: If a file is neither.
    """
    cards, overheads = {}, {}
    for path in sorted(folder.glob("*.json")):
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise UserError(f"{path}: not readable as JSON ({error}); write it again or remove it") from None
        if isinstance(content, dict) and "sensors" in content:
            cards[path.stem] = content
        elif isinstance(content, dict) and content and all(_is_trial(loop) for loop in content.values()):
            overheads[path.stem] = content
        else:
            raise UserError(
                f"{path}: neither a sensor card (triplepoint characterise) nor a trial (triplepoint overhead); "
                "remove it"
            )
    return Sensors(cards, overheads)


def _is_trial(content: Any) -> bool:
    return isinstance(content, dict) and {"num_pairs", "change", "low", "high"} <= set(content)
