"""Rows of table `whatif`: of single cases, and of the difference of two cases."""

from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from triplepoint.provenance import git_state
from triplepoint.whatif.case import QUANTITIES, Quantity
from triplepoint.whatif.explain import Explained, Parts
from triplepoint.whatif.factors import FACTORS
from triplepoint.whatif.paired import (
    Moves,
    case_moves,
    difference_moves,
    difference_parts,
    interval,
    interval_of_share,
)

Row = dict[str, Any]

_LABELS = {"interaction": "interaction", "rest": "computing", "whole": "all together"}
"""Labels in figures of parts that are not factors."""


def case_rows(explained: Explained, comparison: str | None = None, side: str | None = None) -> Iterator[Row]:
    """Yield the rows of a case: each factor, their interaction and the whole, of every quantity.

    Args:
        explained: The case with its factors changed.
        comparison: Name of the comparison; None without one.
        side: Side of the comparison, `from` or `to`.
    """
    of_case = {"comparison": comparison, "side": side, **_of(explained)}
    for quantity in _known(explained):
        found, parts = explained.shares(quantity.name), explained.parts(quantity.name)
        moves = case_moves(explained, quantity.name)
        for part in (*found.effect, "interaction", "whole"):
            yield {
                **of_case,
                **_part(explained, part),
                **_quantity(quantity, explained),
                **_scales(explained),
                "base": found.base,
                "changed": None if part == "interaction" else found.base + parts[part],
                **_change(parts, moves, part, quantity),
                "shapley": found.shapley.get(part),
                "note": explained.notes.get(part),
            }


def difference_rows(
    sides: tuple[Explained, Explained],
    config: Path,
    comparison: str | None = None,
    published: Mapping[str, tuple[int, str]] | None = None,
) -> Iterator[Row]:
    """Yield the rows of a difference, second case minus first: factors, their interaction, the rest and the whole.

    The part of a factor is its cost for the second case minus that for the first; the rest is the difference with all
    factors changed. All parts but the whole add up to the whole.

    Args:
        sides: Both cases, with the same factors.
        config: Folder of the configuration.
        comparison: Name of the comparison.
        published: By quantity, 1 or -1 for the published sign of the difference, and the claim.
    """
    one, other = sides
    first, second = _of(one), _of(other)
    names = {key: value if value == second[key] else f"{value} to {second[key]}" for key, value in first.items()}
    for quantity in _known(one):
        if quantity.name not in other.values:
            continue
        before, after = one.shares(quantity.name), other.shares(quantity.name)
        parts = difference_parts(one.parts(quantity.name), other.parts(quantity.name))
        moves = difference_moves(sides, quantity.name, config)
        sign, claim = (published or {}).get(quantity.name, (None, None))
        for part in (*before.effect, "interaction", "rest", "whole"):
            yield {
                "comparison": comparison,
                "side": "difference",
                **names,
                **_part(one, part),
                **_quantity(quantity, one),
                **_scales(one, other),
                "base": before.base,
                "changed": after.base,
                **_change(parts, moves, part, quantity),
                "shapley": before.shapley[part] - after.shapley[part] if part in before.shapley else None,
                "published_sign": sign if part == "whole" else None,
                "published": claim if part == "whole" else None,
            }


def _known(explained: Explained) -> Iterator[Quantity]:
    return (quantity for quantity in QUANTITIES if quantity.name in explained.values)


def _of(explained: Explained) -> Row:
    case = explained.case
    stack = {"stack": case.job.stack, "git_commit": git_commit()}
    return {"model": case.job.model.name, "case": case.name, "cluster": case.cluster.name, **stack}


@cache
def git_commit() -> str | None:
    """Return the commit of the project; None outside a repository."""
    return git_state(Path(__file__).parent)[0]


def _part(explained: Explained, part: str) -> Row:
    change = next((change for change in explained.changes if change.name == part), None)
    if change is None:
        return {"part": part, "factor": None, "value": None, "label": _LABELS[part], "origin": "simulated"}
    label = FACTORS[part].label
    return {"part": "factor", "factor": part, "value": change.text, "label": label, "origin": "simulated"}


def _quantity(quantity: Quantity, explained: Explained) -> Row:
    unit = explained.prices.currency if quantity.name == "cost" else quantity.unit
    return {"quantity": quantity.name, "unit": unit}


def _scales(one: Explained, other: Explained | None = None) -> Row:
    """Return what numbers of a step are multiplied with, and the prices; of a difference where both do the same."""
    per_mtoken = one.case.steps_per_mtoken
    is_same = other is None or other.case.steps_per_mtoken == per_mtoken
    scales = {"steps_per_mtoken": per_mtoken, "steps_per_day": one.steps_per_day} if is_same else {}
    return {"steps_per_mtoken": None, "steps_per_day": None} | scales | {"prices": one.prices.words or None}


def _change(parts: Parts, moves: Moves, part: str, quantity: Quantity) -> Row:
    """Return a change with its interval, and both over the base; a share of degrees Celsius means nothing."""
    low, high = interval(parts, moves, part)
    change = {"effect": parts[part], "effect_lo": low, "effect_hi": high}
    if quantity.unit == "degC" or not parts["base"]:
        return change
    share_low, share_high = interval_of_share(parts, moves, part)
    return change | {"share": parts[part] / parts["base"], "share_lo": share_low, "share_hi": share_high}
