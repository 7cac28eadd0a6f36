"""Recorded traces to the tables of their rank; what is told of damage; nothing half done."""

import gzip
import json
from collections import Counter
from decimal import Decimal
from pathlib import Path

import pytest

from tests.unit.trace.judge.reference import gpu_rows, load, measure
from tests.unit.trace.rank.parsed import Parsed, parse, parse_path, sorters_of
from tests.unit.trace.traces import GEMM, kernel, note, write_trace
from triplepoint.errors import UserError
from triplepoint.tables import SEGMENTS
from triplepoint.trace.rank.parse import parse_rank
from triplepoint.trace.rank.process_groups import GroupRecord
from triplepoint.trace.rank.work import ReadOptions
from triplepoint.trace.rank_results import SUMMARY, Label, read_rank_table, read_summary
from triplepoint.trace.taxonomy import load_scheme

DATA = Path(__file__).parents[3] / "data" / "traces"


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Parsed]:
    folder = tmp_path_factory.mktemp("recorded")
    names = ("dlrm_v100_rank0", "mi250_toy_rank0", "gloo_rank0", "gloo_rank1")
    return {name: parse_path(DATA / f"{name}.json.gz", folder / name, DATA / f"{name}.groups.json") for name in names}


@pytest.mark.parametrize("name", ["dlrm_v100_rank0", "mi250_toy_rank0"])
def test_recorded_gpu_equals_recomputation(recorded: dict[str, Parsed], name: str) -> None:
    expected = measure(gpu_rows(load(DATA / f"{name}.json.gz")))
    summary = recorded[name].summary
    assert summary.span[1] - summary.span[0] == expected.span
    assert [summary.busy(one) for one in ("compute", "comm", "memory", "idle")] == [
        expected.compute,
        expected.comm,
        expected.memory,
        expected.idle,
    ]
    assert (summary.exposed("comm"), summary.exposed("memory")) == (expected.comm_exposed, expected.memory_exposed)
    assert (summary.num_gpu_events, summary.num_duplicate_events) == (expected.num_gpu_events, 0)
    assert (summary.num_damaged_events, summary.is_truncated, summary.is_device) == (0, False, True)


@pytest.mark.parametrize("name", ["dlrm_v100_rank0", "mi250_toy_rank0", "gloo_rank0", "gloo_rank1"])
def test_recorded_adds_up(recorded: dict[str, Parsed], name: str) -> None:
    parsed = recorded[name]
    for step in parsed.summary.steps:
        for table in (parsed.intervals, parsed.categories):
            assert sum(row["exposed_ns"] for row in table if row["step"] == step.number) == step.end - step.start
    ends = [row["t_start_ns"] + row["duration_ns"] for row in parsed.segments]
    assert ends[:-1] == [row["t_start_ns"] for row in parsed.segments[1:]], "segments touch"
    borders = [time for step in parsed.summary.steps for time in step[1:]] + list(parsed.summary.span)
    assert (parsed.segments[0]["t_start_ns"], ends[-1]) == (min(borders), max(borders))


@pytest.mark.parametrize("name", ["dlrm_v100_rank0", "mi250_toy_rank0", "gloo_rank0"])
def test_recorded_is_the_same_in_little_memory(recorded: dict[str, Parsed], tmp_path: Path, name: str) -> None:
    with sorters_of(40):
        again = parse_path(DATA / f"{name}.json.gz", tmp_path, DATA / f"{name}.groups.json")
    whole = recorded[name]
    for table in ("kernels", "intervals", "categories", "collectives"):
        assert sorted(map(str, getattr(again, table))) == sorted(map(str, getattr(whole, table))), table
    # Labels are numbered as they appear, which is another order then.
    assert labelled(again) == labelled(whole)
    assert {one.label: one for one in again.summary.accounts} == {one.label: one for one in whole.summary.accounts}


def labelled(parsed: Parsed) -> list[tuple[int, int, Label]]:
    labels = [account.label for account in parsed.summary.accounts]
    return [(row["t_start_ns"], row["duration_ns"], labels[row["label"]]) for row in parsed.segments]


def test_recorded_gloo_kinds_and_groups(recorded: dict[str, Parsed]) -> None:
    comm = {
        (rank, row["kind"], row["group"]): row["count"]
        for rank in (0, 1)
        for row in recorded[f"gloo_rank{rank}"].kernels
        if row["class"] == "comm" and row["step"] == 3
    }
    # By hand from the script that made it: per step two sends, six gradients, and one of each other kind.
    expected = {("all_reduce", "dp"): 6, ("reduce_scatter", "dp"): 1, ("all_gather", "dp"): 1}
    expected |= {(kind, "world"): 1 for kind in ("all_to_all", "broadcast", "barrier")}
    assert comm == {
        **{(rank, *key): count for rank in (0, 1) for key, count in expected.items()},
        (0, "send", "pp"): 2,
        (1, "recv", "pp"): 2,
    }


