"""Titles that figures make themselves: which step is drawn, whether sizes stand for each other, unknown layouts."""

import math

import pandas as pd
import pytest
from matplotlib.figure import Figure

from triplepoint.effects import Effect
from triplepoint.effects.titles import Change
from triplepoint.figures import kernel_breakdown, labels, scaling_down, style, timeline

POINT = {
    "layout": "DP4", "group": "tiny on local", "micro_batch_size": 4, "unknown": frozenset(), "step_time_s": 0.148,
    "origin": "measured",
}  # fmt: skip


def test_timeline_has_the_length_of_the_step_that_is_drawn() -> None:
    said = timeline._answer(pd.Series(POINT), 0.259, (2, 4))
    assert said == (
        "DP4, tiny on local, micro-batch 4, 2 of 4 traced ranks: the first profiled step takes 0.259 s "
        "(median without the profiler: 0.148 s)"
    )


def test_timeline_of_a_simulated_run_has_no_profiler() -> None:
    said = timeline._answer(pd.Series(POINT | {"origin": "simulated"}), 25.5, (4, 4))
    assert said == "DP4, tiny on local, micro-batch 4: the step takes 25.5 s"


@pytest.mark.parametrize(
    ("changes", "begin"),
    [
        (
            (-0.38, -0.35, -0.40),
            "No: with the 30B model instead of the whole one, model FLOP utilisation falls by",
        ),
        ((0.01, -0.01, 0.01), "Yes: "),
        ((0.5, -0.5), "Not known: "),
        ((-0.2,), "With the 30B model instead of the whole one, model FLOP utilisation falls by 20 % (1 layout)"),
        ((), "No layout ran both ways: With the 30B model"),
    ],
)
def test_scaling_down_answers_first(changes: tuple[float, ...], begin: str) -> None:
    found = {(number,): Effect(value, math.nan, math.nan, "none", 1) for number, value in enumerate(changes)}
    change = Change("With the 30B model instead of the whole one", {"model FLOP utilisation": found})
    assert scaling_down._answer(change).startswith(begin)


def test_a_layout_nobody_knows_is_no_name() -> None:
    called = kernel_breakdown._called(pd.Series([labels.UNKNOWN_LAYOUT, "TP2"]))
    assert called.tolist() == ["a run of unknown layout", "TP2"]


def test_no_line_ends_between_a_number_and_its_unit() -> None:
    lines = style._broken(Figure(figsize=(1, 1)), "mean of it 16.8 % and 3 sets of 4 layouts", style.TITLE_PT)
    assert "16.8\u00a0%" in lines and lines.replace("\n", " ").endswith("3 sets of 4 layouts")
