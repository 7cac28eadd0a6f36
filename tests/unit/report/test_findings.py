"""Findings: headlines worked out from rows, ranked by effect, with further quantities and the figure they belong to."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pandas import read_csv

from tests.synthetic import CONFIG, H200, Spec, build
from triplepoint.aggregate import aggregate
from triplepoint.effects import ABOUT_BASIS, Effect
from triplepoint.effects.titles import Statement
from triplepoint.figures import FIGURES, microbatch_power
from triplepoint.figures.write import write_figure
from triplepoint.report.findings import Finding, _of_figures, find
from triplepoint.report.pictures import read_picture
from triplepoint.tables.studies import read_joined

SHOWN = {"sweep": replace(FIGURES["parallelism_sweep"], studies=("synthetic",))}


def points_of(folder: Path, *specs: Spec) -> list[dict[str, Any]]:
    aggregate(build(folder, specs), folder, CONFIG)
    return read_joined(folder, ["synthetic"], "points").to_pylist()


def gpus(tp: int, step_ms: float, **more: Any) -> Spec:
    return Spec("llama3-70b", {"tp": tp, "pp": 32 // tp}, cluster=H200, engine="simulated", step_ms=step_ms, **more)


def starting(found: list[Finding], words: str) -> Finding:
    (one,) = (finding for finding in found if finding.headline.startswith(words))
    return one


def test_find_says_what_a_change_does_with_the_brackets_of_its_figure(tmp_path: Path) -> None:
    specs = [gpus(4, 20_000), gpus(8, 30_000), gpus(2, 40_000)]
    specs += [gpus(tp, ms, micro_batch_size=2) for tp, ms in ((4, 24_000), (8, 39_000), (2, 50_000))]
    points = points_of(tmp_path, *specs)
    write_figure("synthetic/microbatch_power", tmp_path, tmp_path)
    picture = read_picture(tmp_path / "synthetic" / "microbatch_power.svg", "any", "")
    shown = {"synthetic--microbatch_power": FIGURES["microbatch_power"]}
    statements = {"synthetic--microbatch_power": picture.statements}
    one = starting(find(points, shown, "report", statements), "h200x32: micro-batch 2 is 20\u00a0%")
    # Ratios 1.2, 1.3 and 1.25: speed is one over their geometric mean.
    assert one.effect.value == pytest.approx((1.2 * 1.3 * 1.25) ** (-1 / 3) - 1, rel=1e-3)
    said = picture.title.replace(" %", "\u00a0%")
    assert one.headline == f"h200x32: {said[0].lower()}{said[1:]}" and said.endswith("slower than micro-batch 1")
    assert one.basis == "mean of 3 layouts, simulated; interval of the mean over them, without the error of the model"
    assert one.figure == "synthetic--microbatch_power" and not one.is_aside
    assert any(text.startswith("peak power ") for text in one.others), "further quantities stand below the headline"
    drawn = read_csv(tmp_path / "synthetic" / "microbatch_power.csv").columns
    assert {name for name in microbatch_power._NAMES if name in points[0]} <= {*drawn}, "what is said is plotted"


def test_find_names_the_best_layout_with_its_figure_and_pages(tmp_path: Path) -> None:
    points = points_of(tmp_path, gpus(4, 20_000), gpus(8, 30_000), gpus(2, 64_000))
    one = starting(find(points, SHOWN, "pages", {}), "llama3-70b on h200x32")
    assert one.headline == "llama3-70b on h200x32: TP4·PP8 is 50\u00a0% [9, 106] faster than TP8·PP4"
    assert one.others[0] == "slowest TP2·PP16, 3.2 times as long"
    assert [text.partition(" ")[0] for text in one.others[1:]] == ["power", "hottest", "energy"]
    assert one.figure == "sweep"
    assert [label for _, label in one.runs] == ["llama3-70b TP4·PP8", "llama3-70b TP8·PP4"]
    assert all(page.startswith("pages/llama3-70b_h200x32_") for page, _ in one.runs)


def test_findings_of_figures_say_what_their_interval_is_over() -> None:
    told = Statement("It costs", "it", Effect(-0.1, -0.2, -0.05, "ranks", 3), "layout", ("power +1 %",), "simulated")
    alone = told._replace(effect=Effect(0.4, math.nan, math.nan, "none", 1), noun="", question="more")
    found = list(_of_figures({"lora": [told, alone]}, {"lora": FIGURES["lora"]}))
    assert [one.basis for one in found] == [
        f"mean of 3 layouts, simulated; interval {ABOUT_BASIS['ranks']}",
        f"simulated; interval {ABOUT_BASIS['none']}",
    ]
    assert [(one.question, one.others, one.is_aside) for one in found] == [
        ("it", ("power +1 %",), True),
        ("more", ("power +1 %",), True),
    ]


def test_find_has_trainings_before_inference(tmp_path: Path) -> None:
    points = points_of(tmp_path, gpus(4, 20_000), gpus(8, 30_000))
    served = {"task": "inference", "studies": ["served"]}
    points += [point | served | {"run": point["run"] + "_served"} for point in points]
    told = Statement("A change of much", "it", Effect(9.0, 8.0, 10.0, "settings", 3), "layout", (), "simulated")
    shown = SHOWN | {"serving": replace(FIGURES["lora"], studies=("served",))}
    found = find(points, shown, "pages", {"serving": [told]})
    assert [one.figure for one in found][0] == "sweep" and "serving" in [one.figure for one in found]


def test_find_of_nothing_is_nothing(tmp_path: Path) -> None:
    assert find([], SHOWN, "report", {}) == []
    assert find(points_of(tmp_path, gpus(4, 20_000, status="oom")), SHOWN, "report", {}) == []


def finding(value: float, low: float, high: float) -> Finding:
    return Finding("", Effect(value, low, high, "model", 1), "")


def test_track_is_on_a_scale_common_to_all() -> None:
    # No effect stands in the middle, e^0.6 - 1 at the end, and what is larger is cut off there.
    end = math.expm1(0.6)
    assert finding(0.0, -10.0 / 11, end).track == (0.0, 100.0, 50.0)
    assert finding(math.expm1(0.3), 0.0, 10.0).track == (50.0, 50.0, 75.0)
    assert finding(0.1, math.nan, math.nan).track is None
    # A narrow interval, and one beyond the scale, has a bar wide enough to be seen, on the scale.
    assert finding(0.0, 0.0, 0.0).track == (50.0, 2.0, 50.0)
    assert finding(1.9, 1.1, 3.0).track == (98.0, 2.0, 100.0)
    assert finding(-0.6, -0.7, -0.5).track == (0.0, 2.0, 0.0)
    assert [finding(value, value, value).beyond for value in (-0.5, 0.5, 1.0)] == ["◂", "", "▸"]


def test_find_has_layouts_far_slower_than_all_others_as_one_finding(tmp_path: Path) -> None:
    specs = [gpus(4, 20_000), gpus(8, 50_000), gpus(2, 600_000)]
    found = find(points_of(tmp_path, *specs), SHOWN, "pages", {})
    best = starting(found, "llama3-70b on h200x32")
    assert "TP4·PP8 is 2.5 times" in best.headline and "TP2·PP16" not in best.headline
    slow = starting(found, "TP2·PP16 takes 30 times as long as the best layout, in 1 training")
    assert found.index(best) < found.index(slow) and slow.figure == "sweep"
