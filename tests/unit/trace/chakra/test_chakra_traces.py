"""Chakra traces written from recorded ones give the same tables; those of other tools give what is in them."""

from pathlib import Path

import pytest

from triplepoint.cli import main
from triplepoint.errors import UserError
from triplepoint.tables import CATEGORIES, COLLECTIVES, INTERVALS, KERNELS, TIMELINE
from triplepoint.tables.schema import Table
from triplepoint.trace.chakra.files import open_trace, write_trace
from triplepoint.trace.chakra.nodes import read_node
from triplepoint.trace.chakra.schema import NEWEST
from triplepoint.trace.loose_traces import trace_files
from triplepoint.trace.taxonomy import load_scheme

DATA = Path(__file__).parents[3] / "data"
RECORDED = ("dlrm_v100_rank0.json.gz", "ddp_mi300x_rank0.json.gz", "mi350_results.json.gz")


def traced(path: Path, out: Path, *, chakra: bool = False) -> Path:
    trace_files([path], out, load_scheme(), lambda line: None, num_jobs=1, chakra=chakra)
    return out


def rows(out: Path, table: Table) -> list[str]:
    return sorted(repr(row) for row in table.read(out / f"{table.name}.parquet").to_pylist())


@pytest.mark.parametrize("name", RECORDED)
def test_tables_of_the_chakra_trace_are_those_of_the_recording(name: str, tmp_path: Path) -> None:
    first = traced(DATA / "traces" / name, tmp_path / "first", chakra=True)
    second = traced(first / "chakra.0.et", tmp_path / "second")
    for table in (INTERVALS, CATEGORIES, COLLECTIVES, TIMELINE, KERNELS):
        assert rows(first, table) == rows(second, table), table.name
    assert len(rows(first, KERNELS)) > 5


def test_nodes_are_in_stream_order_and_collectives_have_size_and_group(tmp_path: Path) -> None:
    trace = open_trace(traced(DATA / "traces/ddp_a100_rank0.json.gz", tmp_path / "out", chakra=True) / "chakra.0.et")
    nodes = [one for one in (read_node(node, trace.schema) for node in trace.nodes()) if one.type != "METADATA_NODE"]
    last: dict[int, int] = {}
    for one in nodes:
        stream = one.attributes["stream"]
        assert one.deps == ([last[stream]] if stream in last else [])
        last[stream] = one.id
    assert len(last) > 1
    table = COLLECTIVES.read(tmp_path / "out/collectives.parquet").sort_by("t_start_ns").to_pylist()
    comm = [one for one in nodes if one.is_comm]
    assert [one.kind for one in comm] == [row["kind"] for row in table]
    assert [one.attributes.get("comm_size") for one in comm] == [row["size_bytes"] for row in table]
    assert [one.attributes.get("pg_name") for one in comm] == [row["group_name"] for row in table]


def test_trace_of_another_tool_with_times_gives_tables(tmp_path: Path) -> None:
    nodes = [
        NEWEST.node_class(id=0, name="gemm_1", type=4, start_time_micros=10, duration_micros=20),
        NEWEST.node_class(id=1, name="layer 1 gradients", type=7, start_time_micros=20, duration_micros=30),
        NEWEST.node_class(id=2, name="cpu", type=4, start_time_micros=5, duration_micros=99),
    ]
    for name, value in (("comm_type", 0), ("comm_size", 4096), ("stream", 20)):
        nodes[1].attr.add(name=name, int64_val=value)
    nodes[1].attr.add(name="pg_name", string_val="3")
    nodes[2].attr.add(name="is_cpu_op", bool_val=True)
    write_trace(tmp_path / "work.4.et", NEWEST.metadata_class(version="0.0.4"), nodes)
    out = traced(tmp_path / "work.4.et", tmp_path / "out")
    (collective,) = COLLECTIVES.read(out / "collectives.parquet").to_pylist()
    found = {name: collective[name] for name in ("rank", "kind", "group_name", "size_bytes")}
    assert found == {"rank": 4, "kind": "all_reduce", "group_name": "3", "size_bytes": 4096}
    names = {row["name"]: row["sum_ns"] for row in KERNELS.read(out / "kernels.parquet").to_pylist()}
    assert names == {"gemm_1": 20_000, "nccl:all_reduce layer 1 gradients": 30_000}


def test_trace_without_times_is_summarised(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = DATA / "chakra/converted_pytorch.0.et.gz"
    assert main(["trace", str(path), "--out", str(tmp_path / "out")]) == 0
    said = capsys.readouterr().out
    assert "Chakra schema 0.0.4; 3 COMM_COLL_NODE, 97 COMP_NODE" in said
    assert "all_reduce: 1, 8196000 bytes together" in said
    assert "no table is written" in said
    assert not (tmp_path / "out").exists()


def test_work_of_a_cpu_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="has no work of a GPU, and a Chakra"):
        traced(DATA / "traces/gloo_rank0.json.gz", tmp_path / "out", chakra=True)
    assert not (tmp_path / "out").exists()
