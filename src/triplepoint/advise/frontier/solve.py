"""Time-cost trade-off of a pipeline: the clocks of least energy for a total time of its passes, as a linear program.

A pass starts when the previous pass of its stage has ended and its input has arrived. The pipeline is folded: each pass
of the first and last micro-batches (warm-up and drain) has variables of its own; the passes between (steady state)
share variables with a period. Every solution of the folded pipeline is one of the whole pipeline, so its energy is an
upper bound of the optimum.

Source:
    Phillips and Dessouky 1977 (time-cost trade-off); on pipelines: Chung et al. 2024 (Perseus), arXiv:2312.06902.
"""

from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt
from scipy.optimize import linprog
from scipy.sparse import coo_array, csr_array, hstack, vstack

from triplepoint.errors import UserError
from triplepoint.simulate.timeline.schedule import Int64, Order

Float = npt.NDArray[np.float64]
Sharing = Literal["job", "stage", "direction", "pass"]
"""Passes that share a clock: all of the job, all of a stage, those of a stage and direction, or only the repetitions of
a pass in the steady state."""

_STRAIGHT = 2e-3
"""Largest distance of a clock's cost from a straight line, over the range of the curve, at which the program omits the
clock. The solution is rounded to all available clocks."""
_ROUNDING = 1e-9
"""Relative tolerance of times."""


@dataclass(frozen=True, eq=False)
class Choices:
    """Time and energy of passes at each clock, highest clock first.

    Attributes:
        seconds: Time of a pass; shape (num_stages, num_kinds, num_chunks, num_clocks). Unit: s.
        active_j: Energy of a pass minus that of waiting for the same time; same shape. Unit: J.
        standing_w: Power of a waiting GPU; shape (num_stages, num_clocks). Unit: W.
        first: Index of the highest clock of a pass under the power limit; shape (num_stages, num_kinds, num_chunks).
    """

    seconds: Float
    active_j: Float
    standing_w: Float
    first: Int64


class _Curve(NamedTuple):
    """Clocks of a group of passes that share one, fastest first.

    Attributes:
        clocks: Indices of the clocks; shape (num_clocks,).
        seconds: Time for each kind and chunk of the stage; shape (num_rows, num_clocks). Unit: s.
        kept: Indices into `clocks` of those in the program.
        cost_j: Energy of the group at each clock; shape (num_clocks,). Unit: J.
    """

    clocks: Int64
    seconds: Float
    kept: Int64
    cost_j: Float


