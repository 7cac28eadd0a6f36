"""Figures of kernels, recomputation, overlap, stages, links and occupancy: what they plot, by hand."""

import pandas as pd
import pytest
from matplotlib.text import Text

from tests.unit.figures.test_figures import read
from triplepoint import figures
from triplepoint.effects import links, occupancy, shares
from triplepoint.figures import marks, optimization_sweep
from triplepoint.tables.schema import column_of


def words(figure: object) -> str:
    return " ".join(" ".join(found.get_text().split()) for found in figure.findobj(Text))  # type: ignore[attr-defined]


def breakdown(rows: list[tuple]) -> pd.DataFrame:
    columns = ["run", "rank", "stage", "phase", "category", "kind", "busy_s", "exposed_s", "overlapped_s"]
    return pd.DataFrame(rows, columns=columns)


TWO_STAGES = breakdown(
    [
        ("a", 0, 0, "forward", "compute", "gemm", 6.0, 6.0, 0.0),
        ("a", 0, 0, "backward", "comm", "send", 1.0, 0.5, 0.5),
        ("a", 0, 0, "backward", "comm", "recv", 1.0, 1.0, 0.0),
        ("a", 0, 0, "other", "idle", "bubble", 9.0, 9.0, 0.0),
        ("a", 1, 0, "forward", "compute", "gemm", 8.0, 8.0, 0.0),
        ("a", 2, 1, "forward", "compute", "gemm", 4.0, 4.0, 0.0),
        ("a", 2, 1, "forward", "memory", "copy", 1.0, 1.0, 0.0),
        ("a", 2, 1, "forward", "comm", "all_reduce", 5.0, 3.0, 2.0),
    ]
)


def test_of_stages_is_the_mean_over_the_ranks_of_a_stage_without_idle_time() -> None:
    parts = shares.mean_over_ranks(TWO_STAGES).set_index(["stage", "part"])["busy_s"]
    # Stage 0 has two ranks, one of which communicates for 2 s.
    assert parts.to_dict() == {
        (0, "gemm"): 7,
        (0, "send_recv"): 1,
        (1, "gemm"): 4,
        (1, "memory"): 1,
        (1, "all_reduce"): 5,
    }


def test_exposed_and_overlapped_add_up_to_kernel_seconds() -> None:
    parts = shares.exposed_and_overlapped(TWO_STAGES).set_index("part")["seconds"]
    assert parts["overlapped"] == pytest.approx((0.5 + 2) / 3)
    assert parts.sum() == pytest.approx((8 + 8 + 10) / 3)


def test_share_of_communication_by_rank_and_by_cluster() -> None:
    # 2 of 8 s, 0 of 8 s, 5 of 10 s: 25 % on average.
    found = shares.communication_shares(TWO_STAGES).loc["a"]
    assert found.to_dict() == pytest.approx({"mean": 0.25, "low": 0.0, "high": 0.5})
    assert shares.answer_communication(TWO_STAGES, {"a": "x"}) == "Communication takes 25 % of kernel time"
    two = pd.concat([TWO_STAGES, TWO_STAGES[TWO_STAGES["rank"] == 2].assign(run="b")])
    assert shares.answer_communication(two, {"a": "x", "b": "y"}) == (
        "Communication takes 25 % of kernel time on x and 50 % on y"
    )
    assert shares.answer_communication(two, {"a": "x", "b": "x"}) == "Communication takes 25 to 50 % of kernel time"


def test_every_part_has_its_colour_and_every_colour_its_part() -> None:
    assert {*shares.CLASSES, shares.OTHER} == set(marks.KERNEL_CLASSES)
    assert {*shares.KINDS, "send", "recv", "other"} == set(marks.COMMUNICATION)
    assert marks.COMMUNICATION["send"] == marks.COMMUNICATION["recv"] == marks.COMMUNICATION["send_recv"]


def test_small_classes_are_one_part() -> None:
    kernels = pd.DataFrame(
        {
            "run": "a",
            "class": ["gemm", "loss", "norm", "comm"],
            "kind": ["dense", "x", "y", "all_gather"],
            "sum_s": [97.0, 1.0, 1.0, 1.0],
        }
    )
    parts = shares.sum_kernels(kernels)
    assert dict(zip(parts["part"], parts["sum_s"], strict=True)) == {"gemm": 97, "other": 2, "all_gather": 1}


def test_published_parts_leave_the_rest_of_the_total_to_other() -> None:
    quantities = {"computation_kernels_s": 10.0, "all_gather_kernels_s": 4.0, "kernel_sum_s": 15.0}
    rows = [
        {"run": "a", "quantity": name, "published": value, "source": "figure 10", "node": None}
        for name, value in quantities.items()
    ]
    parts = shares.published_parts(pd.DataFrame(rows), "figure 10")
    assert dict(zip(parts["part"], parts["published_s"], strict=True)) == {"compute": 10, "all_gather": 4, "other": 1}
    assert shares.published_parts(pd.DataFrame(rows), "figure 3").empty


