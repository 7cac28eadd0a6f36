"""The figure `parallelism_sweep` draws the study `parallelism`, whatever other studies are in the selection."""

from pathlib import Path

import pandas as pd
import pytest

from triplepoint import figures
from triplepoint.aggregate.points import unfinished_row
from triplepoint.figures.write import on_cluster
from triplepoint.plan import select
from triplepoint.tables.results import RESULT_TABLES

CONFIG = Path(__file__).parents[3] / "config"


def draw(*studies: str, name: str = "parallelism_sweep") -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return the points of some studies, none of which gave numbers, and what is plotted of them."""
    plan = select(CONFIG, studies or None, ["cpu-local"], ["h200x32", "h100x64", "mi250x32"])
    rows = [unfinished_row(entry, None) for entry in plan.entries if entry.planned.point.task != "inference"]
    points = RESULT_TABLES["points"].from_rows(rows).to_pandas()
    return points, figures.load(name).draw({"points": on_cluster(points, name)})[1]


@pytest.mark.parametrize("studies", [(), ("parallelism",), ("microbatch", "optimizations", "parallelism")])
def test_every_point_of_the_study_is_drawn(studies: tuple[str, ...]) -> None:
    points, numbers = draw(*studies)
    own = {run for run, names in zip(points["run"], points["studies"], strict=True) if "parallelism" in names}
    drawn = numbers[numbers["group"].isin(numbers.loc[numbers["run"].isin(own), "group"])]
    on_h200 = {run for run in own if "h200x32" in run}
    assert len(on_h200) == 15
    assert set(drawn["run"]) == on_h200
    assert drawn["setting"].str.contains("full recompute").all()


def test_layout_at_another_setting_says_which() -> None:
    """On 64 H100, GPT-3 under FSDP was published with a quarter of the batch."""
    _, numbers = draw("parallelism", "optimizations", name="parallelism_sweep_h100")
    gpt = numbers[numbers["group"].str.startswith("gpt3-175b on h100x64")]
    assert gpt["layout"].tolist() == ["TP2·PP32", "TP4·PP16", "TP8·PP8", "TP8·FSDP4 gbs32 32 GPUs"]
    assert gpt["setting"].str.contains("batch 128").all()


def test_without_the_study_the_plainest_setting_is_drawn() -> None:
    _, numbers = draw("optimizations")
    assert numbers["setting"].str.contains("no recompute").all()
