"""The sentence of a comparison by hand: speed, its reasons, heat, power and clock."""

import math
from dataclasses import replace

import pytest

from triplepoint.compare.answer import answer
from triplepoint.compare.changes import Change
from triplepoint.compare.parts import Contribution, StepDifference
from triplepoint.compare.quantities import QuantityDifference
from triplepoint.compare.sides import Side
from triplepoint.compare.traced import Part, Traced, part_name
from triplepoint.effects import Effect
from triplepoint.trace.rank_results import Job, RankSummary
from triplepoint.units import show_seconds

GEMM, GATHER, IDLE = Part("compute", "gemm"), Part("comm", "all_gather", "tp"), Part("idle", "host")


def side(*, is_simulated: bool = False) -> Side:
    job = Job(is_simulated=is_simulated)
    return Side("x", [], None, [RankSummary("x", 0, True, (0, 1), [], [], 1, 1, 0, 0, False, job)])


def step(*parts: tuple[Part, float, float], scale: float = 1.0, is_profiled: bool = True) -> StepDifference:
    found = [
        Contribution(part, first, other, Effect(other - first, math.nan, math.nan, "none", 1, False))
        for part, first, other in parts
    ]
    found.sort(key=lambda one: -abs(one.effect.value))
    sums = [sum(one[at] for one in parts) for at in (1, 2)]
    return StepDifference(sums[0], sums[1], scale, is_profiled, found)


def quantity(
    name: str, first: float, other: float, low: float = math.nan, high: float = math.nan
) -> QuantityDifference:
    is_relative = not name.endswith("_c")
    change = other / first - 1 if is_relative else other - first
    return QuantityDifference(name, name, "", first, other, Effect(change, low, high, "steps", 5, is_relative))


def say(found: StepDifference | None, *quantities: QuantityDifference, changes: tuple[Change, ...] = ()) -> str:
    return answer(side(), side(), changes, found, quantities)


def test_largest_parts_are_named_until_most_of_the_difference_is() -> None:
    """Of 1 s more, 0.9 s is communication: that is enough. What went the other way is named too."""
    found = step((GEMM, 1.0, 0.8), (GATHER, 0.1, 1.0), (IDLE, 0.1, 0.4))
    assert say(found) == (
        "A step of B takes 83.3 % longer than one of A: 2.2 s against 1.2 s, mostly exposed all_gather of tp (+900 "
        "ms), against gemm (-200 ms)."
    )


def waiting(straggler_s: float, bubble_s: float = 0.0) -> Side:
    waited_s = {"bubble": bubble_s, "straggler": straggler_s}
    return replace(side(), traced=Traced([], [], {}, {}, waited_s, 4))


def test_waits_are_named_and_not_the_collectives_waited_in() -> None:
    """Of 0.9 s more in communication 0.8 s are waits for late ranks; 0.1 s is what it takes itself."""
    found = step((GEMM, 1.0, 1.2), (GATHER, 0.1, 1.0))
    said = answer(waiting(0.1), waiting(0.9), [], found, [])
    assert "mostly waiting in communication for late ranks (+800 ms), gemm (+200 ms)." in said
    assert "exposed all_gather of tp (+900 ms)" in answer(waiting(0.1), waiting(0.3), [], found, [])
    stages = answer(waiting(0.0, 0.1), waiting(0.0, 0.9), [], found, [])
    assert "mostly waiting in communication for other stages (+800 ms)" in stages


def test_waits_of_the_other_side_are_scaled_with_its_step() -> None:
    found = step((GEMM, 1.0, 1.0), (GATHER, 0.2, 1.0), scale=2.0)
    assert "for late ranks (+800 ms)" in answer(waiting(0.1), waiting(0.45), [], found, [])


def test_twice_as_long_is_said_as_a_factor() -> None:
    assert "A step of B takes 3 times as long as one of A: 3 s against 1 s" in say(step((GEMM, 1.0, 3.0)))
    found = say(step((GEMM, 1.0, 3.0), is_profiled=False), quantity("step_time_s", 1.0, 3.0, 1.5, 2.5))
    assert "takes 3 times as long as one of A [2.5, 3.5]: 3 s" in found


def test_interval_and_tie_are_said() -> None:
    found = step((GEMM, 1.0, 1.1), is_profiled=False)
    assert "takes 10.0 % longer than one of A [5.0, 15.0] %: 1.1 s" in say(
        found, quantity("step_time_s", 1, 1.1, 0.05, 0.15)
    )
    tie = say(found, quantity("step_time_s", 1, 1.1, -0.05, 0.25))
    assert "takes 10.0 % longer than one of A, within the spread [-5, 25] %: 1.1 s" in tie


