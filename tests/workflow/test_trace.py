"""Traces in the DAG: ranks parsed in parts, joined to one set of tables."""

import gzip
import json
from pathlib import Path

import pytest

from tests.workflow.conftest import UP_TO_TABLES, Project
from tests.workflow.test_bad_input import assert_refused
from triplepoint.tables import KERNELS
from triplepoint.workflow import TRACE_TABLES

pytestmark = pytest.mark.workflow

AFTER_TRACE = {"trace", "aggregate", "claims", "figure", "report"}


def append(project: Project, path: str, text: str) -> None:
    with (project.folder / path).open("a") as file:
        file.write(text)


def run_of(project: Project) -> Path:
    """Return the folder of the first run."""
    return project.folder / "results/runs" / sorted(project.manifests())[0]


def tables_of(project: Project) -> dict[str, bytes]:
    paths = project.folder.glob("results/runs/*/*")
    found = {path.stem: path for path in paths if path.suffix == ".parquet" and path.stem in TRACE_TABLES}
    assert set(found) == set(TRACE_TABLES)
    everything = [*project.folder.glob("results/runs/*/*.parquet"), *project.folder.glob("results/tables/mini/*")]
    return {str(path.relative_to(project.folder)): path.read_bytes() for path in everything}


def parts_of(project: Project) -> set[str]:
    return {path.name for path in project.folder.glob("results/runs/*/ranks/*")}


@pytest.mark.parametrize(
    ("path", "text", "rules"),
    [
        ("trace/kineto/scanner/scanner.c", "\n/* a remark */\n", {"parse", *AFTER_TRACE}),
        ("trace/taxonomy/default.yaml", "\n# a remark\n", {"parse", *AFTER_TRACE}),
        ("trace/rank/accounting.py", "\n# a remark\n", {"parse", *AFTER_TRACE}),
        ("trace/compare.py", "\n# a remark\n", AFTER_TRACE),
        ("trace/join.py", "\n# a remark\n", AFTER_TRACE),
    ],
)
def test_edited_trace_code_runs_only_what_it_is_of(project: Project, path: str, text: str, rules: set[str]) -> None:
    append(project, f"src/triplepoint/{path}", text)
    outcome = project.snakemake("-n", "all")
    assert outcome.status == 0, outcome.output
    assert outcome.rules == rules
    assert len(outcome.of("trace")) == 2


@pytest.mark.long
def test_one_rank_a_part_gives_the_same_tables(project: Project) -> None:
    before, manifests = tables_of(project), project.manifests()
    assert parts_of(project) == {"0-1"}
    outcome = project.snakemake("all", "--config", "ranks_per_part=1")
    assert outcome.status == 0, outcome.output
    assert len(outcome.of("parse")) == 4
    assert project.manifests() == manifests
    assert tables_of(project) == before
    assert parts_of(project) == {"0-0", "1-1"}, "a part cut in another way stayed"
    assert project.snakemake("all", "--config", "ranks_per_part=1").jobs == []


def test_removed_part_is_parsed_again(project: Project) -> None:
    before = tables_of(project)
    part = run_of(project) / "ranks/0-1"
    for path in part.glob("*/*"):
        path.unlink()
    outcome = project.snakemake("-n", "all")
    assert outcome.jobs == [], "what trace is made from is there, what is in it only trace would tell"
    assert_refused(project.triplepoint("trace", "--run", part.parents[1].name), "ranks 0, 1 are not parsed")
    outcome = project.snakemake(*UP_TO_TABLES, "-R", "parse")
    assert outcome.status == 0, outcome.output
    assert tables_of(project) == before


def test_part_and_another_that_overlaps_are_refused(project: Project) -> None:
    run = run_of(project).name
    assert project.triplepoint("parse", run, "1-1").returncode == 0
    assert_refused(project.triplepoint("trace", "--run", run), "rank 1 is also in", "ranks/")


