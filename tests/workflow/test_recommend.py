"""Advice verified by itself: the study that `recommend --study` writes, run on the cluster it was advised on."""

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
STUDY = """\
description: A pipeline whose longer stages stand on a node with a bad contact.
figures: []
defaults:
  cluster: hot
  engine: simulated
  model: llama2-7b
  global_batch_size: 32
  micro_batch_size: 4
  recompute: full
  steps: {warmup: 1, measured: 3, profiled: 0}
sweeps:
  - set: {tp: 2, pp: 2, repeats: 2}
    axes:
      layout:
"""
SPLIT = "        - {vp: 1}\n"
HOSTS = "        - {vp: 2, pipeline_layers: [9, 7, 9, 7]}\n"


def run_study(project: Project, name: str) -> list[str]:
    """Run a study as far as telemetry; return its new runs in order."""
    before = set(project.manifests())
    options = ("--config", f"studies=[{name}]", "clusters=[cpu-local]", "simulated=[hot]", "--until", "telemetry")
    outcome = project.snakemake("all", *options)
    assert outcome.status == 0, outcome.output
    return sorted(set(project.manifests()) - before)


@pytest.mark.parametrize(("layouts", "changes"), [(SPLIT, "pipeline_layers"), (HOSTS, "hosts")])
def test_the_study_of_an_advice_confirms_it_on_its_cluster(fresh: Project, layouts: str, changes: str) -> None:
    (fresh.folder / "config/clusters/hot.yaml").write_text(CLUSTER)
    (fresh.folder / "config/studies/mini.yaml").write_text(STUDY + layouts)
    second = run_study(fresh, "mini")[1]
    advised = fresh.triplepoint("recommend", second, "--study", "config/studies/again.yaml", "--json")
    assert advised.returncode == 0, advised.stderr
    answer = json.loads(advised.stdout)
    assert answer["is_accepted"] and answer["gain_lo"] > 0.0
    study = (fresh.folder / "config/studies/again.yaml").read_text()
    assert ("hosts: [node1, node0]" if changes == "hosts" else "pipeline_layers: ") in study
    runs = run_study(fresh, "again")
    assert len(runs) == len(answer["study"]["order"]) >= 6
    ledger = json.loads(fresh.triplepoint("recommend", "--ledger", "--json").stdout)["ledger"]
    (row,) = ledger
    assert row["num_pairs"] == len(runs) // 2
    assert row["gain_lo"] <= row["found"] <= row["gain_hi"], "the cluster refutes what was promised on it"
