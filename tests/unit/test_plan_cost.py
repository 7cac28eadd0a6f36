import json
import math
from dataclasses import replace
from pathlib import Path
from unittest.mock import patch

import pytest

from triplepoint.config.plan import Plan
from triplepoint.plan import select
from triplepoint.plan_cost import Existing, RunCost, cells, note, plan_cost, summarise
from triplepoint.simulate.predict.prediction import Prediction
from triplepoint.workflow import is_dry_run

CONFIG = Path("config")
PLAN = select(CONFIG, ["parallelism"])
STEP_10_S = Prediction("ok", step_time_s=10.0, step_time_lo_s=9.0, step_time_hi_s=12.0, memory_gib=50.0)
OOM = replace(STEP_10_S, status="oom", reason="weights 90.0 + ... = 150.0 GiB of 140.4 GiB", memory_gib=150.0)


def one(cluster: str, prediction: Prediction, results: Path = Path("nowhere"), limit_s: float = 36000.0) -> RunCost:
    """The cost of the first run on a cluster, a step of which takes what is said."""
    entry = next(entry for entry in PLAN.valid if entry.planned.point.cluster.name == cluster)
    limits = entry.planned.limits.model_copy(update={"time_limit_s": limit_s})
    planned = entry.planned.model_copy(update={"limits": limits})
    entry = entry.model_copy(update={"planned": planned})
    with patch("triplepoint.plan_cost.predict_if_configured", lambda point, config, with_power: prediction):
        (found,) = plan_cost(Plan(entries=(entry,)), results, CONFIG)
    return found


def test_plan_cost_h200_by_hand() -> None:
    # 31 steps of 10 s and the start on 4 nodes of 8 GPUs of 700 W; at most 31 of 12 s.
    found = one("h200x32", STEP_10_S)
    assert found.wall_s == pytest.approx(120 + 310)
    assert found.wall_hi_s == pytest.approx(120 + 372)
    assert found.gpu_hours == pytest.approx(430 * 32 / 3600)
    assert found.board_energy_kwh == pytest.approx(430 / 3600 * 32 * 0.7)


def test_plan_cost_two_dies_of_a_package_share_its_power() -> None:
    plan = select(CONFIG, ["mi250"], ["mi250x32"])
    assert plan_cost(plan, Path("nowhere"), CONFIG)[0].board_power_w == 16 * 500


def test_plan_cost_out_of_memory_costs_its_start_and_tells_the_numbers() -> None:
    found = one("h200x32", OOM)
    assert found.wall_s == 120
    assert note(found) == "predicted out of memory: weights 90.0 + ... = 150.0 GiB of 140.4 GiB"


def test_plan_cost_run_too_long_costs_its_time_limit_and_tells() -> None:
    found = one("h200x32", STEP_10_S, limit_s=300.0)
    assert found.wall_s == 300
    told = note(found)
    assert told is not None
    assert told.startswith("predicted to time out: 310 s of steps and 120 s of start-up, the limit is 300 s")


def test_plan_cost_run_within_its_limit_has_no_note() -> None:
    assert note(one("h200x32", STEP_10_S)) is None


def test_plan_cost_processors_are_not_predicted() -> None:
    found = plan_cost(select(CONFIG, ["smoke"]), Path("nowhere"), CONFIG)
    assert {run.prediction.status for run in found} == {"unsupported"}
    assert all(math.isnan(run.gpu_hours) for run in found)


def test_plan_cost_done_runs_are_not_ahead(tmp_path: Path) -> None:
    entry = PLAN.valid[0]
    path = tmp_path / "runs" / entry.run / "raw" / "manifest.json"
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps({"digest": entry.planned.digest, "status": "ok", "duration_s": 3.0}))
    costs = plan_cost(PLAN, tmp_path, CONFIG)
    assert [cost.entry.run for cost in costs if not cost.is_ahead] == [entry.run]
    assert cells(costs[0])[0] == "ok (done)"


def test_plan_cost_repeats_are_predicted_once() -> None:
    entry = PLAN.valid[0]
    points = [entry.planned.point.model_copy(update={"repeat": repeat}) for repeat in range(1, 21)]
    entries = [
        entry.model_copy(update={"planned": entry.planned.model_copy(update={"point": point})}) for point in points
    ]
    with patch("triplepoint.plan_cost.predict_if_configured", return_value=STEP_10_S) as predicted:
        costs = plan_cost(Plan(entries=tuple(entries)), Path("nowhere"), CONFIG)
    assert len(costs) == 20
    assert predicted.call_count == 1


def test_summarise_says_what_is_there_and_what_is_ahead() -> None:
    todo = one("h200x32", STEP_10_S)
    done = replace(todo, existing=Existing("done", "ok", 400.0))
    failed = replace(todo, existing=Existing("failed", "crashed"))
    run = todo.entry.run
    assert summarise([todo, todo, done, failed, one("h200x32", OOM)]).splitlines()[:4] == [
        "h200x32, megatron: 5 runs: 1 done, 1 failed, 3 missing",
        "  ahead: 4 launches, jobs of 4 nodes: 4",
        # (3 * 430 s + 120 s) and (3 * 492 s + 120 s) on 32 GPUs.
        "  expected: 24 min wall with the cluster to itself (to 27 min), 12.5 GPU h (to 14.2), "
        "at most 8.8 kWh of GPU boards",
        f"  predicted out of memory: 1: {run}",
    ]


def test_legend_stands_where_a_time_is_predicted_ahead() -> None:
    todo = one("h200x32", STEP_10_S)
    legend = summarise([todo]).splitlines()[-4:]
    assert legend[0].startswith("expected: ") and "120 s of start-up" in legend[1] and legend[3].startswith("kWh: ")
    assert "`triplepoint predict` has them at those that power and heat leave" in legend[2]
    assert "kWh: " not in summarise([replace(todo, existing=Existing("done", "ok", 400.0))])


def test_summarise_runs_share_the_cluster() -> None:
    found = replace(one("h100x64", STEP_10_S), num_at_once=2)
    assert "expected: 14 min wall" in summarise([found] * 4)  # 4 * 430 s / 2
    assert "expected: 7 min wall" in summarise([found])


def test_summarise_not_predicted_tells_the_limit_or_what_was_seen() -> None:
    found = plan_cost(select(CONFIG, ["smoke"]), Path("nowhere"), CONFIG)[:3]
    assert "not predicted: 3 (processors are not simulated); at most 30 min by their time limits" in summarise(found)
    seen = replace(found[0], existing=Existing("done", "ok", 40.0))
    assert "about 2 min if each takes 40 s as those launched before" in summarise([seen, *found])
    assert "GPU h" not in summarise(found)


def test_summarise_simulations_cost_no_gpu_hours() -> None:
    plan = select(CONFIG, ["parallelism"], None, ["h200x32", "h100x64"])
    text = summarise(plan_cost(plan, Path("nowhere"), CONFIG))
    assert "simulations, no GPU hours" in text
    assert "in all" not in text


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("snakemake -n all", True),
        ("/usr/bin/snakemake --profile ci -np", True),
        ("/lib/snakemake/__main__.py --dry-run", True),
        ("snakemake --dryrun", True),
        ("snakemake all --cores 2", False),
        ("snakemake --config n=1", False),
        ("pytest -n 2", False),
    ],
)
def test_is_dry_run(words: str, expected: bool) -> None:
    assert is_dry_run(words.split()) is expected
