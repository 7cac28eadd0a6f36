"""A cluster that cannot be reached, simulated in its place: the same stages, another way to the raw artefacts."""

import json

import pytest

from tests.workflow.conftest import Project
from triplepoint.tables import TIMELINE
from triplepoint.tables.results import POINTS

pytestmark = pytest.mark.workflow

STUDY = """\
description: One run of a pipeline of two, for the tests of the workflow.
defaults:
  cluster: h200x32
  engine: megatron
  model: test-llama
  num_gpus: 8
  global_batch_size: 16
  steps: {warmup: 1, measured: 3, profiled: 1}
sweeps:
  - axes:
      layout:
        - {tp: 2, pp: 2}
"""


def test_simulated_cluster_runs_all_stages_and_says_so(fresh: Project) -> None:
    (fresh.folder / "config/studies/mini.yaml").write_text(STUDY)
    outcome = fresh.snakemake("all")
    assert outcome.status == 0, outcome.output
    assert {"simulate", "telemetry", "trace"} <= outcome.rules
    assert not {"launch", "parse"} & outcome.rules, "traces are parsed where they are joined"
    (run,) = fresh.manifests()
    folder = fresh.folder / "results/runs" / run
    assert json.loads(fresh.manifests()[run])["origin"] == "simulated"
    (point,) = POINTS.read(fresh.folder / "results/tables/mini/points.parquet").to_pylist()
    assert (point["origin"], point["engine"], point["status"]) == ("simulated", "simulated", "ok")
    assert point["step_time_lo_s"] < point["step_time_s"] < point["step_time_hi_s"], "what the model is known to"
    assert set(TIMELINE.read(folder / "timeline.parquet")["rank"].to_pylist()) == {0, 4}, "one rank of each stage"
    assert fresh.snakemake("all").jobs == []
    fresh.edit("src/triplepoint/trace/join.py", '"""Join', '"""Joins and')
    changed = fresh.snakemake("-n", "all").rules
    assert "trace" in changed
    assert not {"simulate", "telemetry"} & changed, "only what a change concerns"
    fresh.edit("config/gpus/h200.yaml", "vendor: nvidia", "vendor: nvidia  # a remark")
    assert "simulate" in fresh.snakemake("-n", "all").rules


def test_simulate_refuses_a_run_that_is_to_be_launched(project: Project) -> None:
    run = sorted(project.manifests())[0]
    done = project.triplepoint("simulate", run)
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1 and "the point has engine: native" in done.stderr
