"""Published numbers of single points and GPUs, for figures to draw beside ours; nothing is judged here."""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from triplepoint.verdicts.file import Rows, Slots
from triplepoint.verdicts.number import Number
from triplepoint.verdicts.quantities import Ordering, Row, unit_of
from triplepoint.verdicts.read import Published, read_claims
from triplepoint.verdicts.runs import Group, Runs


def published_values(config: Path, points: Iterable[Row]) -> list[dict[str, Any]]:
    """Return the rows of table `published`: what figures of the published study show of points there are rows of.

    Args:
        config: Folder of the configuration.
        points: Rows of table `points`; their status plays no part.

    Raises:
        UserError: If the claims or their figures are wrong.
    """
    published = read_claims(config)
    if published is None:
        return []
    slots = Ordering(published.content.rear_slots, published.content.front_slots)
    runs = Runs({"points": points, "gpus": (), "kernels": ()}, slots)
    return [
        row
        for claim in published.content.claims
        if isinstance(claim, Rows | Slots)
        for row in _of_claim(claim, published, runs)
    ]


def _of_claim(claim: Rows | Slots, published: Published, runs: Runs) -> Iterator[dict[str, Any]]:
    if isinstance(claim, Rows) and (claim.is_relative or "value" not in claim.judged):
        return
    if isinstance(claim, Slots) and claim.judged not in ("slot", "gap_sign"):
        return
    figure = published.figure(claim.figure)
    for cells in published.rows(claim.figure):
        number = claim.published.number(cells)
        group = runs.find(figure.settings_of(cells))
        if number is None or not group.rows:
            continue
        place: dict[str, Any] = {"node": None, "slot": None}
        if isinstance(claim, Slots):
            place["node"] = figure.whole_number(cells, claim.node) - 1
            place["slot"] = figure.whole_number(cells, claim.slot)
        yield from _rows(group, claim, figure.source, number, place)


def _rows(group: Group, claim: Rows | Slots, source: str, number: Number, place: dict[str, Any]) -> Iterator[Any]:
    for row in group.rows:
        yield {
            "run": row["run"],
            "quantity": _quantity(claim),
            "unit": unit_of(claim.quantity),
            "published": number.value,
            "published_lo": number.low,
            "published_hi": number.high,
            "source": claim.source or source,
            "claim": claim.id,
            **place,
        }


def _quantity(claim: Rows | Slots) -> str:
    """Return the name of what is published: throttling of single GPUs only over a value that is not published."""
    is_normalised = isinstance(claim, Slots) and claim.judged == "gap_sign"
    return f"{claim.quantity}_normalised" if is_normalised else claim.quantity
