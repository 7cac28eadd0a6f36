"""What a node of a Chakra trace says, whatever the version of its schema."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from triplepoint.trace.chakra.files import value_field
from triplepoint.trace.chakra.schema import Schema
from triplepoint.units import NS_PER_US

COMM_KINDS: Final = {"COMM_SEND_NODE": "send", "COMM_RECV_NODE": "recv", "COMM_COLL_NODE": None}
"""Types of nodes that communicate, and the kind where the type alone says it."""
START_NS, DURATION_NS = "start_time_ns", "duration_ns"
"""Attributes that hold a time exactly: the schema has whole microseconds only."""


@dataclass(frozen=True)
class NodeFacts:
    """A node.

    Attributes:
        id: Its number.
        name: Its name.
        type: `COMP_NODE`, `COMM_COLL_NODE`, ...
        deps: Numbers of nodes that have to end before it begins: data dependencies, before 0.0.3b `parent`.
        callers: Numbers of its control dependencies: the operators that called it, which may end after it.
        start_ns: When it began; None where not told. Unit: ns as the file counts.
        duration_ns: How long it took; None where not told. Unit: ns.
        attributes: Other values by name.
        kind: Of communication, `all_reduce`, `send`, ...; None where it does not communicate or nothing tells.
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
        """Return whether it communicates."""
        return self.type in COMM_KINDS

    @property
    def is_on_host(self) -> bool:
        """Return whether it ran on the CPU; a node that does not say ran on the accelerator."""
        return bool(self.attributes.get("is_cpu_op", False))


def facts_of(node: Any, schema: Schema) -> NodeFacts:
    """Return what a node says.

    Durations are `duration_micros`, or attribute `runtime` of 0.0.2 and 0.0.3, in microseconds as their converters
    write them. The unit of `simulated_run_time` of 0.0.1 is not told anywhere: it is kept as an attribute.
    """
    is_newest = schema.syntax == "proto3"
    attributes = attributes_of(node.attr if is_newest else getattr(node, "attribute", ()), is_newest)
    if schema.version == "0.0.1":
        attributes |= {field.name: value for field, value in node.ListFields() if field.number > 4}
    number = node.node_type if schema.version == "0.0.1" else node.type
    types = schema.enums["NodeType"]
    kind_of_node = types[number] if number < len(types) else f"type {number}"
    return NodeFacts(
        id=node.id,
        name=node.name,
        type=kind_of_node,
        deps=list(node.data_deps if is_newest else node.parent),
        callers=list(node.ctrl_deps) if is_newest else [],
        start_ns=_time(attributes, START_NS, node.start_time_micros if is_newest else 0),
        duration_ns=_time(attributes, DURATION_NS, node.duration_micros if is_newest else attributes.get("runtime", 0)),
        attributes=attributes,
        kind=_kind(kind_of_node, attributes.get("comm_type"), schema),
    )


def attributes_of(attributes: Sequence[Any], is_newest: bool) -> dict[str, Any]:
    """Return the values of attributes by name; lists as lists."""
    found = {}
    for one in attributes:
        field = one.WhichOneof("value") if is_newest else value_field(one)
        value = getattr(one, field) if field else None
        if value is not None and is_newest and str(field).endswith("_list"):
            value = value.values
        found[one.name] = value if isinstance(value, bool | int | float | str | bytes | None) else list(value)
    return found


def _time(attributes: dict[str, Any], exact: str, micros: Any) -> int | None:
    if isinstance(attributes.get(exact), int):
        return int(attributes[exact])
    return int(micros) * NS_PER_US if isinstance(micros, int) and micros > 0 else None


def _kind(kind_of_node: str, comm_type: Any, schema: Schema) -> str | None:
    told = COMM_KINDS.get(kind_of_node)
    if told or kind_of_node not in COMM_KINDS:
        return told
    known = schema.enums["CollectiveCommType"]
    # Schema 0.0.4 leaves a 0 unwritten in a field of its own, but not in an attribute.
    if not isinstance(comm_type, int) or not 0 <= comm_type < len(known) or known[comm_type] == "INVALID_COMM":
        return None
    return known[comm_type].lower()
