"""Paired intervals: what moves a case and what it is compared with alike cancels."""

import math
from collections.abc import Iterator, Mapping
from pathlib import Path

from triplepoint.metrics import Z90
from triplepoint.simulate.predict.prediction import read_calibrations
from triplepoint.whatif.explain import Explained, Parts
from triplepoint.whatif.unknown import Unknown

Moves = Mapping[str, Parts]
"""By unknown, what it moves parts of a quantity by, of one sign for all that have it in common."""


def case_moves(explained: Explained, quantity: str) -> Moves:
    """Return by how much each unknown moves parts of a quantity of a case."""
    return {unknown.name: parts for unknown, parts in explained.moves(quantity).items()}


def difference_parts(one: Parts, other: Parts) -> dict[str, float]:
    """Return the parts of a difference, second case less first; all but `whole` and `base` add up to the whole.

    A factor's part is what it costs the second case less what it costs the first; `rest` is what is left with all
    factors changed, and `base` the first case as it is.
    """
    costs = {part: one[part] - other[part] for part in one if part not in ("whole", "rest", "base")}
    return costs | {"rest": other["rest"] - one["rest"], "whole": other["base"] - one["base"], "base": one["base"]}


def difference_moves(sides: tuple[Explained, Explained], quantity: str, config: Path) -> Moves:
    """Return by how much each unknown moves the parts of the difference of two cases."""
    one, other = (dict(_split(side, against, quantity, config)) for side, against in (sides, sides[::-1]))
    nothing = dict.fromkeys(sides[0].parts(quantity), 0.0)
    names = dict.fromkeys([*one, *other])
    return {name: difference_parts(one.get(name, nothing), other.get(name, nothing)) for name in names}


def _split(one: Explained, other: Explained, quantity: str, config: Path) -> Iterator[tuple[str, Parts]]:
    """Yield what moves a case, of computing what it has in common with another one apart from what it has not."""
    for unknown, parts in one.moves(quantity).items():
        own = _own_share(unknown, one, other, config) if unknown.kind == "computing" else 0.0
        yield unknown.name, _times(parts, math.sqrt(1.0 - own**2))
        yield f"{unknown.name} of {one.case.name}", _times(parts, own)


def _times(parts: Parts, factor: float) -> Parts:
    return {part: factor * value for part, value in parts.items()}


def _own_share(unknown: Unknown, one: Explained, other: Explained, config: Path) -> float:
    """Return the share of the width of a case's computing that it does not have in common with another case.

    Its own are what layouts differ by, what a stack differs by from one GPU type to another, and what one case was
    calibrated for and the other was not.
    """
    job, others = one.case.job, other.case.job
    if job.stack != others.stack or (one.case.serving is None) != (other.case.serving is None):
        return 1.0
    calibration = read_calibrations(config)[0]
    own = 0.0 if job.layout == others.layout else calibration.layout_scale(job)
    # Half the square for either side: the width is that of a stack between GPU types.
    gpus = calibration.fitted.widths.stack_on_gpu / math.sqrt(2) if job.gpu.name != others.gpu.name else 0.0
    wider = unknown.width**2 - max((one.width for one in other.unknowns if one.kind == "computing"), default=0.0) ** 2
    return min(max(Z90 * math.hypot(own, gpus), math.sqrt(max(wider, 0.0))) / unknown.width, 1.0)


def interval(parts: Parts, moves: Moves, part: str) -> tuple[float, float]:
    """Return the ends of the 90 % interval of a part, in the unit of the quantity."""
    width = math.hypot(*(moved[part] for moved in moves.values())) if moves else 0.0
    return parts[part] - width, parts[part] + width


def interval_of_share(parts: Parts, moves: Moves, part: str) -> tuple[float, float]:
    """Return the ends of the 90 % interval of a part over the base: what moves both alike cancels."""
    share, base = parts[part] / parts["base"], parts["base"]
    width = math.hypot(*((moved[part] - share * moved["base"]) / base for moved in moves.values())) if moves else 0.0
    return share - width, share + width
