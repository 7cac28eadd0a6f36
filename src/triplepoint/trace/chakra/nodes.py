"""Nodes of Chakra traces in one form for all versions of the schema."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from triplepoint.trace.chakra.files import value_field
from triplepoint.trace.chakra.schema import Schema
from triplepoint.units import NS_PER_US

COMM_KINDS: Final = {"COMM_SEND_NODE": "send", "COMM_RECV_NODE": "recv", "COMM_COLL_NODE": None}
"""Types of nodes that communicate, and their kind if the type states it."""
START_NS, DURATION_NS = "start_time_ns", "duration_ns"
"""Names of attributes with exact times in ns. The fields of the schema have whole microseconds only."""


@dataclass(frozen=True)
class ChakraNode:
    """A node of a Chakra trace.

    Attributes:
        id: Number of the node.
        name: Name of the node.
        type: Type, such as `COMP_NODE` or `COMM_COLL_NODE`.
        deps: Data dependencies: numbers of the nodes that end before this one begins. Before 0.0.3b: `parent`.
        callers: Control dependencies: numbers of the operators that called this node, which may end after it.
        start_ns: Start, None if unknown. Unit: ns since the file's zero of time.
        duration_ns: Duration, None if unknown. Unit: ns.
        attributes: Values of attributes by name.
        kind: Kind of communication, such as `all_reduce` or `send`; None for other nodes, or if unknown.
    """

    id: int
    name: str
    type: str
    deps: Sequence[int]
    callers: Sequence[int]
    start_ns: int | None
    duration_ns: int | None
    attributes: dict[str, Any]
    kind: str | None

    @property
    def is_comm(self) -> bool:
        """Return whether the node is communication."""
        return self.type in COMM_KINDS

    @property
    def is_on_host(self) -> bool:
        """Return whether the node ran on the CPU. A node without `is_cpu_op` ran on the accelerator."""
        return bool(self.attributes.get("is_cpu_op", False))


def read_node(node: Any, schema: Schema) -> ChakraNode:
    """Return a node in the common form.

    Durations are `duration_micros`, or the attribute `runtime` in 0.0.2 and 0.0.3. Their converters write
    microseconds. The unit of `simulated_run_time` in 0.0.1 is documented nowhere, so it stays an attribute.

    Args:
        node: Message of class `schema.node_class`.
        schema: Schema of the trace.
    """
    is_proto3 = schema.syntax == "proto3"
    attributes = read_attributes(node.attr if is_proto3 else getattr(node, "attribute", ()), is_proto3)
    if schema.version == "0.0.1":
        attributes |= {field.name: value for field, value in node.ListFields() if field.number > 4}
    number = node.node_type if schema.version == "0.0.1" else node.type
    types = schema.enums["NodeType"]
    node_type = types[number] if number < len(types) else f"type {number}"
    return ChakraNode(
        id=node.id,
        name=node.name,
        type=node_type,
        deps=list(node.data_deps if is_proto3 else node.parent),
        callers=list(node.ctrl_deps) if is_proto3 else [],
        start_ns=_time(attributes, START_NS, node.start_time_micros if is_proto3 else 0),
        duration_ns=_time(attributes, DURATION_NS, node.duration_micros if is_proto3 else attributes.get("runtime", 0)),
        attributes=attributes,
        kind=_kind(node_type, attributes.get("comm_type"), schema),
    )


def read_attributes(attributes: Sequence[Any], is_proto3: bool) -> dict[str, Any]:
    """Return the values of attributes by name; repeated values as lists.

    Args:
        attributes: Messages `AttributeProto`.
        is_proto3: Whether their schema is of syntax proto3.
    """
    values = {}
    for attribute in attributes:
        field = attribute.WhichOneof("value") if is_proto3 else value_field(attribute)
        value = getattr(attribute, field) if field else None
        if value is not None and is_proto3 and str(field).endswith("_list"):
            value = value.values
        values[attribute.name] = value if isinstance(value, bool | int | float | str | bytes | None) else list(value)
    return values


def _time(attributes: dict[str, Any], exact: str, micros: Any) -> int | None:
    """Return a time in ns from the exact attribute, otherwise from microseconds; None if neither is known."""
    if isinstance(attributes.get(exact), int):
        return int(attributes[exact])
    return int(micros) * NS_PER_US if isinstance(micros, int) and micros > 0 else None


def _kind(node_type: str, comm_type: Any, schema: Schema) -> str | None:
    """Return the kind of communication, None if the node is none or does not state it."""
    kind = COMM_KINDS.get(node_type)
    if kind or node_type not in COMM_KINDS:
        return kind
    kinds = schema.enums["CollectiveCommType"]
    # A missing value is no 0: proto3 omits a 0 in a plain field, but not in an attribute.
    if not isinstance(comm_type, int) or not 0 <= comm_type < len(kinds) or kinds[comm_type] == "INVALID_COMM":
        return None
    return kinds[comm_type].lower()
