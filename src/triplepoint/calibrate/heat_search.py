"""Search for the thermal parameters of a cluster in balance: inlet, resistances, preheat, fans and contacts.

A point of the search is a vector: one entry for each name of `LEARNED`, then one for each GPU. The first is the change
of the inlet temperature in K. The others are logarithms of ratios to the start; those of GPUs are of their thermal
contact.
"""

from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from typing import NamedTuple

import numpy as np

from triplepoint.calibrate.heat_runs import Observed
from triplepoint.simulate.heat.devices import Devices
from triplepoint.simulate.heat.machine import Machine
from triplepoint.simulate.heat.network import build_network
from triplepoint.simulate.heat.parameters import LEARNED, FanConfig
from triplepoint.simulate.power.gpu import Float
from triplepoint.simulate.power.parameters import Estimate

BETWEEN = {"die_resistance": 0.03, "sink_resistance": 0.3, "preheat": 0.4, "full_power": 0.15, "least_flow": 0.5}
"""Least relative standard deviation of the priors, between kinds of nodes. Preheat of the two known kinds is 0.0124 and
0.0184 K/W, their flow at rest 1 and 0.2 of the full one. The die resistance belongs to the GPU type. Other widths are
assumed."""
INLET_K = 4.0
"""Least prior standard deviation of the inlet, as runs may come from another room than the described one. Unit: K."""
NOISE_K = 0.3
"""Error of a mean temperature: sensors show whole degrees, so a mean of samples is up to 0.3 K off. Unit: K."""
_BAD, _BAD_WIDTH = 5.0, 1.0
"""Standard deviations of the usual contact beyond which a part counts as bad, and the width (log) of its prior then."""
_GRID = (np.linspace(-2.4, 2.4, 13), np.linspace(-2.4, 2.4, 7))
"""Grid of fans, full power and least flow, in standard deviations of their priors."""
_STEPS, _SLOPE = 2, 1e-4
"""Gauss-Newton steps at each grid point, and the step of finite differences."""
_MOVED = (LEARNED.index("sink_resistance"), LEARNED.index("preheat"))
"""Parameters whose slopes are finite differences."""


class _Solution(NamedTuple):
    """Best fit with given fans.

    Attributes:
        at: Point of the search; shape (num_learned + num_gpus,).
        covariance: Covariance of `LEARNED` without the fans; shape (num_learned - 2, num_learned - 2).
        evidence: Logarithm of the evidence of these fans.
    """

    at: Float
    covariance: Float
    evidence: float


def search(start: Machine, observed: Sequence[Observed]) -> tuple[Float, Float, tuple[Float, Float]]:
    """Fit the thermal parameters of a cluster to its runs.

    Fans stop following the load at either end of their range, so no slope leads across such an end. They are therefore
    tried on a grid, and the fit at each grid point counts by its probability.

    Args:
        start: Thermal model before the fit; its parameters are the means of the priors.
        observed: Runs on the cluster.

    Returns:
        The fitted point, see the module; the covariance of `LEARNED`, shape (num_learned, num_learned); and the
        values and standard deviations of the priors of `LEARNED`.
    """
    known, number = known_of(start), len(LEARNED)
    width = np.array([
        max(estimate.sigma / estimate.value, BETWEEN[name])
        for name, estimate in zip(LEARNED[1:], known, strict=True)
    ])  # fmt: skip
    width = np.concatenate([[max(start.inlet_sigma_k, INLET_K)], width])
    spread = np.full(start.shape, start.heat.resistance_spread.value)
    solution = _fit_at_fans(start, observed, width, spread, np.zeros(number + spread.size))
    # One bad part at a time: until its contact is free, it distorts the fit of the others.
    for _ in range(spread.size):
        deviations = np.abs(solution.at[number:].reshape(start.shape)) / spread
        worst = np.unravel_index(deviations.argmax(), deviations.shape)
        if deviations[worst] <= _BAD or spread[worst] == _BAD_WIDTH:
            break
        spread[worst] = _BAD_WIDTH
        solution = _fit_at_fans(start, observed, width, spread, solution.at)
    solutions, at = list[_Solution](), solution.at
    for full, least in product(_GRID[0], _GRID[1]):
        at = np.concatenate([at[: number - 2], [full * width[-2], least * width[-1]], at[number:]])
        solution = _fit_at_fans(start, observed, width, spread, at)
        solutions.append(solution._replace(evidence=solution.evidence - (full**2 + least**2) / 2))
        at = solution.at
    mean, covariance = _average(solutions, number)
    before = values_of(start, np.zeros(number))
    return mean, covariance, (before, width * np.where(np.arange(number) > 0, before, 1.0))


def _average(solutions: Sequence[_Solution], number: int) -> tuple[Float, Float]:
    """Return the mean of the solutions weighted by probability, and the covariance of the first `number` parameters."""
    evidence = np.array([solution.evidence for solution in solutions])
    weight = np.exp(evidence - evidence.max())
    weight /= weight.sum()
    points = np.stack([solution.at for solution in solutions])
    mean = weight @ points
    deviations = (points - mean)[:, :number]
    covariance = np.einsum("k,ki,kj->ij", weight, deviations, deviations)
    covariance[: number - 2, : number - 2] += np.einsum(
        "k,kij->ij", weight, np.stack([solution.covariance for solution in solutions])
    )
    # Between two grid points nothing was tried, so the parameters are taken as uniform there.
    grid = points[:, :number].reshape(len(_GRID[0]), len(_GRID[1]), number)
    for axis in (0, 1):
        step = np.asarray(np.gradient(grid, axis=axis)).reshape(-1, number)
        covariance += np.einsum("k,ki,kj->ij", weight, step, step) / 12
    return mean, covariance


