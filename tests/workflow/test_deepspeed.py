"""A run on DeepSpeed through the whole pipeline: its steps and its time are in the table of a figure."""

import csv
import json

import pytest

from tests.workflow.conftest import Project
from triplepoint.launch.engines import deepspeed

pytestmark = [
    pytest.mark.workflow,
    pytest.mark.skipif(not deepspeed.is_installed(), reason="deepspeed is not installed"),
]


@pytest.mark.long
def test_deepspeed_run_ends_in_a_figure(fresh: Project) -> None:
    fresh.edit("config/studies/mini.yaml", "engine: native", "engine: deepspeed")
    fresh.edit("config/studies/mini.yaml", "num_gpus: 2", "num_gpus: 2\n  data_parallel_sharding: optim_grads_params")
    fresh.edit("config/studies/mini.yaml", "  telemetry", "  overlap: [grad, param]\n  offload: [optim]\n  telemetry")
    fresh.edit("config/studies/mini.yaml", "[1, 2, 4]", "[2]")
    outcome = fresh.snakemake("figs/mini/kernel_breakdown.csv")
    assert outcome.status == 0, outcome.output
    ((run, text),) = fresh.manifests().items()
    assert (
        run.rpartition("_")[0]
        == "test-llama_cpu-local_tp1-pp1-dp2-fsdp_mbs2_gbs4_cc-grad-param_off-optim_fp32_deepspeed_r1"
    )
    manifest = json.loads(text)
    assert (manifest["status"], manifest["engine"]) == ("ok", "deepspeed")
    assert "deepspeed" in manifest["versions"]
    assert manifest["facts"]["zero_stage"] == 3
    with (fresh.folder / "figs/mini/kernel_breakdown.csv").open() as file:
        rows = list(csv.DictReader(file))
    seconds = {row["part"]: float(row["sum_s"]) for row in rows if row["run"] == run}
    assert "all_gather" in seconds or "reduce_scatter" in seconds, "ZeRO-3 gathers parameters"
    assert sum(seconds.values()) == pytest.approx(float(rows[0]["kernel_sum_s"]), rel=1e-3)
