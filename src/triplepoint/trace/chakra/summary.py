"""Summary of a Chakra trace, with or without times: nodes, communication and longest chain of dependencies."""

from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from triplepoint.errors import UserError
from triplepoint.trace.chakra.files import open_trace
from triplepoint.trace.chakra.nodes import ChakraNode, read_node
from triplepoint.units import NS_PER_US, counted

_MAX_NODES_SHOWN = 4
"""Largest number of nodes that a message about a cycle names."""


@dataclass
class GraphSummary:
    """Summary of a trace as a graph.

    Attributes:
        path: File of the trace.
        version: Version of the schema, followed by older versions that fit as well.
        stated_version: Version that the trace states; empty if it states none.
        num_nodes: Number of nodes by type.
        num_deps: Number of data dependencies. Until 0.0.3: `parent`.
        num_callers: Number of control dependencies.
        num_lost: Number of data dependencies on nodes that are not in the file.
        has_times: Whether any node on a GPU has a start time.
        duration_ns: Sum of durations on GPUs, of computation and of communication. Unit: ns.
        comm: Number of communication nodes and sum of their bytes, by kind and process group.
        chain_ns: Sum of durations along the longest chain of dependencies. Unit: ns.
        chain_nodes: Number of nodes in that chain.
    """

    path: Path
    version: str
    stated_version: str
    num_nodes: Counter[str] = field(default_factory=Counter)
    num_deps: int = 0
    num_callers: int = 0
    num_lost: int = 0
    has_times: bool = False
    duration_ns: Counter[str] = field(default_factory=Counter)
    comm: dict[tuple[str, str], tuple[int, int]] = field(default_factory=dict)
    chain_ns: int = 0
    chain_nodes: int = 0

    def lines(self) -> Iterator[str]:
        """Yield the lines of a readable summary."""
        stated = f", says {self.stated_version}" if self.stated_version else ""
        parts = ", ".join(f"{count} {name}" for name, count in sorted(self.num_nodes.items()))
        lost = f", {self.num_lost} of them on nodes that are not in the file" if self.num_lost else ""
        yield f"{self.path.name}: Chakra schema {self.version}{stated}; {parts}"
        controls = (
            f"; {counted(self.num_callers, 'control dependency', 'control dependencies')}" if self.num_callers else ""
        )
        yield f"  {counted(self.num_deps, 'data dependency', 'data dependencies')}{lost}{controls}"
        times = {name: time for name, time in self.duration_ns.items() if time}
        if times:
            yield "  summed durations on GPUs: " + ", ".join(
                f"{name} {_ms(time)}" for name, time in sorted(times.items())
            )
        if self.chain_ns:
            yield f"  longest chain of dependencies: {_ms(self.chain_ns)} over {counted(self.chain_nodes, 'node')}"
        for (kind, group), (count, size) in sorted(self.comm.items()):
            in_group = f" in group {group}" if group else ""
            in_bytes = f", {size} bytes together" if size else ""
            yield f"  {kind}{in_group}: {count}{in_bytes}"
        if not self.has_times:
            yield "  no node on a GPU says when it began: there is no timeline, and no table is written"


def _ms(time_ns: int) -> str:
    return f"{time_ns / NS_PER_US / 1000:.3f} ms"


def summarise_graph(path: Path) -> GraphSummary:
    """Return the summary of a trace as a graph.

    Raises:
        UserError: If the file is damaged, two nodes have the same number, or dependencies form a cycle.
    """
    trace = open_trace(path)
    stated_version = str(getattr(trace.metadata, "version", "")) if trace.metadata is not None else ""
    summary = GraphSummary(path, " or ".join([trace.schema.version, *trace.also_fits]), stated_version)
    deps: dict[int, list[int]] = {}
    times: dict[int, int] = {}
    for message in trace.nodes():
        node = read_node(message, trace.schema)
        if node.id in deps:
            raise UserError(f"{path}: two nodes have the number {node.id}; a trace numbers each node once")
        deps[node.id] = sorted({*node.deps})
        # Annotations only span the work that takes the time.
        times[node.id] = 0 if node.type == "METADATA_NODE" else node.duration_ns or 0
        _count(summary, node)
    summary.num_lost = sum(dep not in deps for node_deps in deps.values() for dep in node_deps)
    summary.chain_ns, summary.chain_nodes = _longest_chain(path, deps, times)
    return summary


def _count(summary: GraphSummary, node: ChakraNode) -> None:
    """Add a node to a summary."""
    summary.num_nodes[node.type] += 1
    summary.num_deps += len({*node.deps})
    summary.num_callers += len({*node.callers})
    if node.is_on_host or node.type == "METADATA_NODE":
        return
    summary.has_times |= node.start_ns is not None
    summary.duration_ns["communication" if node.is_comm else "computation"] += node.duration_ns or 0
    if node.is_comm:
        group = node.attributes.get("pg_name", node.attributes.get("communicator_id", ""))
        key = node.kind or "communication of unknown kind", str(group)
        size = node.attributes.get("comm_size")
        count, total = summary.comm.get(key, (0, 0))
        summary.comm[key] = count + 1, total + (size if isinstance(size, int) and size > 0 else 0)


def _longest_chain(path: Path, deps: dict[int, list[int]], times: dict[int, int]) -> tuple[int, int]:
    """Return duration and number of nodes of the longest chain of dependencies.

    Visits nodes in the topological order of Kahn's algorithm. Source: Kahn, "Topological sorting of large networks",
    1962.

    Args:
        path: File of the trace, for messages.
        deps: Numbers of the nodes that each node depends on, by number.
        times: Duration of each node by number. Unit: ns.
    """
    num_waiting = {node: sum(dep in deps for dep in node_deps) for node, node_deps in deps.items()}
    dependents = defaultdict[int, list[int]](list)
    for node, node_deps in deps.items():
        for dep in node_deps:
            dependents[dep].append(node)
    ready = [node for node, count in num_waiting.items() if not count]
    longest = {node: (times[node], 1) for node in ready}
    for node in ready:
        time, length = longest[node]
        for dependent in dependents[node]:
            longest[dependent] = max(longest.get(dependent, (0, 0)), (time + times[dependent], length + 1))
            num_waiting[dependent] -= 1
            if not num_waiting[dependent]:
                ready.append(dependent)
    if len(ready) < len(deps):
        raise UserError(f"{path}: dependencies form a circle: {_cycle(deps, {*deps} - {*ready})}; write it again")
    return max(longest.values(), default=(0, 0))


def _cycle(deps: dict[int, list[int]], stuck: set[int]) -> str:
    """Return a cycle among nodes that each depend on another of them, as text."""
    position_of: dict[int, int] = {}
    node = min(stuck)
    while node not in position_of:
        position_of[node] = len(position_of)
        node = next(dep for dep in deps[node] if dep in stuck)
    cycle = list(position_of)[position_of[node] :]
    shown = " <- ".join(map(str, cycle[:_MAX_NODES_SHOWN]))
    return f"{shown} <- {node}" if len(cycle) <= _MAX_NODES_SHOWN else f"{shown} <- ..., {len(cycle)} nodes"
