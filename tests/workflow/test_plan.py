"""`triplepoint plan` by hand against the plan of the workflow."""

import pytest

from tests.workflow.conftest import Project

pytestmark = pytest.mark.workflow


def test_plan_by_hand_is_that_of_snakemake(fresh: Project) -> None:
    """The clusters of `config/config.yaml`, those simulated too."""
    fresh.edit("config/studies/mini.yaml", "sweeps:\n", "sweeps:\n  - set: {cluster: h200x32, num_gpus: 8, tp: 2}\n")
    assert fresh.triplepoint("plan", "--write", "--results", "other").returncode == 0
    (simulated,) = [path.name for path in (fresh.folder / "other/runs").glob("*_simulated_*")]
    outcome = fresh.snakemake(f"results/runs/{simulated}/raw/manifest.json")
    assert outcome.status == 0, outcome.output
    by_hand, by_workflow = (fresh.folder / name / "plan.json" for name in ("other", "results"))
    assert by_hand.read_text() == by_workflow.read_text()
    assert '"engine":"simulated"' in by_hand.read_text().replace(" ", "")
