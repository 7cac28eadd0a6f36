"""Which points a figure can draw: what must be there for one figure, and what it says where nothing is."""

from pathlib import Path

import pandas as pd
import pytest

from triplepoint import figures
from triplepoint.figures.write import write_figure
from triplepoint.plan import select

CONFIG = Path(__file__).parents[3] / "config"
ON_GPUS = {"thermal_heatmap", "throttle_heatmap", "node_airflow"}


def test_needs_of_every_figure() -> None:
    assert set(figures.NEEDS) == set(figures.NAMES)


@pytest.mark.parametrize("name", figures.NAMES)
def test_needs_of_the_default_selection(name: str) -> None:
    """The smoke study is launched on this machine; no figure of inference or of GPUs needs it."""
    plan = select(CONFIG, None, ["cpu-local"], ["h200x32", "h100x64", "mi250x32"])
    needed = [entry.planned.point for entry in plan.valid if figures.is_drawn(entry.planned.point, [name])]
    assert needed
    launched = {point.cluster.name for point in needed if point.engine != "simulated"}
    assert launched == (set() if name in ON_GPUS | {"inference_batch"} else {"cpu-local"})
    assert {point.task for point in needed} <= figures.NEEDS[name].tasks


@pytest.mark.parametrize("name", sorted(ON_GPUS | {"inference_batch"}))
def test_figure_without_a_point_says_so(studies: dict[str, Path], tmp_path: Path, name: str) -> None:
    write_figure(name, studies["smoke"] / "tables", tmp_path)
    assert pd.read_csv(tmp_path / f"{name}.csv").empty
