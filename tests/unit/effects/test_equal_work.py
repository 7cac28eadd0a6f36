"""What changes at equal work, by hand: pairs, ranges, factors, and whether the fastest layout stays the same."""

import math

import pandas as pd
import pytest

from triplepoint.effects import Effect
from triplepoint.effects.equal_work import answer_order, change_of_pairs
from triplepoint.effects.titles import Change, at_place, read_changes, summed_up, write_changes
from triplepoint.units import counted

KEYS = ["layout"]


def points(*rows: tuple[str, str, float, float]) -> pd.DataFrame:
    """Return finished simulated points: layout, GPU type, speed, temperature; nothing is known of their errors."""
    table = pd.DataFrame(rows, columns=["layout", "gpu", "tokens_per_s_per_gpu", "gpu_temp_c"])
    return table.assign(status="ok", origin="simulated", repeat=1, num_measured_steps=20)


TWO = points(("a", "old", 100, 50), ("b", "old", 100, 60), ("a", "new", 300, 55), ("b", "new", 300, 68))


def test_change_of_pairs_says_mean_and_interval_over_layouts() -> None:
    asked = {"tokens_per_s_per_gpu": "speed", "gpu_temp_c": "temperature"}
    said = change_of_pairs(TWO, KEYS, "gpu", ("old", "new"), asked, "On new").title
    # Three times in both: an interval of no width. Differences of 5 and 8 K are 6.5 +- 6.314 * 2.1213 / sqrt(2) K,
    # which holds no change: the settings are counted by sign.
    assert said == (
        "On new, speed is 3.0 times [3.0, 3.0] as high; temperature rises in both layouts by up to 8.0 K "
        "(mean of 2 layouts)"
    )


def test_change_of_pairs_leaves_out_what_ran_with_one_value() -> None:
    alone = points(("a", "old", 100, 50), ("b", "new", 300, 68))
    change = change_of_pairs(alone, KEYS, "gpu", ("old", "new"), {"tokens_per_s_per_gpu": "speed"}, "on new")
    assert change.title == "No layout ran both ways: on new"


@pytest.mark.parametrize(
    ("value", "said"),
    [(0.5, "rises by 50 %"), (-0.25, "falls by 25 %"), (1.5, "is 2.5 times as high"), (0.0, "stays the same")],
    ids=["more", "less", "twice", "equal"],
)
def test_summed_up_of_one_effect_without_interval(value: float, said: str) -> None:
    assert summed_up({("a",): Effect(value, math.nan, math.nan, "none", 1)}) == said


def _found(*values: float) -> dict:
    return {(str(number),): Effect(value, math.nan, math.nan, "none", 1) for number, value in enumerate(values)}


def test_summed_up_of_all_alike_gives_the_mean_with_its_interval() -> None:
    """ln 0.8 three times, but for 0.01: -20 % with a t interval over three of 2.92 * 0.01 / sqrt(3)."""
    found = _found(*(math.expm1(math.log(0.8) + change) for change in (-0.01, 0.0, 0.01)))
    # 1 - 0.8 * exp(+-0.016859): 18.6 and 21.3 %.
    assert summed_up(found) == "falls by 20 % [18.6, 21]"


def test_summed_up_of_both_signs_counts_settings() -> None:
    assert summed_up(_found(7.0, 0.1, -0.5)) == "rises in 2 layouts by up to 700 % and falls in 1 by up to 50 %"
    assert summed_up(_found(0.5, -0.2, -0.3), "run") == "rises in 1 run by up to 50 % and falls in 2 by up to 30 %"
    assert summed_up(_found(0.0, 0.01)) == "rises in 1 of 2 layouts by up to 1.0 %"
    assert summed_up(_found(-8.0e-1, -0.01, -0.01)) == "falls in all 3 layouts by up to 80 %"
    assert summed_up(_found(0.0, 0.0)) == "is the same in all 2 layouts"


def test_change_of_pairs_has_their_interval_and_the_range_over_settings() -> None:
    pairs = {(name,): Effect(value, value - 0.01, value + 0.01, "ranks", 8) for name, value in (("a", 0.1), ("b", 0.3))}
    said = Change("With it", {"power": pairs}, aside="error unknown", is_paired=True).title
    assert said == "With it, power rises by 19.6 % [18.9, 20] (10.0 to 30 % in 2 layouts) (error unknown)"


def test_title_of_a_change_names_a_mean_only_where_it_gives_one() -> None:
    unclear, clear = _found(0.5, -0.2), _found(0.1, 0.1, 0.1)
    assert Change("With it", {"speed": unclear, "none": {}}).title == (
        "With it, speed rises in 1 layout by up to 50 % and falls in 1 by up to 20 %"
    )
    assert Change("With it", {"speed": unclear, "power": clear}).title.endswith(
        "power rises by 10.0 % [10.0, 10.0] (mean of 3 layouts)"
    )
    assert Change("With it", {"speed": _found(0.1)}).title == "With it, speed rises by 10.0 % (1 layout)"


def test_changes_are_read_as_they_were_written() -> None:
    clear, unknown = _found(0.1, 0.1, 0.1), _found(0.5)
    change = Change("With it", {"speed": clear}, more={"memory": unknown, "none": {}})
    (told,) = read_changes(write_changes([change, Change("Without", {})], TWO.assign(cluster="h100x64")))
    assert (
        told.sentence
        == "h100x64: with it, speed rises by 10.0 % [10.0, 10.0]; memory rises by 50 % (mean of 3 layouts)"
    )
    assert (told.noun, told.origin) == ("layout", "simulated")
    assert [(mean.value, mean.num, mean.is_tie) for mean in told.means] == [(pytest.approx(0.1), 3, False)]
    (further,) = Change("With it", {"speed": {}}, more={"memory": unknown}).means
    assert further.value == pytest.approx(0.5) and math.isnan(further.low)
    assert read_changes(write_changes([], TWO)) == []


def test_counted_has_a_plural() -> None:
    assert [counted(num, "layout") for num in (0, 1, 2)] == ["0 layouts", "1 layout", "2 layouts"]


def test_at_place_begins_with_the_place() -> None:
    assert at_place("h100x64", "With it") == "h100x64: with it"
    assert at_place("", "With it") == "With it"


def test_answer_order_counts_groups_whose_fastest_layout_stays() -> None:
    same = points(("a", "old", 1, 0), ("b", "old", 2, 0), ("a", "new", 3, 0), ("b", "new", 4, 0)).assign(model="one")
    other = points(("a", "old", 2, 0), ("b", "old", 1, 0), ("a", "new", 3, 0), ("b", "new", 4, 0)).assign(model="two")
    assert answer_order(pd.concat([same, other]), ["model"], "gpu") == "The fastest layout is the same in 1 of 2 cases"


def test_answer_order_needs_two_layouts() -> None:
    assert answer_order(TWO[TWO["layout"] == "a"].assign(model="one"), ["model"], "gpu") == ""
