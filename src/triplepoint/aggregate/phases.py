"""Energy of the phases of a step: forward, backward, optimizer, exposed communication, copies, and waiting.

A counter that moves every 100 ms cannot be read at the borders of phases. So the energy between two of its moves is
taken as the sum, over phases, of the time spent in each times a power that is the phase's own; over all moves that is
an overdetermined set of equations. What was spent between two moves is then divided in proportion, so that it adds
up. What a rank does when is taken from its profiled step, stretched to each measured one; power never is.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from triplepoint.power_sensor import EnergyCounter

_PRIOR = 0.5
"""How far a phase's power is expected from the mean, as a share of it, before anything is known (assumed)."""
_LEAST = 0.01
"""Lowest power of a phase, as a share of the mean: none is negative."""
_MOST = 1.1
"""Highest power of a phase, as a share of the power limit, which holds means of some control periods only (assumed)."""
_ROUNDS = 4
_PARTS = 8
"""Of a step, left out one by one to see how much depends on each."""
TIMING_S = 1e-3
"""How well the moves of a counter are known in time, at best. Unit: s."""


class Fit(NamedTuple):
    """Power of each level and its standard error, and what is left. Units: W, W, J."""

    power_w: np.ndarray
    error_w: np.ndarray
    residual_j: float


def fit_with_care(
    time_s: np.ndarray, energy_j: np.ndarray, mean_w: float, place: np.ndarray, power_limit_w: float = math.inf
) -> Fit:
    """Return the power of each level, with errors that allow for what no level has: a power that changes within it.

    Steps are alike: what the model gets wrong in one it gets wrong in all, and many steps tell no more of it. How much
    powers move when a part of the step is left out does (a jackknife): so much larger the scatter is taken to be. And
    larger still, until no power is one that no GPU has.

    Args:
        time_s: As `fit`.
        energy_j: As `fit`.
        mean_w: As `fit`.
        place: How far into its step each move is, 0 to 1. Shape (num_moves,).
        power_limit_w: Of the GPU. Unit: W.
    """
    whole = fit(time_s, energy_j, mean_w)
    part = np.minimum((place * _PARTS).astype(int), _PARTS - 1)
    without = [fit(time_s[part != one], energy_j[part != one], mean_w).power_w for one in np.unique(part)]
    moved_w = np.sqrt((len(without) - 1) * np.var(without, axis=0))
    scatter = max(1.0, float((moved_w / whole.error_w).max()))
    low_w, high_w = _LEAST * mean_w, max(_MOST * power_limit_w, mean_w)
    fitted = fit(time_s, energy_j, mean_w, scatter)
    while not (fitted.power_w >= low_w).all() or not (fitted.power_w <= high_w).all():
        scatter *= 2
        fitted = fit(time_s, energy_j, mean_w, scatter)
    return fitted


def fit(time_s: np.ndarray, energy_j: np.ndarray, mean_w: float, scatter: float = 1.0) -> Fit:
    """Return the power of each level: least squares, drawn to the mean where little is known.

    Args:
        time_s: Time in each level between moves. Shape (num_moves, num_levels). Unit: s.
        energy_j: Energy of each. Shape (num_moves,). Unit: J.
        mean_w: Mean power. Unit: W.
        scatter: Factor on the scatter that residuals show.
    """
    prior = np.eye(time_s.shape[1]) / (_PRIOR * mean_w) ** 2
    excess_j = energy_j - time_s.sum(axis=1) * mean_w
    squares, least = time_s.T @ time_s, (TIMING_S * mean_w) ** 2
    variance = max(least, float(np.mean(excess_j**2)) if len(excess_j) else 0.0)
    for _ in range(_ROUNDS):
        spread = np.linalg.inv(squares / variance + prior)
        power_w = mean_w + spread @ (time_s.T @ excess_j) / variance
        residual = float(np.sum((energy_j - time_s @ power_w) ** 2))
        num_free = len(energy_j) - float(np.trace(spread @ squares)) / variance
        variance = max(least, scatter**2 * residual / num_free) if num_free > 1 else variance
    return Fit(power_w, np.sqrt(np.diag(spread)), residual**0.5)