@pytest.mark.parametrize("keeps_trace", [False, True])
def test_run_out_of_memory_has_empty_tables(project: Project, keeps_trace: bool) -> None:
    run = run_of(project)
    manifest = json.loads((run / "raw/manifest.json").read_text())
    manifest |= {"status": "oom", "evidence": {"rank": 1, "host": "a", "message": "out of memory", "log_tail": []}}
    (run / "raw/manifest.json").write_text(json.dumps(manifest))
    (run / "raw/traces/rank1.json.gz").unlink()
    if not keeps_trace:
        (run / "raw/traces/rank0.json.gz").unlink()
    outcome = project.snakemake("all")
    assert outcome.status == 0, outcome.output
    assert outcome.of("parse") == [f"{run.name} 0-1"]
    assert outcome.of("launch") == []
    assert (KERNELS.read(run / "kernels.parquet").num_rows > 0) == keeps_trace
    assert "oom" in (project.folder / "results/tables/mini/points.csv").read_text()


def test_lost_trace_is_named_and_nothing_is_joined(project: Project) -> None:
    run = run_of(project)
    (run / "raw/traces/rank1.json.gz").unlink()
    before = tables_of(project)
    assert_refused(project.triplepoint("parse", run.name, "0-1"), "raw/traces", "no trace of ranks 1", "--force")
    assert tables_of(project) == before
    assert not (run / "ranks/0-1").exists()


def test_truncated_trace_of_a_run_is_refused_and_old_tables_stay(project: Project) -> None:
    run = run_of(project)
    before = tables_of(project)
    trace = run / "raw/traces/rank1.json.gz"
    trace.write_bytes(trace.read_bytes()[: trace.stat().st_size // 2])
    assert_refused(project.triplepoint("parse", run.name, "0-1"), "rank1.json.gz", "truncated")
    assert tables_of(project) == before
    assert not (run / "ranks/0-1").exists()


def test_damaged_event_of_a_run_is_told(project: Project) -> None:
    run = run_of(project)
    trace = run / "raw/traces/rank1.json.gz"
    text = gzip.decompress(trace.read_bytes()).decode()
    assert '"ph": "X"' in text
    trace.write_bytes(gzip.compress(text.replace('"dur": ', '"dur": -', 1).encode()))
    done = project.triplepoint("parse", run.name, "0-1")
    assert done.returncode == 0
    assert "rank1.json.gz: 1 of" in done.stderr
    assert "damaged" in done.stderr


@pytest.mark.parametrize("part", ["0", "3-1", "a-b", "0-"])
def test_parse_part_that_is_none_is_refused(project: Project, part: str) -> None:
    done = project.triplepoint("parse", run_of(project).name, part)
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    assert part in done.stderr


def test_rules_of_the_user_sort_kernels(project: Project) -> None:
    (project.folder / "it's mine.yaml").write_text("host:\n  - [mine, all, 'aten::']\n")
    setting = 'trace_rules="it\'s mine.yaml"'
    outcome = project.snakemake("all", "--config", setting)
    assert outcome.status == 0, outcome.output
    assert outcome.rules == {"parse", *AFTER_TRACE}
    assert "mine" in KERNELS.read(run_of(project) / "kernels.parquet")["class"].to_pylist()
    assert project.snakemake("-n", "all", "--config", setting).jobs == []
    append(project, "it's mine.yaml", "# a remark\n")
    assert project.snakemake("-n", "all", "--config", setting).rules == {"parse", *AFTER_TRACE}


def test_rules_of_the_user_that_are_not_there(fresh: Project) -> None:
    assert_refused(fresh.snakemake("-n", "all", "--config", "trace_rules=mime.yaml"), "trace_rules", "mime.yaml")


def test_no_rank_in_a_part_is_refused(fresh: Project) -> None:
    assert_refused(fresh.snakemake("-n", "all", "--config", "ranks_per_part=0"), "ranks_per_part", "more than 0")


@pytest.mark.long
def test_run_that_traces_nothing_has_empty_tables(fresh: Project) -> None:
    fresh.edit("config/studies/mini.yaml", "profiled: 1", "profiled: 0")
    fresh.edit("config/studies/mini.yaml", "[1, 2, 4]", "[1]")
    outcome = fresh.snakemake("all")
    assert outcome.status == 0, outcome.output
    assert outcome.of("parse") == []
    assert KERNELS.read(run_of(fresh) / "kernels.parquet").num_rows == 0
