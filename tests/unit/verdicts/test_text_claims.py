"""Claims in words: numbers, signs between points and within runs, what cannot be judged, and contradictions."""

from pathlib import Path
from typing import Any

import pytest

from tests.claims import configure, gpu, judge, point

OVERLAP: dict[str, Any] = {
    "id": "overlap", "kind": "change", "says": "Overlap is hotter.", "source": "section 5",
    "quantity": "gpu_temp_max_c",
    "direction": "rises", "points": {"model": "tiny-gpt"}, "before": {"overlap": []}, "after": {"overlap": ["tp"]},
    "least": 0.5,
}  # fmt: skip


def change(tmp_path: Path, points: list[dict[str, Any]], **claim: Any) -> list[dict[str, Any]]:
    return judge(configure(tmp_path, [OVERLAP | claim]), points)


def test_change_pairs_points_that_are_alike_in_all_else(tmp_path: Path) -> None:
    points = [
        point("a", tp=1, gpu_temp_max_c=60), point("a+", tp=1, overlap=["tp"], gpu_temp_max_c=62),
        point("b", tp=2, gpu_temp_max_c=60), point("b+", tp=2, overlap=["tp"], gpu_temp_max_c=58),
        point("c", tp=4, gpu_temp_max_c=60), point("c+", tp=4, overlap=["tp"], gpu_temp_max_c=60.4),
        point("d", tp=8, gpu_temp_max_c=60), point("e+", tp=8, overlap=["tp"], recompute="full", gpu_temp_max_c=70),
    ]  # fmt: skip
    rows = change(tmp_path, points)
    assert [(row["runs"], row["verdict"]) for row in rows] == [
        (["a", "a+"], "agrees"), (["b", "b+"], "differs"), (["c", "c+"], "cannot tell"),
    ]  # fmt: skip
    assert rows[0]["point"] == "tiny-gpt, h200x32, TP1, PP1, DP1, micro-batch 1, no recomputation: overlap none to tp"
    assert (rows[0]["published"], rows[0]["ours"], rows[0]["figure"]) == (1, 2, "section 5")


def test_change_of_measured_runs_must_be_beyond_their_spread(tmp_path: Path) -> None:
    spread = {"gpu_power_p10_w": 490, "gpu_power_p90_w": 510}
    points = [
        point("a", "measured", gpu_power_w=500, **spread),
        point("b", "measured", overlap=["tp"], gpu_power_w=510, gpu_power_p10_w=500, gpu_power_p90_w=520),
    ]
    (row,) = change(tmp_path, points, quantity="gpu_power_w")
    assert row["verdict"] == "cannot tell"
    for each in points:
        each["origin"] = "simulated"
    (row,) = judge(tmp_path, points)
    assert row["verdict"] == "agrees", "of simulated runs the error of the model is common to both"


def test_change_to_a_point_out_of_memory_cannot_be_told(tmp_path: Path) -> None:
    (row,) = change(tmp_path, [point("a", gpu_temp_max_c=60), point("b", overlap=["tp"], status="oom")])
    assert (row["verdict"], row["reason"]) == ("cannot tell", "out of memory in the results: b")


def test_change_without_a_pair_says_what_is_missing(tmp_path: Path) -> None:
    (row,) = change(tmp_path, [point("a", gpu_temp_max_c=60)])
    assert row["verdict"] == "cannot tell"
    assert row["reason"] == (
        "no two runs to compare: no finished run in the results with model tiny-gpt, overlap tp"
    )  # fmt: skip


