"""The example study of README.md, copied as it stands, through Snakemake."""

import json
import re
from pathlib import Path

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
    outcome = fresh.snakemake(f"results/runs/{runs[0]}/telemetry.parquet", "--config", f"studies=[{name}]")
    assert outcome.status == 0, outcome.output
    manifest = json.loads(Path(fresh.folder, "results/runs", runs[0], "raw/manifest.json").read_text())
    assert manifest["status"] == "ok"
