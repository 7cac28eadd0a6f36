"""Process groups: the launcher's record, what the trace says beside it, and the role each plays."""

from pathlib import Path
from typing import Any

import pytest

from tests.unit.trace.rank.parsed import communication
from tests.unit.trace.traces import ALL_REDUCE, kernel
from triplepoint.errors import UserError
from triplepoint.trace.kineto.reader import Header
from triplepoint.trace.rank.process_groups import Group, GroupRecord, Groups, read_groups

RECORD = GroupRecord([Group("tp", "3", (0, 1)), Group("dp", "4", (0, 2)), Group("dp", "5", (0, 4))])


def header(**metadata: Any) -> Header:
    return Header(Path("t.json"), None, 0, metadata, [], [], [], 0, 0, False)


@pytest.mark.parametrize(
    ("description", "role"),
    [
        *((role, role) for role in ("tp", "pp", "dp", "cp", "ep", "edp", "world")),
        ("mesh_tp", "tp"),
        ("MESH_DP", "dp"),
        ("default_pg", "world"),
        ("TENSOR_MODEL_PARALLEL_GROUP", "tp"),
        ("PIPELINE_MODEL_PARALLEL_GROUP", "pp"),
        ("DATA_PARALLEL_GROUP", "dp"),
        ("DATA_PARALLEL_GROUP_WITH_CP", "dp"),
        ("CONTEXT_PARALLEL_GROUP", "cp"),
        ("EXPERT_MODEL_PARALLEL_GROUP", "ep"),
        ("EXPERT_DATA_PARALLEL_GROUP", "edp"),
        ("undefined", None),
        ("tp_cp", None),
        ("", None),
        (None, None),
        (7, None),
    ],
)
def test_role_by_description(description: Any, role: str | None) -> None:
    assert Groups(GroupRecord(), header()).role("8", description) == role


def test_role_of_the_record_goes_first() -> None:
    groups = Groups(RECORD, header())
    assert groups.role("3", "mesh_dp") == "tp"
    assert groups.role(3) == "tp", "some profilers write the name as a number"
    assert groups.role("9", "mesh_dp") == "dp"
    assert groups.role("9") is None
    assert groups.role(None) is None


def test_role_by_the_description_in_the_header() -> None:
    listed = [{"pg_name": "7", "pg_desc": "mesh_ep"}, {"pg_name": 8, "pg_desc": "default_pg"}, "odd", {}]
    groups = Groups(GroupRecord(), header(distributedInfo={"pg_config": listed}))
    assert (groups.role("7"), groups.role("8"), groups.role("9")) == ("ep", "world", None)
    assert groups.role("7", "mesh_tp") == "tp"


@pytest.mark.parametrize("info", [None, [], "x", {"pg_config": None}, {"pg_config": {}}, {"pg_config": [1, None]}])
def test_groups_odd_headers_say_nothing(info: Any) -> None:
    assert Groups(GroupRecord(), header(distributedInfo=info)).role("7") is None


def test_of_role_is_the_only_one_that_plays_it() -> None:
    groups = Groups(RECORD, header())
    assert groups.of_role("tp") == Group("tp", "3", (0, 1))
    assert groups.of_role("dp") is None
    assert groups.of_role("pp") is None
    assert groups.of_role(None) is None


def test_parse_role_by_the_header_of_the_trace() -> None:
    info = {"rank": 0, "pg_config": [{"pg_name": "7", "pg_desc": "mesh_cp", "ranks": [0, 1]}]}
    events = [kernel(ALL_REDUCE, 0, 1, **{"Process Group Name": "7"})]
    assert communication(events, distributedInfo=info) == [("all_reduce", "cp")]


def test_read_groups_of_a_record(tmp_path: Path) -> None:
    path = tmp_path / "rank0.groups.json"
    assert read_groups(path) == GroupRecord()
    path.write_text(
        '{"groups": [{"role": "tp", "name": "3", "ranks": [0, 1], "more": 1}], '
        '"collectives": [{"role": "tp", "op": "x", "t_ns": 17}]}'
    )
    record = read_groups(path)
    assert record.groups == [Group("tp", "3", (0, 1))]
    assert [(one.role, one.t_ns) for one in record.collectives] == [("tp", 17)]


@pytest.mark.parametrize("text", ["", '{"groups": [', "[]", '{"groups": [{"role": "tp"}]}', '{"collectives": 3}'])
def test_read_groups_damaged_record_is_refused_in_one_line(tmp_path: Path, text: str) -> None:
    path = tmp_path / "rank0.groups.json"
    path.write_text(text)
    with pytest.raises(UserError, match=r"^rank0\.groups\.json: not a record of process groups \(.*\); .*again$"):
        read_groups(path)
