"""The rows of `collectives`: what each moved, among whom, and where it met the other ranks."""

import pytest

from tests.unit.trace.rank.parsed import parse, since_base_us
from tests.unit.trace.traces import ALL_REDUCE, GEMM, SEND_RECV, event, kernel, note

TP = {"Process Group Name": "3", "Process Group Description": "mesh_tp", "Process Group Ranks": "[0, 1]"}
DP = {"Process Group Name": "4", "Process Group Description": "mesh_dp", "Group size": 64}
SIZE = {"In msg nelems": 100, "Out msg nelems": 100, "dtype": "BFloat16"}


def columns(parsed_rows: list[dict], *names: str) -> list[tuple]:
    return [tuple(row[name] for name in names) for row in sorted(parsed_rows, key=lambda row: row["t_start_ns"])]


def test_collectives_of_a_device_by_hand() -> None:
    events = [
        note("ProfilerStep#3", 0, 100),
        kernel(GEMM, 10, 20),
        kernel(ALL_REDUCE, 20, 30, stream=9, **TP, **SIZE),
        kernel(ALL_REDUCE, 200, 5, stream=9, **DP),
        note("ProfilerStep#4", 300, 10),
    ]
    rows = parse(events).collectives
    assert columns(rows, "rank", "step", "kind", "group", "group_name", "sequence", "num_ranks", "ranks") == [
        (5, 3, "all_reduce", "tp", "3", 0, 2, "0,1"),
        (5, None, "all_reduce", "dp", "4", 0, 64, None),
    ]
    assert columns(rows, "duration_ns", "exposed_ns", "size_bytes") == [(30_000, 20_000, 200), (5_000, 5_000, None)]
    assert [since_base_us(row["t_start_ns"]) for row in rows] == [20, 200]
    assert all(row["num_seen"] is None and row["last_rank"] is None for row in rows), "only all ranks can tell"


@pytest.mark.parametrize("capacity", [1, 2, 1000])
def test_collectives_are_numbered_as_they_start_though_they_end_in_another_order(capacity: int) -> None:
    # The first lasts until after the others: its row comes last.
    events = [
        kernel(ALL_REDUCE, 10, 90, stream=9, **TP),
        kernel(ALL_REDUCE, 20, 10, stream=10, **TP),
        kernel(ALL_REDUCE, 30, 5, stream=11, **DP),
        kernel(SEND_RECV, 40, 5, stream=11, **TP),
        kernel(ALL_REDUCE, 50, 5, stream=10, **TP),
    ]
    rows = parse(events, capacity=capacity).collectives
    assert columns(rows, "group_name", "kind", "sequence") == [
        ("3", "all_reduce", 0),
        ("3", "all_reduce", 1),
        ("4", "all_reduce", 0),
        ("3", "send_recv", 0),
        ("3", "all_reduce", 2),
    ]


def test_collectives_of_a_trace_that_names_no_group_are_of_the_default_one() -> None:
    rows = parse([kernel(ALL_REDUCE, 10, 5), kernel(ALL_REDUCE, 20, 5, **{"Group size": 8})]).collectives
    assert columns(rows, "group_name", "sequence", "num_ranks") == [("default", 0, None), ("default", 1, 8)]


def test_collectives_without_a_group_among_others_with_one_meet_nowhere() -> None:
    rows = parse([kernel(ALL_REDUCE, 10, 5, **TP), kernel(ALL_REDUCE, 20, 5)]).collectives
    assert columns(rows, "group_name") == [("3",), (None,)]


def test_collectives_of_unnamed_groups_are_named_by_role_and_ranks() -> None:
    rows = parse([kernel(ALL_REDUCE, 10, 5, **{"Process Group Ranks": [0, 4], "Process Group Description": "mesh_dp"})])
    assert columns(rows.collectives, "group_name", "num_ranks", "ranks") == [("dp 0,4", 2, "0,4")]


def test_collectives_of_the_cpu_take_ranks_from_the_record() -> None:
    shape = {"Input Dims": [[[8, 4]], []], "Input type": ["float", ""]}
    events = [event("c10d::allreduce_", 10, 5), note("gloo:all_reduce", 12, 20, 7) | {"args": shape}]
    record = {
        "groups": [{"role": "dp", "name": "1", "ranks": [5, 7]}],
        "collectives": [{"role": "dp", "t_ns": 1_790_857_026_000_011_000}],
    }
    rows = parse(events, record).collectives
    expected = [("all_reduce", "dp", "dp 5,7", 2, "5,7", 128)]
    assert columns(rows, "kind", "group", "group_name", "num_ranks", "ranks", "size_bytes") == expected


def test_collectives_exposed_where_neither_computation_nor_an_earlier_one_runs() -> None:
    events = [
        kernel(ALL_REDUCE, 0, 30, stream=9, **TP),
        kernel(ALL_REDUCE, 10, 30, stream=10, **DP),
        kernel(GEMM, 25, 10),
    ]
    assert columns(parse(events).collectives, "exposed_ns") == [(25_000,), (5_000,)]
