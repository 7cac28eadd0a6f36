"""A report of made-up runs: several layouts, sizes and outcomes, measured and simulated, and names that mean harm."""

from pathlib import Path
from typing import NamedTuple

import pytest

from tests.synthetic import CONFIG, H200, Spec, build
from triplepoint.aggregate import aggregate
from triplepoint.config.plan import Plan
from triplepoint.figures.write import write_figure
from triplepoint.report import write_report
from triplepoint.verdicts.judge import write_claims

CAPTIONS = Path(__file__).parents[3] / "workflow" / "report"
HOSTILE = "<script>alert('x')</script>&\"{{ 7*7 }}"
FORMULA = "=1+2"


class Report(NamedTuple):
    """A report that was written, and what it is of."""

    folder: Path
    plan: Plan

    @property
    def front(self) -> Path:
        return self.folder / "report.html"

    def page(self, run: str) -> Path:
        return self.folder / "report" / f"{run}.html"


def make_report(folder: Path, specs: list[Spec], studies: tuple[str, ...] = ("synthetic",)) -> Report:
    plan = build(folder, specs, studies=studies)
    aggregate(plan, folder, CONFIG)
    write_claims(folder, studies, CONFIG)
    return draw_report(Report(folder, plan))


def draw_report(report: Report) -> Report:
    names = [f"{report.plan.studies[0]}/{name}" for name in ("optimization_sweep", "timeline")]
    for name in names:
        write_figure(name, report.folder, report.folder / "figs")
    write_report(report.folder, report.folder / "figs", CAPTIONS, report.front, names)
    return report


def simulated(layout: dict, **more: object) -> Spec:
    return Spec("llama3-70b", layout, cluster=H200, engine="simulated", **more)  # type: ignore[arg-type]


@pytest.fixture(scope="session")
def report(tmp_path_factory: pytest.TempPathFactory) -> Report:
    specs = [
        simulated({"tp": 4, "pp": 8}, step_ms=30_000),
        simulated({"tp": 4, "pp": 8}, recompute="full", step_ms=39_000),
        simulated({"tp": 8, "pp": 4}, step_ms=24_000),
        simulated({"tp": 8, "pp": 4}, recompute="full", step_ms=30_000),
        simulated({"tp": 8, "pp": 4}, micro_batch_size=2, step_ms=22_000),
        simulated({"tp": 2, "pp": 16}, step_ms=41_000),
        simulated({"tp": 2, "pp": 16}, recompute="full", step_ms=54_000),
        simulated({"dp": 32}, status="oom"),
        Spec("tiny-llama", {"dp": 2}),
        Spec("tiny-llama", {"dp": 2}, 2, step_ms=250),
        Spec("tiny-llama", {"dp": 2}, 4, status="invalid"),
    ]
    return make_report(tmp_path_factory.mktemp("report"), specs)
