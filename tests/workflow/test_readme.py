"""The example study of README.md through Snakemake: planned as it stands, launched with fewer steps."""

import json
import re

import pytest

from tests.workflow.conftest import ROOT, Project

pytestmark = pytest.mark.workflow

EXAMPLE = re.search(r"```yaml\n(# (config/studies/(\w+)\.yaml)\n.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)


def test_example_study_is_planned_and_launched(fresh: Project) -> None:
    assert EXAMPLE is not None
    text, path, name = EXAMPLE.groups()
    (fresh.folder / path).write_text(text)
    planned = fresh.snakemake("-n", "all", "--config", f"studies=[{name}]")
    assert planned.status == 0, planned.output
    runs = planned.of("launch")
    assert len(runs) == len(set(runs)) == 6
    fresh.edit(path, "precision: fp32}", "precision: fp32, steps: {warmup: 1, measured: 2, profiled: 0}}")
    fresh.edit(path, "[1, 2, 4]", "[4]")
    fresh.edit(path, "[none, full]", "[full]")
    outcome = fresh.snakemake("all", "--until", "telemetry", "--config", f"studies=[{name}]")
    assert outcome.status == 0, outcome.output
    (manifest,) = map(json.loads, fresh.manifests().values())
    assert manifest["status"] == "ok"
