"""Files of Chakra traces: the version of each schema is found, nothing is lost, and damage is one line."""

import gzip
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.examples import examples
from triplepoint.errors import UserError
from triplepoint.trace.chakra.files import messages, open_trace, write_trace
from triplepoint.trace.chakra.nodes import ChakraNode, read_node
from triplepoint.trace.chakra.schema import NEWEST, SCHEMAS, Schema
from triplepoint.trace.chakra.summary import summarise_graph

DATA = Path(__file__).parents[3] / "data" / "chakra"
VERSIONS = {
    "two_comp_nodes.0.eg": "0.0.1",
    "schema_002.et": "0.0.2",
    "schema_003.et": "0.0.3",
    "schema_003a.et": "0.0.3a",
    "schema_003b.et": "0.0.3b",
    "schema_004.et": "0.0.4",
    "all_reduce_4npus_1MB.0.et": "0.0.4",
    "converted_pytorch.0.et.gz": "0.0.4",
}


def facts(path: Path) -> list[ChakraNode]:
    trace = open_trace(path)
    return [read_node(node, trace.schema) for node in trace.nodes()]


@pytest.mark.parametrize(("name", "version"), VERSIONS.items())
def test_version_is_found_and_what_is_written_again_is_the_same(name: str, version: str, tmp_path: Path) -> None:
    trace = open_trace(DATA / name)
    assert (trace.schema.version, trace.also_fits) == (version, ())
    num_nodes = write_trace(tmp_path / "again.et", trace.metadata, trace.nodes())
    assert num_nodes == len(facts(DATA / name)) > 0
    assert list(messages(tmp_path / "again.et")) == list(messages(DATA / name))


def test_every_published_schema_is_in_the_samples() -> None:
    assert {*VERSIONS.values()} == {schema.version for schema in SCHEMAS}


@pytest.mark.parametrize("name", [name for name in VERSIONS if name.startswith("schema_00") and "004" not in name])
def test_same_node_means_the_same_in_every_version(name: str) -> None:
    gemm, collective = facts(DATA / name)
    assert (gemm.name, gemm.type, gemm.duration_ns) == ("aten::mm", "COMP_NODE", 27_000)
    assert (collective.type, collective.kind, collective.deps) == ("COMM_COLL_NODE", "reduce_scatter", [0])
    assert (collective.duration_ns, collective.attributes["comm_size"]) == (11_000, 4096)


def test_attributes_of_every_type_keep_their_values() -> None:
    head, send = facts(DATA / "schema_004.et")
    assert (head.attributes["double"], head.attributes["sint64"], head.attributes["bytes"]) == (1.25, -7, b"\xff\x00")
    assert (head.attributes["uint64_list"], head.attributes["bool_list"]) == ([7, 7], [True, True])
    assert len(head.attributes) == 30
    assert (send.kind, send.attributes["comm_dst"], send.start_ns, send.callers) == ("send", 3, 40_000, [0])


def test_recorded_and_generated_traces_say_what_their_tools_wrote() -> None:
    (only,) = facts(DATA / "all_reduce_4npus_1MB.0.et")
    assert (only.kind, only.attributes["comm_size"], only.is_on_host) == ("all_reduce", 2**20, False)
    summary = summarise_graph(DATA / "converted_pytorch.0.et.gz")
    assert summary.num_nodes == {"COMP_NODE": 97, "COMM_COLL_NODE": 3}
    assert summary.comm["all_reduce", ""] == (1, 8_196_000)
    assert not summary.has_times


# Types of protobuf's wire: 0 a number, 1 and 5 of fixed size, 2 with a length.
UNKNOWN = st.sampled_from([b"\xf8\x3f\x01", b"\xf9\x3f" + b"\1" * 8, b"\xfa\x3f\x03new", b"\xfd\x3f\1\2\3\4"])
VALUES = st.fixed_dictionaries(
    {"id": st.integers(0, 2**64 - 1), "name": st.text(max_size=8)},
    optional={
        "type": st.integers(0, 9),
        "data_deps": st.lists(st.integers(0, 2**64 - 1), max_size=3),
        "duration_micros": st.integers(0, 2**64 - 1),
        "attr": st.lists(
            st.one_of(
                st.builds(lambda value: NEWEST.node_class().attr.add(name="a", sint64_val=value), st.integers(-9, 9)),
                st.builds(lambda value: NEWEST.node_class().attr.add(name="b", bytes_val=value), st.binary(max_size=9)),
            ),
            max_size=2,
        ),
    },
)


