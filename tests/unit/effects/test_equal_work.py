"""What changes at equal work, by hand: pairs, ranges, factors, and whether the fastest layout stays the same."""

import math

import pandas as pd
import pytest

from triplepoint.effects import Effect
from triplepoint.effects.equal_work import answer_order, change_of_pairs
from triplepoint.effects.titles import Change, Statement, at_place, read_statements, write_statements
from triplepoint.units import counted

KEYS = ["layout"]


def points(*rows: tuple[str, str, float, float]) -> pd.DataFrame:
    """Return finished simulated points: layout, GPU type, speed, temperature; nothing is known of their errors."""
    table = pd.DataFrame(rows, columns=["layout", "gpu", "tokens_per_s_per_gpu", "gpu_temp_c"])
    return table.assign(status="ok", origin="simulated", repeat=1, num_measured_steps=20)


TWO = points(("a", "old", 100, 50), ("b", "old", 100, 60), ("a", "new", 300, 55), ("b", "new", 300, 68))


ASKED = {"tokens_per_s_per_gpu": "speed", "gpu_temp_c": "temperature"}
WORDS = "old", "new"


def test_change_of_pairs_says_mean_and_interval_over_layouts() -> None:
    change = change_of_pairs(TWO, KEYS, "gpu", ("old", "new"), ASKED, WORDS)
    # Three times in both: an interval of no width. Differences of 5 and 8 K are 6.5 +- 6.314 * 2.1213 / sqrt(2) K,
    # which holds no change: the range stands for it.
    assert change.sentence == "new is 3.0 times [3.0, 3.0] as fast as old"
    assert (change.short("speed"), change.short("temperature")) == ("×3.0 [3.0, 3.0]", "+5.0 to +8.0 K")
    assert change.num == 2


def test_change_of_pairs_leaves_out_what_ran_with_one_value_and_what_is_no_column() -> None:
    alone = points(("a", "old", 100, 50), ("b", "new", 300, 68))
    change = change_of_pairs(alone, KEYS, "gpu", ("old", "new"), ASKED | {"gone": "memory"}, WORDS)
    assert list(change.effects) == ["speed", "temperature"]
    assert change.answer == "No layout ran with new and with old"


@pytest.mark.parametrize(
    ("value", "said", "short"),
    [
        (0.5, "LoRA is 50 % faster than it in 1 layout", "+50 %"),
        (-0.25, "LoRA is 25 % slower than it in 1 layout", "-25 %"),
        (1.5, "LoRA is 2.5 times as fast as it in 1 layout", "×2.5"),
        (0.0, "LoRA does not change speed in 1 layout", "0.0 %"),
    ],
    ids=["more", "less", "twice", "equal"],
)
def test_change_of_one_layout_has_no_interval(value: float, said: str, short: str) -> None:
    change = Change("LoRA", "it", {"speed": {("a",): Effect(value, math.nan, math.nan, "none", 1)}})
    assert (change.sentence, change.short("speed")) == (said, short)


def _found(*values: float) -> dict:
    return {(str(number),): Effect(value, math.nan, math.nan, "none", 1) for number, value in enumerate(values)}


def test_change_where_all_are_alike_has_the_mean_with_its_interval() -> None:
    """ln 0.8 three times, but for 0.01: -20 % with a t interval over three of 2.92 * 0.01 / sqrt(3)."""
    found = _found(*(math.expm1(math.log(0.8) + change) for change in (-0.01, 0.0, 0.01)))
    change = Change("LoRA", "all of it", {"memory": found})
    # 1 - 0.8 * exp(+-0.016859): 18.6 and 21.3 %.
    assert change.sentence == "LoRA needs 20 % [19, 21] less memory than all of it"
    assert change.short("memory") == "-20 % [-21, -19]"


@pytest.mark.parametrize(
    ("values", "said", "short"),
    [
        (
            (7.0, 0.1, -0.5),
            "makes a step up to 8.0 times as long in 2 layouts, and up to 50 % shorter in 1",
            "-50 to +700 % (2 up, 1 down)",
        ),
        ((0.0, 0.01), "makes a step up to 1.0 % longer in 1 of 2 layouts", "0.0 to +1.0 %"),
        ((-0.8, -0.01, -0.01), "makes a step up to 80 % shorter in all 3 layouts", "-80 to -1.0 %"),
        ((0.0, 0.0), "does not change step time in any of 2 layouts", "no change"),
    ],
)
def test_change_of_both_signs_counts_layouts(values: tuple[float, ...], said: str, short: str) -> None:
    change = Change("overlap", "", {"step time": _found(*values)})
    assert (change.sentence, change.short("step time")) == (f"overlap {said}", short)


