"""Which files are read, and which rank each is of."""

from pathlib import Path

import pytest

from triplepoint.errors import UserError
from triplepoint.trace.parsing import TraceFile, check_ranks, find_run_traces, find_traces, rank_of


def touch(*paths: Path) -> None:
    for path in paths:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f'["{path.name}"]')


def test_find_traces_of_a_folder_are_those_that_can_be_traces(tmp_path: Path) -> None:
    names = ["rank0.json", "rank1.json.gz", "rank2.json.zst", "rank3.json.zstd", "rank0.groups.json", "notes.txt"]
    touch(*(tmp_path / name for name in names), tmp_path / "deeper.json" / "rank9.json")
    found = find_traces([tmp_path])
    assert [(file.path.name, file.rank) for file in found] == [
        ("rank0.json", 0),
        ("rank1.json.gz", 1),
        ("rank2.json.zst", 2),
        ("rank3.json.zstd", 3),
    ]


def test_find_traces_refuses_copies_of_one_trace(tmp_path: Path) -> None:
    (tmp_path / "rank0.json").write_text("[]")
    (tmp_path / "rank1.json").write_text("[]")
    with pytest.raises(UserError, match=r"rank1.json: has the same content as .*rank0.json; pass one file a rank"):
        find_traces([tmp_path])


def test_find_traces_named_files_are_taken_whatever_they_are_called(tmp_path: Path) -> None:
    touch(tmp_path / "profile.pt.trace", tmp_path / "a" / "rank3.json")
    found = find_traces([tmp_path / "profile.pt.trace", tmp_path / "a"])
    assert [(file.path.name, file.rank) for file in found] == [("profile.pt.trace", None), ("rank3.json", 3)]


@pytest.mark.parametrize(
    ("name", "rank"),
    [
        ("rank0.json", 0),
        ("job_rank-12.json", 12),
        ("trace_Rank_007.json.gz", 7),
        ("RANK63_step12.1694128201545.pt.trace.json", 63),
        ("node_rank1_rank9.json", 9),
        ("ranking.json", None),
        ("worker3.json", None),
        ("rank99999999999999999999.json", None),
    ],
)
def test_find_traces_rank_by_name(tmp_path: Path, name: str, rank: int | None) -> None:
    touch(tmp_path / name)
    assert find_traces([tmp_path])[0].rank == rank


@pytest.mark.parametrize("name", ["rank0 (copy).json", "a;rm -rf x.json", "rank0\n.json", "'$(id)'.json", "-rf.json"])
def test_find_traces_odd_names_are_names(tmp_path: Path, name: str) -> None:
    touch(tmp_path / name)
    assert [file.path for file in find_traces([tmp_path])] == [tmp_path / name]


def test_find_traces_none_is_refused(tmp_path: Path) -> None:
    touch(tmp_path / "rank0.groups.json", tmp_path / "notes.txt")
    for arguments in ([], [tmp_path], [tmp_path / "rank0.groups.json"]):
        with pytest.raises(UserError, match=r"no trace files, expected \*\.json, .*$"):
            find_traces(arguments)


def test_find_traces_same_rank_twice_is_refused_naming_both(tmp_path: Path) -> None:
    touch(tmp_path / "a" / "rank1.json", tmp_path / "b" / "rank1.json")
    with pytest.raises(UserError, match=r"b/rank1\.json: rank 1 is also in .*a/rank1\.json; pass one file a rank"):
        find_traces([tmp_path / "a", tmp_path / "b"])


@pytest.mark.parametrize("name", ["rank3.json", "rank3.json.gz", "rank3.json.zst"])
def test_record_stands_beside_the_trace(name: str) -> None:
    assert TraceFile(Path("a.json.d") / name, 3).record == Path("a.json.d/rank3.groups.json")


def test_find_run_traces_are_by_rank(tmp_path: Path) -> None:
    names = ["rank10.json.gz", "rank2.json", "rank0.json.zst", "rank0.groups.json", "rank1.json.tmp", "xrank4.json"]
    touch(*(tmp_path / name for name in names))
    assert [file.rank for file in find_run_traces(tmp_path)] == [0, 2, 10]
    assert find_run_traces(tmp_path / "missing") == []
    touch(tmp_path / "rank2.json.gz")
    with pytest.raises(UserError, match=r"rank2\.json\.gz: rank 2 is also in .*rank2\.json;"):
        find_run_traces(tmp_path)


def test_rank_of_a_file_is_by_name_then_as_written_then_the_only_one() -> None:
    named, unnamed = TraceFile(Path("rank3.json"), 3), TraceFile(Path("toy.json"), None)
    assert rank_of(named, 5, is_only=False) == 3
    assert rank_of(unnamed, 5, is_only=False) == 5
    assert rank_of(unnamed, 0, is_only=True) == 0
    assert rank_of(unnamed, None, is_only=True) == 0
    with pytest.raises(UserError, match=r"^toy\.json: neither its name \(rank<N>\) nor its distributedInfo says"):
        rank_of(unnamed, None, is_only=False)


def test_check_ranks_distinct_pass() -> None:
    check_ranks([("a", 0), ("b", 1)])
    with pytest.raises(UserError, match=r"^c: rank 0 is also in a;"):
        check_ranks([("a", 0), ("b", 1), ("c", 0)])
