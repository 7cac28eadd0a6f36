"""Fits of power to kernels that a known GPU has made up."""

import numpy as np
import pytest

from tests.unit.simulate.power.made_up import power
from triplepoint.calibrate.power import KernelTable, fit_power
from triplepoint.errors import UserError
from triplepoint.simulate.power.gpu import Activity, Float, gpu_power_w
from triplepoint.simulate.power.parameters import PowerConfig

KERNELS = {
    "rest": (0, 0, 0, 0),
    "product": (1, 0.85, 0, 0.15),
    "small": (1, 0.4, 0, 0.3),
    "attention": (1, 0.5, 0.2, 0.1),
    "copy": (1, 0, 0.02, 0.92),
    "arithmetic": (1, 0, 0.9, 0.05),
    "norm": (1, 0, 0.1, 0.7),
}
"""awake, tensor, sm, hbm"""


def table(truth: PowerConfig, seed: int, noise: float = 0.01) -> KernelTable:
    random = np.random.default_rng(seed)
    rows = [(name, *unit, clock, zero) for name, unit in KERNELS.items()
            for clock in (1000.0, 1400.0, 1700.0, 2000.0) for zero in (0.0, 1.0)]  # fmt: skip
    columns = [np.array(column) for column in zip(*(row[1:] for row in rows), strict=True)]
    rate = columns[4] / 2000
    activity = Activity(columns[0], columns[1] * rate, columns[2] * rate, columns[3], 0.0, columns[5], 1.0)
    temp: Float = random.uniform(35, 75, len(rows))
    watts = gpu_power_w(truth, activity, columns[4], temp) * (1 + noise * random.standard_normal(len(rows)))
    return KernelTable(tuple(row[0] for row in rows), activity, columns[4], temp, watts)


def wide(config: PowerConfig, names: tuple[str, ...]) -> PowerConfig:
    """The same numbers, not to be trusted."""
    return config.model_copy(update={
        name: getattr(config, name).model_copy(update={"sigma": 0.5 * getattr(config, name).value}) for name in names
    })  # fmt: skip


def test_fit_power_finds_what_made_the_table() -> None:
    names = ("tensor", "sm", "hbm", "clock_tree", "leakage", "zeros_share")
    truth = power(tensor=520.0, sm=150.0, hbm=110.0, clock_tree=65.0, leakage=80.0, zeros_share=0.6)
    fit = fit_power(table(truth, seed=1), wide(power(), names), "made up for tests", names)
    for name in names:
        assert getattr(fit.config, name).value == pytest.approx(getattr(truth, name).value, rel=0.1), name
    assert np.abs(fit.held_out_error).max() < 0.05
    assert fit.config.tensor.source == "made up for tests"


def test_fit_power_deviations_cover_what_made_the_table() -> None:
    names = ("tensor", "hbm")
    truth = power(tensor=520.0, hbm=110.0)
    away = []
    for seed in range(20):
        found = fit_power(table(truth, seed, noise=0.02), wide(power(), names), "made up for tests", names).config
        away += [
            (getattr(found, name).value - getattr(truth, name).value) / getattr(found, name).sigma for name in names
        ]
    assert 0.5 < np.std(away) < 1.6


def test_fit_power_keeps_what_rows_say_nothing_of() -> None:
    fit = fit_power(table(power(), seed=2), wide(power(), ("link",)), "made up for tests", ("link", "tensor"))
    assert fit.config.link.value == pytest.approx(40, rel=0.01)


def test_fit_power_needs_kernels_to_hold_out() -> None:
    made = table(power(), seed=1)
    two = made.pick(np.array([name in ("rest", "copy") for name in made.kernel]))
    with pytest.raises(UserError, match="2 kernels, at least 3"):
        fit_power(two, power(), "made up for tests")