def _fit_at_fans(start: Machine, observed: Sequence[Observed], width: Float, spread: Float, at: Float) -> _Solution:
    """Fit everything but the fans by Gauss-Newton steps from a point, and keep the fans of that point.

    Args:
        start: Thermal model before the fit.
        observed: Runs on the cluster.
        width: Standard deviations of the priors of `LEARNED`, of the logarithm except for the inlet, in K.
        spread: Standard deviations of the logarithms of contacts; shape (num_nodes, num_devices).
        at: Point at which to begin, with the fans to keep.
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
        modelled_c, slopes_by_run = _temperatures_and_slopes(start, observed, at)
        for run, run_c, slopes in zip(observed, modelled_c, slopes_by_run, strict=True):
            residual_k = (run.temp_c - run_c).reshape(-1)
            is_seen = np.isfinite(residual_k)
            matrix += slopes[:, is_seen] @ slopes[:, is_seen].T / NOISE_K**2
            gradient += slopes[:, is_seen] @ residual_k[is_seen] / NOISE_K**2
            square += float((residual_k[is_seen] ** 2).sum()) / NOISE_K**2
        covariance = np.linalg.inv(matrix)
        at = at.copy()
        at[is_searched] += covariance @ gradient
    # Squared residuals after the last step, over which the model is close to linear.
    square -= float(gradient @ covariance @ gradient)
    evidence = -square / 2 + float(np.linalg.slogdet(covariance)[1]) / 2
    return _Solution(at, np.asarray(covariance[:number, :number], dtype=float), evidence)


def _temperatures_and_slopes(start: Machine, observed: Sequence[Observed], at: Float) -> tuple[Float, list[Float]]:
    """Return modelled temperatures of all runs, shape (num_runs, num_nodes, num_devices), and slopes of each run.

    Slopes are by inlet, both resistances, preheat and every contact; shape (4 + num_gpus, num_gpus).
    """
    number, machine = len(LEARNED) - 2, with_numbers(start, at)
    # At the point, with another sink resistance and with another preheat: all as nodes of one network.
    points = np.stack([at] * (1 + len(_MOVED)))
    points[range(1, len(points)), _MOVED] += _SLOPE
    parts, flows = machine.devices, [machine.under_load(run.power_w).devices.flow for run in observed]
    copies = len(points) * len(observed)
    devices = Devices(
        np.tile(parts.die, (copies, 1)), np.tile(parts.leakage, (copies, 1)), np.concatenate(flows * len(points))
    )
    values = np.repeat([values_of(start, point) for point in points], len(devices.die) // len(points), axis=0)
    network = build_network(machine.cooled_by, machine.airflow, devices, *(values[:, index] for index in _MOVED))
    state = network.steady(np.concatenate([run.power_w for run in observed] * len(points)))
    temp_c = network.die_c(state, np.tile(machine.inlet_c, copies)[:, None])
    temp_c = temp_c.reshape(len(points), len(observed), *start.shape)
    slopes = []
    for run, (modelled_c, *moved_c) in zip(observed, temp_c.swapaxes(0, 1), strict=True):
        of_run = np.zeros((number + modelled_c.size, modelled_c.size))
        of_run[0] = 1.0
        over_sink_k = (machine.cooled_by.die_resistance.value * parts.die * run.power_w).reshape(-1)
        of_run[1], of_run[number:] = over_sink_k, np.diag(over_sink_k)
        for index, changed_c in zip(_MOVED, moved_c, strict=True):
            of_run[index] = ((changed_c - modelled_c) / _SLOPE).reshape(-1)
        slopes.append(of_run)
    return temp_c[0], slopes


def known_of(machine: Machine) -> list[Estimate]:
    """Return the estimates of `LEARNED` in a thermal model, without the inlet."""
    fans, cooling = machine.airflow.fans, machine.cooled_by
    assert fans is not None
    return [
        cooling.die_resistance, cooling.sink_resistance, machine.airflow.preheat, fans.full_power, fans.least_flow,
    ]  # fmt: skip


def values_of(start: Machine, at: Float) -> Float:
    """Return the values of `LEARNED` at a point of the search."""
    known = np.array([estimate.value for estimate in known_of(start)])
    return np.concatenate([[start.inlet_c[0] + at[0]], known * np.exp(at[1 : len(LEARNED)])])


def with_numbers(start: Machine, at: Float) -> Machine:
    """Return the thermal model with the parameters of a point of the search."""
    values = values_of(start, at)
    die, sink, preheat, full_power, least_flow = (
        known.model_copy(update={"value": float(value)})
        for known, value in zip(known_of(start), values[1:], strict=True)
    )
    air = start.airflow.model_copy(update={
        "die_resistance": die, "sink_resistance": sink, "preheat": preheat,
        "fans": FanConfig.model_construct(full_power=full_power, least_flow=least_flow),
    })  # fmt: skip
    devices = replace(start.devices, die=np.exp(at[len(LEARNED) :]).reshape(start.shape))
    return replace(start, airflow=air, devices=devices, inlet_c=np.full(start.shape[0], values[0]))


def temperatures(machine: Machine, run: Observed) -> Float:
    """Return temperatures in balance at the power of a run; shape (num_nodes, num_devices). Unit: degC."""
    loaded = machine.under_load(run.power_w)
    return loaded.network.die_c(loaded.network.steady(run.power_w), loaded.inlet_c[:, None])
