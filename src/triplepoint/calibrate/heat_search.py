"""Searches the numbers that the heat of a cluster in balance depends on; see `calibrate.heat`."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from typing import NamedTuple

import numpy as np

from triplepoint.calibrate.heat_runs import Observed
from triplepoint.simulate.heat.machine import Machine
from triplepoint.simulate.heat.parameters import LEARNED, FanConfig
from triplepoint.simulate.power.gpu import Float
from triplepoint.simulate.power.parameters import Estimate

BETWEEN = {"die_resistance": 0.03, "sink_resistance": 0.3, "preheat": 0.4, "full_power": 0.15, "least_flow": 0.5}
"""Relative standard deviation between kinds of nodes, at least: preheat of the two known ones is 0.0124 and 0.0184 K/W,
their flow at rest 1 and 0.2 of the full one. The die is the GPU type's. Other widths are assumed."""
INLET_K = 4.0
"""Standard deviation of an inlet before runs are seen, at least: their room may be another than the one described."""
NOISE_K = 0.3
"""Mean temperatures of a run: sensors show whole degrees, and a mean of samples is up to 0.3 K off that of the run."""
_BAD, _BAD_WIDTH = 5.0, 1.0
"""Deviations of the usual contact from which a part counts as bad, and the width (log) its contact is then given."""
_GRID = (np.linspace(-2.4, 2.4, 13), np.linspace(-2.4, 2.4, 7))
"""Fans that are tried: full power and least flow, in standard deviations of what is known of them."""
_STEPS, _SLOPE = 2, 1e-4


class _Place(NamedTuple):
    """The end of a search with given fans: place, covariance of `LEARNED` without fans, logarithm of its evidence."""

    at: Float
    covariance: Float
    evidence: float


def search(start: Machine, observed: Sequence[Observed]) -> tuple[Float, Float, tuple[Float, Float]]:
    """Return where the search ends, covariance of `LEARNED`, and their priors: values and standard deviations.

    Fans stop following load at either end, so no slope leads from one side of an end to the other: they are gone
    through on a grid, and what is found at each of its places counts by how probable it is.
    """
    known, number = known_of(start), len(LEARNED)
    width = np.array([max(one.sigma / one.value, BETWEEN[name]) for name, one in zip(LEARNED[1:], known, strict=True)])
    width = np.concatenate([[max(start.inlet_sigma_k, INLET_K)], width])
    spread = np.full(start.shape, start.heat.resistance_spread.value)
    found = _nearest(start, observed, width, spread, np.zeros(number + spread.size))
    # One after the other: a bad one pulls the others along until its own contact is free.
    for _ in range(spread.size):
        away = np.abs(found.at[number:].reshape(start.shape)) / spread
        worst = np.unravel_index(away.argmax(), away.shape)
        if away[worst] <= _BAD or spread[worst] == _BAD_WIDTH:
            break
        spread[worst] = _BAD_WIDTH
        found = _nearest(start, observed, width, spread, found.at)
    places, at = list[_Place](), found.at
    for full, least in product(_GRID[0], _GRID[1]):
        at = np.concatenate([at[: number - 2], [full * width[-2], least * width[-1]], at[number:]])
        one = _nearest(start, observed, width, spread, at)
        places.append(one._replace(evidence=one.evidence - (full**2 + least**2) / 2))
        at = one.at
    mean, covariance = _over_grid(places, number)
    before = values_of(start, np.zeros(number))
    return mean, covariance, (before, width * np.where(np.arange(number) > 0, before, 1.0))


def _over_grid(places: Sequence[_Place], number: int) -> tuple[Float, Float]:
    """Return the mean of the places of the grid by their probability, and the covariance of the first `number`."""
    evidence = np.array([one.evidence for one in places])
    weight = np.exp(evidence - evidence.max())
    weight /= weight.sum()
    every = np.stack([one.at for one in places])
    mean = weight @ every
    away = (every - mean)[:, :number]
    covariance = np.einsum("k,ki,kj->ij", weight, away, away)
    covariance[: number - 2, : number - 2] += np.einsum(
        "k,kij->ij", weight, np.stack([one.covariance for one in places])
    )
    # Between two places of the grid nothing was tried: anything there is as probable.
    grid = every[:, :number].reshape(len(_GRID[0]), len(_GRID[1]), number)
    for axis in (0, 1):
        step = np.asarray(np.gradient(grid, axis=axis)).reshape(-1, number)
        covariance += np.einsum("k,ki,kj->ij", weight, step, step) / 12
    return mean, covariance


