"""Traces of different jobs are refused in one line."""

from pathlib import Path

import pytest

from tests.unit.trace.traces import BASE_NS, GEMM, kernel, write_trace
from triplepoint.cli import main
from triplepoint.errors import UserError
from triplepoint.trace.parsing import check_one_job
from triplepoint.trace.rank_results import RankSummary

HOUR_NS = 3_600_000_000_000


def summary(rank: int, start_ns: int = BASE_NS, world_size: int | None = None) -> RankSummary:
    span = (start_ns, start_ns + 1000)
    return RankSummary(f"rank{rank}.json", rank, True, span, [], [], 1, 1, 0, 0, False, world_size=world_size)


def test_ranks_of_one_job_pass() -> None:
    check_one_job([])
    check_one_job([summary(0, world_size=2), summary(1, BASE_NS + HOUR_NS, 2), summary(5)])


def test_other_number_of_ranks_is_refused() -> None:
    with pytest.raises(
        UserError, match=r"^rank1\.json: belongs to a job of 16 ranks, rank0\.json to one of 8; pass the traces of"
    ):
        check_one_job([summary(0, world_size=8), summary(1, world_size=16)])


def test_rank_beyond_the_job_is_refused() -> None:
    with pytest.raises(
        UserError, match=r"^rank8\.json: is of rank 8, and its job has ranks 0 to 7; correct the file's name$"
    ):
        check_one_job([summary(0, world_size=8), summary(8, world_size=8)])


def test_hours_apart_is_refused() -> None:
    with pytest.raises(
        UserError, match=r"^rank0\.json: recorded 5\.0 h after rank2\.json; pass the traces of one job$"
    ):
        check_one_job([summary(0, BASE_NS + 5 * HOUR_NS), summary(2)])


def test_clocks_that_began_with_the_machine_are_not_compared() -> None:
    check_one_job([summary(0, 5 * HOUR_NS), summary(1, 5000 * HOUR_NS)])


def test_trace_of_another_job_in_the_folder_ends_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for rank, size in ((0, 2), (1, 4)):
        info = {"rank": rank, "world_size": size}
        write_trace(tmp_path / "in" / f"rank{rank}.json.gz", [kernel(GEMM, 0, 10)], distributedInfo=info)
    assert main(["trace", str(tmp_path / "in"), "--out", str(tmp_path / "out")]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert "rank1.json.gz: belongs to a job of 4 ranks" in said
    assert not (tmp_path / "out").exists()
