"""Maps of GPUs, throttling and the node in its air: numbers by hand, and what they say where empty."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from matplotlib.figure import Figure

from tests.unit.figures.test_figures import read, texts
from triplepoint import figures
from triplepoint.effects import between_gpus
from triplepoint.figures import gpu_map, traffic_heatmap

MAPS = ["thermal_heatmap", "clock_heatmap", "traffic_heatmap", "throttling", "node_airflow"]


def with_rows(tables: dict[str, pd.DataFrame]) -> dict[str, pd.DataFrame]:
    """Return tables whose GPUs of slots 4 to 7 stand behind those of slots 0 to 3."""
    slot = tables["gpus"]["slot"].astype(int)
    placed = tables["gpus"].assign(
        airflow_row=slot // 4, airflow_lane=slot % 4, airflow_place=np.where(slot < 4, "front", "rear")
    )
    return {**tables, "gpus": placed}


def publish(tables: dict[str, pd.DataFrame], **values: Any) -> dict[str, pd.DataFrame]:
    """Return tables with one published value of slot 2 of node 1 of the first finished run."""
    points = tables["points"]
    row = {"run": points.loc[points["status"] == "ok", "run"].iloc[0], "node": 1, "slot": 2}
    return {**tables, "published": pd.DataFrame([row | values])}


def test_thermal_heatmap_has_the_temperature_of_every_gpu(studies: dict[str, Path]) -> None:
    """Made-up GPUs are at 52 degC and 2 more each, on every node: 14 K apart in every run."""
    figure, numbers = figures.load("thermal_heatmap").draw(read(studies["paper"]))
    for _, one in numbers.groupby("run"):
        by_rank = one.set_index("rank")
        assert by_rank["gpu_temp_c"].to_dict() == {rank: 52.0 + 2 * (rank % 8) for rank in by_rank.index}
        assert by_rank.loc[9, "node"] == 1 and by_rank.loc[9, "number"] == 1
    title = " ".join(texts(figure)[0].split())
    assert title == "h200x32: the hottest GPU of a run is 14.0 K [14.0, 14.0] hotter than its coolest"
    (marked,) = (text for text in texts(figure) if text.startswith("○"))
    assert marked.startswith("○ 66 °C, node 0 GPU 7, ")


def test_thermal_heatmap_has_published_gpus_below_ours(studies: dict[str, Path]) -> None:
    tables = publish(read(studies["paper"]), quantity="gpu_temp_c", published=70.0)
    _, numbers = figures.load("thermal_heatmap").draw(tables)
    (row,) = numbers[numbers["is_published"]].to_dict("records")
    assert (row["node"], row["number"], row["gpu_temp_c"]) == (1, 2, 70.0)
    assert row["row"].endswith(", published") and "published" in texts(figures.load("thermal_heatmap").draw(tables)[0])
    rows = list(dict.fromkeys(numbers["row"]))
    assert rows.index(row["row"]) == rows.index(row["row"].removesuffix(", published")) + 1


def test_clock_heatmap_draws_the_clock_while_busy_where_every_gpu_has_it(studies: dict[str, Path]) -> None:
    tables = read(studies["paper"])
    tables["gpus"]["sm_clock_busy_mhz"] = 1000.0
    figure, numbers = figures.load("clock_heatmap").draw(tables)
    assert (numbers["value"] == 1000).all()
    tables["gpus"].loc[tables["gpus"]["rank"] == 0, "sm_clock_busy_mhz"] = float("nan")
    figure, numbers = figures.load("clock_heatmap").draw(tables)
    assert numbers["value"].equals(numbers["sm_clock_mhz"].astype(float))
    assert any("idle time included" in " ".join(text.split()) for text in texts(figure))


def test_traffic_heatmap_breaks_off_what_is_far_slower() -> None:
    names = ["tiny near", "tiny far"]
    cells = pd.DataFrame({"row": [names[0], names[1], names[1]], "at": [0, 0, 4], "is_far": [False, True, True]})
    cells = cells.assign(tx_share=[0.5, 0.7, 0.8], rx_share=[0.2, 0.1, 0.1])
    scale = traffic_heatmap._scale(cells)
    assert (scale.vmin, scale.vmax) == (0.5, 50.0), "two decades to the highest share of what is not far slower"
    axes = Figure().subplots()
    traffic_heatmap._write_beyond(axes, cells.assign(value=100 * cells["tx_share"]), names, 50.0)
    assert [(text.get_text(), text.get_position()) for text in axes.texts] == [("80", (2.0, 2))]
    alone = traffic_heatmap._scale(cells[cells["is_far"]])
    assert alone.vmax == pytest.approx(80), "where all are far slower they set the scale"


def test_traffic_heatmap_has_every_link_by_direction(studies: dict[str, Path]) -> None:
    tables = read(studies["paper"])
    runs = tables["gpus"]
    nvlink = runs.assign(link="nvlink", tx_share=0.2, rx_share=0.1)[
        ["run", "node", "rank", "link", "tx_share", "rx_share"]
    ]
    nodes = runs.drop_duplicates(["run", "node"]).assign(link="infiniband", rank=np.nan, tx_share=0.3, rx_share=0.6)
    traffic = pd.concat([nvlink, nodes[nvlink.columns]]).assign(
        tx_bytes_per_s=1.0, rx_bytes_per_s=1.0, capacity_bytes_per_s=10.0, absent=None
    )
    figure, numbers = figures.load("traffic_heatmap").draw({**tables, "traffic": traffic})
    assert set(numbers["link"]) == {"nvlink", "infiniband"}
    found = texts(figure)
    assert {"NVLink, sent", "NVLink, received", "InfiniBand, sent", "InfiniBand, received"} <= set(found)
    assert " ".join(found[0].split()) == "InfiniBand is the fullest link on h200x32: runs use 60 % [60, 60] of it"
    notes = [" ".join(text.split()) for text in found]
    assert "20 % [20, 20] at most 20 %" in notes and "60 % [60, 60] at most 60 %" in notes


def test_cells_of_one_value_beside_each_other_are_one_box() -> None:
    boxes = gpu_map._boxes(np.array([[1.0, 1.0, np.nan, 2.0], [3.0, 4.0, 4.0, np.nan]]))
    assert boxes.get_array().tolist() == [1.0, 2.0, 3.0, 4.0]
    spans = [(path.vertices[:, 0].min(), path.vertices[:, 0].max()) for path in boxes.get_paths()]
    assert spans == [(-0.5, 1.5), (2.5, 3.5), (-0.5, 0.5), (0.5, 2.5)]


def test_lines_of_a_map_name_each_model_above_its_first_row() -> None:
    names = ["a TP1", "a TP1", "a TP2", "b TP1"]
    assert gpu_map.lines_of(names) == {"a": 0, "a TP1": 1, "a TP2": 2, "b": 3, "b TP1": 4}


def test_throttling_draws_the_causes_that_were_met(studies: dict[str, Path]) -> None:
    """One GPU is held by heat for a tenth of the time, all others by the power limit."""
    figure, numbers = figures.load("throttling").draw(read(studies["paper"]))
    assert numbers["run"].nunique() == 3
    assert {"power limit", "heat (driver)"} <= set(texts(figure))
    assert any(text.startswith("never by\nheat\u00a0(hardware)") for text in texts(figure))
    hot = numbers["rank"] == 3
    assert numbers.loc[hot, "sw_thermal_share"].to_numpy() == pytest.approx(0.1)
    assert numbers.loc[~hot, "power_cap_share"].to_numpy() == pytest.approx(0.1)
    assert numbers["throttle_normalised"].to_numpy() == pytest.approx(1.0)


def test_throttling_draws_published_gpus_beside_ours(studies: dict[str, Path]) -> None:
    tables = publish(read(studies["paper"]), quantity="throttle_fraction_normalised", published=0.4)
    temps = publish(tables, quantity="gpu_temp_c", published=61.0)["published"]
    tables["published"] = pd.concat([tables["published"], temps])
    figure, numbers = figures.load("throttling").draw(tables)
    (row,) = numbers[numbers["published_normalised"].notna()].to_dict("records")
    assert (row["node"], row["number"], row["published_normalised"], row["published_temp_c"]) == (1, 2, 0.4, 61.0)
    assert "published" in texts(figure)


def test_throttling_says_why_a_gpu_type_has_none(studies: dict[str, Path]) -> None:
    tables = read(studies["one"])
    shares = [name for name in tables["gpus"] if name.endswith("_share")]
    tables["gpus"][shares] = float("nan")
    tables["points"]["gpu"], tables["points"]["device_type"] = "mi250", "rocm"
    figure, _ = figures.load("throttling").draw(tables)
    assert any("was not counted" in " ".join(text.split()) for text in texts(figure))
    tables["gpus"][shares] = 0.0
    figure, _ = figures.load("throttling").draw(tables)
    assert "never" in texts(figure)


def test_node_airflow_compares_rows_by_lane(studies: dict[str, Path]) -> None:
    """Slots are 2 K apart, so that rear ones are 8 K hotter than those before them on every node."""
    figure, numbers = figures.load("node_airflow").draw(with_rows(read(studies["paper"])))
    slots = numbers[numbers["what"] == "slot"]
    assert slots["gpu_temp_c"].tolist() == [52.0 + 2 * slot for slot in range(8)]
    runs = numbers[numbers["what"] == "run"]
    assert len(runs) and runs["difference_k"].to_numpy() == pytest.approx(8.0)
    assert "Rear GPUs are 8.0 K [8.0, 8.0] hotter" in " ".join(texts(figure)[0].split())
    assert not any("%" in text and "hotter" in text for text in texts(figure))


def test_node_airflow_of_cooler_rear_gpus_says_so(studies: dict[str, Path]) -> None:
    tables = with_rows(read(studies["paper"]))
    tables["gpus"]["gpu_temp_c"] = 100 - tables["gpus"]["gpu_temp_c"]
    found = " ".join(texts(figures.load("node_airflow").draw(tables)[0])[0].split())
    assert "Rear GPUs are 8.0 K [8.0, 8.0] cooler than front ones" in found


def test_node_airflow_without_rows_says_so(studies: dict[str, Path]) -> None:
    tables = read(studies["paper"])
    tables["gpus"]["airflow_row"] = float("nan")
    tables["gpus"]["airflow_place"] = None
    found = texts(figures.load("node_airflow").draw(tables)[0])
    assert "rows not known" in found
    assert any("is not known" in text for text in found)


@pytest.mark.parametrize("name", MAPS)
def test_maps_without_gpus_say_so(studies: dict[str, Path], name: str) -> None:
    figure, numbers = figures.load(name).draw(read(studies["smoke"]))
    assert "no run with a GPU finished" in [" ".join(text.split()) for text in texts(figure)]
    assert numbers.empty


def test_rear_over_front_interval_by_hand() -> None:
    """Two nodes 10 and 12 K: mean 11, t of one degree of freedom 6.314 times 1 K."""
    gpus = pd.DataFrame(
        {
            "run": "a",
            "node": [0, 0, 1, 1],
            "airflow_lane": 0,
            "airflow_place": ["front", "rear"] * 2,
            "gpu_temp_c": [50.0, 60.0, 51.0, 63.0],
        }
    )
    apart = between_gpus.rear_over_front(gpus)
    assert apart is not None and not apart.is_relative
    assert apart.value == pytest.approx(11)
    assert apart.high - apart.value == pytest.approx(6.314, abs=1e-3)
    assert between_gpus.rear_over_front(gpus[gpus["airflow_place"] == "rear"]) is None


def test_spread_is_a_ratio_but_for_temperatures() -> None:
    gpus = pd.DataFrame({"run": ["a", "a"], "sm_clock_mhz": [1000.0, 1100.0], "gpu_temp_c": [50.0, 60.0]})
    clocks, temps = (between_gpus.spread(gpus, name) for name in ("sm_clock_mhz", "gpu_temp_c"))
    assert clocks is not None and clocks.text == "10.0 %"
    assert temps is not None and temps.text == "10.0 K"


def test_cooling_compares_the_coolest_with_the_warmest(studies: dict[str, Path]) -> None:
    """The same runs on a second cluster, 10 K cooler and twice as fast."""
    tables = read(studies["paper"])
    points = tables["points"]
    cool = points.assign(
        run=points["run"] + "-cool", cluster="h200x32-cool", gpu_temp_max_c=points["gpu_temp_max_c"] - 10,
        tokens_per_s_per_gpu=2 * points["tokens_per_s_per_gpu"], step_time_layout_sigma=0.01,
    )  # fmt: skip
    both = pd.concat([points.assign(step_time_layout_sigma=0.01), cool], ignore_index=True)
    nodes = pd.DataFrame({"run": both["run"], "inlet_temp_c": [20.0 if "cool" in run else 30.0 for run in both["run"]]})
    figure, numbers = figures.load("cooling").draw({"points": both, "nodes": nodes})
    assert {"h200x32\n30 °C", "cool\n20 °C"} <= set(texts(figure))
    title = " ".join(texts(figure)[0].split())
    assert title == "h200x32-cool makes the hottest GPU 10.0 K [10.0, 10.0] cooler than h200x32"
    assert {"-10.0 K\n[-10.0, -10.0]", "×2.0\n[2.0, 2.0]"} <= set(texts(figure))
    assert set(numbers["cluster"]) == {"h200x32", "h200x32-cool"}


def test_cooling_of_one_cluster_says_so(studies: dict[str, Path]) -> None:
    figure, numbers = figures.load("cooling").draw(read(studies["paper"]))
    assert "No two clusters finished with temperatures" in texts(figure) and numbers.empty
