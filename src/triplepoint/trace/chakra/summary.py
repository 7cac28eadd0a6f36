"""What any Chakra trace gives, with times or without: its nodes, communication, and longest chain of dependencies."""

from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from triplepoint.errors import UserError
from triplepoint.trace.chakra.files import open_trace
from triplepoint.trace.chakra.nodes import NodeFacts, facts_of
from triplepoint.units import NS_PER_US, counted

_SHOWN = 4
"""Nodes of a cycle that are named."""


@dataclass
class GraphSummary:
    """A trace as a graph.

    Attributes:
        path: Its file.
        version: Of its schema, with the older ones that fit as well.
        told_version: What the trace itself says; empty where it does not.
        num_nodes: Nodes by type.
        num_deps: Data dependencies, of 0.0.3 and before `parent`.
        num_callers: Control dependencies.
        num_lost: Of those, on nodes that are not in the file.
        has_times: Whether a node on a GPU says when it began.
        duration_ns: Sum of the durations on GPUs, of computation and of communication. Unit: ns.
        comm: Number of communication nodes and their bytes, by kind and process group.
        chain_ns: Durations along the longest chain of dependencies. Unit: ns.
        chain_nodes: Nodes of that chain.
    """

    path: Path
    version: str
    told_version: str
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
        """Yield it as readable lines."""
        said = f", says {self.told_version}" if self.told_version else ""
        parts = ", ".join(f"{count} {name}" for name, count in sorted(self.num_nodes.items()))
        lost = f", {self.num_lost} of them on nodes that are not in the file" if self.num_lost else ""
        yield f"{self.path.name}: Chakra schema {self.version}{said}; {parts}"
        called = (
            f"; {counted(self.num_callers, 'control dependency', 'control dependencies')}" if self.num_callers else ""
        )
        yield f"  {counted(self.num_deps, 'data dependency', 'data dependencies')}{lost}{called}"
        times = {name: time for name, time in self.duration_ns.items() if time}
        if times:
            yield "  summed durations on GPUs: " + ", ".join(
                f"{name} {_ms(time)}" for name, time in sorted(times.items())
            )
        if self.chain_ns:
            yield f"  longest chain of dependencies: {_ms(self.chain_ns)} over {counted(self.chain_nodes, 'node')}"
        for (kind, group), (count, size) in sorted(self.comm.items()):
            where, sized = f" in group {group}" if group else "", f", {size} bytes together" if size else ""
            yield f"  {kind}{where}: {count}{sized}"
        if not self.has_times:
            yield "  no node on a GPU says when it began: there is no timeline, and no table is written"


def _ms(time_ns: int) -> str:
    return f"{time_ns / NS_PER_US / 1000:.3f} ms"


def summarise_graph(path: Path) -> GraphSummary:
    """Return what a trace says as a graph.

    Raises:
        UserError: If the file is damaged, a number stands on two nodes, or dependencies run in a circle.
    """
    trace = open_trace(path)
    told = str(getattr(trace.metadata, "version", "")) if trace.metadata is not None else ""
    found = GraphSummary(path, " or ".join([trace.schema.version, *trace.also_fits]), told)
    deps: dict[int, list[int]] = {}
    times: dict[int, int] = {}
    for node in (facts_of(one, trace.schema) for one in trace.nodes()):
        if node.id in deps:
            raise UserError(f"{path}: two nodes have the number {node.id}; a trace numbers each node once")
        deps[node.id], times[node.id] = sorted({*node.deps}), _length_ns(node)
        _count(found, node)
    found.num_lost = sum(one not in deps for several in deps.values() for one in several)
    found.chain_ns, found.chain_nodes = _longest_chain(path, deps, times)
    return found


def _count(found: GraphSummary, node: NodeFacts) -> None:
    found.num_nodes[node.type] += 1
    found.num_deps += len({*node.deps})
    found.num_callers += len({*node.callers})
    if node.is_on_host or node.type == "METADATA_NODE":
        return
    found.has_times |= node.start_ns is not None
    found.duration_ns["communication" if node.is_comm else "computation"] += node.duration_ns or 0
    if node.is_comm:
        group = node.attributes.get("pg_name", node.attributes.get("communicator_id", ""))
        key = node.kind or "communication of unknown kind", str(group)
        size = node.attributes.get("comm_size")
        count, total = found.comm.get(key, (0, 0))
        found.comm[key] = count + 1, total + (size if isinstance(size, int) and size > 0 else 0)


def _length_ns(node: NodeFacts) -> int:
    """Return how long a node runs; an annotation only spans what runs."""
    return 0 if node.type == "METADATA_NODE" else node.duration_ns or 0


def _longest_chain(path: Path, deps: dict[int, list[int]], times: dict[int, int]) -> tuple[int, int]:
    """Return time and nodes of the longest chain of dependencies, in the order of Kahn 1962."""
    waiting = {node: sum(one in deps for one in several) for node, several in deps.items()}
    after = defaultdict[int, list[int]](list)
    for node, several in deps.items():
        for one in several:
            after[one].append(node)
    ready = [node for node, count in waiting.items() if not count]
    best = {node: (times[node], 1) for node in ready}
    for node in ready:
        time, length = best[node]
        for later in after[node]:
            best[later] = max(best.get(later, (0, 0)), (time + times[later], length + 1))
            waiting[later] -= 1
            if not waiting[later]:
                ready.append(later)
    if len(ready) < len(deps):
        raise UserError(f"{path}: dependencies form a circle: {_circle(deps, {*deps} - {*ready})}; write it again")
    return max(best.values(), default=(0, 0))


def _circle(deps: dict[int, list[int]], stuck: set[int]) -> str:
    """Return a circle among nodes that each depend on another of them."""
    seen: dict[int, int] = {}
    node = min(stuck)
    while node not in seen:
        seen[node] = len(seen)
        node = next(one for one in deps[node] if one in stuck)
    around = [one for one in seen if seen[one] >= seen[node]]
    shown = " <- ".join(map(str, around[:_SHOWN]))
    return f"{shown} <- {node}" if len(around) <= _SHOWN else f"{shown} <- ..., {len(around)} nodes"
