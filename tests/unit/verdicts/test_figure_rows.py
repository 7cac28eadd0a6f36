"""Claims about figures: values, trends, order, what fits, and single GPUs, worked out by hand."""

from pathlib import Path
from typing import Any

import pytest

from tests.claims import FIGURE, configure, gpu, judge, kernel, point

POWER = {
    "id": "power", "kind": "figure", "says": "Power of a GPU.", "figure": "one", "judged": ["value"],
    "quantity": "gpu_power_w", "published": {"columns": ["w"], "accuracy": 15}, "along": "mbs",
}  # fmt: skip
SLOTS = {
    "id": "slots", "kind": "slots", "says": "Temperature of slots.", "figure": "one", "quantity": "gpu_temp_c",
    "published": {"columns": ["c"], "accuracy": 0.5}, "node": "node", "slot": "gpu",
}  # fmt: skip
MAPPED = {
    "file": "made_up", "source": "figure 2", "name": "{layout}", "settings": {"model": "tiny-gpt"},
    "keys": {"layout": {"A": {"tp": 1}}},
}  # fmt: skip


def verdicts(rows: list[dict[str, Any]]) -> list[str]:
    return [row["verdict"] for row in rows]


def test_value_of_a_simulated_run_is_known_to_the_interval_of_the_model(tmp_path: Path) -> None:
    config = configure(tmp_path, [POWER], "layout,mbs,w\nA,1,500\nB,1,500\nC,1,500\n")
    points = [
        point("a", tp=1, gpu_power_w=530, gpu_power_lo_w=510, gpu_power_hi_w=550),
        point("b", tp=2, gpu_power_w=530, gpu_power_lo_w=520, gpu_power_hi_w=540),
    ]
    rows = judge(config, points)
    assert verdicts(rows) == ["agrees", "differs", "cannot tell"]
    assert (rows[1]["difference"], rows[1]["reason"], rows[1]["runs"]) == (30, "the intervals are 5 apart", ["b"])
    assert (rows[0]["published_lo"], rows[0]["published_hi"], rows[0]["ours_lo"]) == (485, 515, 510)
    assert rows[2]["reason"] == "no run of this point in the results"
    assert rows[0]["point"] == "A, micro-batch 1" and rows[0]["figure"] == "figure 1"


def test_value_takes_measured_runs_before_simulated_ones_and_repeats_together(tmp_path: Path) -> None:
    config = configure(tmp_path, [POWER], "layout,mbs,w\nA,1,500\n")
    spread = {"gpu_power_p10_w": 495, "gpu_power_p90_w": 505}
    points = [
        point("s", gpu_power_w=900, gpu_power_lo_w=900, gpu_power_hi_w=900),
        point("m1", "measured", gpu_power_w=500, **spread),
        point("m2", "measured", repeat=2, gpu_power_w=520, gpu_power_p10_w=518, gpu_power_p90_w=522),
    ]
    (row,) = judge(config, points)
    assert (row["ours"], row["ours_lo"], row["ours_hi"]) == (510, 495, 522)
    assert (row["runs"], row["origin"], row["verdict"]) == (["m1", "m2"], "measured", "agrees")


def test_value_of_two_points_with_the_claims_settings_cannot_be_told(tmp_path: Path) -> None:
    config = configure(tmp_path, [POWER], "layout,mbs,w\nA,1,500\n")
    (row,) = judge(config, [point("a", gpu_power_w=500), point("b", gpu_power_w=500, recompute="full")])
    assert (row["verdict"], row["reason"]) == ("cannot tell", "2 points have these settings, such as a and b")


def test_value_of_a_point_out_of_memory_cannot_be_told(tmp_path: Path) -> None:
    config = configure(tmp_path, [POWER], "layout,mbs,w\nA,1,500\n")
    (row,) = judge(config, [point("a", status="oom")])
    assert (row["verdict"], row["reason"]) == ("cannot tell", "out of memory in the results: a")


def test_value_that_a_run_lacks_cannot_be_told(tmp_path: Path) -> None:
    config = configure(tmp_path, [POWER], "layout,mbs,w\nA,1,500\n")
    (row,) = judge(config, [point("a")])
    assert (row["verdict"], row["reason"]) == ("cannot tell", "the run has no such number")


