"""Least-squares fit of a GPU's power in each phase, from energies over times with several phases."""

import math
from typing import NamedTuple

import numpy as np

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
