"""Checks between nodes: what should be the same everywhere, and who is odd."""

from collections.abc import Iterable, Sequence

from triplepoint.doctor.check import Check, odd_ones
from triplepoint.doctor.facts import NodeFacts

_GPU_FACTS = {
    "product": "product",
    "memory_bytes": "memory (byte)",
    "power_limit_w": "power limit (W)",
    "clock_limit_mhz": "clock limit (MHz)",
    "max_clock_mhz": "highest clock (MHz)",
    "pcie_generation": "PCIe generation",
    "num_links_up": "links up",
}


def check_agreement(nodes: Sequence[NodeFacts]) -> list[Check]:
    """Return checks of versions, GPUs and hosts that should be the same on all nodes."""
    if len(nodes) < 2 and not any(len(node.gpus) > 1 for node in nodes):
        return [Check("agreement", "skipped", "one node: nothing to compare", nodes=_hosts(nodes))]
    checks = [
        _agree("same versions", _odd_versions(nodes), "install the same environment and driver everywhere", nodes),
        _agree("same hosts", _odd_hosts(nodes), "exclude the odd one, or name a constraint", nodes),
    ]
    if any(node.gpus for node in nodes):
        advice = "drain the odd one, or exclude it from the measurement"
        checks.append(_agree("same gpus", _odd_gpus(nodes), advice, nodes))
    return checks


def _agree(name: str, odd: Iterable[str], advice: str, nodes: Sequence[NodeFacts]) -> Check:
    told = "; ".join(odd)
    if told:
        return Check(name, "warn", told, "the same everywhere", advice, _hosts(nodes))
    return Check(name, "ok", f"the same on {len(nodes)} {'node' if len(nodes) == 1 else 'nodes'}", nodes=_hosts(nodes))


def _hosts(nodes: Sequence[NodeFacts]) -> tuple[str, ...]:
    return tuple(node.host for node in nodes)


def _odd_versions(nodes: Sequence[NodeFacts]) -> list[str]:
    names = dict.fromkeys(name for node in nodes for name in node.versions)
    return _odd({name: {node.host: node.versions.get(name, "none") for node in nodes} for name in names})


def _odd_gpus(nodes: Sequence[NodeFacts]) -> list[str]:
    return _odd(
        {
            word: {
                f"{node.host} gpu{gpu.index}": value
                for node in nodes
                for gpu in node.gpus
                if (value := getattr(gpu, field)) is not None
            }
            for field, word in _GPU_FACTS.items()
        }
    )


def _odd_hosts(nodes: Sequence[NodeFacts]) -> list[str]:
    # Memory differs by what firmware keeps; to a GiB it is the same.
    return _odd(
        {
            "GPUs": {node.host: len(node.gpus) for node in nodes},
            "processors": {node.host: node.num_cores for node in nodes},
            "memory (GiB)": {node.host: round(node.memory_bytes / (1 << 30)) for node in nodes},
            "active network ports": {node.host: sum(port.state == "ACTIVE" for port in node.ports) for node in nodes},
        }
    )


def _odd(values: dict[str, dict[str, object]]) -> list[str]:
    """Return a sentence on each thing whose value is not the same everywhere."""
    sentences = []
    for name, by_place in values.items():
        if not by_place:
            continue
        common, others = odd_ones(by_place)
        if others:
            shown = ", ".join(f"{place} has {value}" for place, value in others.items())
            sentences.append(f"{name}: {shown}, most {common}")
    return sentences