@pytest.mark.parametrize(
    ("last_w", "verdict"), [(400, "agrees"), (600, "differs"), (490, "cannot tell")], ids=["falls", "rises", "stays"]
)
def test_trend_runs_between_the_ends_that_ran_in_both(tmp_path: Path, last_w: float, verdict: str) -> None:
    figure = "layout,mbs,w\nA,1,500\nA,2,450\nA,4,400\nA,8,\n"
    config = configure(tmp_path, [POWER | {"judged": ["trend"]}], figure)
    points = [point("one", gpu_power_w=500), point("two", micro_batch_size=2, gpu_power_w=last_w)]
    points.append(point("four", micro_batch_size=4, status="oom"))
    (row,) = judge(config, points)
    # The published change of -50 is known to the root of 15 squared twice: 21.
    assert (row["published"], row["ours"], row["point"]) == (-50, last_w - 500, "A, mbs 1 to 2")
    assert row["published_hi"] == pytest.approx(-50 + 15 * 2**0.5)
    assert row["verdict"] == verdict


def test_trend_that_is_not_to_be_read_off_cannot_be_told(tmp_path: Path) -> None:
    config = configure(tmp_path, [POWER | {"judged": ["trend"]}], "layout,mbs,w\nA,1,500\nA,2,485\n")
    (row,) = judge(config, [point("a", gpu_power_w=500), point("b", micro_batch_size=2, gpu_power_w=300)])
    assert row["verdict"] == "cannot tell" and "published change" in row["reason"]


def test_order_counts_pairs_that_both_tell_apart(tmp_path: Path) -> None:
    config = configure(tmp_path, [POWER | {"judged": ["order"]}], "layout,mbs,w\nA,1,400\nB,1,500\nC,1,510\n")
    points = [point("a", gpu_power_w=450), point("b", tp=2, gpu_power_w=400), point("c", tp=4, gpu_power_w=600)]
    (row,) = judge(config, points)
    # B and C are published too close together to tell apart.
    assert (
        row["reason"] == "1 of 2 pairs that both tell apart are reversed, such as A, micro-batch 1 and B, micro-batch 1"
    )
    assert (row["verdict"], row["ours"]) == ("differs", pytest.approx(0.5))
    points[0]["gpu_power_w"] = 350
    (row,) = judge(config, points)
    assert (row["verdict"], row["ours"]) == ("agrees", pytest.approx(1.0))


def test_fits_compares_what_ran(tmp_path: Path) -> None:
    figure = "layout,mbs,w\nA,1,500\nB,1,OOM\nC,1,\nA,2,500\nB,2,1\nC,2,1\n"
    config = configure(tmp_path, [POWER | {"judged": ["fits"]}], figure)
    points = [
        point("a"),
        point("b", tp=2),
        point("c", tp=4, status="oom"),
        point("d", micro_batch_size=2, status="oom"),
    ]
    points.append(point("e", tp=2, micro_batch_size=2, status="invalid"))
    rows = judge(config, points)
    assert verdicts(rows) == ["agrees", "differs", "agrees", "differs", "differs", "cannot tell"]
    assert [row["reason"] for row in rows[1:5]] == [
        "published it did not fit, and does here", None, "published it ran, and is out of memory here",
        "published it ran, and cannot run here",
    ]  # fmt: skip


def test_relative_values_are_over_the_median_of_what_both_have(tmp_path: Path) -> None:
    figure = "layout,mbs,eff,w\nA,1,1.0,400\nB,1,0.25,400\nC,1,0.0625,400\nA,2,0.01,400\n"
    step = {"efficiency": ["eff"], "power": "w", "efficiency_accuracy": 0.0001, "power_accuracy": 0}
    claim = POWER | {"published": step, "quantity": "step_time_s", "is_relative": True}
    points = [
        point(run, tp=tp, step_time_s=time_s, step_time_lo_s=time_s - 0.1, step_time_hi_s=time_s + 0.1)
        for run, tp, time_s in (("a", 1, 5.0), ("b", 2, 10.0), ("c", 4, 30.0))
    ]
    rows = judge(configure(tmp_path, [claim], figure), points)
    # Time goes with 1 / sqrt(efficiency * power): 1, 2 and 4 times as long.
    assert [row["published"] for row in rows] == pytest.approx([0.5, 1.0, 2.0])
    assert [row["ours"] for row in rows] == pytest.approx([0.5, 1.0, 3.0])
    assert verdicts(rows) == ["agrees", "agrees", "differs"]
    assert {row["unit"] for row in rows} == {"1"}


