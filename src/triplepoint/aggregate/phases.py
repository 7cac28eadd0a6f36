"""Energy of the phases of a step: forward, backward, optimizer, exposed communication, copies, and waiting.

A counter that moves every 100 ms cannot be read at the borders of phases. So the energy between two of its moves is
taken as the sum, over phases, of the time spent in each times a power that is the phase's own; over all moves that is
an overdetermined set of equations. What was spent between two moves is then shared out in proportion, so that it adds
up. What a rank does when is taken from its profiled step, stretched to each measured one; power never is.
"""

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from triplepoint.recording.counter import EnergyCounter

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
_PRIOR = 0.5
"""How far a phase's power is expected from the mean, as a share of it, before anything is known (assumed)."""
_LEAST = 0.01
"""Lowest power of a phase, as a share of the mean: none is negative."""
_ROUNDS = 4
_TIMING_S = 1e-3
"""How well the moves of a counter are known in time, at best. Unit: s."""
_SHIFTS = 10
"""Tried either way over the time by which all moves may be off together, and again around the best."""


@dataclass(frozen=True)
class Pattern:
    """What a rank does in the course of a step."""

    borders: np.ndarray
    """Ascending from 0 to 1, as shares of the step. Shape (num_pieces + 1,)."""
    cell: np.ndarray
    """Index into `CELLS` of each piece. Shape (num_pieces,)."""


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
    found = column.combine_chunks().dictionary_encode()
    return found.indices.to_numpy(), found.dictionary.to_pylist()


def read_pattern(spans: Spans, step_ns: float, known: Collection[Cell]) -> Pattern:
    """Return what a rank does in the course of its profiled step.

    Args:
        spans: Those of the rank.
        step_ns: Length of that step. Unit: ns.
        known: Cells the rank spends time in; the timeline is thinned, and may show a moment of another.
    """
    start, end = (np.clip(times / step_ns, 0.0, 1.0) for times in (spans.start_ns, spans.end_ns))
    borders = np.unique(np.concatenate([[0.0, 1.0], start, end]))
    middle = (borders[:-1] + borders[1:]) / 2
    category = np.full(len(middle), CATEGORIES.index("idle"))
    for name in ("memory", "comm", "compute"):  # the last one counts
        mine = spans.category == (number := CATEGORIES.index(name))
        category[_is_covered(middle, start[mine], end[mine])] = number
    phase = np.full(len(middle), len(PHASES) - 1)
    for number in range(len(PHASES) - 1):
        mine = spans.phase == number
        phase[_is_covered(middle, start[mine], end[mine])] = number
    return Pattern(borders, _nearest(known)[phase * len(CATEGORIES) + category])


def _nearest(known: Collection[Cell]) -> np.ndarray:
    """Return for each cell the one to take it for: itself, another of its category, or any other that is known."""
    alike = {
        cell: min(CELLS, key=lambda other: (other not in known, other != cell, other[1] != cell[1])) for cell in CELLS
    }
    return np.array([CELLS.index(alike[cell]) for cell in CELLS])


def _is_covered(at: np.ndarray, start: np.ndarray, end: np.ndarray) -> np.ndarray:
    """Return whether times lie in at least one span."""
    return np.asarray(np.searchsorted(np.sort(start), at, "right") > np.searchsorted(np.sort(end), at, "right"))


