"""Which power limit a configuration gets for a power budget."""

from pathlib import Path

import pytest

from triplepoint.advise.search.candidate import Candidate, look
from triplepoint.advise.search.limits import Limits
from triplepoint.advise.search.power_limits import LowerLimits, follow_within, highest_within, lower_limits
from triplepoint.advise.search.search import search
from triplepoint.advise.search.space import Question, groups_of
from triplepoint.config.catalogue import Catalogue
from triplepoint.errors import UserError
from triplepoint.prices import UNPRICED

CONFIG = Path("config")
PEAK_KW = {200: 14.2, 250: 17.0, 300: 20.2, 350: 21.3, 400: 19.9, 450: 22.1, 500: 24.2, 550: 26.1, 600: 28.1,
           650: 30.0, 700: 32.4}  # fmt: skip
"""As of TP8 PP4 VP2 on 32 H200: at 400 W, peaks are lower than at 300 and 350 W, where clocks rise further in waits."""
SUSTAINED_KW = {200: 12.7, 250: 14.5, 300: 16.2, 350: 18.0, 400: 19.8, 450: 21.7, 500: 23.7, 550: 25.7, 600: 27.7,
                650: 29.8, 700: 32.0}  # fmt: skip
LIMITS_W = list(PEAK_KW)


def candidate() -> tuple[Question, Candidate]:
    values = {"num_gpus": [8], "tp": [4], "pp": [1], "vp": [1], "micro_batch_size": [1], "recompute": ["none"]}
    question = Question("llama3-8b", "h200x32", 32, values | {"data_parallel_sharding": ["optim"], "overlap": [[]]})
    (group,) = groups_of(question, Catalogue(CONFIG))
    return question, next(iter(look(group, CONFIG, 0.5).values()))


@pytest.mark.parametrize("guess", range(12))
@pytest.mark.parametrize(
    ("budget_kw", "limit_w"), [(33, 700), (31, 650), (22.2, 450), (20, 400), (19, 250), (16.9, 200), (1, 200)]
)
def test_highest_within_finds_the_highest_limit_from_any_guess_though_peaks_do_not_follow_limits(
    budget_kw: float, limit_w: int, guess: int
) -> None:
    tried = list[int]()

    def is_over(place: int) -> bool:
        tried.append(place)
        return PEAK_KW[LIMITS_W[place]] > budget_kw

    place = highest_within(len(LIMITS_W), guess, lambda place: SUSTAINED_KW[LIMITS_W[place]] > budget_kw, is_over)
    assert LIMITS_W[place] == limit_w
    assert all(SUSTAINED_KW[LIMITS_W[one]] <= budget_kw for one in tried), "what is surely over is not simulated"


def test_highest_within_of_one_limit_tries_nothing() -> None:
    def never(place: int) -> bool:
        raise AssertionError

    assert highest_within(1, 0, never, never) == 0


def test_guess_is_the_lowest_limit_at_which_full_power_breaks_the_tightest_budget() -> None:
    lower = LowerLimits([300.0, 400.0, 500.0], [3000.0, 4000.0, 5000.0], nodes_per_rack=2)
    assert lower.guess(4, Limits(power_kw=17.0)) == 2
    assert lower.guess(4, Limits(power_kw=17.0, rack_power_kw=7.0)) == 1
    assert lower.guess(4, Limits(node_power_kw=2.9)) == 0
    assert lower.guess(4, Limits(node_power_kw=6.0)) == 3


def test_lower_limits_are_those_below_that_of_the_gpu_in_steps_of_50_w() -> None:
    question, _ = candidate()
    lower = lower_limits(question, CONFIG, Limits(power_kw=20.0))
    assert lower.limits_w == [float(limit_w) for limit_w in range(200, 700, 50)]
    assert list(lower.node_w) == sorted(lower.node_w)
    assert 8 * 650 < lower.node_w[-1] < 1.5 * 8 * 650, "GPUs, and the rest of the node"
    assert lower_limits(question, CONFIG, Limits(temp_c=60.0)) == LowerLimits()


def test_budgets_below_the_power_of_a_node_at_rest_are_refused_before_anything_is_predicted() -> None:
    question, _ = candidate()
    for limits, option in ((Limits(node_power_kw=1.5), "node-power"), (Limits(power_kw=1.5), "power")):
        with pytest.raises(
            UserError, match=rf"--max-{option} 1\.5: expected more than the 1\.9\d kW .+ h200x32 draws at"
        ):
            search(question, CONFIG, limits=limits)


def test_follow_within_keeps_to_the_budget_and_the_next_higher_limit_does_not() -> None:
    question, one = candidate()
    limits = Limits(node_power_kw=5.0)
    lower = lower_limits(question, CONFIG, limits)
    found = follow_within(one, CONFIG, True, UNPRICED, limits, lower)
    assert found.power_limit_w is not None and found.power_limit_w in lower.limits_w
    assert not limits.power_excess(found)
    given = Candidate(one.row, one.request, CONFIG, memory=one.memory, power_limit_w=found.power_limit_w + 50.0)
    higher = follow_within(given, CONFIG, True, UNPRICED, limits, LowerLimits())
    assert higher.node_power_peak_w > 5000.0
    assert limits.power_excess(higher) == pytest.approx(higher.node_power_peak_w / 5000.0)
