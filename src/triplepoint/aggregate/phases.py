"""Energy of the phases of a step: forward, backward, optimizer, exposed communication, copies, and idle time.

An energy counter is updated every 100 ms, too seldom to be read at phase boundaries. So the energy between two updates
is modelled as the sum over phases of the time in the phase times the power of the phase. All updates give an
overdetermined system of linear equations for these powers. The energy between two updates is then divided in
proportion, so that it adds up. The times in phases come from the rank's profiled step, scaled to each measured step;
power never does.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from triplepoint.power_sensor import EnergyCounter

_PRIOR_SIGMA = 0.5
"""Prior standard deviation of a phase's power around the mean, as a share of the mean (assumed)."""
_LEAST_POWER = 0.01
"""Lowest power of a phase, as a share of the mean, so that none is negative."""
_MOST_POWER = 1.1
"""Highest power of a phase, as a share of the power limit, which only limits means over control periods (assumed)."""
_ROUNDS = 4
"""Iterations of the variance estimate."""
_PARTS = 8
"""Parts of a step that are left out one by one in the jackknife."""
TIMING_S = 1e-3
"""Best accuracy of the times of counter updates. Unit: s."""


class Fit(NamedTuple):
    """Fitted powers.

    Attributes:
        power_w: Power of each level. Shape (..., num_levels). Unit: W.
        error_w: Standard error of each power. Shape (..., num_levels). Unit: W.
        residual_j: Root of the sum of squared residuals. Shape (...). Unit: J.
    """

    power_w: np.ndarray
    error_w: np.ndarray
    residual_j: np.ndarray


def fit_with_jackknife(
    time_s: np.ndarray, energy_j: np.ndarray, mean_w: float, position: np.ndarray, power_limit_w: float = math.inf
) -> Fit:
    """Fit the power of each level, with standard errors that include changes of power within a level.

    Errors of the model repeat in every step, so more steps do not reduce them, and the residuals of `fit` underestimate
    them. The jackknife shows them: how much the powers change when a part of every step is left out. The scatter is
    increased to match, and further until all powers are physically possible.

    Args:
        time_s: Time in each level between updates, see `fit`.
        energy_j: Energy between updates, see `fit`.
        mean_w: Mean power, see `fit`.
        position: Position of each update interval in its step, 0 to 1. Shape (num_intervals,).
        power_limit_w: Power limit of the GPU. Unit: W.
    """
    whole = fit(time_s, energy_j, mean_w)
    part = np.minimum((position * _PARTS).astype(int), _PARTS - 1)
    is_kept = part != np.unique(part)[:, None]
    partial = fit(time_s, energy_j, mean_w, is_used=is_kept).power_w
    jackknife_w = np.sqrt((len(partial) - 1) * np.var(partial, axis=0))
    scatter = max(1.0, float((jackknife_w / whole.error_w).max()))
    low_w, high_w = _LEAST_POWER * mean_w, max(_MOST_POWER * power_limit_w, mean_w)
    fitted = fit(time_s, energy_j, mean_w, scatter)
    while not (fitted.power_w >= low_w).all() or not (fitted.power_w <= high_w).all():
        scatter *= 2
        fitted = fit(time_s, energy_j, mean_w, scatter)
    return fitted


def fit(
    time_s: np.ndarray,
    energy_j: np.ndarray,
    mean_w: float,
    scatter: float = 1.0,
    is_used: np.ndarray | None = None,
) -> Fit:
    """Fit the power of each level by least squares with a prior around the mean power.

    Leading dimensions are fits of their own.

    Args:
        time_s: Time in each level between counter updates. Shape (..., num_intervals, num_levels). Unit: s.
        energy_j: Energy between the updates. Shape (num_intervals,). Unit: J.
        mean_w: Mean power. Unit: W.
        scatter: Factor on the standard deviation of the residuals.
        is_used: Which intervals each fit uses. Shape (..., num_intervals). None: all.
    """
    used = np.ones(time_s.shape[:-1]) if is_used is None else is_used.astype(float)
    time_s, energy_j, num_used = time_s * used[..., None], energy_j * used, used.sum(axis=-1)
    prior = np.eye(time_s.shape[-1]) / (_PRIOR_SIGMA * mean_w) ** 2
    excess_j = energy_j - time_s.sum(axis=-1) * mean_w
    normal, moments = time_s.mT @ time_s, np.vecmat(excess_j, time_s)
    least_variance = (TIMING_S * mean_w) ** 2
    variance = np.maximum(least_variance, (excess_j**2).sum(axis=-1) / np.maximum(num_used, 1.0))
    for _ in range(_ROUNDS):
        covariance = np.linalg.inv(normal / variance[..., None, None] + prior)
        power_w = mean_w + np.matvec(covariance, moments) / variance[..., None]
        sum_of_squares = ((energy_j - np.matvec(time_s, power_w)) ** 2).sum(axis=-1)
        # Both matrices are symmetric, so this is the trace of their product.
        num_free = num_used - (covariance * normal).sum(axis=(-2, -1)) / variance
        better = np.maximum(least_variance, scatter**2 * sum_of_squares / np.maximum(num_free, 1.0))
        variance = np.where(num_free > 1, better, variance)
    return Fit(power_w, np.sqrt(np.diagonal(covariance, axis1=-2, axis2=-1)), np.sqrt(sum_of_squares))