def test_recorded_gloo_step_lasts_as_the_file_says(recorded: dict[str, Parsed]) -> None:
    assert b'"dur": 20670.045' in gzip.decompress((DATA / "gloo_rank0.json.gz").read_bytes())
    (step,) = [step for step in recorded["gloo_rank0"].summary.steps if step.number == 2]
    assert step.end - step.start == 20_670_045


def test_recorded_gloo_operators_are_counted_once_each(recorded: dict[str, Parsed]) -> None:
    text = gzip.decompress((DATA / "gloo_rank0.json.gz").read_bytes())
    events = json.loads(text, parse_float=Decimal)["traceEvents"]
    expected = Counter(one["name"] for one in events if one.get("cat") == "cpu_op" and one["name"].startswith("aten::"))
    found: Counter[str] = Counter()
    for row in recorded["gloo_rank0"].kernels:
        if row["name"].startswith("aten::"):
            found[row["name"]] += row["count"]
    assert found == expected
    assert recorded["gloo_rank0"].summary.num_events == len(events)


def test_recorded_mi250_takes_the_grid_from_the_launch(recorded: dict[str, Parsed]) -> None:
    document = json.loads(gzip.decompress((DATA / "mi250_toy_rank0.json.gz").read_bytes()))
    first = next(one for one in document["traceEvents"] if one.get("cat") == "kernel")
    assert "grid" not in first["args"]
    assert all(row["num_blocks"] for row in recorded["mi250_toy_rank0"].kernels if row["class"] != "memory")


def test_parse_rank_is_given_the_rank_in_the_file(tmp_path: Path) -> None:
    path = write_trace(tmp_path / "t.json", [kernel(GEMM, 0, 1)], distributedInfo={"rank": 3})
    asked: list[int | None] = []
    how = ReadOptions(load_scheme(), tmp_path)
    parse_rank(path, lambda written: asked.append(written) or 7, tmp_path / "out", GroupRecord(), how)
    assert asked == [3]
    assert read_summary(tmp_path / "out").rank == 7


@pytest.mark.parametrize(("start_us", "base_ns"), [(-1e15, 10**18), (-5, 0), (1e15, 10**18)])
def test_parse_rank_of_work_before_1970_or_over_decades_is_refused(
    tmp_path: Path, start_us: float, base_ns: int
) -> None:
    events = [kernel(GEMM, start_us, 1), kernel(GEMM, 7, 1)]
    path = write_trace(tmp_path / "t.json", events, baseTimeNanoseconds=base_ns)
    with pytest.raises(UserError, match=r"^\S+/t\.json: its work begins before 1970 or lasts over a year; expected "):
        parse_rank(path, lambda written: 0, tmp_path / "out", GroupRecord(), ReadOptions(load_scheme(), tmp_path))


def test_parse_rank_alone_keeps_no_segments(tmp_path: Path) -> None:
    path = write_trace(tmp_path / "t.json", [kernel(GEMM, 0, 1), kernel(GEMM, 5, 1)])
    for is_alone in (False, True):
        how = ReadOptions(load_scheme(), tmp_path, is_alone)
        parse_rank(path, lambda written: 0, tmp_path / "out", GroupRecord(), how)
        assert read_rank_table(tmp_path / "out", SEGMENTS).num_rows == (0 if is_alone else 3)


def test_parse_rank_refused_leaves_no_summary(tmp_path: Path) -> None:
    path = write_trace(tmp_path / "t.json", [kernel(GEMM, 0, 1)])
    how = ReadOptions(load_scheme(), tmp_path)
    parse_rank(path, lambda written: 0, tmp_path / "out", GroupRecord(), how)
    assert (tmp_path / "out" / SUMMARY).is_file()

    def refuse(written: int | None) -> int:
        raise UserError("no rank")

    path.write_text("{}")
    with pytest.raises(UserError, match="no `traceEvents`"):
        parse_rank(path, lambda written: 0, tmp_path / "fresh", GroupRecord(), how)
    write_trace(path, [kernel(GEMM, 0, 1)])
    with pytest.raises(UserError, match="no rank"):
        parse_rank(path, refuse, tmp_path / "fresh", GroupRecord(), how)
    assert not (tmp_path / "fresh" / SUMMARY).exists()


def test_parse_damage_truncation_and_duplicates_are_told(tmp_path: Path) -> None:
    events = [kernel(GEMM, at, 1, correlation=at) for at in (0, 5, 5, 9)]
    text = json.dumps([*events, kernel(GEMM, 20, -1), note("forward", 0, 5)])
    path = tmp_path / "t.json"
    path.write_text(text[:-1])
    summary = parse_path(path, tmp_path / "out").summary
    assert (summary.num_events, summary.num_gpu_events, summary.num_duplicate_events) == (6, 3, 1)
    assert (summary.num_damaged_events, summary.is_truncated) == (1, True)


def test_parse_cpu_keeps_events_that_are_equal() -> None:
    # Two threads may do the same at once, and thread numbers are all that tells them apart.
    one = {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 9, "ts": 5, "dur": 3}
    parsed = parse([one | {"tid": 1}, one | {"tid": 2}])
    assert [(row["count"], row["sum_ns"]) for row in parsed.kernels] == [(2, 6_000)]
    assert parsed.summary.num_duplicate_events == 0
