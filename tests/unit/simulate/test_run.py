"""A run of the pipeline simulated, from its plan to its manifest."""

import shutil
from pathlib import Path

import numpy as np
import pytest

from triplepoint.config.catalogue import Catalogue
from triplepoint.config.plan import PlannedRun
from triplepoint.errors import UserError
from triplepoint.plan import MOST_TRACED_STAGES, as_simulated, select
from triplepoint.provenance import git_state
from triplepoint.simulate.artefacts.simulate_run import job_of, simulate_run
from triplepoint.simulate.calibration import Calibration
from triplepoint.simulate.predict.prediction import predict
from triplepoint.tables import RANKS, STEPS
from triplepoint.trace.loose_traces import trace_files
from triplepoint.trace.taxonomy import load_scheme

CONFIG = Path(__file__).parents[3] / "config"


def planned(text: str) -> PlannedRun:
    plan = select(CONFIG, ["microbatch"], ["cpu-local"], ["h200x32"])
    return next(entry.planned for entry in plan.valid if text in entry.run)


def test_selected_points_of_a_simulated_cluster_run_on_the_simulator() -> None:
    entries = select(CONFIG, ["microbatch"], ["cpu-local"], ["h200x32"]).entries
    assert {entry.planned.point.engine for entry in entries} == {"simulated"}
    for entry in entries:
        point = entry.planned.point
        per_stage = point.num_gpus // point.layout.pp
        firsts = set(range(0, point.num_gpus, per_stage))
        assert point.layout.pp <= MOST_TRACED_STAGES and firsts <= set(point.traced_ranks)
        # Of stages on several nodes also the ranks on both sides of a border.
        beside = {rank for first in firsts for rank in (first + 7, first + 8)} if per_stage > 8 else set()
        assert set(point.traced_ranks) == firsts | beside


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
    assert {path.name for path in (tmp_path / "traces").glob("*.json.gz")} == {
        f"rank{rank}.json.gz" for rank in (0, 7, 8, 16, 23, 24)
    }
    steps = STEPS.read(tmp_path / "steps.parquet")
    assert steps.num_rows == 32 * len(run.point.steps.kinds)


def test_simulate_run_out_of_memory_says_why(tmp_path: Path) -> None:
    run = planned("gpt3-175b_h200x32_tp8-pp4")
    # All of it on one GPU.
    layout = run.point.layout.model_copy(
        update={"tp": 1, "pp": 1, "dp": 1, "sequence_parallel": False, "schedule": None}
    )
    point = run.point.model_copy(update={"layout": layout, "num_gpus": 1, "trace_ranks": (0,)})
    manifest = simulate_run(run.model_copy(update={"point": point}), tmp_path, CONFIG)
    assert manifest.status == "oom"
    assert manifest.evidence is not None and "GiB" in manifest.evidence.message


@pytest.mark.parametrize("text", ["llama3-70b_h200x32_tp4-pp4-dp2", "llama3-70b_h200x32_tp8-pp2-dp2"])
def test_simulated_steps_take_what_predict_says(text: str, tmp_path: Path) -> None:
    entries = select(CONFIG, ["optimizations"], ["cpu-local"], ["h200x32"]).valid
    run = next(e.planned for e in entries if text in e.run and "grad" in e.planned.point.overlap)
    manifest = simulate_run(run, tmp_path, CONFIG)
    catalogue = Catalogue(CONFIG)
    cluster = catalogue.cluster(run.point.cluster.name)
    found = predict(job_of(run.point, catalogue), Calibration.load(CONFIG), CONFIG, cluster)
    steps = STEPS.read(tmp_path / "steps.parquet").to_pandas()
    steps = steps[steps["kind"] == "measured"]
    per_step = (steps["t_end_ns"] - steps["t_start_ns"]).groupby(steps["step"]).max()
    assert manifest.facts["contention_s"] > 0, "or there is nothing to agree on"
    assert per_step.mean() / 1e9 == pytest.approx(found.step_time_s, rel=1e-3)
    interval = (manifest.facts["step_time_lo_s"], manifest.facts["step_time_hi_s"])
    assert interval == pytest.approx((found.step_time_lo_s, found.step_time_hi_s), rel=1e-3)


@pytest.mark.parametrize("name", ["llama3-70b", pytest.param("mixtral-8x22b", marks=pytest.mark.long)])
def test_simulated_slow_gpu_is_named_and_waited_for(name: str, tmp_path: Path) -> None:
    config, times = shutil.copytree(CONFIG, tmp_path / "config"), {}
    layout = {"tp": 2, "pp": 2, "dp": 8} | ({"ep": 4, "sequence_parallel": True} if "mixtral" in name else {})
    for speed in (1.0, 0.9):
        # Rank 5: stage 0, tensor rank 1, data rank 2.
        text = (CONFIG / "clusters/h200x32.yaml").read_text() + f"slow_gpus: {{node0.gpu5: {speed}}}\n"
        (config / "clusters/h200x32.yaml").write_text(text)
        run = next(e.planned for e in select(config, ["parallelism"], [], ["h200x32"]).valid if name in e.run)
        point = run.point.model_copy(update={"layout": run.point.layout.model_copy(update=layout)})
        point = as_simulated(point, Catalogue(config).cluster("h200x32"))
        manifest = simulate_run(run.model_copy(update={"point": point}), tmp_path / "raw", config)
        times[speed] = manifest.facts["step_time_s"]
    assert times[1.0] < times[0.9] < times[1.0] / 0.9, "communication does not slow down"
    trace_files([tmp_path / "raw/traces"], tmp_path / "out", load_scheme(), lambda line: None, num_jobs=1)
    ranks = {row["rank"]: row for row in RANKS.read(tmp_path / "out/ranks.parquet").to_pylist()}
    assert [rank for rank, row in ranks.items() if row["is_straggler"]] == [5]
    assert ranks[5]["compute_excess"] == pytest.approx(1 / 0.9 - 1, rel=0.01)
    peers = [row for rank, row in ranks.items() if rank % 2 and rank < 16 and rank != 5]
    assert ranks[5]["share_last"] > max(row["share_last"] for row in peers)


def test_simulate_run_says_which_code_it_was(tmp_path: Path) -> None:
    manifest = simulate_run(planned("llama3-70b_h200x32_tp8-pp2"), tmp_path, CONFIG)
    expected, _ = git_state(Path(__file__).parent)
    assert manifest.git_commit == expected


def test_every_stage_reports_its_own_memory(tmp_path: Path) -> None:
    run = planned("llama3-70b_h200x32_tp8-pp2")
    simulate_run(run, tmp_path, CONFIG)
    steps = STEPS.read(tmp_path / "steps.parquet")
    rank, memory = steps["rank"].to_numpy(), steps["peak_memory_bytes"].to_numpy()
    first, last = np.unique(memory[rank < 16]), np.unique(memory[rank >= 16])
    assert len(first) == len(last) == 1
    assert first[0] != last[0], "the first stage keeps more micro-batches, the last one the logits"