Cell = tuple[str, str]
"""Phase and category, as in table `phases`."""

PHASES = ("forward", "backward", "optimizer", "other")
CATEGORIES = ("compute", "comm", "memory", "idle")
CELLS: tuple[Cell, ...] = tuple((phase, category) for phase in PHASES for category in CATEGORIES)
_LEVELS = (*(f"compute in {phase}" for phase in PHASES), "comm", "memory", "idle", "between steps")
"""Levels of power that are fitted: computation in each phase, and every other category over all phases."""
_LEVEL_OF = [
    PHASES.index(phase) if category == "compute" else len(PHASES) + CATEGORIES[1:].index(category)
    for phase, category in CELLS
] + [len(_LEVELS) - 1]
"""Index of the level of each of `CELLS`, and of the time between steps."""
_PIECES = 2000
"""Pieces of a step in a `Pattern`; the timeline has about this resolution."""
_UNSEEN = 1e-3
"""Share of a piece that a cell may have without being visible in the timeline."""
_MOST_ITERATIONS = 200
_TINY = 1e-300
"""Replaces zero in denominators."""
_TOLERANCE = 1e-3
"""Largest relative error of the time in a cell after proportional fitting."""
_SHIFTS = 10
"""Number of time shifts tried in each direction, in each round of `_best_shift_s`."""


@dataclass(frozen=True)
class Pattern:
    """Activity of a rank over a step, whose length is 1."""

    borders: np.ndarray
    """Borders of the pieces, ascending from 0 to 1. Shape (num_pieces + 1,)."""
    shares: np.ndarray
    """Time of each piece in each of `CELLS`; a row adds up to the piece. Shape (num_pieces, num_cells)."""

    def by_level(self) -> "Pattern":
        """Return the pattern with a column for each of `_LEVELS` but the last, which is outside of steps."""
        return Pattern(self.borders, _by_level(self.shares, len(_LEVELS) - 1))


@dataclass(frozen=True)
class PhaseEnergy:
    """Energy of one GPU in one cell."""

    energy_j: float
    """Energy per measured step. Unit: J."""
    power_w: float
    """Power while in the cell. Unit: W."""
    error_w: float
    """Standard error of the power; half the mean power if the samples do not determine it. Unit: W."""


class Spans(NamedTuple):
    """Spans of table `timeline`; every array has shape (num_spans,).

    Attributes:
        start_ns: Start since the beginning of the step. Unit: ns.
        end_ns: End since the beginning of the step. Unit: ns.
        category: Index into `CATEGORIES`; -1 for spans of the phase lane.
        phase: Index into `PHASES` for spans of the phase lane, the last for unknown labels; -1 for other spans.
    """

    start_ns: np.ndarray
    end_ns: np.ndarray
    category: np.ndarray
    phase: np.ndarray


def read_spans(timeline: pa.Table) -> Spans:
    """Return the rows of table `timeline` as spans."""
    (lane, lanes), (label, labels) = (_encoded(timeline[name]) for name in ("lane", "label"))
    category_of = [CATEGORIES.index(name) if name in CATEGORIES else -1 for name in lanes]
    # `backward_weight` counts as backward
    stems = [name.partition("_")[0] for name in labels]
    phase_of = [PHASES.index(stem) if stem in PHASES else len(PHASES) - 1 for stem in stems]
    category = np.array([*category_of, -1])[lane]
    start_ns = timeline["t_start_ns"].to_numpy()
    end_ns = start_ns + timeline["duration_ns"].to_numpy()
    return Spans(start_ns, end_ns, category, np.where(category < 0, np.array([*phase_of, -1])[label], -1))


def _encoded(column: pa.ChunkedArray) -> tuple[np.ndarray, list[str]]:
    """Return a column of text as indices, and the distinct texts."""
    encoded = column.combine_chunks().dictionary_encode()
    return encoded.indices.to_numpy(), encoded.dictionary.to_pylist()


