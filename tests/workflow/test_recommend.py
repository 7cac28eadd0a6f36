"""Advice verified by itself: studies that `recommend --study` writes, run on the cluster they were advised on."""

import json

import pytest

from tests.workflow.conftest import Project

pytestmark = pytest.mark.workflow

CLUSTER = """\
name: hot
like: h200x32
num_nodes: 2
gpus_per_node: 2
conditions: {bad_contact: {node0.gpu1: 6}}
"""
POINT = (
    "model=llama2-7b", "tp=2", "pp=2", "global_batch_size=32", "micro_batch_size=4", "recompute=full",
    "steps={warmup: 1, measured: 3, profiled: 0}",
)  # fmt: skip
HOSTS_ALONE = ("vp=2", "pipeline_layers=[9,7,9,7]")
"""With virtual stages layers stay, and the longer stages stand on the node with the bad contact."""


@pytest.mark.timeout(900)
@pytest.mark.long
def test_studies_of_advice_confirm_it_on_its_cluster(fresh: Project) -> None:
    (fresh.folder / "config/clusters/hot.yaml").write_text(CLUSTER)
    answers = {}
    for name, settings in (("split", POINT), ("moved", (*POINT, *HOSTS_ALONE))):
        words = [word for setting in settings for word in ("--set", setting)]
        study = fresh.folder / f"config/studies/{name}.yaml"
        advised = fresh.triplepoint("recommend", "hot", *words, "--study", str(study), "--json")
        assert advised.returncode == 0, advised.stderr
        answers[name] = json.loads(advised.stdout)
        assert answers[name]["is_accepted"] and answers[name]["gain_lo"] > 0.0
        ledger = fresh.folder / "results/recommendations.jsonl"
        promised = ledger.read_text().replace('"name":"hot"', f'"name":"{name}"')
        ledger.write_text(promised)  # one cluster was asked twice: else the second promise takes the first one's place
    assert "pipeline_layers: " in (fresh.folder / "config/studies/split.yaml").read_text()
    assert "hosts: [node1, node0]" in (fresh.folder / "config/studies/moved.yaml").read_text()
    options = ("--config", "studies=[split,moved]", "clusters=[cpu-local]", "simulated=[hot]", "--until", "telemetry")
    outcome = fresh.snakemake("all", *options)
    assert outcome.status == 0, outcome.output
    assert set(fresh.manifests()) == {run for answer in answers.values() for run in answer["study"]["order"]}
    rows = json.loads(fresh.triplepoint("recommend", "--ledger", "--json").stdout)["ledger"]
    assert [row["name"] for row in rows] == ["split", "moved"]
    for row in rows:
        assert row["num_pairs"] == 3
        assert row["gain_lo"] <= row["found"] <= row["gain_hi"], "the cluster refutes what was promised on it"