def test_equal_steps_are_said_to_be_equal() -> None:
    assert say(step((GEMM, 1.0, 1.0))) == "A step of B takes as long as one of A: 1 s against 1 s."


def test_equal_work_is_said_with_the_step_as_it_ran() -> None:
    """Half the tokens per GPU in 0.6 s: 1.2 s for as many, of which the rate tells the interval."""
    found = step((GEMM, 1.0, 1.2), scale=2.0, is_profiled=False)
    said = say(found, quantity("tokens_per_s_per_gpu", 120.0, 100.0, 1 / 1.3 - 1, 1 / 1.1 - 1))
    assert said.startswith("For equal tokens per GPU a step of B takes 20.0 % longer than one of A [10, 30] %: ")
    assert "1.2 s against 1 s, 600 ms as it ran" in said


@pytest.mark.parametrize(
    ("quantities", "expected"),
    [
        ([("gpu_temp_max_c", 60, 70), ("gpu_power_w", 500, 600)], "as a GPU draws 20.0 % more (600 W against 500 W)"),
        ([("gpu_temp_max_c", 60, 70), ("inlet_temp_c", 20, 28)], "as the air at the inlet is 8.0 K warmer"),
        ([("gpu_temp_max_c", 60, 70), ("gpu_power_w", 500, 480)], "though it draws no more: look at air, contact"),
        ([("gpu_temp_max_c", 70, 60), ("gpu_power_w", 500, 400)], "is 10.0 K cooler as a GPU draws 20.0 % less"),
        ([("gpu_temp_max_c", 60, 60.2), ("gpu_power_w", 500, 600)], "; a GPU draws 20.0 % more"),
        ([("sm_clock_mhz", 1980, 1485)], ", at a clock 25.0 % lower"),
    ],
)
def test_heat_is_said_with_its_reason(quantities: list[tuple[str, float, float]], expected: str) -> None:
    assert expected in say(step((GEMM, 1.0, 2.0)), *(quantity(*one) for one in quantities))


@pytest.mark.parametrize(
    ("change", "is_advised"),
    [
        (Change("software", "nccl", "2.19", "2.20"), True),
        (Change("hardware", "hosts", "a", "b"), True),
        (Change("settings", "tp", "8", "4"), False),
        (Change("job", "script", "a", "b"), False),
        (Change("hardware", "device", "A100", "H100"), False),
    ],
)
def test_cooling_is_advised_where_jobs_are_alike(change: Change, is_advised: bool) -> None:
    """Other work at less power may be hotter by where its heat arises."""
    quantities = quantity("gpu_temp_max_c", 60, 70), quantity("gpu_power_w", 500, 480)
    said = say(step((GEMM, 1.0, 2.0)), *quantities, changes=(change,))
    assert "though it draws no more" in said and ("look at air" in said) == is_advised


def test_heat_within_its_spread_is_not_said() -> None:
    assert "hotter" not in say(step((GEMM, 1.0, 2.0)), quantity("gpu_temp_max_c", 60, 70, -5, 25))


def test_few_changed_settings_are_named_and_many_are_not() -> None:
    changes = tuple(Change("settings", name, "1", "2") for name in ("tp", "pp", "dp", "ep"))
    assert say(step((GEMM, 1.0, 2.0)), changes=changes[:2]).startswith(
        "With tp 2 instead of 1 and with pp 2 instead of 1, a"
    )
    assert say(step((GEMM, 1.0, 2.0)), changes=changes).startswith("A step of B")
    device = (Change("settings", "cluster", "a", "b"), Change("hardware", "device", "A100", "H100"))
    assert say(step((GEMM, 1.0, 2.0)), changes=device).startswith("On H100 instead of A100, a step")


def test_simulated_sides_are_marked() -> None:
    found = step((GEMM, 1.0, 2.0))
    assert "(both simulated)" in answer(side(is_simulated=True), side(is_simulated=True), [], found, [])
    assert "(A simulated, B measured)" in answer(side(is_simulated=True), side(), [], found, [])


def test_names_of_parts_and_times() -> None:
    names = {
        GEMM: "gemm",
        GATHER: "exposed all_gather of tp",
        IDLE: "waiting for launches from the CPU",
        Part("idle", "other"): "idle time for launches or dependencies",
        Part("comm", "unknown"): "exposed communication of unknown kind",
        Part("memory", "device_to_host"): "exposed device_to_host",
        Part("compute", "other"): "other computation",
    }
    assert {part: part_name(part) for part in names} == names
    assert [show_seconds(value) for value in (12.345678, 0.0123456, 1.5e-6, 1e-12)] == [
        "12.35 s",
        "12.35 ms",
        "1.5 us",
        "0 s",
    ]