def test_seconds_of_kernels_are_sums_over_their_kinds(tmp_path: Path) -> None:
    claim = POWER | {"quantity": "send_recv_kernels_s", "published": {"columns": ["s", "more"], "accuracy": 0.5}}
    config = configure(tmp_path, [claim, claim | {"id": "all", "quantity": "computation_kernels_s"}],
                       "layout,mbs,s,more\nA,1,1-3,1\n")  # fmt: skip
    kernels = [kernel("a", "send", 1.0), kernel("a", "recv", 2.5), kernel("a", "all_reduce", 9), kernel("a", "gemm", 7)]
    sends, computation = judge(config, [point("a")], kernels=kernels)
    # 1 to 3 and 1: 2 to 4, either column read off to 0.5.
    assert (sends["published"], sends["published_lo"]) == (3, pytest.approx(2 - 0.5**0.5))
    assert (sends["ours"], sends["verdict"]) == (3.5, "agrees")
    assert (computation["ours"], computation["verdict"]) == (7, "differs")


def slots(tmp_path: Path, judged: str, **claim: Any) -> list[dict[str, Any]]:
    published = {(1, 0): 60, (1, 1): 50, (2, 0): 64, (2, 1): 50}
    lines = [f"A,{node},{slot},{value}" for (node, slot), value in published.items()]
    config = configure(tmp_path, [SLOTS | {"judged": judged} | claim], "\n".join(["layout,node,gpu,c", *lines]),
                       figures={"one": MAPPED})  # fmt: skip
    ours = {(0, 0): 55.0, (0, 1): 50.0, (1, 0): 57.0, (1, 1): 50.0, (2, 0): 99.0}
    rows = [
        gpu("a", node, slot, gpu_temp_c=value, power_cap_share=0.1 * (slot == 0))
        for (node, slot), value in ours.items()
    ]
    return judge(config, [point("a")], rows)


def test_slot_is_a_mean_over_the_published_nodes(tmp_path: Path) -> None:
    rear, front = slots(tmp_path, "slot")
    assert (rear["point"], rear["published"], rear["published_lo"], rear["published_hi"]) == (
        "A, GPU 0",
        62,
        59.5,
        64.5,
    )
    assert (rear["ours"], rear["ours_lo"], rear["ours_hi"], rear["verdict"]) == (56, 55, 57, "differs")
    assert (front["ours"], front["verdict"]) == (50, "agrees")


def test_gap_is_rear_less_front(tmp_path: Path) -> None:
    (row,) = slots(tmp_path, "gap")
    assert (row["published"], row["ours"], row["verdict"]) == (12, 6, "differs")


def test_largest_ratio_is_of_the_node_with_most(tmp_path: Path) -> None:
    (row,) = slots(tmp_path, "largest_ratio")
    assert (row["published"], row["ours"]) == (pytest.approx(0.28), pytest.approx(0.14))
    assert row["unit"] == "1" and row["verdict"] == "differs"


def test_gap_sign_compares_signs_alone(tmp_path: Path) -> None:
    (row,) = slots(tmp_path, "gap_sign", quantity="throttle_fraction", published={"columns": ["c"], "accuracy": 0.01})
    assert (row["published"], row["ours"], row["verdict"], row["difference"]) == (
        12,
        pytest.approx(0.1),
        "agrees",
        None,
    )


def test_fits_of_a_point_near_its_memory_cannot_be_told(tmp_path: Path) -> None:
    config = configure(tmp_path, [POWER | {"judged": ["fits"]}], "layout,mbs,w\nA,1,500\n")
    (row,) = judge(config, [point("a", memory_undecided="needs 130 to 145 GiB")])
    assert (row["verdict"], row["reason"]) == ("cannot tell", "needs 130 to 145 GiB")


def test_rows_say_what_was_set_by_their_figure(tmp_path: Path) -> None:
    figure = FIGURE | {"fitted": "power of H200"}
    config = configure(tmp_path, [POWER], "layout,mbs,w\nA,1,500\n", figures={"one": figure})
    assert [row["fitted"] for row in judge(config, [point("a", gpu_power_w=500)])] == ["power of H200"]