class Pipeline:
    """Folded passes of a schedule, and the linear program for their clocks."""

    def __init__(self, order: Order, lag_s: Float, is_blocking: bool, edge: int | None = None) -> None:
        """Fold a pipeline.

        Args:
            order: Order of the passes.
            lag_s: Time from the end of a pass to the arrival of its output; shape (num_stages, num_tasks). Unit: s.
            is_blocking: Whether a stage waits for the arrival of its output.
            edge: Micro-batches of warm-up and of drain with variables of their own. None: the number of stages.
        """
        self._order = order
        self._base, self._turn = _fold(order, order.num_stages if edge is None else edge)
        number = int(self._base.max()) + 1
        self._count = np.bincount(self._base.reshape(-1), minlength=number)
        first = np.unique(self._base.reshape(-1), return_index=True)[1]
        self._stage, place = np.divmod(first, order.num_tasks)
        self._row = (order.kind * order.num_chunks + order.chunk)[self._stage, place]
        self._rows = _precedence(order, self._base, self._turn, lag_s, is_blocking)
        self._last_lag_s = lag_s[:, -1] * is_blocking

    def solve(self, choices: Choices, sharing: Sharing, most_s: float, waiting_w: Float) -> Int64:
        """Return the index of the clock of each pass in the choices; shape (num_stages, num_tasks).

        Args:
            choices: Times and energies of passes.
            sharing: Which passes share a clock.
            most_s: Time limit of all passes. Unit: s.
            waiting_w: Power of a waiting GPU of each stage, used unless a stage has one clock, at which it also waits;
                shape (num_stages,). Unit: W.

        Raises:
            UserError: If the passes cannot end within the limit.
        """
        groups = self._groups(sharing)
        known: dict[bytes, _Curve] = {}
        curves = list[_Curve]()
        for group in groups:
            # Micro-batches of warm-up and drain have the same curve.
            key = np.concatenate([self._stage[group], self._row[group], self._count[group]]).tobytes()
            if key not in known:
                known[key] = self._curve(choices, group, sharing, most_s, waiting_w)
            curves.append(known[key])
        seconds = self._optimum(groups, curves, most_s)
        clock = np.zeros(len(self._count), dtype=np.int64)
        for group, curve in zip(groups, curves, strict=True):
            # The lowest clock at which no pass takes longer than in the solution.
            rows = self._row[group]
            fits = (curve.seconds[rows] <= seconds[group][:, None] * (1.0 + _ROUNDING)).all(axis=0)
            clock[group] = curve.clocks[max(int(fits.sum()) - 1, 0)]
        return np.asarray(clock[self._base])

    def _groups(self, sharing: Sharing) -> list[Int64]:
        """Return the groups of folded passes that share a clock."""
        number = len(self._count)
        keys = {
            "stage": self._stage,
            "direction": self._stage * (int(self._row.max()) + 1) + self._row // self._order.num_chunks,
            "pass": np.arange(number),
        }[sharing]
        by_key = np.argsort(keys, kind="stable")
        return np.split(by_key, np.flatnonzero(np.diff(keys[by_key])) + 1)

    def _curve(self, choices: Choices, group: Int64, sharing: Sharing, most_s: float, waiting_w: Float) -> _Curve:
        """Return times and energies of a group of passes at its clocks."""
        stage, rows, count = int(self._stage[group[0]]), self._row[group], self._count[group]
        num_clocks = choices.seconds.shape[-1]
        seconds, active_j = (part[stage].reshape(-1, num_clocks) for part in (choices.seconds, choices.active_j))
        begin = int(choices.first[stage].reshape(-1)[rows].max())
        total_s, cost_j = count @ seconds[rows], count @ active_j[rows]
        if sharing == "stage":
            # The stage waits at the same clock.
            cost_j = cost_j + choices.standing_w[stage] * most_s
        else:
            cost_j = cost_j + total_s * (choices.standing_w[stage] - waiting_w[stage])
        clocks = np.arange(begin, begin + int(cost_j[begin:].argmin()) + 1)
        kept = _convex(total_s[clocks], cost_j[clocks])
        return _Curve(clocks, seconds[:, clocks], kept, cost_j[clocks])

    def _optimum(self, groups: list[Int64], curves: list[_Curve], most_s: float) -> Float:
        """Return the time of each folded pass in the optimum. Unit: s."""
        number = len(self._count)
        sizes = [len(curve.kept) - 1 for curve in curves]
        offsets = 2 * number + np.concatenate([[0], np.cumsum(sizes)])
        fastest_s = np.empty(number)
        parts: list[tuple[Int64, Int64, Float]] = []
        for group, curve, offset in zip(groups, curves, offsets[:-1].tolist(), strict=True):
            at = curve.seconds[:, curve.kept][self._row[group]]
            fastest_s[group] = at[:, 0]
            step_s = np.diff(at, axis=1)
            columns = np.broadcast_to(offset + np.arange(step_s.shape[1]), step_s.shape)
            parts.append((np.repeat(group, step_s.shape[1]), columns.reshape(-1), step_s.reshape(-1)))
        owner, column, step_s = (np.concatenate(each) for each in zip(*parts, strict=True))
        slower = coo_array((step_s, (owner, column)), shape=(number, int(offsets[-1]))).tocsr()
        matrix, bound = self._constraints(slower, fastest_s, most_s)
        cost = np.concatenate([np.zeros(2 * number), *(np.diff(curve.cost_j[curve.kept]) for curve in curves)])
        bounds = np.concatenate([
            np.broadcast_to([0.0, most_s], (2 * number, 2)), np.broadcast_to([0.0, 1.0], (len(cost) - 2 * number, 2))
        ])  # fmt: skip
        solution = linprog(cost, A_ub=matrix, b_ub=bound, bounds=bounds, method="highs-ds")
        if solution.status == 2:
            raise UserError(f"the passes cannot be done in {most_s:.4g} s at any clocks")
        assert solution.status == 0, f"a bounded linear program has an optimum: {solution.message}"
        return np.asarray(fastest_s + slower @ solution.x)

    def _constraints(self, slower: csr_array, fastest_s: Float, most_s: float) -> tuple[csr_array, Float]:
        """Return matrix and bound of the constraints; columns are starts, periods, and shares of lowered clocks."""
        before, after, turn_before, turn_after, lag_s = self._rows
        number, height = len(self._count), len(before)
        row = np.arange(height)
        plan = coo_array(
            (
                np.concatenate([np.ones(height), turn_before, -np.ones(height), -turn_after]),
                (np.tile(row, 4), np.concatenate([before, number + before, after, number + after])),
            ),
            shape=(height, 2 * number),
        )
        # The last pass of each stage must end by most_s.
        order = self._order
        last, turn = self._base[:, -1], self._turn[:, -1]
        stage = np.arange(order.num_stages)
        ends = coo_array(
            (np.concatenate([np.ones(len(last)), turn]), (np.tile(stage, 2), np.concatenate([last, number + last]))),
            shape=(len(last), 2 * number),
        )
        every = np.concatenate([before, last])
        matrix = hstack([vstack([plan, ends]), slower[every, 2 * number :]])
        return matrix, np.concatenate([-lag_s, np.full(len(last), most_s) - self._last_lag_s]) - fastest_s[every]