@settings(max_examples=examples(20))
@given(nodes=st.lists(st.tuples(VALUES, UNKNOWN), min_size=1, max_size=4))
def test_fields_that_no_schema_knows_are_kept(tmp_path_factory: pytest.TempPathFactory, nodes: list[Any]) -> None:
    folder = tmp_path_factory.mktemp("chakra", numbered=True)
    raw = [NEWEST.node_class(**values).SerializeToString() + unknown for values, unknown in nodes]
    head = b"\x0a\x05" + b"0.9.9"  # a version yet to come
    (folder / "a.et").write_bytes(b"".join(framed(one) for one in (head, *raw)))
    trace = open_trace(folder / "a.et")
    assert trace.schema is NEWEST
    write_trace(folder / "b.et.gz", trace.metadata, trace.nodes())
    assert list(messages(folder / "b.et.gz")) == [head, *raw]


def framed(raw: bytes) -> bytes:
    size, head = len(raw), b""
    while size > 0x7F:
        head, size = head + bytes([size & 0x7F | 0x80]), size >> 7
    return head + bytes([size]) + raw


def node(number: int, deps: list[int], schema: Schema = NEWEST) -> bytes:
    return framed(schema.node_class(id=number, name=f"n{number}", type=4, data_deps=deps).SerializeToString())


WHOLE = (DATA / "schema_004.et").read_bytes()
DAMAGED = {
    "empty": (b"", "the file is empty"),
    "text": (b"not a trace at all\n" * 9, "neither metadata nor node|truncated"),
    "cut off": (WHOLE[:-9], "ends within message 2"),
    "length cut off": (WHOLE + b"\xff", "ends within message 3"),
    "gzip cut off": (gzip.compress(WHOLE)[:-30], "truncated"),
    "huge length": (WHOLE + b"\xff\xff\xff\xff\x0f", "claims 4294967295 bytes, expected at most 64 MiB"),
    "endless length": (WHOLE + b"\xff" * 12, "expected at most 64 MiB"),
    "no node": (WHOLE + framed(b"\x07\x07\x07"), "node 2 does not fit schema 0.0.4"),
    "circle": (framed(b"") + node(1, [2]) + node(2, [3]) + node(3, [1]), "form a circle: 1 <- 2 <- 3 <- 1"),
    "own circle": (framed(b"\x0a\x050.0.4") + node(7, [7]), "form a circle: 7 <- 7"),
    "twice": (framed(b"\x0a\x050.0.4") + node(7, []) + node(7, []), "two nodes have the number 7"),
}


@pytest.mark.parametrize("damage", DAMAGED)
def test_damage_is_one_line(damage: str, tmp_path: Path) -> None:
    raw, said = DAMAGED[damage]
    (tmp_path / "rank0.et").write_bytes(raw)
    with pytest.raises(UserError, match=said) as refused:
        summarise_graph(tmp_path / "rank0.et")
    assert "\n" not in str(refused.value)


def test_gzip_bomb_is_refused_before_it_fills_memory(tmp_path: Path) -> None:
    # Zeros, which are messages without anything in them, with and without a head; then one message of zeros alone.
    for name, start in (("head", framed(b"\x0a\x050.0.4")), ("none", b""), ("large", b"\x80\x80\x80\x40")):
        (tmp_path / (name := f"{name}.et.gz")).write_bytes(gzip.compress(start + bytes(20_000_000), 1))
        tracemalloc.start()
        with pytest.raises(UserError, match="two nodes have the number 0|134217728 bytes, expected at most 64 MiB"):
            summarise_graph(tmp_path / name)
        assert tracemalloc.get_traced_memory()[1] < 4e6
        tracemalloc.stop()


def test_longest_chain_is_that_of_the_data_dependencies(tmp_path: Path) -> None:
    times, deps = [5, 7, 11, 2], [[], [0], [0, 99], [1, 2]]
    nodes = [
        NEWEST.node_class(id=number, type=4, data_deps=deps[number], ctrl_deps=[3], duration_micros=times[number])
        for number in range(4)
    ]
    write_trace(tmp_path / "a.et", NEWEST.metadata_class(version="0.0.4"), nodes)
    found = summarise_graph(tmp_path / "a.et")
    assert (found.chain_ns, found.chain_nodes) == ((5 + 11 + 2) * 1000, 3)
    assert (found.num_deps, found.num_lost, found.num_callers) == (5, 1, 4)
