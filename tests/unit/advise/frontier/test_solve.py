import itertools

import numpy as np
import pytest

from tests.lowtime_solver import least_energy_j
from triplepoint.advise.frontier.solve import Choices, Float, Pipeline
from triplepoint.errors import UserError
from triplepoint.simulate.timeline.schedule import Int64, Order, make_order

UNIT_S = 0.01


def choices_of(num_stages: int, num_clocks: int = 20, first: int = 0) -> Choices:
    """Return passes of unequal stages: whole hundredths of a second, energies that fall with the time as 1/t."""
    fastest = 10 + np.array([0, 2, 1, 4, 3, 0, 2, 1])[np.arange(num_stages) % 8]
    units = fastest[:, None, None, None] * np.array([1, 2, 1])[:, None, None] + np.arange(num_clocks)
    joules = 400.0 * fastest[:, None, None, None] * UNIT_S * fastest[:, None, None, None] / units
    none_w = np.zeros((num_stages, num_clocks))
    return Choices(units * UNIT_S, joules, none_w, np.full((num_stages, 3, 1), first))


def of_tasks(order: Order, values: Float, clock: Int64) -> Float:
    return np.asarray(values[np.arange(order.num_stages)[:, None], order.kind, order.chunk, clock])


def length_s(order: Order, seconds: Float) -> float:
    """Return when the last pass is done: each starts after the one before it and the one it needs."""
    end = np.zeros(order.kind.size)
    for task in np.argsort(order.wave.reshape(-1), kind="stable").tolist():
        stage, place = divmod(task, order.num_tasks)
        needs = int(order.needs[stage, place])
        ready = max(end[task - 1] if place else 0.0, end[needs] if needs >= 0 else 0.0)
        end[task] = ready + seconds[stage, place]
    return float(end.max())


def solved(order: Order, choices: Choices, sharing: str, times: float, edge: int | None = None) -> tuple[Int64, float]:
    """Return clocks for so many times the shortest length, and that length."""
    most_s = times * length_s(order, of_tasks(order, choices.seconds, np.zeros_like(order.kind)))
    pipeline = Pipeline(order, np.zeros(order.kind.shape), True, edge)
    return pipeline.solve(choices, sharing, most_s, np.zeros(order.num_stages)), most_s  # type: ignore[arg-type]


@pytest.mark.parametrize("times", [1.02, 1.2, 1.6])
def test_clocks_of_stages_are_as_good_as_the_best_of_all(times: float) -> None:
    order, choices = make_order("1f1b", 3, 4), choices_of(3)
    clock, most_s = solved(order, choices, "stage", times)
    best_j = np.inf
    for stages in itertools.product(range(0, 20), repeat=3):
        every = np.broadcast_to(np.array(stages)[:, None], order.kind.shape)
        if length_s(order, of_tasks(order, choices.seconds, every)) <= most_s + 1e-9:
            best_j = min(best_j, float(of_tasks(order, choices.active_j, every).sum()))
    assert length_s(order, of_tasks(order, choices.seconds, clock)) <= most_s + 1e-9
    # Clocks in between are rounded up.
    assert best_j <= of_tasks(order, choices.active_j, clock).sum() <= 1.03 * best_j


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b", "zero_bubble"])
def test_folded_pipeline_keeps_to_the_time_and_costs_little_more(schedule: str) -> None:
    order, choices = make_order(schedule, 4, 24), choices_of(4)  # type: ignore[arg-type]
    energy_j = {}
    for edge in (4, 12):
        clock, most_s = solved(order, choices, "pass", 1.05, edge)
        assert length_s(order, of_tasks(order, choices.seconds, clock)) <= most_s + 1e-9
        energy_j[edge] = float(of_tasks(order, choices.active_j, clock).sum())
    assert energy_j[4] <= 1.02 * energy_j[12]


def test_interleaved_stages_are_folded_by_groups() -> None:
    order, one = make_order("interleaved_1f1b", 2, 16, 2), choices_of(2)
    twice = Choices(*(np.repeat(each, 2, axis=2) for each in (one.seconds, one.active_j)), one.standing_w,
                    np.repeat(one.first, 2, axis=2))  # fmt: skip
    clock, most_s = solved(order, twice, "pass", 1.05)
    assert length_s(order, of_tasks(order, twice.seconds, clock)) <= most_s + 1e-9
    assert of_tasks(order, twice.active_j, clock).sum() < of_tasks(order, twice.active_j, 0 * clock).sum()


def test_finer_clocks_never_cost_more() -> None:
    order, choices = make_order("1f1b", 4, 8), choices_of(4, num_clocks=60)
    energy_j = [
        of_tasks(order, choices.active_j, solved(order, choices, sharing, 1.05)[0]).sum()
        for sharing in ("stage", "direction", "pass")
    ]
    assert energy_j[2] < energy_j[1] <= 1.01 * energy_j[0]


def test_clocks_above_the_power_limit_are_left_out() -> None:
    order, choices = make_order("1f1b", 2, 4), choices_of(2, first=3)
    assert solved(order, choices, "pass", 2.0)[0].min() >= 3


def test_time_that_no_clocks_reach_is_refused() -> None:
    with pytest.raises(UserError, match="cannot be done"):
        solved(make_order("1f1b", 2, 4), choices_of(2), "pass", 0.9)


@pytest.mark.parametrize("times", [1.02, 1.2])
def test_energy_is_that_of_lowtime(times: float) -> None:
    pytest.importorskip("lowtime", reason="lowtime is not installed; pip install -e '.[dev]'")
    order, choices = make_order("1f1b", 3, 4), choices_of(3)
    clock, most_s = solved(order, choices, "pass", times)
    assert length_s(order, of_tasks(order, choices.seconds, clock)) <= most_s + 1e-9
    theirs_j = least_energy_j(order, choices, 0.0, most_s + 1e-9, UNIT_S)
    assert of_tasks(order, choices.active_j, clock).sum() == pytest.approx(theirs_j, rel=0.01)