Cell = tuple[str, str]
"""Phase and category, as in table `phases`."""

PHASES = ("forward", "backward", "optimizer", "other")
CATEGORIES = ("compute", "comm", "memory", "idle")
CELLS: tuple[Cell, ...] = tuple((phase, category) for phase in PHASES for category in CATEGORIES)
_LEVELS = (*(f"compute in {phase}" for phase in PHASES), "comm", "memory", "idle", "between steps")
"""What has a power of its own: computation in each phase, and the rest whatever phase it is in."""
_LEVEL_OF = [
    PHASES.index(phase) if category == "compute" else len(PHASES) + CATEGORIES[1:].index(category)
    for phase, category in CELLS
] + [len(_LEVELS) - 1]
_PIECES = 2000
"""A step is cut into so many; the timeline shows hardly more."""
_UNSEEN = 1e-3
"""Share of a piece anything may have without being seen in the timeline."""
_FITS = 200
_NONE = 1e-300
"""In place of nothing, which cannot be divided by."""
_FITTED = 1e-3
"""How far, as a share, a cell's time may be from what is known of it."""
_SHIFTS = 10
"""Tried either way over the time by which all moves may be off together, and again around the best."""


@dataclass(frozen=True)
class Pattern:
    """What a rank does in the course of a step, whose length is 1."""

    borders: np.ndarray
    """Ascending from 0 to 1. Shape (num_pieces + 1,)."""
    shares: np.ndarray
    """Time of each piece in each of `CELLS`, adding up to the piece. Shape (num_pieces, num_cells)."""


@dataclass(frozen=True)
class PhaseEnergy:
    """What one GPU drew in one cell."""

    energy_j: float
    """Mean over measured steps. Unit: J."""
    power_w: float
    """Its power while it was in the cell. Unit: W."""
    error_w: float
    """Standard error of the power: half the mean power where the samples say nothing about it. Unit: W."""


class Spans(NamedTuple):
    """Spans of table `timeline`, shape of every array (num_spans,).

    Attributes:
        start_ns: Start since the step began. Unit: ns.
        end_ns: End. Unit: ns.
        category: Index into `CATEGORIES` of what ran; -1 where it is of the lane of phases.
        phase: Index into `PHASES` of a span of that lane, the last for labels that are none; -1 for others.
    """

    start_ns: np.ndarray
    end_ns: np.ndarray
    category: np.ndarray
    phase: np.ndarray


def read_spans(timeline: pa.Table) -> Spans:
    """Return the rows of a table `timeline`."""
    (lane, lanes), (label, labels) = (_encoded(timeline[name]) for name in ("lane", "label"))
    category_of = [CATEGORIES.index(name) if name in CATEGORIES else -1 for name in lanes]
    # backward_weight is backward
    stems = [name.partition("_")[0] for name in labels]
    phase_of = [PHASES.index(stem) if stem in PHASES else len(PHASES) - 1 for stem in stems]
    category = np.array([*category_of, -1])[lane]
    start_ns = timeline["t_start_ns"].to_numpy()
    end_ns = start_ns + timeline["duration_ns"].to_numpy()
    return Spans(start_ns, end_ns, category, np.where(category < 0, np.array([*phase_of, -1])[label], -1))


def _encoded(column: pa.ChunkedArray) -> tuple[np.ndarray, list[str]]:
    """Return numbers of texts, and the texts."""
    encoded = column.combine_chunks().dictionary_encode()
    return encoded.indices.to_numpy(), encoded.dictionary.to_pylist()