def test_stages_by_hand() -> None:
    rows = [
        (layout, size, stage, compute, total)
        for layout, size, stage, compute, total in [
            ("PP2", 1, 0, 10.0, 12.0), ("PP2", 1, 1, 11.0, 12.0), ("PP2", 2, 0, 9.0, 15.0), ("PP2", 2, 1, 9.0, 15.0),
        ]
    ]  # fmt: skip
    totals = pd.DataFrame(rows, columns=["layout", "micro_batch_size", "stage", "compute_s", "total_s"])
    assert shares.spread_of_stages(totals).to_dict() == pytest.approx({"PP2": 0.1})
    change = shares.change_of_stages(totals)
    assert change and change.sentence == "micro-batch 2 takes 25 % more kernel time than micro-batch 1 in 1 layout"
    assert shares.change_of_stages(totals[totals["micro_batch_size"] == 1]) is None


def test_link_shares_take_the_busier_direction() -> None:
    traffic = pd.DataFrame(
        {"run": "a", "link": ["nvlink", "nvlink", "pcie"], "tx_share": [0.1, 0.2, None], "rx_share": [0.3, 0.1, None]}
    )
    found = links.shares(traffic)
    assert found.loc["a"].to_dict() == pytest.approx(
        {"nvlink_share": 0.25, "nvlink_share_min": 0.2, "nvlink_share_max": 0.3}
    )


def test_occupancy_is_weighted_by_time() -> None:
    kernels = pd.DataFrame(
        {
            "run": "a", "class": ["gemm", "gemm", "norm", "comm"], "sum_s": [3.0, 1.0, 4.0, 100.0],
            "occupancy": [0.2, 0.6, 0.9, 0.0], "warps_per_sm": 8.0, "blocks_per_sm": 1.0, "threads_per_block": 256.0,
        }
    )  # fmt: skip
    classes = occupancy.by_class(kernels)
    assert classes.set_index("class")["occupancy"].to_dict() == pytest.approx({"gemm": 0.3, "norm": 0.9})
    assert occupancy.answer(classes, {"a": "TP2"}) == "Kernels keep an occupancy of 60 % in TP2"


def test_occupancy_draws_launch_geometry_where_a_trace_has_it(studies: dict) -> None:
    tables = read(studies["smoke"])
    kernels = tables["kernels"].assign(
        occupancy=0.5, warps_per_sm=8.0, blocks_per_sm=2.0, threads_per_block=128.0, geometry_absent=None
    )
    figure, numbers = figures.load("occupancy").draw(tables | {"kernels": kernels})
    assert (numbers["occupancy"] == 0.5).all() and "comm" not in set(numbers["class"])
    assert "Kernels keep an occupancy of 50 %" in words(figure)


def test_occupancy_of_simulated_runs_says_they_have_none(studies: dict) -> None:
    figure, numbers = figures.load("occupancy").draw(read(studies["paper"]))
    assert numbers.empty
    assert "Simulated runs have no occupancy" in words(figure)


def test_optimization_sweep_by_hand(studies: dict) -> None:
    _, numbers = figures.load("optimization_sweep").draw(read(studies["paper"]))
    recomputed = numbers[(numbers["changed"] == "recompute") & (numbers["status"] == "ok")]
    # The made-up steps take a quarter longer with recomputation.
    assert recomputed["step_time_s_change"].dropna().to_numpy() == pytest.approx(25, abs=1.0)
    assert numbers.loc[numbers["switched"] == "base", "step_time_s_change"].isna().all()


@pytest.mark.parametrize(("origin", "column", "basis"), [
    ("measured", "step_time_s", "steps"), ("measured", "gpu_power_w", "steps"), ("simulated", "gpu_power_w", "ranks"),
])  # fmt: skip
def test_optimization_sweep_has_the_interval_of_its_runs(studies: dict, origin: str, column: str, basis: str) -> None:
    """Measured runs have an interval over their steps, not over the GPUs of simulated runs."""
    tables = read(studies["paper"])
    ends = {column_of(column, end): tables["points"][column] * by for end, by in (("p10", 0.99), ("p90", 1.01))}
    points = tables["points"].assign(origin=origin, num_measured_steps=10, **ends)
    _, numbers = figures.load("optimization_sweep").draw(tables | {"points": points})
    found = optimization_sweep._effects_of(numbers[numbers["changed"] == "recompute"], column)
    assert found and {effect.basis for effect in found.values()} == {basis}


def test_recompute_kernels_names_what_does_not_fit(studies: dict) -> None:
    tables = read(studies["paper"])
    points = tables["points"]
    points.loc[(points["recompute"] == "none") & (points["pp"] == 16), "status"] = "oom"
    no_trace = tables["breakdown"]["run"].isin(points.loc[points["status"] == "oom", "run"])
    figure, numbers = figures.load("recompute_kernels").draw(tables | {"breakdown": tables["breakdown"][~no_trace]})
    assert "out of memory" in words(figure)
    assert numbers[numbers["status"] == "oom"]["seconds"].isna().all()


def test_microbatch_stages_are_in_the_order_of_the_pipeline(studies: dict) -> None:
    _, numbers = figures.load("microbatch_stages").draw(read(studies["paper"]))
    deepest = numbers[numbers["pp"] == numbers["pp"].max()].dropna(subset="stage")
    for _, found in deepest.groupby("run"):
        assert found["stage"].drop_duplicates().tolist() == list(range(int(found["pp"].iloc[0])))
