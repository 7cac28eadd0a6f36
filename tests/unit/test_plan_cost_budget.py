"""The budget of launches: when it refuses, and what it says."""

from dataclasses import replace

import pytest

from tests.unit.test_plan_cost import STEP_10_S, one
from triplepoint.cli import main
from triplepoint.plan_cost import Existing, RunCost, over_budget
from triplepoint.simulate.predict.prediction import Prediction


def of_studies(cost: RunCost, *studies: str) -> RunCost:
    return replace(cost, entry=cost.entry.model_copy(update={"studies": studies}))


def test_over_budget_names_sum_studies_and_what_to_type() -> None:
    # 31 steps of 10 s and 120 s of start on 32 GPUs: 430 s * 32 / 3600 = 3.82 GPU h each.
    first = of_studies(one("h200x32", STEP_10_S), "a", "b")
    second = of_studies(one("h200x32", STEP_10_S), "b")
    assert over_budget([first, second], 8.0) is None
    line = over_budget([first, second], 4.0)
    assert line is not None and "\n" not in line
    assert "2 launches are expected to take 7.6 GPU h, max_gpu_hours is 4: a 3.8 h in 1, b 7.6 h in 2" in line
    assert "(some are of several studies)" in line
    assert "--config studies=[a]" in line and "--config max_gpu_hours=8" in line


def test_over_budget_done_simulated_and_cpu_runs_cost_nothing() -> None:
    done = replace(one("h200x32", STEP_10_S), existing=Existing("done", "ok"))
    point = done.entry.planned.point.model_copy(update={"engine": "simulated"})
    planned = done.entry.planned.model_copy(update={"point": point})
    simulated = replace(done, entry=done.entry.model_copy(update={"planned": planned}), existing=Existing("missing"))
    assert over_budget([done, simulated], 0.0) is None


def test_over_budget_run_without_prediction_may_take_its_time_limit() -> None:
    unknown = one("h200x32", Prediction("not predicted", reason="no kernels"), limit_s=3600.0)
    assert over_budget([unknown], 32.0) is None
    line = over_budget([unknown], 31.0)
    assert line is not None and "1 launch is expected to take 32.0 GPU h" in line


def test_budget_below_zero_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "--max-gpu-hours", "-1"]) == 2
    assert "found '-1', expected GPU hours from 0 to 1e+09" in capsys.readouterr().err
