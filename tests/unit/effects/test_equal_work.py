"""What changes at equal work, by hand: pairs, ranges, factors, and whether the fastest layout stays the same."""

import math

import pandas as pd
import pytest

from triplepoint.effects import Effect, summed_up
from triplepoint.effects.equal_work import answer_order, answer_pairs

KEYS = ["layout"]


def points(*rows: tuple[str, str, float, float]) -> pd.DataFrame:
    """Return finished simulated points: layout, GPU type, speed, temperature; nothing is known of their errors."""
    table = pd.DataFrame(rows, columns=["layout", "gpu", "tokens_per_s_per_gpu", "gpu_temp_c"])
    return table.assign(status="ok", origin="simulated", repeat=1, num_measured_steps=20)


TWO = points(("a", "old", 100, 50), ("b", "old", 100, 60), ("a", "new", 300, 55), ("b", "new", 300, 68))


def test_answer_pairs_says_mean_and_interval_over_layouts() -> None:
    asked = {"tokens_per_s_per_gpu": "speed", "gpu_temp_c": "temperature"}
    said = answer_pairs(TWO, KEYS, "gpu", ("old", "new"), asked, "new against old")
    # Three times in both: an interval of no width. Differences of 5 and 8 K are 6.5 +- 6.314 * 2.1213 / sqrt(2) K,
    # which holds no change: the settings are counted by sign.
    assert said == "new against old, 2 layouts: speed 3.0 times [3.0, 3.0]; temperature higher in 2 (b +8.0 K)"


def test_answer_pairs_leaves_out_what_ran_with_one_value() -> None:
    alone = points(("a", "old", 100, 50), ("b", "new", 300, 68))
    said = answer_pairs(alone, KEYS, "gpu", ("old", "new"), {"tokens_per_s_per_gpu": "speed"}, "new against old")
    assert said == "new against old: no layout ran with both"


@pytest.mark.parametrize(
    ("value", "said"), [(0.5, "+50 %"), (-0.25, "-25 %"), (1.5, "2.5 times")], ids=["more", "less", "twice"]
)
def test_summed_up_of_one_effect_without_interval(value: float, said: str) -> None:
    assert summed_up({("a",): Effect(value, math.nan, math.nan, "none", 1)}) == said


def test_summed_up_of_both_signs_names_the_settings_that_change_most() -> None:
    changes = {"TP8": 7.0, "TP4": 0.1, "PP32": -0.5, "PP16": -0.2}
    found = {("gpt3 on h200", name): Effect(value, math.nan, math.nan, "none", 1) for name, value in changes.items()}
    assert summed_up(found) == "higher in 2 (TP8 8.0 times), lower in 2 (PP32 -50 %)"
    with_others = found | {("llama on h200", "TP8"): Effect(0.0, math.nan, math.nan, "none", 1)}
    assert summed_up(with_others) == "higher in 2 (gpt3 TP8 8.0 times), lower in 2 (gpt3 PP32 -50 %)"


def test_answer_order_counts_groups_whose_fastest_layout_stays() -> None:
    same = points(("a", "old", 1, 0), ("b", "old", 2, 0), ("a", "new", 3, 0), ("b", "new", 4, 0)).assign(model="one")
    other = points(("a", "old", 2, 0), ("b", "old", 1, 0), ("a", "new", 3, 0), ("b", "new", 4, 0)).assign(model="two")
    assert answer_order(pd.concat([same, other]), ["model"], "gpu") == "the fastest layout is the same in 1 of 2"


def test_answer_order_needs_two_layouts() -> None:
    assert answer_order(TWO[TWO["layout"] == "a"].assign(model="one"), ["model"], "gpu") == ""