def _nearest(start: Machine, observed: Sequence[Observed], width: Float, spread: Float, at: Float) -> _Place:
    """Return where temperatures fit best with the fans of a place, from there: Gauss and Newton's steps.

    Args:
        start: The cluster as it is known.
        observed: Its runs.
        width: Standard deviations of the priors of `LEARNED`, of logarithms but for the inlet.
        spread: The same of contacts; shape (num_nodes, num_devices).
        at: Where to begin.
    """
    number = len(LEARNED) - 2
    is_searched = np.r_[np.ones(number, dtype=bool), [False, False], np.ones(spread.size, dtype=bool)]
    precision = np.concatenate([width[:number], spread.reshape(-1)]) ** -2.0
    for _ in range(_STEPS):
        matrix, gradient, square = (
            np.diag(precision),
            -precision * at[is_searched],
            float(precision @ at[is_searched] ** 2),
        )
        for one in observed:
            away, slopes = _slopes(start, one, at)
            seen = np.isfinite(away)
            matrix += slopes[:, seen] @ slopes[:, seen].T / NOISE_K**2
            gradient += slopes[:, seen] @ away[seen] / NOISE_K**2
            square += float((away[seen] ** 2).sum()) / NOISE_K**2
        covariance = np.linalg.inv(matrix)
        at = at.copy()
        at[is_searched] += covariance @ gradient
    # What is left after the last step, which is as good as straight.
    square -= float(gradient @ covariance @ gradient)
    evidence = -square / 2 + float(np.linalg.slogdet(covariance)[1]) / 2
    return _Place(at, np.asarray(covariance[:number, :number], dtype=float), evidence)


def _slopes(start: Machine, one: Observed, at: Float) -> tuple[Float, Float]:
    """Return observed less modelled temperatures, shape (num_gpus,), and slopes of the modelled ones.

    Slopes are those of inlet, both resistances, preheat and every contact; shape (4 + num_gpus, num_gpus).
    """
    number, machine = len(LEARNED) - 2, with_numbers(start, at)
    usual = temperatures(machine, one)
    slopes = np.zeros((number + usual.size, usual.size))
    slopes[0] = 1.0
    own = (machine.cooled_by.die_resistance.value * machine.devices.die * one.power_w).reshape(-1)
    slopes[1], slopes[number:] = own, np.diag(own)
    for place in (2, 3):
        moved = at.copy()
        moved[place] += _SLOPE
        slopes[place] = ((temperatures(with_numbers(start, moved), one) - usual) / _SLOPE).reshape(-1)
    return (one.temp_c - usual).reshape(-1), slopes


def known_of(machine: Machine) -> list[Estimate]:
    """Return what is known of `LEARNED` without the inlet."""
    fans, cooling = machine.airflow.fans, machine.cooled_by
    assert fans is not None
    return [
        cooling.die_resistance, cooling.sink_resistance, machine.airflow.preheat, fans.full_power, fans.least_flow,
    ]  # fmt: skip


def values_of(start: Machine, at: Float) -> Float:
    """Return the values of `LEARNED` at a place of the search: the inlet itself, logarithms of the others' ratios."""
    known = np.array([estimate.value for estimate in known_of(start)])
    return np.concatenate([[start.inlet_c[0] + at[0]], known * np.exp(at[1 : len(LEARNED)])])


def with_numbers(start: Machine, at: Float) -> Machine:
    """Return the cluster with other numbers."""
    value = values_of(start, at)
    moved = [
        known.model_copy(update={"value": float(one)}) for known, one in zip(known_of(start), value[1:], strict=True)
    ]
    air = start.airflow.model_copy(update={
        "die_resistance": moved[0], "sink_resistance": moved[1], "preheat": moved[2],
        "fans": FanConfig.model_construct(full_power=moved[3], least_flow=moved[4]),
    })  # fmt: skip
    devices = replace(start.devices, die=np.exp(at[len(LEARNED) :]).reshape(start.shape))
    return replace(start, airflow=air, devices=devices, inlet_c=np.full(start.shape[0], value[0]))


def temperatures(machine: Machine, one: Observed) -> Float:
    """Return temperatures in balance at the power of a run; shape (num_nodes, num_devices). Unit: degC."""
    under = machine.under_load(one.power_w)
    return under.network.die_c(under.network.steady(one.power_w), under.inlet_c[:, None])
