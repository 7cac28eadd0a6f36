"""Binding of the Snakemake rules: source files of a stage, file lists, patterns, digests and outdated files."""

import ast
import re
from pathlib import Path
from typing import Any

import pytest

from tests.points import planned, tiny_point
from triplepoint.config.plan import Plan, PlanEntry
from triplepoint.config.point import Steps
from triplepoint.config.study import Selection
from triplepoint.errors import UserError
from triplepoint.figures import spec_of
from triplepoint.source_files import PACKAGE, imports_and_data, source_files
from triplepoint.tables.results import RESULT_TABLES
from triplepoint.tables.studies import OVER_ALL, PARQUET_ONLY
from triplepoint.workflow import Binding


def names(module: str) -> set[str]:
    return {path.name for path in source_files(module)}


def test_sources_follow_imports_and_named_data() -> None:
    found = names("triplepoint.cli.trace")
    assert {"trace.py", "reader.py", "default.yaml", "schema.py"} <= found


@pytest.mark.parametrize("path", sorted(PACKAGE.rglob("*.py")), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports_and_data_of_a_module_are_those_python_sees(path: Path) -> None:
    imports: set[str] = set()
    data: set[Path] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            imports |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            imports |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.endswith((".yaml", ".html")):
            named = path.parent.glob(f"*{node.value}") if node.value[0] == "." else [path.parent / node.value]
            data |= {file for file in named if file.is_file()}
    found = imports_and_data(path)
    assert set(found[0]) == {name for name in imports if name.startswith("triplepoint.")}
    assert set(found[1]) == data


def test_sources_follow_into_c() -> None:
    found = names("triplepoint.cli.parse")
    assert {"scanner.c", "scanner.h", "event.c"} <= found
    assert any(name.startswith("_scanner.") and name.endswith(".so") for name in found), "what runs is what was built"


def test_sources_of_parse_leave_the_joining_out() -> None:
    found = {path.name for path in source_files("triplepoint.cli.parse")}
    assert not {"compare.py", "join.py", "perfetto.py", "run_traces.py"} & found


@pytest.mark.parametrize("stage", ["telemetry", "aggregate", "report"])
def test_sources_of_other_stages_leave_traces_out(stage: str) -> None:
    folders = {path.parts[-2] for path in source_files(f"triplepoint.cli.{stage}")}
    assert not {"taxonomy", "kineto", "scanner", "rank"} & folders


@pytest.mark.parametrize("stage", ["telemetry", "parse", "trace", "aggregate", "report"])
def test_sources_of_cheap_stages_leave_the_launcher_out(stage: str) -> None:
    parts = {path.parts[-2] for path in source_files(f"triplepoint.cli.{stage}")}
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
    assert binding.plan_arguments == "s --cluster cpu-local"


@pytest.mark.parametrize(
    ("studies", "page", "expected"),
    [
        (
            ("s",),
            "report.html",
            "of the selected studies is report-s.html; make it with \"snakemake report --config 'studies=[s]'\"",
        ),
        (
            None,
            "report-mine.html",
            "report.html; make report-mine.html with \"snakemake report --config 'studies=[mine]'\"",
        ),
        (("s",), "report-nope.html", "is report-s.html; make it with \"snakemake report --config 'studies=[s]'\""),
        (None, "report-nope.html", 'is report.html; make it with "snakemake report"'),
        (None, "report.html", None),
        (("s",), "report-s.html", None),
    ],
)
def test_report_that_is_not_of_the_selection_is_refused_with_the_command_that_makes_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, studies: tuple[str, ...] | None, page: str, expected: str | None
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "results" / "recorded").mkdir(parents=True)
    (tmp_path / "results" / "recorded" / "mine.json").write_text("{}")
    entry = PlanEntry(run="tiny", studies=("s",), invalid_because=None, planned=planned(tiny_point()))
    binding = Binding(Selection(studies=studies), tmp_path, Plan(entries=(entry,)))
    if expected is None:
        binding.require_pages([page])
        return
    with pytest.raises(UserError) as refused:
        binding.require_pages([page])
    assert str(refused.value).startswith(f"{page}: ") and str(refused.value).endswith(expected)


