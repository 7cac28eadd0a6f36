"""Paired intervals: errors that move both sides of a comparison alike cancel."""

import math
from collections.abc import Iterator, Mapping
from pathlib import Path

from triplepoint.metrics import Z90
from triplepoint.simulate.predict.prediction import read_calibrations
from triplepoint.whatif.explain import Explained, Parts
from triplepoint.whatif.unknown import Unknown

Moves = Mapping[str, Parts]
"""Change of each part of a quantity by the name of an uncertainty, with equal signs for all cases that share it."""


def case_moves(explained: Explained, quantity: str) -> Moves:
    """Return the change of each part of a quantity of a case by each uncertainty."""
    return {unknown.name: parts for unknown, parts in explained.moves(quantity).items()}


def difference_parts(one: Parts, other: Parts) -> dict[str, float]:
    """Return the parts of a difference, second case less first; all but `whole` and `base` add up to the whole.

    The part of a factor is its cost for the second case minus that for the first; `rest` is the difference with all
    factors changed, and `base` the value of the unchanged first case.
    """
    costs = {part: one[part] - other[part] for part in one if part not in ("whole", "rest", "base")}
    return costs | {"rest": other["rest"] - one["rest"], "whole": other["base"] - one["base"], "base": one["base"]}


def difference_moves(sides: tuple[Explained, Explained], quantity: str, config: Path) -> Moves:
    """Return the change of each part of the difference of two cases by each uncertainty."""
    one, other = (dict(_split(side, against, quantity, config)) for side, against in (sides, sides[::-1]))
    zeros = dict.fromkeys(sides[0].parts(quantity), 0.0)
    names = dict.fromkeys([*one, *other])
    return {name: difference_parts(one.get(name, zeros), other.get(name, zeros)) for name in names}


def _split(one: Explained, other: Explained, quantity: str, config: Path) -> Iterator[tuple[str, Parts]]:
    """Yield the changes by uncertainties of a case; that of computing in a common and an independent part."""
    for unknown, parts in one.moves(quantity).items():
        independent = _independent_share(unknown, one, other, config) if unknown.kind == "computing" else 0.0
        yield unknown.name, _times(parts, math.sqrt(1.0 - independent**2))
        yield f"{unknown.name} of {one.case.name}", _times(parts, independent)


def _times(parts: Parts, factor: float) -> Parts:
    return {part: factor * value for part, value in parts.items()}


def _independent_share(unknown: Unknown, one: Explained, other: Explained, config: Path) -> float:
    """Return the share of the uncertainty of a case's computing that is independent of that of another case.

    Independent are the errors of layouts, those of a stack between GPU types, and those that only one of the cases
    was calibrated for.
    """
    job, others = one.case.job, other.case.job
    if job.stack != others.stack or (one.case.serving is None) != (other.case.serving is None):
        return 1.0
    calibration = read_calibrations(config)[0]
    layout = 0.0 if job.layout == others.layout else calibration.layout_scale(job)
    # The width of a stack is that of the difference of two GPU types: each side has half of its square.
    gpus = calibration.fitted.widths.stack_on_gpu / math.sqrt(2) if job.gpu.name != others.gpu.name else 0.0
    wider = (
        unknown.width**2 - max((each.width for each in other.unknowns if each.kind == "computing"), default=0.0) ** 2
    )
    return min(max(Z90 * math.hypot(layout, gpus), math.sqrt(max(wider, 0.0))) / unknown.width, 1.0)


def interval(parts: Parts, moves: Moves, part: str) -> tuple[float, float]:
    """Return the ends of the 90 % interval of a part, in the unit of the quantity."""
    width = math.hypot(*(moved[part] for moved in moves.values())) if moves else 0.0
    return parts[part] - width, parts[part] + width


def interval_of_share(parts: Parts, moves: Moves, part: str) -> tuple[float, float]:
    """Return the ends of the 90 % interval of a part over the base, in which common errors cancel."""
    share, base = parts[part] / parts["base"], parts["base"]
    width = math.hypot(*((moved[part] - share * moved["base"]) / base for moved in moves.values())) if moves else 0.0
    return share - width, share + width
