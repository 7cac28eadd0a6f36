"""Every damaged file is survived with exact numbers, or refused in one line."""

import gzip

import pytest

from tests.unit.trace.judge.command import assert_breakdown, assert_refused, assert_survived, run_trace, status_of
from tests.unit.trace.judge.damage import REFUSED, SURVIVED
from tests.unit.trace.judge.layouts import LAYOUTS
from tests.unit.trace.judge.random_traces import write
from tests.unit.trace.judge.reference import measure
from tests.unit.trace.judge.small import EVENTS, GEMM, TOP, gpu, rows_of


@pytest.mark.parametrize("name", sorted(SURVIVED))
def test_damaged_trace_survives(name, tmp_path):
    case = SURVIVED[name]
    outcome = run_trace([write(tmp_path, case.data, f"rank0{case.suffix}")], tmp_path / "out")
    if case.same_names:
        assert_survived(outcome, case.rows, damaged=case.damaged, truncated=case.truncated)
    else:
        (row,) = outcome.breakdown
        assert outcome.status == status_of(row), outcome.err
        assert_breakdown(row, measure(case.rows))
        assert int(row["num_damaged_events"]) in case.damaged
        assert sum(int(kernel["count"]) for kernel in outcome.kernels) == len(case.rows)


@pytest.mark.parametrize("name", sorted(REFUSED))
def test_no_trace_is_refused(name, tmp_path):
    path = write(tmp_path, REFUSED[name], "rank0.json.gz" if name.startswith("gzip") else "rank0.json")
    assert_refused(run_trace([path], tmp_path / "out"), "rank0.json")


def test_damaged_rank_beside_a_whole_one_leaves_no_tables(tmp_path):
    write(tmp_path, LAYOUTS["compact"].render(EVENTS, TOP).data, "rank0.json")
    write(tmp_path, REFUSED["web_page"], "rank1.json")
    assert_refused(run_trace([tmp_path], tmp_path / "out"), "rank1.json")


def test_two_files_of_one_rank_are_refused(tmp_path):
    text = LAYOUTS["compact"].render(EVENTS, TOP).data
    write(tmp_path, text, "rank0.json")
    write(tmp_path, gzip.compress(text), "rank0.json.gz")
    assert_refused(run_trace([tmp_path], tmp_path / "out"), "rank0.json", "rank0.json.gz")


def test_two_jobs_in_a_folder_are_refused(tmp_path):
    text = LAYOUTS["compact"].render(EVENTS, TOP).data
    write(tmp_path, text, "monday.json")
    write(tmp_path, text, "tuesday.json")
    assert_refused(run_trace([tmp_path], tmp_path / "out"), "monday.json", "tuesday.json")


def test_missing_file_is_refused(tmp_path):
    assert_refused(run_trace([tmp_path / "rank3.json"], tmp_path / "out"), "rank3.json")


def test_rows_equal_but_for_their_correlation_count_twice(tmp_path):
    twins = [gpu(GEMM, 5_000, 1_000, correlation) for correlation in (1, 2, 2)]
    path = write(tmp_path, LAYOUTS["compact"].render(twins, TOP).data)
    assert_survived(run_trace([path], tmp_path / "out"), rows_of(twins[:2]))


@pytest.mark.parametrize("name", ["plain", "duration_nan"])
def test_damage_is_told_on_the_terminal(name, tmp_path):
    outcome = run_trace([write(tmp_path, SURVIVED[name].data)], tmp_path / "out")
    assert ("damaged" in outcome.out + outcome.err) == (name != "plain")


def test_truncation_is_told_on_the_terminal(tmp_path):
    outcome = run_trace([write(tmp_path, SURVIVED["cut_in_a_name"].data)], tmp_path / "out")
    assert "truncated" in outcome.out + outcome.err
