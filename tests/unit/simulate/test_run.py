"""A run of the pipeline simulated, from its plan to its manifest."""

from pathlib import Path

import pytest

from triplepoint.config.plan import PlannedRun
from triplepoint.errors import UserError
from triplepoint.plan import MOST_TRACED_STAGES, select
from triplepoint.simulate.artefacts.run import simulate_run
from triplepoint.tables import STEPS

CONFIG = Path(__file__).parents[3] / "config"


def planned(text: str) -> PlannedRun:
    plan = select(CONFIG, ["microbatch"], ["cpu-local"], ["h200x32"])
    return next(entry.planned for entry in plan.valid if text in entry.run)


def test_selected_points_of_a_simulated_cluster_run_on_the_simulator() -> None:
    entries = select(CONFIG, ["microbatch"], ["cpu-local"], ["h200x32"]).entries
    assert {entry.planned.point.engine for entry in entries} == {"simulated"}
    for entry in entries:
        point = entry.planned.point
        assert len(point.traced_ranks) == min(point.layout.pp, MOST_TRACED_STAGES)
        assert point.traced_ranks[0] == 0
        assert point.traced_ranks[-1] == point.num_gpus - point.num_gpus // point.layout.pp


def test_a_cluster_that_can_be_reached_is_not_simulated() -> None:
    entries = select(CONFIG, ["microbatch"], ["h200x32"], ["h200x32"]).entries
    assert {entry.planned.point.engine for entry in entries} == {"megatron"}


def test_select_refuses_an_unknown_simulated_cluster() -> None:
    with pytest.raises(UserError, match="h200x33"):
        select(CONFIG, None, None, ["h200x33"])


def test_simulate_run_leaves_what_a_launch_would(tmp_path: Path) -> None:
    run = planned("llama3-70b_h200x32_tp8-pp2")
    manifest = simulate_run(run, tmp_path, CONFIG)
    assert (manifest.status, manifest.origin) == ("ok", "simulated")
    assert {path.name for path in (tmp_path / "traces").glob("*.json.gz")} == {"rank0.json.gz", "rank16.json.gz"}
    steps = STEPS.read(tmp_path / "steps.parquet")
    assert steps.num_rows == 32 * len(run.point.steps.kinds)


def test_simulate_run_out_of_memory_says_why(tmp_path: Path) -> None:
    run = planned("gpt3-175b_h200x32_tp8-pp4")
    # All of it on one GPU.
    layout = run.point.layout.model_copy(
        update={"tp": 1, "pp": 1, "dp": 1, "sequence_parallel": False, "schedule": None}
    )
    point = run.point.model_copy(update={"layout": layout, "num_gpus": 1})
    manifest = simulate_run(run.model_copy(update={"point": point}), tmp_path, CONFIG)
    assert manifest.status == "oom"
    assert manifest.evidence is not None and "GiB" in manifest.evidence.message
