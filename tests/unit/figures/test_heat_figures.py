"""Maps of temperatures and of throttling, and temperature by slot: numbers by hand, and what they say where empty."""

from pathlib import Path

import pytest

from tests.unit.figures.test_figures import read, texts
from triplepoint import figures


def test_thermal_heatmap_has_the_temperature_of_every_gpu(studies: dict[str, Path]) -> None:
    """Made-up GPUs are at 52 degC and 2 more each, on every node."""
    _, numbers = figures.load("thermal_heatmap").draw(read(studies["paper"]))
    for _, one in numbers.groupby("run"):
        by_rank = one.set_index("rank")
        assert by_rank["gpu_temp_c"].tolist() == [52.0 + 2 * (rank % 8) for rank in by_rank.index]
        assert by_rank.loc[9, "node"] == 1 and by_rank.loc[9, "number"] == 1


def test_throttle_heatmap_draws_the_causes_that_were_met(studies: dict[str, Path]) -> None:
    """One GPU is held by heat for a tenth of the time, all others by the power limit."""
    figure, numbers = figures.load("throttle_heatmap").draw(read(studies["paper"]))
    titles = [axes.get_title() for axes in figure.axes]
    assert {"power limit", "heat (driver)"} == {title for title in titles if title}
    assert any("never: heat (hardware)" in text for text in texts(figure))
    hot = numbers["rank"] == 3
    assert numbers.loc[hot, "sw_thermal_share"].to_numpy() == pytest.approx(0.1)
    assert numbers.loc[~hot, "power_cap_share"].to_numpy() == pytest.approx(0.1)
    assert (numbers.loc[hot, "power_cap_share"] == 0).all()


def test_throttle_heatmap_says_why_a_gpu_type_has_none(studies: dict[str, Path]) -> None:
    tables = read(studies["one"])
    shares = [name for name in tables["gpus"] if name.endswith("_share")]
    tables["gpus"][shares] = float("nan")
    tables["points"]["gpu"] = "mi250"
    figure, _ = figures.load("throttle_heatmap").draw(tables)
    assert any("was not counted" in text for text in texts(figure))
    tables["gpus"][shares] = 0.0
    figure, _ = figures.load("throttle_heatmap").draw(tables)
    assert any("never held down" in text for text in texts(figure))


def test_node_airflow_compares_slots(studies: dict[str, Path]) -> None:
    """Slot 7 at 66 degC is 27 % hotter than slot 0 at 52."""
    figure, numbers = figures.load("node_airflow").draw(read(studies["paper"]))
    assert numbers["gpu_temp_c"].tolist() == [52.0 + 2 * slot for slot in range(8)]
    assert any("slot 7 is 27 % hotter (°C) than slot 0" in text for text in texts(figure))
    tables = read(studies["paper"])
    tables["gpus"]["slot"] = float("nan")
    assert any("slots not known" in text for text in texts(figures.load("node_airflow").draw(tables)[0]))


@pytest.mark.parametrize("name", ["thermal_heatmap", "throttle_heatmap", "node_airflow"])
def test_maps_without_gpus_say_so(studies: dict[str, Path], name: str) -> None:
    figure, numbers = figures.load(name).draw(read(studies["smoke"]))
    assert "no run with a GPU finished" in texts(figure)
    assert numbers.empty


def test_sweeps_draw_power_heat_and_clock_of_one_gpu(studies: dict[str, Path]) -> None:
    """Mean over eight GPUs at 52 to 66 degC and 1965 to 1860 MHz."""
    for name in ("parallelism_sweep", "microbatch_power"):
        _, numbers = figures.load(name).draw(read(studies["paper"]))
        done = numbers[numbers["status"] == "ok"]
        assert done["gpu_temp_c"].to_numpy() == pytest.approx(59.0)
        assert done["gpu_temp_max_c"].to_numpy() == pytest.approx(66.0)
        assert done["sm_clock_ghz"].to_numpy() == pytest.approx((1.965 + 1.860) / 2)
        power_w = done["gpu_power_w" if name == "parallelism_sweep" else "power_w"]
        assert power_w.between(300, 800, inclusive="neither").all()
