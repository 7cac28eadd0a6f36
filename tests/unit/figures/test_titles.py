"""Heads of figures, what stands beside their panels, and strips of timelines, by hand."""

import math

import numpy as np
import pandas as pd
import pytest
from matplotlib.figure import Figure

from triplepoint.effects import Effect
from triplepoint.effects.titles import Change
from triplepoint.figures import claims, drawing, marks, scaling_down, style, timeline

POINT = {
    "layout": "DP4", "group": "tiny on local", "micro_batch_size": 4, "unknown": frozenset(), "step_time_s": 0.148,
    "origin": "measured",
}  # fmt: skip


def spans(*ranks: int) -> pd.DataFrame:
    """Return two spans of each rank that take 0.2 of 0.25 s, beside each other for a part of it."""
    rows = [(rank, start, length) for rank in ranks for start, length in ((0.0, 0.15), (0.1, 0.1), (0.25, 0.0))]
    table = pd.DataFrame(rows, columns=["rank", "t_start_ns", "duration_ns"]) * [1, 1e9, 1e9]
    return table.assign(lane="phase", label="forward")


def test_timeline_says_how_much_of_the_step_ranks_work() -> None:
    said = timeline._answer(pd.Series(POINT), spans(0, 1))
    assert said == "tiny DP4 on local: ranks work 80 % of a step of 0.25 s"


def test_timeline_has_what_is_drawn_above_it() -> None:
    drawn = timeline._drawn(pd.Series(POINT), spans(0), spans(0, 1))
    assert drawn == "first profiled step (median without the profiler: 0.148 s), micro-batch 4, 1 of 2 traced ranks"
    staged = spans(0, 1, 2, 3).assign(stage=lambda rows: rows["rank"] // 2)
    first = staged[staged["rank"].isin([0, 2])]
    assert timeline._drawn(pd.Series(POINT), first, staged).endswith(
        "2 of 4 traced ranks, the first of each pipeline stage"
    )
    simulated = pd.Series(POINT | {"origin": "simulated"})
    assert timeline._drawn(simulated, spans(0), spans(0)) == "micro-batch 4"


def test_strip_of_many_spans_has_the_share_of_each_kind() -> None:
    """Half a part forward, a quarter of it backward: a strip of height 1 from the top."""
    axes, ns = Figure().subplots(), 300 * 8
    looks = {}
    for number, (label, length) in enumerate((("forward", 4), ("backward", 2))):
        start = np.arange(0, ns, 8) + 4 * number
        looks[marks.PHASES[label]] = pd.DataFrame({"t_start_ns": start, "duration_ns": length})
    timeline._draw_shares(axes, looks, 0.0, 1.0, 1.0, float(ns))
    outer, inner = axes.patches  # the smaller share is drawn over the larger one
    assert (outer.get_data().values.tolist(), inner.get_data().values.tolist()) == ([0.75], [0.5])


def test_spans_of_one_look_are_one_path() -> None:
    axes = Figure().subplots()
    few = pd.DataFrame({"t_start_ns": [0, 10], "duration_ns": [5, 10]})
    timeline._draw_boxes(axes, {marks.PHASES["forward"]: few}, 1.0, 0.5, 1.0, 20.0)
    (path,) = (patch.get_path() for patch in axes.patches)
    assert path.vertices[:, 0].tolist() == [0, 5, 5, 0, 0, 10, 20, 20, 10, 10]
    assert set(path.vertices[:, 1]) == {1.0, 1.5}


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ((-0.38, -0.38, -0.38), "do not stand for whole ones: they have 38 % [38, 38] lower MFU"),
        ((0.01, 0.01, 0.01), "stand for whole ones: they have 1.0 % [1.0, 1.0] higher MFU"),
        (
            (0.5, -0.5),
            "may not stand for whole ones: they have up to 50 % higher MFU in 1 layout, and up to 50 % lower MFU in 1",
        ),
        ((-0.2,), "may not stand for whole ones: they have 20 % lower MFU in 1 layout"),
    ],
)
def test_scaling_down_answers_first(changes: tuple[float, ...], said: str) -> None:
    found = {(number,): Effect(value, math.nan, math.nan, "none", 1) for number, value in enumerate(changes)}
    change = Change("they", "", {"MFU": found})
    assert scaling_down._answer(change, "") == [f"Models scaled down to 30B {said}"]
    assert scaling_down._answer(change, "the order")[1] == "The order"


def test_scaling_down_without_pairs_says_so() -> None:
    assert scaling_down._answer(Change("they", "", {"MFU": {}}), "") == ["No layout ran with both sizes of a model"]


def test_no_line_ends_between_a_number_and_its_unit_or_interval() -> None:
    lines = style._wrapped("mean of it 16.8 % [12.1, 20] and 3 sets of 4 layouts", 1.0, style.TITLE_PT)
    assert "16.8\u00a0%\u00a0[12.1,\u00a020]" in lines and lines.replace("\n", " ").endswith("3 sets of 4 layouts")


def test_a_title_is_broken_between_phrases() -> None:
    said = "A step of one model is 50 % longer than another, largest part: memory"
    assert style._title(said, 4.0) == "A step of one model is 50\u00a0% longer than another,\nlargest part: memory"
    assert style._title("LoRA needs 55 % [46, 62] less memory than full training", 3.35).splitlines()[1] == (
        "than full training"
    )
    assert style._title(said, 7.0).count("\n") == 0


def test_names_of_bars_are_upright_where_they_would_touch() -> None:
    names = ["TP2·PP16", "TP8·FSDP4 gbs32"]
    for width, shown in ((style.COLUMN, ["TP2\nPP16", "TP8\nFSDP4\ngbs32"]), (0.9, names)):
        page = style.Page(Figure(figsize=(width, 2), layout="constrained"), [])
        axes = page.figure.subplots()
        drawing.name_bars(axes, names)
        page.finish()
        assert [label.get_text() for label in axes.get_xticklabels()] == shown


def test_numbers_beside_panels_have_intervals_on_lines_of_their_own() -> None:
    figure = Figure()
    page = style.Page(figure, [[axes] for axes in figure.subplots(2)])
    page.beside(["+5 % [4, 6]", ""], "mean of\n2 layouts")
    assert [text.get_text() for text in page.axes[0][0].texts] == ["+5 %\n[4, 6]", "mean of\n2 layouts"]
    page.beside(["", ""], "nothing")
    assert len(page.axes[0][0].texts) == 2


def test_claims_say_what_is_not_drawn_and_the_range_of_ratios() -> None:
    row = {"kind": "value", "ours": 1.0, "published": 1.0, "published_lo": 0.9}
    table = pd.DataFrame([row, row | {"published_lo": -0.5}, row | {"ours": math.nan}, row | {"kind": "sign"}])
    drawn = pd.DataFrame({"deviation": [0.5, 1.0, 2.0], "is_kelvin": False, "was_fitted": False, "verdict": "agrees"})
    assert claims._left_out(table, drawn[:1]) == "Not drawn of 3: 1 may be 0, 1 have no run. "
    assert claims._left_out(table[:1], drawn[:1]) == ""
    assert claims._answers(drawn)[1] == "Ours over published: median 1.00, 9 of 10 from 0.55 to 1.90"
    assert len(claims._answers(drawn.assign(is_kelvin=True))) == 1