def read_pattern(spans: Spans, step_ns: float, exposed_s: Mapping[Cell, float]) -> Pattern:
    """Return the activity pattern of a rank from its profiled step.

    The thinned timeline has a resolution of about a thousandth of the step and does not show overlapped work. The total
    time in each cell is known exactly. So the shares of the pieces are fitted to both.

    Args:
        spans: Spans of the rank.
        step_ns: Length of the profiled step. Unit: ns.
        exposed_s: Time of a step in each cell; missing cells have none. Unit: s.
    """
    borders = np.linspace(0.0, 1.0, _PIECES + 1)
    start, end = (np.clip(times / step_ns, 0.0, 1.0) for times in (spans.start_ns, spans.end_ns))

    def coverage(is_chosen: np.ndarray) -> np.ndarray:
        """Return the share of each piece that the chosen spans cover."""
        covered = np.diff(_covered(borders, start[is_chosen], end[is_chosen]))
        return np.asarray(np.minimum(covered * _PIECES, 1.0))

    busy = np.stack([coverage(spans.category == index) for index in range(len(CATEGORIES) - 1)])
    in_phase = np.stack([coverage(spans.phase == index) for index in range(len(PHASES) - 1)])
    category = np.vstack([busy, np.maximum(1 - busy.sum(axis=0), 0.0)])
    phase = np.vstack([in_phase, np.maximum(1 - in_phase.sum(axis=0), 0.0)])
    initial = (phase[:, None] * category[None]).reshape(len(CELLS), _PIECES).T + _UNSEEN
    total = np.array([exposed_s.get(cell, 0.0) for cell in CELLS])
    return Pattern(borders, _fit_proportionally(initial, total / total.sum()))


def _covered(at: np.ndarray, start: np.ndarray, end: np.ndarray) -> np.ndarray:
    """Return the cumulative time that spans cover up to given times; overlapping spans count twice."""
    starts, ends = np.sort(start), np.sort(end)
    num_started, num_ended = np.searchsorted(starts, at, "right"), np.searchsorted(ends, at, "right")
    sums = [np.concatenate([[0.0], np.cumsum(times)]) for times in (starts, ends)]
    return np.asarray(num_started * at - sums[0][num_started] - (num_ended * at - sums[1][num_ended]))


def _fit_proportionally(initial: np.ndarray, total: np.ndarray) -> np.ndarray:
    """Return shares near the initial ones that add up over pieces and over cells (iterative proportional fitting)."""
    shares = initial * (total > 0)
    for _ in range(_MOST_ITERATIONS):
        factor = total / np.maximum(shares.sum(axis=0), _TINY)
        if np.abs(factor[total > 0] - 1).max() < _TOLERANCE:
            break
        shares *= factor
        shares *= (1 / _PIECES) / np.maximum(shares.sum(axis=1), _TINY)[:, None]
    return shares