def read_pattern(spans: Spans, step_ns: float, exposed_s: Mapping[Cell, float]) -> Pattern:
    """Return what a rank does in the course of its profiled step.

    The timeline is thinned: when something ran it shows to a thousandth of the step, not what was hidden behind what.
    How long each cell lasted in all is known exactly, so the time of every piece is divided to fit both.

    Args:
        spans: Those of the rank.
        step_ns: Length of that step. Unit: ns.
        exposed_s: Time of a step in each cell; of those that are missing, none. Unit: s.
    """
    borders = np.linspace(0.0, 1.0, _PIECES + 1)
    start, end = (np.clip(times / step_ns, 0.0, 1.0) for times in (spans.start_ns, spans.end_ns))

    def covered(mine: np.ndarray) -> np.ndarray:
        return np.asarray(np.minimum(np.diff(_covered(borders, start[mine], end[mine])) * _PIECES, 1.0))

    ran = np.stack([covered(spans.category == number) for number in range(len(CATEGORIES) - 1)])
    known = np.stack([covered(spans.phase == number) for number in range(len(PHASES) - 1)])
    category = np.vstack([ran, np.maximum(1 - ran.sum(axis=0), 0.0)])
    phase = np.vstack([known, np.maximum(1 - known.sum(axis=0), 0.0)])
    likely = (phase[:, None] * category[None]).reshape(len(CELLS), _PIECES).T + _UNSEEN
    total = np.array([exposed_s.get(cell, 0.0) for cell in CELLS])
    return Pattern(borders, _fitted(likely, total / total.sum()))


def _covered(at: np.ndarray, start: np.ndarray, end: np.ndarray) -> np.ndarray:
    """Return the time covered by spans up to each instant; spans that overlap count twice."""
    starts, ends = np.sort(start), np.sort(end)
    begun, ended = np.searchsorted(starts, at, "right"), np.searchsorted(ends, at, "right")
    sums = [np.concatenate([[0.0], np.cumsum(times)]) for times in (starts, ends)]
    return np.asarray(begun * at - sums[0][begun] - (ended * at - sums[1][ended]))


def _fitted(likely: np.ndarray, total: np.ndarray) -> np.ndarray:
    """Return shares as near to the likely ones as can be that add up over pieces and over cells (iterative fitting)."""
    shares = likely * (total > 0)
    for _ in range(_FITS):
        excess = total / np.maximum(shares.sum(axis=0), _NONE)
        if np.abs(excess[total > 0] - 1).max() < _FITTED:
            break
        shares *= excess
        shares *= (1 / _PIECES) / np.maximum(shares.sum(axis=1), _NONE)[:, None]
    return shares


def phase_energy(
    counter: EnergyCounter, windows_s: np.ndarray, pattern: Pattern, power_limit_w: float = math.inf
) -> dict[Cell, PhaseEnergy]:
    """Return the energy of each cell that takes time, which add up to that of the steps.

    Args:
        counter: The GPU's energy counter, reaching around all steps.
        windows_s: Start and end of each measured step, by time. Shape (num_steps, 2). Unit: s.
        pattern: What the rank does in the course of a step, stretched to each of them.
        power_limit_w: Of the GPU. Unit: W.
    """
    at_s, energy_j = _moves_around(counter, windows_s[0, 0], windows_s[-1, 1])
    mean_w = float(energy_j.sum() / np.diff(at_s).sum())
    spent = _Spent(windows_s, pattern)

    def moves(shift_s: float) -> tuple[np.ndarray, np.ndarray]:
        """Return time spent in each cell between moves, and which of them lie within steps."""
        is_inside = (at_s[:-1] + shift_s >= windows_s[0, 0]) & (at_s[1:] + shift_s <= windows_s[-1, 1])
        return np.diff(spent.until(at_s + shift_s), axis=0), is_inside

    def residual_j(shift_s: float) -> float:
        time_s, is_inside = moves(shift_s)
        return fit(_by_level(time_s[is_inside]), energy_j[is_inside], mean_w).residual_j

    shift_s = _best_shift_s(residual_j, counter.slack_s)
    time_s, is_inside = moves(shift_s)
    place = spent.place((at_s[:-1] + at_s[1:]) / 2 + shift_s)[is_inside]
    power_w, error_w, _ = fit_with_care(_by_level(time_s[is_inside]), energy_j[is_inside], mean_w, place, power_limit_w)
    # At both ends the counter moves outside of the steps; what the steps took of that is known from the counter.
    total_j = float(np.diff(counter.at(windows_s), axis=1).sum())
    cell_j, spent_s = _divide(energy_j, time_s * power_w[_LEVEL_OF], total_j), time_s.sum(axis=0)
    return {
        cell: PhaseEnergy(
            float(cell_j[number]) / len(windows_s),
            float(cell_j[number] / spent_s[number]),
            float(error_w[_LEVEL_OF[number]]),
        )
        for number, cell in enumerate(CELLS)
        if spent_s[number] > 0
    }