def test_change_of_pairs_has_their_interval_and_the_range_over_settings() -> None:
    pairs = {(name,): Effect(value, value - 0.01, value + 0.01, "ranks", 8) for name, value in (("a", 0.1), ("b", 0.3))}
    change = Change("overlap", "", {"step time": pairs}, is_paired=True)
    assert change.sentence == "overlap makes a step 19.6 % [19, 20] longer (10.0 to 30 % in 2 layouts)"
    assert change.short("step time") == "+19.6 % [19, 20] (+10.0 to +30)"


def test_interval_too_narrow_to_show_is_left_out_of_the_sentence_alone() -> None:
    """Half widths of 1e-5; how far layouts differ is known then."""
    pairs = {
        (name,): Effect(value, value - 1e-5, value + 1e-5, "ranks", 8) for name, value in (("a", 0.3), ("b", 0.31))
    }
    change = Change("overlap", "", {"step time": pairs}, is_paired=True)
    assert change.sentence == "overlap makes a step 30 % longer (30 to 31 % in 2 layouts)"
    assert isinstance(change.answer, Statement)
    assert change.answer.effect.basis == "settings" and change.answer.effect.low < 0.3 < change.answer.effect.high


def test_main_quantity_is_the_first_whose_layouts_agree() -> None:
    unclear, clear = _found(0.5, -0.2), _found(-0.1, -0.1, -0.1)
    change = Change("LoRA", "it", {"none": {}, "speed": unclear, "power": clear, "memory": clear})
    assert change.main == "memory", "power has no words of its own"
    answer = change.answer
    assert isinstance(answer, Statement)
    assert answer.sentence == "LoRA needs 10.0 % [10.0, 10.0] less memory than it"
    assert answer.others == ("speed -20 to +50 % (1 up, 1 down)", "power -10.0 % [-10.0, -10.0]")
    assert Change("LoRA", "it", {"speed": unclear}).main == "speed"


def test_statements_are_read_as_they_were_written() -> None:
    answer = Change("LoRA", "it", {"speed": _found(0.1, 0.1, 0.1), "memory": _found(0.5)}).answer
    assert isinstance(answer, Statement)
    (told,) = read_statements(write_statements([answer], TWO.assign(cluster="h100x64")))
    assert told.sentence == "h100x64: LoRA is 10.0 % [10.0, 10.0] faster than it"
    assert (told.question, told.noun, told.origin, told.others) == ("LoRA", "layout", "simulated", ("memory +50 %",))
    assert (told.effect.value, told.effect.num, told.effect.is_tie) == (pytest.approx(0.1), 3, False)
    assert read_statements(write_statements([], TWO)) == []


def test_counted_has_a_plural() -> None:
    assert [counted(num, "layout") for num in (0, 1, 2)] == ["0 layouts", "1 layout", "2 layouts"]


def test_at_place_begins_with_the_place_or_a_capital_but_in_names() -> None:
    assert at_place("h100x64", "with it") == "h100x64: with it"
    assert at_place("", "micro-batch 8 is slower") == "Micro-batch 8 is slower"
    assert at_place("", "h200x32-air20 is cooler") == "h200x32-air20 is cooler"


def test_answer_order_counts_groups_whose_fastest_layout_stays() -> None:
    same = points(("a", "old", 1, 0), ("b", "old", 2, 0), ("a", "new", 3, 0), ("b", "new", 4, 0)).assign(model="one")
    other = points(("a", "old", 2, 0), ("b", "old", 1, 0), ("a", "new", 3, 0), ("b", "new", 4, 0)).assign(model="two")
    assert answer_order(pd.concat([same, other]), ["model"], "gpu") == "the fastest layout is the same in 1 of 2 cases"


def test_answer_order_needs_two_layouts() -> None:
    assert answer_order(TWO[TWO["layout"] == "a"].assign(model="one"), ["model"], "gpu") == ""


def test_sentence_of_an_interval_with_zero_says_that_it_may_be_no_change() -> None:
    """One pair cannot disagree with others; its interval alone says that it is not certain."""
    pair = {("a",): Effect(0.175, -0.005, 0.39, "steps", 1)}
    change = Change("recomputation", "", {"step time": pair}, is_paired=True)
    assert change.sentence == ("recomputation makes a step 17.5 % [-1, 39] longer in 1 layout, which may be no change")
