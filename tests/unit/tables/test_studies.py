"""Tables of several studies joined: each run once, with all studies that have it, and what sets runs apart."""

import csv
from dataclasses import replace
from pathlib import Path

import pytest

from tests.synthetic import CONFIG, Spec, build
from triplepoint.aggregate import aggregate
from triplepoint.config.plan import Plan
from triplepoint.errors import UserError
from triplepoint.tables import STEPS, TELEMETRY
from triplepoint.tables import studies as of_studies
from triplepoint.tables.results import RESULT_TABLES
from triplepoint.tables.schema import Column, Table, text
from triplepoint.tables.studies import OVER_ALL, planned_studies, read_joined, require_tables, tables_folder

ALONE, SHARED, LATER = (Spec("tiny-llama", layout) for layout in ({"dp": 2}, {"tp": 2}, {"pp": 2}))

NOT_ON_CPU = {"job_power", "published", "step_energy", "step_samples", "traffic"}
"""Tables that have no row of a tiny model on cpu."""


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Study `first` of two runs, `second` of the last of them and one more, before it."""
    folder = tmp_path_factory.mktemp("results")
    plan = build(folder, [ALONE, SHARED, LATER])
    studies = (("first",), ("first", "second"), ("second",))
    entries = [entry.model_copy(update={"studies": of}) for entry, of in zip(plan.entries, studies, strict=True)]
    runs = [entry.run for entry in entries]
    order = {"first": tuple(runs[:2]), "second": (runs[2], runs[1])}
    aggregate(Plan(entries=tuple(entries), order=order), folder, CONFIG)
    return folder


def runs_of(results: Path, *studies: str) -> list[str]:
    return list(read_joined(results, studies, "points")["run"].to_pylist())


def test_rows_of_some_runs_are_those_of_the_whole_table(results: Path) -> None:
    both, run = ("first", "second"), SHARED.run
    whole = read_joined(results, both, "timeline")
    assert of_studies.runs_of(results, both, "timeline") == set(whole["run"].to_pylist()) == {*runs_of(results, *both)}
    expected = [row for row in whole.to_pylist() if row["run"] == run]
    assert expected and read_joined(results, both, "timeline", [run]).to_pylist() == expected
    assert len(read_joined(results, both, "timeline", [])) == 0


def test_rows_of_a_damaged_table_are_refused_in_one_line(tmp_path: Path) -> None:
    (folder := tables_folder(tmp_path, "s")).mkdir(parents=True)
    with pytest.raises(UserError, match="no such file; make table timeline with 'triplepoint aggregate s"):
        read_joined(tmp_path, ["s"], "timeline", ["run"])
    (folder / "timeline.parquet").write_bytes(b"PAR1")
    for read in (of_studies.runs_of, lambda *where: read_joined(*where, ["run"])):
        with pytest.raises(UserError, match="not a whole Parquet file"):
            read(tmp_path, ["s"], "timeline")


def test_table_with_one_damaged_byte_is_refused_or_has_the_same_values(tmp_path: Path) -> None:
    path = tmp_path / "runs" / "tiny" / "raw" / "steps.parquet"
    times = range(0, 1000, 100)
    rows = [
        {"rank": 0, "step": n, "kind": "measured", "t_start_ns": t, "t_end_ns": t + 90} for n, t in enumerate(times)
    ]
    STEPS.write_rows(path, rows)
    whole, table, refused = path.read_bytes(), STEPS.read(path), 0
    for at in range(0, len(whole), 3):
        damaged = bytearray(whole)
        damaged[at] ^= 4
        path.write_bytes(damaged)
        try:
            assert STEPS.read(path).to_pylist() == table.to_pylist(), at
        except UserError as error:
            assert len(str(error).splitlines()) == 1
            refused += 1
    assert refused > len(whole) // 12


def test_damaged_measurement_is_not_to_be_deleted(tmp_path: Path) -> None:
    run = tmp_path / "results" / "runs" / "tiny"
    for path, said in (
        (run / "raw" / "steps.parquet", "cannot be made again: restore .* launch tiny --force .*keeps the damaged"),
        (run / "telemetry.parquet", "make it again with 'triplepoint telemetry tiny --results"),
    ):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"PAR1")
        with pytest.raises(UserError, match=said) as refused:
            (STEPS if path.name == "steps.parquet" else TELEMETRY).read(path)
        assert "delete" not in str(refused.value)


def test_run_of_two_studies_is_in_both_tables_and_joined_once(results: Path) -> None:
    alone, shared, later = (spec.run for spec in (ALONE, SHARED, LATER))
    assert runs_of(results, "first") == [alone, shared]
    assert runs_of(results, "second") == [later, shared], "in the order of the study, not of the plan"
    assert runs_of(results, "first", "second") == [alone, shared, later]
    assert runs_of(results, "second", "first") == [later, shared, alone]


def test_joined_points_name_the_studies_that_were_asked_for(results: Path) -> None:
    joined = read_joined(results, ["first", "second"], "points")
    assert joined["studies"].to_pylist() == [["first"], ["first", "second"], ["second"]]
    assert set(map(tuple, read_joined(results, ["second"], "points")["studies"].to_pylist())) == {("second",)}


@pytest.mark.parametrize("name", [name for name in RESULT_TABLES if name not in OVER_ALL])
def test_joined_rows_of_a_shared_run_are_those_of_one_study(results: Path, name: str) -> None:
    one, both = (read_joined(results, studies, name) for studies in (["first"], ["first", "second"]))
    key = "subject" if name == "telemetry_checks" else "run"
    count = [rows[key].to_pylist().count(SHARED.run) for rows in (one, both)]
    assert count[0] == count[1]
    assert count[0] or name in NOT_ON_CPU
    assert RESULT_TABLES[name].check(both, "joined").num_rows == both.num_rows


def test_write_csv_keeps_formulas_text(tmp_path: Path) -> None:
    columns = (text("name", "A name."), text("more", "Another.", True), Column("names", "names", "", "Several."))
    table = Table("some", "one row each", columns)
    rows = [
        {"name": "=1+1", "more": "@a", "names": ["-x", "y"]},
        {"name": "a=1", "more": None, "names": []},
    ]
    table.write_csv(tmp_path / "some.csv", [table.from_rows(rows)])
    cells = list(csv.reader((tmp_path / "some.csv").read_text().splitlines()))
    assert cells == [["name", "more", "names"], ["'=1+1", "'@a", "'-x;y"], ["a=1", "", ""]]


def test_timeline_has_no_csv(results: Path) -> None:
    names = {path.name for path in tables_folder(results, "first").iterdir()}
    assert {"points.csv", "timeline.parquet", "plan.json"} <= names
    assert "timeline.csv" not in names


def test_joined_runs_that_differ_in_no_column_are_told_apart(tmp_path: Path) -> None:
    """Ten measured steps in one study, five in the other: alone, neither has anything to be told apart from."""
    for study, num_measured, repeat in (("ten", 10, 1), ("five", 5, 2)):
        plan = build(tmp_path, [replace(ALONE, repeat=repeat)], (study,))
        (entry,) = plan.entries
        point = entry.planned.point
        point = point.model_copy(update={"steps": point.steps.model_copy(update={"measured": num_measured})})
        planned = entry.planned.model_copy(update={"point": point, "digest": point.digest()})
        folder = tables_folder(tmp_path, study)
        aggregate(plan, tmp_path, CONFIG)
        measured = Plan(entries=(entry.model_copy(update={"planned": planned}),))
        (folder / "plan.json").write_text(measured.text())
    assert read_joined(tmp_path, ["ten"], "points")["variant"].to_pylist() == [None]
    assert read_joined(tmp_path, ["ten", "five"], "points")["variant"].to_pylist() == ["measured 10", "measured 5"]


def test_no_study_is_an_empty_table(results: Path) -> None:
    assert read_joined(results, [], "points").num_rows == 0


def test_study_without_tables_is_one_line_with_the_command(results: Path) -> None:
    require_tables(results, ["first", "second"], "x", "y")
    with pytest.raises(UserError, match=r"^figure f: study other has no finished run in .*'snakemake figs/f.pdf'$"):
        require_tables(results, ["first", "other"], "figure f", "snakemake figs/f.pdf")


def test_planned_studies_in_the_order_of_the_plan(tmp_path: Path) -> None:
    plan = build(tmp_path, [ALONE], ("b", "a"))
    (tmp_path / "plan.json").write_text(plan.text())
    assert planned_studies(tmp_path) == ("b", "a")