def _divide(energy_j: np.ndarray, modelled_j: np.ndarray, total_j: float) -> np.ndarray:
    """Return the energy of each cell: that of every move divided as modelled, in all the total."""
    cell_j = (modelled_j * (energy_j / modelled_j.sum(axis=1))[:, None])[:, : len(CELLS)].sum(axis=0)
    return np.asarray(cell_j * total_j / cell_j.sum())


def _best_shift_s(residual_j: Callable[[float], float], slack_s: float) -> float:
    """Return by how much the moves of a counter are to be shifted, within what is not known of them. Unit: s."""
    best_s, reach_s = 0.0, slack_s
    while reach_s > TIMING_S:
        tried_s = [best_s + reach_s * n / _SHIFTS for n in range(-_SHIFTS, _SHIFTS + 1)]
        best_s = min(tried_s, key=residual_j)
        reach_s /= _SHIFTS
    return best_s


def _moves_around(counter: EnergyCounter, start_s: float, end_s: float) -> tuple[np.ndarray, np.ndarray]:
    """Return the moves of a counter from the last before a time to the first after another, and what it rose by."""
    first = int(np.searchsorted(counter.moved_s, start_s, "right")) - 1
    last = int(np.searchsorted(counter.moved_s, end_s, "left"))
    at_s = counter.moved_s[first : last + 1]
    return at_s, np.diff(counter.values_j[first : last + 1])


class _Spent:
    """Time spent in each cell, and last between steps, as a function of time."""

    def __init__(self, windows_s: np.ndarray, pattern: Pattern) -> None:
        self._starts_s, self._pattern = windows_s[:, 0], pattern
        self._lengths_s = windows_s[:, 1] - windows_s[:, 0]
        self._before_s = np.cumsum(self._lengths_s) - self._lengths_s
        self._shares = np.concatenate([np.zeros((1, len(CELLS))), np.cumsum(pattern.shares, axis=0)])

    def place(self, at_s: np.ndarray) -> np.ndarray:
        """Return how far into its step each time is, 0 to 1."""
        step = self._step(at_s)
        return np.asarray(np.clip((at_s - self._starts_s[step]) / self._lengths_s[step], 0.0, 1.0))

    def _step(self, at_s: np.ndarray) -> np.ndarray:
        return np.asarray(np.maximum(np.searchsorted(self._starts_s, at_s, "right") - 1, 0))

    def until(self, at_s: np.ndarray) -> np.ndarray:
        """Return the time spent from the first step on until given times; shape (num_times, num_cells + 1). Unit: s."""
        step, share = self._step(at_s), self.place(at_s)
        borders = self._pattern.borders
        piece = np.clip(np.searchsorted(borders, share, "right") - 1, 0, len(borders) - 2)
        inside = (share - borders[piece]) / (borders[piece + 1] - borders[piece])
        cell_s = self._shares[piece] + self._pattern.shares[piece] * inside[:, None]
        cell_s = cell_s * self._lengths_s[step][:, None] + self._shares[-1] * self._before_s[step][:, None]
        return np.column_stack([cell_s, at_s - self._starts_s[0] - cell_s.sum(axis=1)])


def _by_level(time_s: np.ndarray) -> np.ndarray:
    sums = np.zeros((len(time_s), len(_LEVELS)))
    for number, level in enumerate(_LEVEL_OF):
        sums[:, level] += time_s[:, number]
    return sums
