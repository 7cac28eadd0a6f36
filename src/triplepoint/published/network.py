"""Nodes and network of published tables: what cells state, and what is usual for the rest."""

import re
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from triplepoint.config.gpu import GpuConfig
from triplepoint.errors import shown
from triplepoint.published.words import UnreadableError
from triplepoint.simulate.collectives.links import load_link
from triplepoint.simulate.fabric import Fabric, Network, gpus_per_leaf, network_levels, node_levels

_GIGABIT = 1e9 / 8
"""Bytes per second of a gigabit per second."""


@dataclass(frozen=True)
class StatedNetwork:
    """Nodes and network as cells state them.

    Attributes:
        bandwidth: One direction, of all adapters of a node or of those of one GPU; None where nothing is stated.
            Unit: byte/s.
        is_per_gpu: Whether the bandwidth is one GPU's.
        num_nics: Adapters of a node; None where they are not counted.
        gpus_per_node: GPUs of a node; None where nothing is stated.
        domain_size: GPUs joined by NVLink where it reaches past a node, or not as far; None where nothing is stated.
        has_reduction: Whether switches reduce (SHARP).
        link: Kind of link.
        is_rail_optimised: Whether adapters of one number share a leaf switch; None where nothing is stated.
        oversubscription: Bandwidth into a leaf switch over that out of it.
    """

    bandwidth: float | None = None
    is_per_gpu: bool = False
    num_nics: int | None = None
    gpus_per_node: int | None = None
    domain_size: int | None = None
    has_reduction: bool = False
    link: str = "infiniband"
    is_rail_optimised: bool | None = None
    oversubscription: float = 1.0


_GENERATIONS = {"edr": 100, "hdr": 200, "ndr": 400, "xdr": 800}
"""Gb/s of one InfiniBand port of four lanes, by generation. Source: InfiniBand Trade Association, roadmap."""

_PORTS = re.compile(r"(\d+)\s*x\s*(?:[a-z]+-?\d?\s+)?(edr|hdr|ndr|xdr)?\s*-?(\d+)?\s*(?:g|\b)", re.IGNORECASE)
_BYTES = re.compile(r"\s*B(?:ps|/s)")
"""After the G of a rate: bytes, a capital B; bits are a small one, or none."""
_RATE = re.compile(r"([\d.,]*\d)\s*([gt])(b|B|bit|bits)?(?:ps|/s)", re.IGNORECASE)
_NOT_NETWORK = re.compile(r"(?:nvlink|nvswitch|xgmi|infinity fabric)[-\d. ]*?\s*[\d.]*\s*[gt]b(?:ps|/s)", re.IGNORECASE)
_DOMAIN = re.compile(r"nvl-?(\d{1,3})(?!\d)(?!\s*gi?b)")
_NAME = r"(?![ehnx]dr|connectx|cx)[a-z]+\d+[a-z]*(?:[- ][a-z0-9]+)?"
_NODE = (
    re.compile(rf"(?<!\d)(\d{{1,3}})\s*x?\s*-?\s*(?:{_NAME}\s+)?gpus?\s*(?:/|per|a)\s*node"),
    re.compile(rf"(?<!\d)(\d{{1,3}})\s*x\s*{_NAME}\s*(?:/|per|a)\s*node"),
    re.compile(r"(?<!\d)(\d{1,3})[- ]gpus?\s+nodes?"),
)
"""GPUs of a node: 8 GPUs per node, 4x H200/node, 8-GPU nodes."""
_LEAST_RATIO, _MOST_RATIO = 1.0, 64.0


def read_network(text: str, gpu: str = "") -> StatedNetwork:
    """Return the nodes and the network that cells state; words that mean nothing here are passed over.

    Args:
        text: What is said of the interconnect.
        gpu: What is said of the GPU, where node and domain may stand too: `GB200 NVL72`.

    Raises:
        UnreadableError: If it contradicts itself.
    """
    low = text.lower()
    bandwidth, num_nics = _network_bandwidth(_NOT_NETWORK.sub(" ", text))
    both = f"{low} ; {gpu.lower()}"
    return StatedNetwork(
        bandwidth,
        bool(re.search(r"(per|/)\s*gpu", low)),
        num_nics,
        _only("GPUs of a node", {int(found) for pattern in _NODE for found in pattern.findall(both)}),
        _only("an NVLink domain", {int(found) for found in _DOMAIN.findall(both)}),
        "sharp" in low,
        _link(low),
        None if "rail" not in low else not re.search(r"(not|non|no|without)[ -]*rail", low),
        _oversubscription(low),
    )


def _only(what: str, stated: set[int]) -> int | None:
    stated.discard(0)
    if len(stated) > 1:
        raise UnreadableError(f"interconnect states {what} as {' and '.join(map(str, sorted(stated)))}; write one")
    return next(iter(stated), None)


def _link(low: str) -> str:
    """Return the kind of link between nodes; RoCE is Ethernet too."""
    names = {
        "infiniband": re.search(r"infiniband|\bib\b|\b[ehnx]dr\d*\b", low),
        "roce": "roce" in low,
        "ethernet": "roce" not in low and re.search(r"ethernet|\btcp\b", low),
    }
    stated = [name for name, found in names.items() if found]
    if len(stated) > 1:
        raise UnreadableError(f"interconnect {shown(low)} names {' and '.join(stated)}; write the one between nodes")
    return stated[0] if stated else "infiniband"