def phase_energy(
    counter: EnergyCounter, windows_s: np.ndarray, pattern: Pattern, power_limit_w: float = math.inf
) -> dict[Cell, PhaseEnergy]:
    """Return energy and power of each cell with a time above 0; the energies add up to that of the steps.

    Args:
        counter: Energy counter of the GPU, with updates before and after all steps.
        windows_s: Start and end of each measured step, in order. Shape (num_steps, 2). Unit: s.
        pattern: Activity of the rank over a step.
        power_limit_w: Power limit of the GPU. Unit: W.
    """
    updates_s, energy_j = _updates_around(counter, windows_s[0, 0], windows_s[-1, 1])
    mean_w = float(energy_j.sum() / np.diff(updates_s).sum())
    cumulative = _CumulativeTime(windows_s, pattern)
    of_levels = _CumulativeTime(windows_s, pattern.by_level())

    def intervals(cumulative: _CumulativeTime, shift_s: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the time in each column between updates, and whether an update interval is within the steps."""
        shifted_s = updates_s + shift_s[..., None]
        is_inside = (shifted_s[..., :-1] >= windows_s[0, 0]) & (shifted_s[..., 1:] <= windows_s[-1, 1])
        return np.diff(cumulative.until(shifted_s), axis=-2), is_inside

    def residuals_j(shifts_s: np.ndarray) -> np.ndarray:
        time_s, is_inside = intervals(of_levels, shifts_s)
        return fit(time_s, energy_j, mean_w, is_used=is_inside).residual_j

    shift_s = _best_shift_s(residuals_j, counter.slack_s)
    time_s, is_inside = intervals(cumulative, np.asarray(shift_s))
    position = cumulative.position((updates_s[:-1] + updates_s[1:]) / 2 + shift_s)[is_inside]
    power_w, error_w, _ = fit_with_jackknife(
        _by_level(time_s[is_inside]), energy_j[is_inside], mean_w, position, power_limit_w
    )
    # The first and last update are outside of the steps; the counter gives the energy of the steps alone.
    total_j = float(np.diff(counter.at(windows_s), axis=1).sum())
    cell_j, cell_s = _divide(energy_j, time_s * power_w[_LEVEL_OF], total_j), time_s.sum(axis=0)
    return {
        cell: PhaseEnergy(
            float(cell_j[index]) / len(windows_s),
            float(cell_j[index] / cell_s[index]),
            float(error_w[_LEVEL_OF[index]]),
        )
        for index, cell in enumerate(CELLS)
        if cell_s[index] > 0
    }


def _divide(energy_j: np.ndarray, modelled_j: np.ndarray, total_j: float) -> np.ndarray:
    """Return the energy of each cell: the energy between updates divided as modelled, then scaled to the total."""
    cell_j = (modelled_j * (energy_j / modelled_j.sum(axis=1))[:, None])[:, : len(CELLS)].sum(axis=0)
    return np.asarray(cell_j * total_j / cell_j.sum())


def _best_shift_s(residuals_j: Callable[[np.ndarray], np.ndarray], slack_s: float) -> float:
    """Return the time shift of all counter updates, within their uncertainty, with the least residual. Unit: s."""
    best_s, reach_s = 0.0, slack_s
    while reach_s > TIMING_S:
        shifts_s = best_s + reach_s * np.arange(-_SHIFTS, _SHIFTS + 1) / _SHIFTS
        best_s = float(shifts_s[np.argmin(residuals_j(shifts_s))])
        reach_s /= _SHIFTS
    return best_s


def _updates_around(counter: EnergyCounter, start_s: float, end_s: float) -> tuple[np.ndarray, np.ndarray]:
    """Return the updates of a counter from the last before `start_s` to the first after `end_s`, and its increments."""
    first = int(np.searchsorted(counter.moved_s, start_s, "right")) - 1
    last = int(np.searchsorted(counter.moved_s, end_s, "left"))
    return counter.moved_s[first : last + 1], np.diff(counter.values_j[first : last + 1])


class _CumulativeTime:
    """Cumulative time in each column of a pattern, and between steps, as a function of time."""

    def __init__(self, windows_s: np.ndarray, pattern: Pattern) -> None:
        self._starts_s, self._pattern = windows_s[:, 0], pattern
        self._lengths_s = windows_s[:, 1] - windows_s[:, 0]
        self._before_s = np.cumsum(self._lengths_s) - self._lengths_s
        self._shares = np.concatenate([np.zeros_like(pattern.shares[:1]), np.cumsum(pattern.shares, axis=0)])

    def position(self, at_s: np.ndarray) -> np.ndarray:
        """Return the position of each time in its step, 0 to 1."""
        step = self._step(at_s)
        return np.asarray(np.clip((at_s - self._starts_s[step]) / self._lengths_s[step], 0.0, 1.0))

    def _step(self, at_s: np.ndarray) -> np.ndarray:
        """Return the index of the last step that has started at each time."""
        return np.asarray(np.maximum(np.searchsorted(self._starts_s, at_s, "right") - 1, 0))

    def until(self, at_s: np.ndarray) -> np.ndarray:
        """Return the time in each column since the first step; shape (..., num_columns + 1). Unit: s."""
        step, position = self._step(at_s), self.position(at_s)
        borders = self._pattern.borders
        piece = np.clip(np.searchsorted(borders, position, "right") - 1, 0, len(borders) - 2)
        in_piece = (position - borders[piece]) / (borders[piece + 1] - borders[piece])
        time_s = self._shares[piece] + self._pattern.shares[piece] * in_piece[..., None]
        time_s = time_s * self._lengths_s[step][..., None] + self._shares[-1] * self._before_s[step][..., None]
        between_s = at_s - self._starts_s[0] - time_s.sum(axis=-1)
        return np.concatenate([time_s, between_s[..., None]], axis=-1)


def _by_level(time_s: np.ndarray, num_levels: int = len(_LEVELS)) -> np.ndarray:
    """Return the time in each of the first levels from the time in each cell."""
    sums = np.zeros((len(time_s), num_levels))
    for column, level in zip(time_s.T, _LEVEL_OF, strict=False):
        sums[:, level] += column
    return sums