def test_change_between_the_best_of_either_side(tmp_path: Path) -> None:
    points = [
        point("a", cluster="h100x64", tp=1, tokens_per_s=100), point("b", cluster="h100x64", tp=2, tokens_per_s=200),
        point("c", tp=2, tokens_per_s=190), point("d", tp=4, tokens_per_s=203),
    ]  # fmt: skip
    claim = {
        "quantity": "tokens_per_s", "before": {"cluster": "h100x64"}, "after": {"cluster": "h200x32"}, "least": 0,
        "best": "highest", "least_share": 0.02,
    }  # fmt: skip
    (row,) = change(tmp_path, points, **claim)
    assert (row["runs"], row["verdict"], row["ours"]) == (["b", "d"], "cannot tell", 3), "less than 2 % of 200"
    points[3]["tokens_per_s"] = 250
    (row,) = judge(tmp_path, points)
    assert (row["verdict"], row["ours"]) == ("agrees", 50)


def test_change_alike_in_some_columns_alone(tmp_path: Path) -> None:
    points = [point("a", gpu_temp_max_c=60), point("b", overlap=["tp"], tp=2, gpu_temp_max_c=70)]
    (row,) = change(tmp_path, points, alike=["model"])
    assert (row["runs"], row["verdict"]) == (["a", "b"], "agrees")


def test_stated_number_is_held_against_the_largest(tmp_path: Path) -> None:
    claim = {"id": "dies", "kind": "stated", "says": "Dies are apart.", "source": "section 6", "stated": [5, 10]}
    config = configure(tmp_path, [claim | {"quantity": "die_gap_c", "points": {"model": "tiny-gpt"}}])
    temps = {("a", 0): 60, ("a", 1): 62, ("a", 2): 60, ("a", 3): 61, ("b", 0): 60, ("b", 1): 66, ("b", 3): 90}
    gpus = [gpu(run, 0, device, gpu_temp_c=value) for (run, device), value in temps.items()]
    (row,) = judge(config, [point("a"), point("b", tp=2)], gpus)
    assert (row["ours"], row["runs"], row["verdict"]) == (6, ["b"], "agrees")
    (row,) = judge(config, [])
    assert (row["published_lo"], row["published_hi"], row["verdict"]) == (5, 10, "cannot tell")


@pytest.mark.parametrize(("front_mhz", "verdict"), [(1900, "agrees"), (1700, "differs"), (1803, "cannot tell")])
def test_excess_is_judged_in_every_run(tmp_path: Path, front_mhz: float, verdict: str) -> None:
    claim = {
        "id": "slower", "kind": "excess", "says": "Rear GPUs are slower.", "source": "figure 17",
        "quantity": "rear_clock_excess_mhz", "direction": "falls", "points": {"model": "tiny-gpt"}, "least": 5,
    }  # fmt: skip
    clocks = {0: 1800, 3: 1800, 1: front_mhz, 2: front_mhz}
    gpus = [gpu("a", 0, device, sm_clock_mhz=value) for device, value in clocks.items()]
    (row,) = judge(configure(tmp_path, [claim]), [point("a")], gpus)
    assert (row["verdict"], row["ours"]) == (verdict, 1800 - front_mhz)


def test_unknown_says_why(tmp_path: Path) -> None:
    claim = {"id": "psu", "kind": "unknown", "says": "A supply failed.", "source": "section 6", "unknown": "not in it"}
    (row,) = judge(configure(tmp_path, [claim]), [point("a")])
    assert (row["verdict"], row["reason"], row["kind"]) == ("cannot tell", "not in it", "unknown")


def test_finding_shows_both_numbers(tmp_path: Path) -> None:
    cells = [{"figure": "one", "row": {"layout": "A", "mbs": mbs}, "column": "c"} for mbs in ("1", "8")]
    claim = {"id": "falls", "kind": "finding", "says": "It falls instead.", "unit": "degC", "numbers": [cells]}
    (row,) = judge(configure(tmp_path, [claim], "layout,mbs,c\nA,1,61.1\nA,8,50.6\n"), [])
    assert row["verdict"] == "finding"
    assert row["reason"] == "61.1 degC (A, micro-batch 1, figure 1) against 50.6 degC (A, micro-batch 8, figure 1)"