def phase_energy(counter: EnergyCounter, windows_s: np.ndarray, pattern: Pattern) -> dict[Cell, PhaseEnergy]:
    """Return the energy of each cell that takes time, which add up to that of the steps.

    Args:
        counter: The GPU's energy counter, reaching around all steps.
        windows_s: Start and end of each measured step, by time. Shape (num_steps, 2). Unit: s.
        pattern: What the rank does in the course of a step, stretched to each of them.
    """
    at_s, energy_j = _moves_around(counter, windows_s[0, 0], windows_s[-1, 1])
    mean_w = float(energy_j.sum() / np.diff(at_s).sum())
    spent = _Spent(windows_s, pattern)

    def fit(shift_s: float) -> tuple[_Fit, np.ndarray]:
        time_s = np.diff(spent.until(at_s + shift_s), axis=0)
        is_inside = (at_s[:-1] + shift_s >= windows_s[0, 0]) & (at_s[1:] + shift_s <= windows_s[-1, 1])
        return _fit(_by_level(time_s[is_inside]), energy_j[is_inside], mean_w), time_s

    (power_w, error_w, _), time_s = fit(_best_shift_s(lambda shift_s: fit(shift_s)[0].residual_j, counter.slack_s))
    modelled_j = time_s * power_w[_LEVEL_OF]
    shared_j = (modelled_j * (energy_j / modelled_j.sum(axis=1))[:, None])[:, : len(CELLS)].sum(axis=0)
    # At both ends the counter moves outside of the steps; what the steps took of that is known from the counter.
    total_j = float(np.diff(counter.at(windows_s), axis=1).sum())
    shared_j *= total_j / shared_j.sum()
    spent_s = time_s[:, : len(CELLS)].sum(axis=0)
    return {
        cell: PhaseEnergy(
            float(shared_j[number]) / len(windows_s),
            float(shared_j[number] / spent_s[number]),
            float(error_w[_LEVEL_OF[number]]),
        )
        for number, cell in enumerate(CELLS)
        if spent_s[number] > 0
    }


def _best_shift_s(residual_j: Callable[[float], float], slack_s: float) -> float:
    """Return by how much the moves of a counter are to be shifted, within what is not known of them. Unit: s."""
    best_s, reach_s = 0.0, slack_s
    while reach_s > _TIMING_S:
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
        shares = np.zeros((len(pattern.cell), len(CELLS)))
        shares[np.arange(len(pattern.cell)), pattern.cell] = np.diff(pattern.borders)
        self._shares = np.concatenate([np.zeros((1, len(CELLS))), np.cumsum(shares, axis=0)])

    def until(self, at_s: np.ndarray) -> np.ndarray:
        """Return the time spent from the first step on until given times; shape (num_times, num_cells + 1). Unit: s."""
        step = np.maximum(np.searchsorted(self._starts_s, at_s, "right") - 1, 0)
        share = np.clip((at_s - self._starts_s[step]) / self._lengths_s[step], 0.0, 1.0)
        piece = np.clip(np.searchsorted(self._pattern.borders, share, "right") - 1, 0, len(self._pattern.cell) - 1)
        found = self._shares[piece]
        found[np.arange(len(at_s)), self._pattern.cell[piece]] += share - self._pattern.borders[piece]
        found = found * self._lengths_s[step][:, None] + self._shares[-1] * self._before_s[step][:, None]
        return np.column_stack([found, at_s - self._starts_s[0] - found.sum(axis=1)])


def _by_level(time_s: np.ndarray) -> np.ndarray:
    sums = np.zeros((len(time_s), len(_LEVELS)))
    for number, level in enumerate(_LEVEL_OF):
        sums[:, level] += time_s[:, number]
    return sums


class _Fit(NamedTuple):
    """Power of each level and its standard error, and what is left. Units: W, W, J."""

    power_w: np.ndarray
    error_w: np.ndarray
    residual_j: float


def _fit(time_s: np.ndarray, energy_j: np.ndarray, mean_w: float) -> _Fit:
    """Return the power of each level: least squares, drawn to the mean where little is known.

    Args:
        time_s: Time in each level between moves. Shape (num_moves, num_levels). Unit: s.
        energy_j: Energy of each. Shape (num_moves,). Unit: J.
        mean_w: Mean power. Unit: W.
    """
    prior = np.eye(len(_LEVELS)) / (_PRIOR * mean_w) ** 2
    excess_j = energy_j - time_s.sum(axis=1) * mean_w
    squares, least = time_s.T @ time_s, (_TIMING_S * mean_w) ** 2
    variance = max(least, float(np.mean(excess_j**2)) if len(excess_j) else 0.0)
    for _ in range(_ROUNDS):
        spread = np.linalg.inv(squares / variance + prior)
        power_w = mean_w + spread @ (time_s.T @ excess_j) / variance
        residual = float(np.sum((energy_j - time_s @ power_w) ** 2))
        num_free = len(energy_j) - float(np.trace(spread @ squares)) / variance
        variance = max(least, residual / num_free) if num_free > 1 else variance
    return _Fit(np.maximum(power_w, _LEAST * mean_w), np.sqrt(np.diag(spread)), residual**0.5)
