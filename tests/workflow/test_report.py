"""Snakemake's own report of a finished project."""

import pytest

from tests.workflow.conftest import Project
from triplepoint import figures

pytestmark = pytest.mark.workflow


def test_report_of_snakemake_has_every_figure_with_its_caption(project: Project) -> None:
    outcome = project.snakemake("--report", "report-snakemake.html")
    assert outcome.status == 0, outcome.output
    page = (project.folder / "report-snakemake.html").read_text()
    for name in ("microbatch_power", "timeline"):
        assert f"figs/mini/{name}.pdf" in page
        assert figures.FIGURES[name].question in page, "its category"
        first = figures.caption(name, project.folder / "workflow" / "report").splitlines()[0]
        assert first.split("*")[0][:60] in page, name
