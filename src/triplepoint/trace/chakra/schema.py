"""Published versions of the schema of Chakra traces, as message classes that protobuf builds at run time.

The schema is an interface. Field numbers, types and names below are those of mlcommons/chakra (Apache License 2.0,
Copyright MLCommons and others): `et_def.proto`, until June 2023 `eg_def.proto`, at the commit of each version.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

_PACKAGE = "ChakraProtoMsg"
_Field = tuple[str, str, int]
"""Type, name and number of a field. The type is as in a .proto file, with `required` or `repeated` before it."""

_SCALARS: Final = (
    "double", "float", "int32", "int64", "uint32", "uint64", "sint32", "sint64",
    "fixed32", "fixed64", "sfixed32", "sfixed64", "bool", "string", "bytes",
)  # fmt: skip
_TYPES: Final = {name: getattr(descriptor_pb2.FieldDescriptorProto, f"TYPE_{name.upper()}") for name in _SCALARS}
_WORKING = ("MEM_LOAD_NODE", "MEM_STORE_NODE", "COMP_NODE", "COMM_SEND_NODE", "COMM_RECV_NODE", "COMM_COLL_NODE")
_NODES_2 = ("INVALID_NODE", *_WORKING)
_NODES_3 = ("INVALID_NODE", "METADATA_NODE", *_WORKING)
_COLLECTIVES_2 = ("ALL_REDUCE", "ALL_TO_ALL", "ALL_GATHER", "REDUCE_SCATTER")
_COLLECTIVES_3 = (
    "ALL_REDUCE", "REDUCE", "ALL_GATHER", "GATHER", "SCATTER", "BROADCAST",
    "ALL_TO_ALL", "REDUCE_SCATTER", "REDUCE_SCATTER_BLOCK", "BARRIER",
)  # fmt: skip


@dataclass(frozen=True)
class Schema:
    """One version of the schema.

    Attributes:
        version: Version by its authors. A revision without a version has a letter after the version before it.
        commit: First commit of mlcommons/chakra with this version.
        syntax: `proto2` or `proto3`.
        messages: Fields of each message, by name of the message.
        enums: Names of the values of each enumeration, from 0, by name of the enumeration.
    """

    version: str
    commit: str
    syntax: str
    messages: dict[str, Sequence[_Field]]
    enums: dict[str, Sequence[str]]

    @cached_property
    def _classes(self) -> dict[str, Any]:
        file = descriptor_pb2.FileDescriptorProto(
            name=f"chakra_{self.version}.proto", package=_PACKAGE, syntax=self.syntax
        )
        for name, values in self.enums.items():
            enum = file.enum_type.add(name=name)
            for number, value in enumerate(values):
                enum.value.add(name=value, number=number)
        for name, fields in self.messages.items():
            self._declare(file.message_type.add(name=name), fields)
        pool = descriptor_pool.DescriptorPool()
        pool.Add(file)
        names = [f"{_PACKAGE}.{name}" for name in self.messages]
        return {
            name.rpartition(".")[2]: message_factory.GetMessageClass(pool.FindMessageTypeByName(name)) for name in names
        }

    def _declare(self, message: Any, fields: Sequence[_Field]) -> None:
        is_attribute_3 = message.name == "AttributeProto" and self.syntax == "proto3"
        if is_attribute_3:
            message.oneof_decl.add(name="value")
        for kind, name, number in fields:
            *rule, kind = kind.split()
            label = f"LABEL_{rule[0].upper()}" if rule else "LABEL_OPTIONAL"
            field = message.field.add(
                name=name, number=number, label=getattr(descriptor_pb2.FieldDescriptorProto, label)
            )
            if kind in _TYPES:
                field.type = _TYPES[kind]
            else:
                is_enum = kind in self.enums
                field.type = field.TYPE_ENUM if is_enum else field.TYPE_MESSAGE
                field.type_name = f".{_PACKAGE}.{kind}"
            if is_attribute_3 and number > 2:
                field.oneof_index = 0

    @property
    def node_class(self) -> Any:
        """Return the class of nodes."""
        return self._classes["Node"]

    @property
    def metadata_class(self) -> Any | None:
        """Return the class of the message that may stand first, None if the version has none."""
        return self._classes.get("GlobalMetadata")


def _numbered(text: str, first: int = 1) -> list[_Field]:
    """Return the fields of lines `type name`, numbered in order."""
    lines = [line.strip().rpartition(" ") for line in text.strip().splitlines()]
    return [(kind, name, number) for number, (kind, _, name) in enumerate(lines, first)]


_NODE_1 = _numbered("""required uint64 id
    required string name
    NodeType node_type
    repeated uint64 parent
    MemoryType tensor_loc
    uint64 tensor_size
    uint64 simulated_run_time
    MemoryType input_tensor_loc
    uint64 input_tensor_size
    MemoryType output_tensor_loc
    uint64 output_tensor_size
    uint64 num_ops
    CollectiveCommType comm_type
    repeated bool involved_dim
    uint32 communicator_id
    uint32 comm_src
    uint32 comm_dst
    uint32 comm_size
    uint32 comm_tag
    uint32 comm_priority""")
_NODE_2 = _numbered("""required uint64 id
    required string name
    required NodeType type
    repeated uint64 parent
    string inputs
    string input_shapes
    string input_types
    string outputs
    string output_shapes
    string output_types
    repeated AttributeProto attribute""")
_NODE_3 = _numbered("""uint64 id
    string name
    NodeType type
    repeated uint64 ctrl_deps
    repeated uint64 data_deps
    uint64 start_time_micros
    uint64 duration_micros
    IOInfo inputs
    IOInfo outputs
    repeated AttributeProto attr""")
_HEAD_2 = "required string name\nrequired AttributeType type\nstring doc_string\n"
_ATTRIBUTE_2: dict[str, str] = {
    "FLOAT": "float f", "INT": "int64 i", "STRING": "string s",
    "FLOATS": "repeated float floats", "INTS": "repeated int64 ints", "STRINGS": "repeated bytes strings",
}  # fmt: skip
_WITH_BOOL = {"BOOL": "bool b", **_ATTRIBUTE_2, "BOOLS": "repeated bool bools"}
_WITH_UINT = {**_WITH_BOOL, "UINT": "uint64 u", "UINTS": "repeated uint64 uints"}
_ORDER_2 = ("BOOL", "FLOAT", "UINT", "INT", "STRING", "BOOLS", "FLOATS", "UINTS", "INTS", "STRINGS")


def _schema_of_proto2(
    version: str, commit: str, values: dict[str, str], nodes: Sequence[str], *, broadcast: bool = False
) -> Schema:
    types = [name for name in _ORDER_2 if name in values]
    attribute = _numbered(_HEAD_2 + "\n".join(values[name] for name in types))
    messages: dict[str, Sequence[_Field]] = {"AttributeProto": attribute, "Node": _NODE_2}
    if "BOOL" in values:
        messages["GlobalMetadata"] = [("repeated AttributeProto", "attribute", 1)]
    collectives = [*_COLLECTIVES_2, "BROADCAST"] if broadcast else _COLLECTIVES_2
    enums = {"NodeType": nodes, "AttributeType": types, "CollectiveCommType": collectives}
    return Schema(version, commit, "proto2", messages, enums)


def _schema_of_proto3(version: str, commit: str, metadata: Sequence[_Field]) -> Schema:
    lists: dict[str, Sequence[_Field]] = {
        f"{name.capitalize()}List": [(f"repeated {name}", "values", 1)] for name in _SCALARS
    }
    values = [pair for name in _SCALARS for pair in (f"{name} {name}_val", f"{name.capitalize()}List {name}_list")]
    tensor = "uint64 tensor_id\nuint64 storage_id\nuint64 offset\nuint64 num_elem\nuint64 elem_bytes\nstring device"
    messages: dict[str, Sequence[_Field]] = {
        "AttributeProto": _numbered("string name\nstring doc_string\n" + "\n".join(values)),
        **lists,
        "GlobalMetadata": metadata,
        "Node": _NODE_3,
        "IOInfo": _numbered("string values\nstring shapes\nstring types"),
        "Tensor": _numbered(tensor),
    }
    return Schema(version, commit, "proto3", messages, {"NodeType": _NODES_3, "CollectiveCommType": _COLLECTIVES_3})


SCHEMAS: Final = (
    Schema(
        "0.0.1", "df405e8", "proto2", {"Node": _NODE_1},
        {
            "NodeType": _NODES_2,
            "MemoryType": ("INVALID_MEMORY", "LOCAL_MEMORY", "REMOTE_MEMORY"),
            "CollectiveCommType": ("INVALID_COMM", *_COLLECTIVES_2),
        },
    ),
    _schema_of_proto2("0.0.2", "2719463", _ATTRIBUTE_2, _NODES_2),
    _schema_of_proto2("0.0.3", "9d917e3", _WITH_BOOL, _NODES_3),
    _schema_of_proto2("0.0.3a", "7bab792", _WITH_UINT, _NODES_3, broadcast=True),
    _schema_of_proto3("0.0.3b", "c236cfa", [("repeated AttributeProto", "attr", 1)]),
    _schema_of_proto3("0.0.4", "a2b45c1", [("string", "version", 1), ("repeated AttributeProto", "attr", 2)]),
)  # fmt: skip
"""Versions, oldest first. Release 1.0.0 has schema 0.0.4 as well, and its generator writes that number into traces."""
NEWEST: Final = SCHEMAS[-1]