def _oversubscription(low: str) -> float:
    if not re.search(r"over-?\s?sub|blocking|taper", low):
        return 1.0
    ratio = re.search(r"(\d{1,3}(?:\.\d{1,3})?)\s*:\s*(\d{1,3}(?:\.\d{1,3})?)", low)
    single = re.search(r"over-?\s?sub\D{0,40}(\d{1,3}(?:\.\d{1,3})?)", low)
    if ratio and float(ratio[1]) and float(ratio[2]):
        numbers = float(ratio[1]), float(ratio[2])
        found = max(numbers) / min(numbers)
    else:
        found = float(single[1]) if single else 1.0
    if not _LEAST_RATIO <= found <= _MOST_RATIO:
        raise UnreadableError(f"interconnect states an oversubscription of {found:g}, expected 1 to {_MOST_RATIO:g}")
    return found


def _network_bandwidth(text: str) -> tuple[float | None, int | None]:
    """Return the bandwidth that is stated, in byte/s, and the adapters it is of, where they are counted."""
    rates = [rate for rated in _RATE.finditer(text) if (rate := _rate(rated)) > 0]
    for ports in _PORTS.finditer(text):
        rate = int(ports[3]) if ports[3] and len(ports[3]) < 5 else _GENERATIONS.get((ports[2] or "").lower(), 0)
        rate *= 8 if _BYTES.match(text, ports.end()) else 1
        if len(ports[1]) < 3 and 1 <= int(ports[1]) <= 64 and 10 <= rate <= 3200:
            bandwidth = int(ports[1]) * rate * _GIGABIT
            _check_total(text, bandwidth)
            return bandwidth, int(ports[1])
    return (rates[0] if rates else None), None


_TOTAL = re.compile(_RATE.pattern + r"\s*(?:total|aggregate|(?:/|per)\s*node)", re.IGNORECASE)


def _check_total(text: str, bandwidth: float) -> None:
    """Refuse a total that is not what the adapters make; the rate of one adapter may be written with its node too."""
    for rated in _TOTAL.finditer(text):
        before = text[: rated.start()].rstrip().lower()
        total = _rate(rated)
        if not before.endswith("x") and not 0.9 < total / bandwidth < 1.1:
            stated = f"adapters of {bandwidth / _GIGABIT:g} Gb/s together and {total / _GIGABIT:g} Gb/s a node"
            raise UnreadableError(f"interconnect states {stated}; write one")


def _rate(rated: re.Match[str]) -> float:
    """Return a rate in byte/s. A capital B is a byte, GB/s; everything else about networks is in bits."""
    digits = rated[1].replace(",", "")
    value = float(digits) if digits.count(".") <= 1 else 0.0
    unit = 1e9 if (rated[3] or "") == "B" else _GIGABIT
    return value * unit * (1000 if rated[2] in "tT" else 1)


@lru_cache(maxsize=256)
def usual_fabric(gpu: GpuConfig, num_gpus: int, stated: StatedNetwork, config: Path) -> Fabric:
    """Return the levels of a cluster.

    Args:
        gpu: GPU type.
        num_gpus: GPUs of the job.
        stated: What is known of nodes and network; the usual ones of the GPU type stand in for the rest.
        config: Folder of the configuration.

    Raises:
        UnreadableError: If the GPU type has no such nodes.
    """
    usual = gpu.usual_network
    node, domain = _node_and_domain(gpu, stated)
    inside = node_levels(gpu, domain, config)
    if num_gpus <= domain:
        return Fabric(inside)
    share = usual.node_bandwidth.value / usual.gpus_per_node
    nics = (usual.nics_per_node or usual.gpus_per_node) * node / usual.gpus_per_node
    if stated.bandwidth:
        share = stated.bandwidth if stated.is_per_gpu else stated.bandwidth / node
        nics = stated.num_nics or share * node / usual.nic_bandwidth
    # Not rounded: of more bandwidth no adapter has less.
    per_node = max(1.0, nics)
    network = Network(
        share * domain,
        per_node * max(1, domain // node),
        stated.link,
        stated.has_reduction,
        gpus_per_leaf(stated.is_rail_optimised, round(per_node), node) if stated.oversubscription > 1 else None,
        stated.oversubscription,
    )
    return Fabric(inside + network_levels(network, load_link(network.link, config), domain, num_gpus))


def _node_and_domain(gpu: GpuConfig, stated: StatedNetwork) -> tuple[int, int]:
    """Return the GPUs of a node, and those that scale-up links join."""
    usual = gpu.usual_network
    domain, is_card = stated.domain_size, gpu.form_factor in ("pcie", "nvl")
    if domain and domain > usual.largest_domain:
        raise UnreadableError(
            f"interconnect states an NVLink domain of {domain}, {gpu.name} has {usual.largest_domain}"
        )
    node = stated.gpus_per_node or (
        usual.gpus_per_node if is_card else min(usual.gpus_per_node, domain or usual.gpus_per_node)
    )
    if node > max(usual.gpus_per_node, domain or 0) and not is_card:
        raise UnreadableError(f"interconnect states nodes of {node} GPUs, {gpu.name} has {usual.gpus_per_node}")
    if is_card:
        return node, node
    if domain and domain < node:
        raise UnreadableError(f"interconnect states nodes of {node} GPUs and an NVLink domain of {domain}; write one")
    return node, domain or (usual.domain or node)
