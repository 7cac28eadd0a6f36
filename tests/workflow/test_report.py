"""Snakemake's own report of a finished project, and what people share of it."""

from pathlib import Path

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


def test_what_people_share_names_no_folder_of_this_machine(finished: Project) -> None:
    shared = [
        path
        for name in ("report.html", "report", "figs", "results/tables")
        for path in files_at(finished.folder / name)
    ]
    texts = [path for path in shared if path.suffix in (".html", ".js", ".json", ".csv", ".svg")]
    assert {path.suffix for path in texts} >= {".html", ".csv", ".svg"}
    private = [str(finished.folder).encode(), str(Path.home()).encode() + b"/"]
    assert [path for path in texts if any(name in path.read_bytes() for name in private)] == []


def files_at(path: Path) -> list[Path]:
    return [path] if path.is_file() else [file for file in path.rglob("*") if file.is_file()]
