"""What the rules ask the package: source files of a stage, and whether a run's point has changed."""

from pathlib import Path

import pytest

from tests.points import planned, tiny_point
from triplepoint.config.plan import Plan, PlanEntry
from triplepoint.config.selection import Selection
from triplepoint.tables import RESULT_TABLES
from triplepoint.workflow import Binding, sources


def names(module: str) -> set[str]:
    return {path.name for path in sources(module)}


def test_sources_follow_imports_and_named_data() -> None:
    found = names("triplepoint.cli.trace")
    assert {"trace.py", "reader.py", "rules.yaml", "schema.py"} <= found


@pytest.mark.parametrize("stage", ["telemetry", "trace", "aggregate", "report"])
def test_sources_of_cheap_stages_leave_the_launcher_out(stage: str) -> None:
    parts = {path.parts[-2] for path in sources(f"triplepoint.cli.{stage}")}
    assert not {"launch", "engines", "native"} & parts


def test_sources_of_a_figure_leave_other_figures_out() -> None:
    found = names("triplepoint.figures.timeline") | names("triplepoint.figures.write")
    assert "timeline.py" in found
    assert not {"microbatch_power.py", "parallelism_sweep.py", "kernel_breakdown.py"} & found


@pytest.fixture
def binding(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Binding:
    monkeypatch.chdir(tmp_path)
    entry = PlanEntry(run="tiny", studies=("s",), invalid_because=None, planned=planned(tiny_point()))
    invalid = PlanEntry(run="bad", studies=("s",), invalid_because="too large", planned=planned(tiny_point(), "bad"))
    return Binding(Selection(studies=("s",), clusters=("cpu-local",)), tmp_path, Plan(entries=(entry, invalid)))


def test_binding_runs_are_the_valid_points(binding: Binding) -> None:
    assert binding.runs == ["tiny"]
    assert binding.arguments == "s --cluster cpu-local"


@pytest.mark.parametrize(
    ("manifest", "expected"),
    [
        (None, "old:results/runs/tiny/point.json"),
        ("not json", "old:results/runs/tiny/point.json"),
        ("[]", "old:results/runs/tiny/point.json"),
        ('{"digest": "of another point"}', "results/runs/tiny/point.json"),
        (f'{{"digest": "{tiny_point().digest()}"}}', "old:results/runs/tiny/point.json"),
    ],
)
def test_binding_point_is_ancient_unless_the_result_is_of_another(
    binding: Binding, tmp_path: Path, manifest: str | None, expected: str
) -> None:
    if manifest is not None:
        path = tmp_path / "results/runs/tiny/raw/manifest.json"
        path.parent.mkdir(parents=True)
        path.write_text(manifest)
    assert binding.point("tiny", lambda path: f"old:{path}") == expected


def test_binding_names_the_tables_aggregate_writes() -> None:
    assert Binding.tables == tuple(RESULT_TABLES)