@pytest.mark.parametrize(
    ("trace_ranks", "profiled", "expected"),
    [
        ("all", 1, {"0-2": 3, "3-5": 3, "6-7": 2}),
        ((9, 0, 4, 2), 1, {"0-4": 3, "9-9": 1}),
        ("all", 0, {}),
    ],
)
def test_binding_cuts_the_traced_ranks(
    tmp_path: Path, trace_ranks: str | tuple[int, ...], profiled: int, expected: dict[str, int]
) -> None:
    steps = Steps(profiled=profiled)
    point = tiny_point().model_copy(update={"num_gpus": 8, "trace_ranks": trace_ranks, "steps": steps})
    entry = PlanEntry(run="tiny", studies=("s",), invalid_because=None, planned=planned(point))
    binding = Binding(Selection(ranks_per_part=3), tmp_path, Plan(entries=(entry,)))
    assert {part: binding.num_traces("tiny", part) for part in binding.parts("tiny")} == expected


def test_binding_passes_the_rules_of_the_user(tmp_path: Path) -> None:
    plan = Plan(entries=())
    assert Binding(Selection(), tmp_path, plan).trace_arguments == ""
    assert Binding(Selection(trace_rules="a b.yaml"), tmp_path, plan).trace_arguments == "--rules 'a b.yaml'"


@pytest.mark.parametrize("engines", [("native",), ("simulated",), ("native", "simulated")])
def test_binding_patterns_tell_launched_runs_from_simulated(tmp_path: Path, engines: tuple[Any, ...]) -> None:
    points = {engine: tiny_point(engine=engine) for engine in engines}
    entries = tuple(
        PlanEntry(run=f"run.{name}", studies=("s",), invalid_because=None, planned=planned(point, f"run.{name}"))
        for name, point in points.items()
    )
    binding = Binding(Selection(), tmp_path, Plan(entries=entries))
    for engine in engines:
        assert bool(re.fullmatch(binding.launched_pattern, f"run.{engine}")) == (engine == "native")
        assert bool(re.fullmatch(binding.simulated_pattern, f"run.{engine}")) == (engine == "simulated")


def test_binding_without_runs_matches_none(tmp_path: Path) -> None:
    binding = Binding(Selection(), tmp_path, Plan(entries=()))
    assert not re.fullmatch(binding.launched_pattern, "run")


def test_binding_gives_aggregate_part_of_the_products() -> None:
    assert set(Binding.aggregate_inputs) < set(Binding.aggregate_reads) < set(Binding.products)
    trace = set(Binding.aggregate_inputs) & set(Binding.trace_products)
    assert len(trace) == 1
    assert set(Binding.aggregate_reads) - set(Binding.aggregate_inputs) < set(Binding.trace_products)


def test_binding_missing_file_of_a_trace_is_outdated_where_others_are_there(binding: Binding) -> None:
    folder = Path("results/runs/tiny")
    folder.mkdir(parents=True)
    assert not any("/runs/" in path for path in binding.outdated_files())
    for product in binding.trace_products:
        (folder / product).write_text("x")
    (folder / "perfetto.json.gz").unlink()
    assert {path for path in binding.outdated_files() if "/runs/" in path} == {"results/runs/tiny/perfetto.json.gz"}


def test_binding_names_the_tables_aggregate_writes() -> None:
    assert {*Binding.tables, *Binding.over_all} == set(RESULT_TABLES)
    assert (Binding.over_all, Binding.parquet_only) == (OVER_ALL, PARQUET_ONLY)


def test_binding_tables_of_a_study_are_those_its_rule_writes(binding: Binding) -> None:
    assert {"points.parquet", "points.csv", "timeline.parquet", "plan.json"} <= set(binding.table_names)
    assert "timeline.csv" not in binding.table_names
    assert set(binding.table_files) == {f"results/tables/s/{name}" for name in binding.table_names}
    assert binding.aggregate_input_files("s")[0] == "results/runs/tiny/raw/manifest.json"
    assert not any("bad" in file for file in binding.aggregate_input_files("s"))


