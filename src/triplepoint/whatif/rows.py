"""Rows of table `whatif`, for single cases and for the difference of two cases."""

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
"""Labels of parts that are not factors, for figures."""


def case_rows(explained: Explained, comparison: str | None = None, side: str | None = None) -> Iterator[Row]:
    """Yield the rows of a case, for every quantity: each factor, their interaction and the whole.

    Args:
        explained: The case with its factors changed.
        comparison: Name of the comparison; None without one.
        side: Side of the comparison, `from` or `to`.
    """
    case_columns = {"comparison": comparison, "side": side, **_case(explained)}
    for quantity in _known(explained):
        shares, parts = explained.shares(quantity.name), explained.parts(quantity.name)
        moves = case_moves(explained, quantity.name)
        for part in (*shares.effect, "interaction", "whole"):
            yield {
                **case_columns,
                **_part(explained, part),
                **_quantity(quantity, explained),
                **_scales(explained),
                "base": shares.base,
                "changed": None if part == "interaction" else shares.base + parts[part],
                **_change(parts, moves, part, quantity),
                "shapley": shares.shapley.get(part),
                "note": explained.notes.get(part),
            }


def difference_rows(
    sides: tuple[Explained, Explained],
    config: Path,
    comparison: str | None = None,
    published: Mapping[str, tuple[int, str]] | None = None,
) -> Iterator[Row]:
    """Yield the rows of a difference, second case minus first: factors, their interaction, the rest and the whole.

    The part of a factor is its cost for the second case minus its cost for the first; the rest is the difference with
    all factors changed. The parts except `whole` add up to `whole`.

    Args:
        sides: Both cases, with the same factors.
        config: Folder of the configuration.
        comparison: Name of the comparison.
        published: Published sign of the difference, 1 or -1, and text of the claim, by quantity.
    """
    first, second = sides
    second_columns = _case(second)
    case_columns = {
        key: value if value == second_columns[key] else f"{value} to {second_columns[key]}"
        for key, value in _case(first).items()
    }
    for quantity in _known(first):
        if quantity.name not in second.values:
            continue
        before, after = first.shares(quantity.name), second.shares(quantity.name)
        parts = difference_parts(first.parts(quantity.name), second.parts(quantity.name))
        moves = difference_moves(sides, quantity.name, config)
        sign, claim = (published or {}).get(quantity.name, (None, None))
        for part in (*before.effect, "interaction", "rest", "whole"):
            yield {
                "comparison": comparison,
                "side": "difference",
                **case_columns,
                **_part(first, part),
                **_quantity(quantity, first),
                **_scales(first, second),
                "base": before.base,
                "changed": after.base,
                **_change(parts, moves, part, quantity),
                "shapley": before.shapley[part] - after.shapley[part] if part in before.shapley else None,
                "published_sign": sign if part == "whole" else None,
                "published": claim if part == "whole" else None,
            }


def _known(explained: Explained) -> Iterator[Quantity]:
    """Return the quantities that are known of a case."""
    return (quantity for quantity in QUANTITIES if quantity.name in explained.values)


def _case(explained: Explained) -> Row:
    """Return the columns that identify a case."""
    case = explained.case
    stack = {"stack": case.job.stack, "git_commit": git_commit()}
    return {"model": case.job.model.name, "case": case.name, "cluster": case.cluster.name, **stack}


@cache
def git_commit() -> str | None:
    """Return the commit of the project; None outside a repository."""
    return git_state(Path(__file__).parent)[0]


def _part(explained: Explained, part: str) -> Row:
    """Return the columns that identify a part."""
    change = next((change for change in explained.changes if change.name == part), None)
    if change is None:
        return {"part": part, "factor": None, "value": None, "label": _LABELS[part], "origin": "simulated"}
    label = FACTORS[part].label
    return {"part": "factor", "factor": part, "value": change.text, "label": label, "origin": "simulated"}


def _quantity(quantity: Quantity, explained: Explained) -> Row:
    unit = explained.prices.currency if quantity.name == "cost" else quantity.unit
    return {"quantity": quantity.name, "unit": unit}


def _scales(explained: Explained, second: Explained | None = None) -> Row:
    """Return steps per million tokens, steps per day, and prices.

    Both numbers of steps are None for a difference of cases whose steps have different numbers of tokens.
    """
    per_mtoken = explained.case.steps_per_mtoken
    is_same = second is None or second.case.steps_per_mtoken == per_mtoken
    scales = {"steps_per_mtoken": per_mtoken, "steps_per_day": explained.steps_per_day} if is_same else {}
    return {"steps_per_mtoken": None, "steps_per_day": None} | scales | {"prices": explained.prices.words or None}


def _change(parts: Parts, moves: Moves, part: str, quantity: Quantity) -> Row:
    """Return a change with its interval, absolute and relative to the base; of temperatures only absolute."""
    low, high = interval(parts, moves, part)
    change = {"effect": parts[part], "effect_lo": low, "effect_hi": high}
    if quantity.unit == "degC" or not parts["base"]:
        return change
    share_low, share_high = interval_of_share(parts, moves, part)
    return change | {"share": parts[part] / parts["base"], "share_lo": share_low, "share_hi": share_high}
