"""The rank whose own work changed most from one side to the other, where ranks differ.

Own work is the time in which a rank does not wait in communication: what one rank takes longer, others wait for. Of
means over ranks, one late rank would be two lines: its lateness, and the wait of the others.
"""

from dataclasses import dataclass

import numpy as np

from triplepoint.compare.sides import Side
from triplepoint.metrics import robust_sigma

_LEAST_SHARE = 0.05
"""Share of the first step by which a rank must have changed more than the others. Our choice."""
_LEAST_SIGMAS, _LEAST_SIGMA = 3.5, 0.002
"""Robust standard deviations beyond the median from which a rank stands out, and the least standard deviation as a
share of the step: ranks that do the same differ by as much.
Source of the first: Iglewicz and Hoaglin 1993, How to Detect and Handle Outliers, chapter 3."""
_LEAST_PAIR_SHARE = 0.1
"""The same of two ranks, where no others say how much is usual. Our choice."""


@dataclass(frozen=True)
class RankChange:
    """The rank that changed most.

    Attributes:
        rank: Global rank.
        change_s: Change of its own work, the other side less the first. Unit: s.
        others_s: The same of the other ranks, median. Unit: s.
    """

    rank: int
    change_s: float
    others_s: float


def find_changed_rank(first: Side, other: Side) -> RankChange | None:
    """Return the rank that changed more than the others; None where none did, or ranks of both do other work."""
    if first.traced is None or other.traced is None or len(first.runs) > 1 or len(other.runs) > 1:
        return None
    points = [side.runs[0].planned.point for side in (first, other) if side.runs]
    one, two = first.traced.own_s, other.traced.own_s
    if len(one) < 2 or set(one) != set(two) or (len(points) == 2 and points[0].layout != points[1].layout):
        return None
    ranks = sorted(one)
    changes = np.array([two[rank] - one[rank] for rank in ranks])
    apart = [abs(changes[at] - np.median(np.delete(changes, at))) for at in range(len(ranks))]
    # Of two ranks both are as far from the other: the one that changed is meant.
    most = max(range(len(ranks)), key=lambda at: (round(apart[at], 9), abs(changes[at])))
    step_s = first.traced.step_s
    least = _LEAST_PAIR_SHARE if len(ranks) == 2 else _LEAST_SHARE
    if apart[most] < least * step_s:
        return None
    sigma_s = max(robust_sigma(changes), _LEAST_SIGMA * step_s)
    if len(ranks) > 2 and abs(changes[most] - np.median(changes)) <= _LEAST_SIGMAS * sigma_s:
        return None
    return RankChange(ranks[most], float(changes[most]), float(np.median(np.delete(changes, most))))