def _fold(order: Order, edge: int) -> tuple[Int64, Int64]:
    """Return the folded pass of each task, and the number of its repetition; shape (num_stages, num_tasks)."""
    size = order.num_stages if order.num_chunks > 1 else 1
    edge = -(-edge // size) * size
    middle = order.num_microbatches - 2 * edge
    inside = order.microbatch - edge
    if middle < 2 * size:
        edge, middle, inside = order.num_microbatches, 0, order.microbatch - order.num_microbatches
    is_middle = (inside >= 0) & (inside < middle)
    place = np.where(inside < 0, order.microbatch, edge + size + inside - middle)
    place = np.where(is_middle, edge + inside % size, place)
    row = (np.arange(order.num_stages)[:, None] * 3 + order.kind) * order.num_chunks + order.chunk
    base = np.unique(row * (2 * edge + size) + place, return_inverse=True)[1].reshape(place.shape)
    return base.astype(np.int64), np.where(is_middle, inside // size, 0)


def _precedence(
    order: Order, base: Int64, turn: Int64, lag_s: Float, is_blocking: bool
) -> tuple[Int64, Int64, Int64, Int64, Float]:
    """Return the constraints on the order of folded passes: earlier and later one, their repetitions, and the lag (s).

    Of constraints between repetitions at equal distance only the first and last are needed, since starts are linear
    in the repetition.
    """
    number = np.arange(order.kind.size).reshape(order.kind.shape)
    before = [number[:, :-1].reshape(-1), order.needs[order.needs >= 0]]
    after = [number[:, 1:].reshape(-1), number[order.needs >= 0]]
    lags = lag_s.reshape(-1)
    lag = np.concatenate([lags[before[0]] * is_blocking, lags[before[1]]])
    one, other = np.concatenate(before), np.concatenate(after)
    bases, turns = base.reshape(-1), turn.reshape(-1)
    key = np.stack([bases[one], bases[other], turns[other] - turns[one]])
    which = np.unique(key, axis=1, return_inverse=True)[1].reshape(-1)
    by_turn = np.lexsort((turns[one], which))
    is_first = np.diff(which[by_turn], prepend=-1) != 0
    is_last = np.diff(which[by_turn], append=-1) != 0
    kept = by_turn[is_first | is_last]
    return bases[one][kept], bases[other][kept], turns[one][kept], turns[other][kept], lag[kept]


def _convex(seconds: Float, cost_j: Float) -> Int64:
    """Return the corners of the lower convex hull of a falling curve, thinned out, with its first and last point."""
    kept = [0]
    for point in range(1, len(seconds)):
        while len(kept) > 1 and _is_above(seconds, cost_j, kept[-2], kept[-1], point):
            kept.pop()
        kept.append(point)
    range_j = max(float(cost_j[0] - cost_j[-1]), 1e-12)
    thin = [0]
    for left, right in zip(kept[1:-1], kept[2:], strict=False):
        begin = thin[-1]
        share = (seconds[left] - seconds[begin]) / (seconds[right] - seconds[begin])
        if cost_j[begin] + share * (cost_j[right] - cost_j[begin]) - cost_j[left] > _STRAIGHT * range_j:
            thin.append(left)
    return np.array(thin + kept[-1:] if len(kept) > 1 else thin)


def _is_above(seconds: Float, cost_j: Float, left: int, middle: int, right: int) -> bool:
    """Return whether the middle of three points is on or above the line between the others."""
    width, before = seconds[right] - seconds[left], seconds[middle] - seconds[left]
    return bool((cost_j[middle] - cost_j[left]) * width >= (cost_j[right] - cost_j[left]) * before)
