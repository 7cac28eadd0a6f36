"""Energy of the phases of a step: forward, backward, optimizer, exposed communication, copies, and waiting.

A counter that moves every 100 ms cannot be read at the borders of phases. So the energy between two of its moves is
taken as the sum, over phases, of the time spent in each times a power that is the phase's own; over all moves that is
an overdetermined set of equations. What was spent between two moves is then shared out in proportion, so that it adds
up. What a rank does when is taken from its profiled step, stretched to each measured one; power never is.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass

import numpy as np

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


def read_pattern(spans: Mapping[str, np.ndarray], step_ns: float, known: Collection[Cell]) -> Pattern:
    """Return what a rank does in the course of its profiled step.

    Args:
        spans: Columns of table `timeline`, rows of one rank.
        step_ns: Length of that step. Unit: ns.
        known: Cells the rank spends time in; the timeline is thinned, and may show a moment of another.
    """
    start = np.clip(spans["t_start_ns"] / step_ns, 0.0, 1.0)
    end = np.clip((spans["t_start_ns"] + spans["duration_ns"]) / step_ns, 0.0, 1.0)
    borders = np.unique(np.concatenate([[0.0, 1.0], start, end]))
    middle = (borders[:-1] + borders[1:]) / 2
    lane = spans["lane"].astype(str)
    category = np.full(len(middle), CATEGORIES.index("idle"))
    for name in ("memory", "comm", "compute"):  # the last one counts
        category[_is_covered(middle, start[lane == name], end[lane == name])] = CATEGORIES.index(name)
    label = np.char.partition(spans["label"].astype(str), "_")[:, 0]  # backward_weight is backward
    phase = np.full(len(middle), PHASES.index("other"))
    for name in PHASES[:-1]:
        mine = (lane == "phase") & (label == name)
        phase[_is_covered(middle, start[mine], end[mine])] = PHASES.index(name)
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
    time_s = np.diff(_spent_s(at_s, windows_s, pattern), axis=0)
    is_inside = (at_s[:-1] >= windows_s[0, 0]) & (at_s[1:] <= windows_s[-1, 1])
    power_w, error_w = _fit(
        _by_level(time_s[is_inside]), energy_j[is_inside], float(energy_j.sum() / np.diff(at_s).sum())
    )
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


def _moves_around(counter: EnergyCounter, start_s: float, end_s: float) -> tuple[np.ndarray, np.ndarray]:
    """Return the moves of a counter from the last before a time to the first after another, and what it rose by."""
    first = int(np.searchsorted(counter.moved_s, start_s, "right")) - 1
    last = int(np.searchsorted(counter.moved_s, end_s, "left"))
    at_s = counter.moved_s[first : last + 1]
    return at_s, np.diff(counter.values_j[first : last + 1])


def _spent_s(at_s: np.ndarray, windows_s: np.ndarray, pattern: Pattern) -> np.ndarray:
    """Return the time spent so far in each cell, and last between steps; shape (num_times, num_cells + 1). Unit: s."""
    pieces = np.zeros((len(pattern.cell), len(CELLS)))
    pieces[np.arange(len(pattern.cell)), pattern.cell] = np.diff(pattern.borders)
    inside = np.concatenate([np.zeros((1, len(CELLS))), np.cumsum(pieces, axis=0)])
    length_s = np.diff(windows_s, axis=1)
    before = np.concatenate([[0.0], np.cumsum(length_s)[:-1]])
    corners_s = (windows_s[:, :1] + length_s * pattern.borders).ravel()
    spent = (inside * length_s[:, :, None] + (inside[-1] * before[:, None])[:, None, :]).reshape(-1, len(CELLS))
    found = np.stack([np.interp(at_s, corners_s, column) for column in spent.T], axis=1)
    return np.column_stack([found, at_s - at_s[0] - found.sum(axis=1)])


def _by_level(time_s: np.ndarray) -> np.ndarray:
    sums = np.zeros((len(time_s), len(_LEVELS)))
    for number, level in enumerate(_LEVEL_OF):
        sums[:, level] += time_s[:, number]
    return sums


def _fit(time_s: np.ndarray, energy_j: np.ndarray, mean_w: float) -> tuple[np.ndarray, np.ndarray]:
    """Return power of each level and its standard error: least squares drawn to the mean where little is known.

    Args:
        time_s: Time in each level between moves. Shape (num_moves, num_levels). Unit: s.
        energy_j: Energy of each. Shape (num_moves,). Unit: J.
        mean_w: Mean power. Unit: W.
    """
    prior = np.eye(len(_LEVELS)) / (_PRIOR * mean_w) ** 2
    excess_j = energy_j - time_s.sum(axis=1) * mean_w
    variance = float(np.mean(excess_j**2)) if len(excess_j) else 1.0
    power_w, spread = np.full(len(_LEVELS), mean_w), np.linalg.inv(prior)
    for _ in range(_ROUNDS):
        spread = np.linalg.inv(time_s.T @ time_s / max(variance, 1e-12) + prior)
        power_w = mean_w + spread @ (time_s.T @ excess_j) / max(variance, 1e-12)
        used = float(np.trace(spread @ (time_s.T @ time_s))) / max(variance, 1e-12)
        if len(energy_j) > used:
            variance = float(np.sum((energy_j - time_s @ power_w) ** 2)) / (len(energy_j) - used)
    return np.maximum(power_w, _LEAST * mean_w), np.sqrt(np.diag(spread))
