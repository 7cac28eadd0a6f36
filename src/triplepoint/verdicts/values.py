"""Published numbers of single points and GPUs, for figures to draw next to ours."""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from triplepoint.verdicts.file import FigureClaim, SlotClaim
from triplepoint.verdicts.quantities import Ordering, Row, unit_of
from triplepoint.verdicts.read import Published, read_claims
from triplepoint.verdicts.runs import Runs


def published_values(config: Path, points: Iterable[Row]) -> list[dict[str, Any]]:
    """Return the rows of table `published`: the published numbers of points in the results.

    Args:
        config: Folder of the configuration.
        points: Rows of table `points` of any status.

    Raises:
        UserError: If the claims or their figures are invalid.
    """
    published = read_claims(config)
    if published is None:
        return []
    slots = Ordering(published.content.rear_slots, published.content.front_slots)
    runs = Runs({"points": points, "gpus": (), "kernels": ()}, slots)
    return [
        row
        for claim in published.content.claims
        if isinstance(claim, FigureClaim | SlotClaim)
        for row in _rows_of_claim(claim, published, runs)
    ]


def _rows_of_claim(claim: FigureClaim | SlotClaim, published: Published, runs: Runs) -> Iterator[dict[str, Any]]:
    """Yield the rows of a claim whose published numbers are absolute values."""
    if isinstance(claim, FigureClaim) and (claim.is_relative or "value" not in claim.judged):
        return
    if isinstance(claim, SlotClaim) and claim.judged not in ("slot", "gap_sign"):
        return
    figure = published.figure(claim.figure)
    for cells in published.rows(claim.figure):
        number = claim.published.number(cells)
        group = runs.find(figure.settings_of(cells))
        if number is None or not group.rows:
            continue
        node, slot = (
            (figure.whole_number(cells, claim.node) - 1, figure.whole_number(cells, claim.slot))
            if isinstance(claim, SlotClaim)
            else (None, None)
        )
        for row in group.rows:
            yield {
                "run": row["run"],
                "quantity": _quantity(claim),
                "unit": unit_of(claim.quantity),
                "published": number.value,
                "published_lo": number.low,
                "published_hi": number.high,
                "source": claim.source or figure.source,
                "claim": claim.id,
                "node": node,
                "slot": slot,
            }


def _quantity(claim: FigureClaim | SlotClaim) -> str:
    """Return the name of the published quantity. Throttling by GPU is published over an unpublished value only."""
    is_normalised = isinstance(claim, SlotClaim) and claim.judged == "gap_sign"
    return f"{claim.quantity}_normalised" if is_normalised else claim.quantity
