"""A setting from end to end, the worked example of docs/extending.md: expert tensor parallelism."""

import pandas as pd
import pytest

from tests.workflow.conftest import Project
from triplepoint.tables.results import POINTS

pytestmark = pytest.mark.workflow

STUDY = """\
description: Experts whole on each rank, or split with the other layers, for the tests of the workflow.
figures: [parallelism_sweep]
defaults:
  model: test-moe
  global_batch_size: 4
  precision: fp32
  telemetry_period_s: 0.05
  steps: {warmup: 1, measured: 3, profiled: 1}
  layout: {tp: 2, sequence_parallel: true}
sweeps:
  - set: {cluster: cpu-local, engine: native, num_gpus: 2}
    axes: {etp: [2, 1]}
  - set: {cluster: h200x32, engine: simulated, num_gpus: 8, ep: 2}
    axes: {etp: [null, 1]}
  - set: {cluster: h200x32, engine: simulated, num_gpus: 8, etp: 3}
"""


@pytest.mark.long
def test_expert_tensor_parallelism_from_study_to_figure(fresh: Project) -> None:
    model = (fresh.folder / "config/models/test-llama.yaml").read_text().replace("test-llama", "test-moe")
    (fresh.folder / "config/models/test-moe.yaml").write_text(model + "moe: {num_experts: 4, top_k: 2}\n")
    (fresh.folder / "config/studies/mini.yaml").write_text(STUDY)
    planned = fresh.triplepoint("plan").stdout
    assert "etp: 3 does not divide tp: 2; set etp: 1" in planned
    outcome = fresh.snakemake("all")
    assert outcome.status == 0, outcome.output
    points = POINTS.read(fresh.folder / "results/tables/mini/points.parquet").to_pandas().query("status == 'ok'")
    found = {(row["origin"], row["etp"] if row["etp"] == 1 else None): row for _, row in points.iterrows()}
    assert set(found) == {(origin, etp) for origin in ("measured", "simulated") for etp in (None, 1)}
    for (_, etp), row in found.items():
        assert ("-etp1-" in row["run"]) == (etp == 1), "tp is what is usual"
    # The same model is trained, whoever has its experts.
    assert found["measured", 1]["loss_last"] == pytest.approx(found["measured", None]["loss_last"], rel=1e-5)
    # Split experts get what the tensor parallel ranks hold of the sequence, whole ones do not.
    gathered = {key: _gathered_bytes(fresh, row["run"]) for key, row in found.items()}
    for origin in ("measured", "simulated"):
        assert gathered[origin, 1] < gathered[origin, None]
    drawn = pd.read_csv(fresh.folder / "figs/mini/parallelism_sweep.csv")
    layouts = drawn.query("status == 'ok'")["layout"]
    assert sorted("ETP1" in layout for layout in layouts) == [False, False, True, True], "on both clusters"


def _gathered_bytes(project: Project, run: str) -> float:
    table = pd.read_parquet(project.folder / "results/runs" / run / "collectives.parquet")
    return float(table.query("kind == 'all_gather'")["size_bytes"].sum())
