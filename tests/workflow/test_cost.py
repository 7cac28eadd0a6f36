"""A dry run tells what lies ahead."""

import pytest

from tests.workflow.conftest import Project

pytestmark = pytest.mark.workflow


def test_dry_run_says_what_is_ahead(fresh: Project) -> None:
    outcome = fresh.snakemake("-n", "all", tells_cost=True)
    assert outcome.status == 0, outcome.output
    assert "cpu-local, native: 2 runs: 2 missing\n  ahead: 2 launches" in outcome.output