def test_binding_figure_of_one_study_reads_that_study_alone(binding: Binding) -> None:
    names = [*(f"{table}.parquet" for table in spec_of("timeline").tables), "plan.json"]
    assert {"points.parquet", "timeline.parquet"} < set(names)
    assert binding.figure_tables("timeline") == [f"results/tables/smoke/{name}" for name in names]
    assert set(binding.figure_tables("s/timeline")) < set(binding.table_files)
    pattern = re.compile(binding.figure_pattern)
    assert pattern.fullmatch("timeline") and pattern.fullmatch("s/timeline")
    assert not pattern.fullmatch("other/timeline") and not pattern.fullmatch("timelin")


def test_binding_all_has_the_figures_that_fit(binding: Binding) -> None:
    assert set(binding.figures) == {"s/kernel_breakdown", "s/timeline", "s/telemetry_validation"}


def test_binding_digest_of_a_study_is_that_of_its_points(tmp_path: Path) -> None:
    alone, both = (
        Binding(Selection(), tmp_path, Plan(entries=tuple(
            PlanEntry(run=name, studies=studies, invalid_because=None, planned=planned(tiny_point(), name))
            for name, studies in of_runs.items()
        )))
        for of_runs in ({"a": ("s",)}, {"a": ("s", "t"), "b": ("t",)})
    )  # fmt: skip
    assert alone.plan_digest("s") == both.plan_digest("s")
    assert both.plan_digest("t") != both.plan_digest("s")


def test_binding_digests_what_a_stage_is_made_of(tmp_path: Path) -> None:
    plan = Plan(entries=())
    first = Binding(Selection(), tmp_path, plan)
    assert first.code_digest("telemetry") == Binding(Selection(), tmp_path, plan).code_digest("telemetry")
    assert len({first.code_digest(stage) for stage in ("simulate", "telemetry", "parse", "trace", "aggregate")}) == 5


def test_binding_sensor_files_are_those_there_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    binding = Binding(Selection(), tmp_path, Plan(entries=()))
    assert binding.sensor_files == []
    (tmp_path / "results/sensors").mkdir(parents=True)
    for name in ("trial.json", "h200.json", "notes.txt"):
        (tmp_path / "results/sensors" / name).write_text("{}")
    assert binding.sensor_files == ["results/sensors/h200.json", "results/sensors/trial.json"]


def test_binding_digest_of_machines_is_of_their_content(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "config/gpus/one.yaml"
    file.parent.mkdir(parents=True)
    file.write_text("a: 1")
    plan = Plan(entries=())
    before = Binding(Selection(), tmp_path, plan).machines_digest
    file.touch()
    assert Binding(Selection(), tmp_path, plan).machines_digest == before
    file.write_text("a: 2")
    assert Binding(Selection(), tmp_path, plan).machines_digest != before


@pytest.mark.parametrize(("engine", "num_parts"), [("simulated", 0), ("native", 1)])
def test_binding_lets_trace_parse_what_is_simulated(tmp_path: Path, engine: str, num_parts: int) -> None:
    point = tiny_point().model_copy(update={"engine": engine, "trace_ranks": (0, 1)})
    entry = PlanEntry(run="tiny", studies=("s",), invalid_because=None, planned=planned(point))
    binding = Binding(Selection(), tmp_path, Plan(entries=(entry,)))
    assert len(binding.parts("tiny")) == num_parts
    assert binding.trace_options("tiny").startswith("--parse") == (num_parts == 0)


def test_binding_claim_files_are_the_claims_and_their_figures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    binding = Binding(Selection(), tmp_path, Plan(entries=()))
    assert binding.claim_files == []
    (tmp_path / "config" / "published" / "figures").mkdir(parents=True)
    for name in ("claims.yaml", "models.yaml", "figures/one.csv", "figures/README.md"):
        (tmp_path / "config" / "published" / name).touch()
    assert binding.claim_files == ["config/published/claims.yaml", "config/published/figures/one.csv"]
