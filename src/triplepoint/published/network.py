"""Nodes and network of published runs, read from the words of cells."""

import re
from dataclasses import dataclass, replace

from triplepoint.errors import shown
from triplepoint.published.adapters import CONNECTX, card_rate, count_adapters, normalised
from triplepoint.published.machines import Machine, find_machines, other_instances, without_machines
from triplepoint.published.network_words import DENIED, Reading
from triplepoint.published.words import UnreadableError, is_blank

GIGABIT = 1e9 / 8
"""Bytes per second of a gigabit per second."""


@dataclass(frozen=True)
class StatedNetwork:
    """Nodes and network as cells state them; None where not stated.

    Attributes:
        bandwidth: Bandwidth in one direction of all adapters of a node, or of one GPU. Unit: byte/s.
        is_per_gpu: Whether the bandwidth is that of one GPU.
        num_nics: Adapters per node.
        nic_bandwidth: Bandwidth of one adapter in one direction, where adapters are not counted. Unit: byte/s.
        is_of_unknown: Whether the text does not state the owner of the bandwidth, which is then taken as the node.
        gpus_per_node: GPUs per node.
        domain_size: GPUs per NVLink domain, which may be larger or smaller than a node.
        has_reduction: Whether the switches reduce (SHARP).
        link: Kind of link between nodes.
        is_rail_optimised: Whether adapters with the same number share a leaf switch.
        oversubscription: Bandwidth into a leaf switch over that out of it.
        unread: Words of unknown meaning.
        nics_per_gpu: Adapters per GPU.
        num_nodes: Nodes of the job.
        is_one_node: Whether the text states that the whole job is inside one node.
        scale_up_bandwidth: Bandwidth of NVLink as stated, in one direction or both. Unit: byte/s.
        machines: Machines that the text names.
        is_silent: Whether the text describes a network without a rate.
        is_of_instance: Whether the rate is of EFA, which its provider states for a whole instance.
    """

    bandwidth: float | None = None
    is_per_gpu: bool = False
    num_nics: int | None = None
    nic_bandwidth: float | None = None
    is_of_unknown: bool = False
    gpus_per_node: int | None = None
    domain_size: int | None = None
    has_reduction: bool = False
    link: str = "infiniband"
    is_rail_optimised: bool | None = None
    oversubscription: float = 1.0
    unread: tuple[str, ...] = ()
    nics_per_gpu: float | None = None
    num_nodes: int | None = None
    is_one_node: bool = False
    scale_up_bandwidth: float | None = None
    machines: tuple[Machine, ...] = ()
    is_silent: bool = False
    is_of_instance: bool = False


_GENERATIONS = {"qdr": 40, "fdr": 56, "edr": 100, "hdr": 200, "ndr": 400, "xdr": 800}
"""Rate of an InfiniBand port of four lanes by generation. Source: InfiniBand Trade Association, roadmap. Unit: Gb/s."""

_PORTS = re.compile(
    r"(?<![\d.])(\d+)\s*x\s*(?:(?!gpu|node)[a-z]+-?\d?\s+){0,3}?([qfehnx]dr)?\s*-?(\d+)?\s*"
    r"(g(?:be|bps|b/s|bits?/s|bits?|b|/s)?|\b)",
    re.IGNORECASE,
)
_BYTES = re.compile(r"\s*B(?:ps|/s)")
"""Unit of a rate in bytes, with a capital B. Bits have a small b or none."""
_RATE = re.compile(r"([\d.,]*\d)\s*([gt])(be|b|bits?)?(ps|/s(?:ec)?)?(?![a-z0-9])", re.IGNORECASE)
_INSIDE = r"(?:nvlink|nvswitch|xgmi|infinity fabric)"
_NOT_NETWORK = re.compile(
    rf"{_INSIDE}[-\d. ]*?\s*[\d.]*\s*[gt]b(?:ps|/s)|"
    rf"(?<![\dx.])[\d.]+\s*[gt]b(?:ps|/s)\s+(?:bidirectional\s+)?{_INSIDE}",
    re.IGNORECASE,
)
_NVLINK_RATE = re.compile(r"(?<![\d.])(\d+(?:\.\d+)?)\s*([gt])b(?:ps|/s)", re.IGNORECASE)
_ONE_NODE = re.compile(r"\b(?:single|1|one)[- ]node\b(?! per|/)|nvlink only|only nvlink")
_NODES = re.compile(r"(?<![\d.x])(\d{1,6})\s*x?\s*nodes\b")
_OWNER = re.compile(
    r"[^,;+()]{0,30}?(?:per|/|\ba)\s*(gpu|nic|adapter|port|hca|link|rail|node|server|host|machine|instance)"
)
"""Words after a rate that state its owner."""
_TOTAL = re.compile(r"[^,;+()\d]{0,20}\b(?:total|aggregate)", re.IGNORECASE)
_GENERATION = re.compile(r"\b([qfehnx]dr)[- ]?(\d{2,3})?(?!\d)")
_DOMAIN = re.compile(r"nvl-?(\d{1,3})(?!\d)(?!\s*gi?b)")
_NAME = r"(?![qfehnx]dr|connectx|cx)[a-z]+\d+[a-z]*(?:[- ][a-z0-9]+)?"
_NODE = (
    re.compile(rf"(?<!\d)(\d{{1,3}})\s*x?\s*-?\s*(?:{_NAME}\s+)?gpus?\s*(?:/|per|a)\s*node"),
    re.compile(rf"(?<!\d)(\d{{1,3}})\s*x\s*{_NAME}\s*(?:/|per|a)\s*node"),
    re.compile(r"(?<!\d)(\d{1,3})[- ]gpus?\s+nodes?"),
    re.compile(rf"nodes\s*(?:x|of|with|each with)\s*(\d{{1,3}})\s*x?\s*(?:{_NAME}\s+)?gpus?"),
)
"""GPUs per node, as in `8 GPUs per node`, `4x H200/node` and `8-GPU nodes`."""
_RATIO = re.compile(r"\d{1,3}(?:\.\d{1,3})?\s*:\s*\d{1,3}(?:\.\d{1,3})?")
_CHIPS = re.compile(r"(?<![a-z0-9.])(?:\d+\s*x\s*)?(?:g?[abhv]\d{2,3}|mi\d{3}x?|l\d{1,2}s?|rtx\s?\d+)(?![a-z0-9])")
_MEMORY = re.compile(r"(?<![\d.])\d{1,4}\s*-?gi?b(?![a-z/0-9])|hbm\d?e?")
_COUNTS = re.compile(
    r"(?<![\d.x])\d+\s*-?\s*x?\s*(?:nodes?|gpus?|nics?|adapters?|hcas?|ports?|servers?|rails?|links?|switch(?:es)?)"
)
_LEAST_RATIO, _MOST_RATIO = 1.0, 64.0


def read_network(text: str, gpu: str = "") -> StatedNetwork:
    """Read the nodes and the network that cells state.

    Args:
        text: Text on the interconnect.
        gpu: Text on the GPU, which may state node and domain too, as in `GB200 NVL72`.

    Raises:
        UnreadableError: If the text contradicts itself, or has misspelt words or no known one.
    """
    machines = () if is_blank(text) else find_machines(text.lower())
    others = other_instances(text.lower(), machines)
    text = "" if is_blank(text) else normalised(without_machines(text, machines))
    low, network = text.lower(), _with_adapters(text, machines)
    both = f"{low} ; {gpu.lower()}"
    return replace(
        network,
        gpus_per_node=_only("GPUs of a node", {int(size) for pattern in _NODE for size in pattern.findall(both)}),
        domain_size=_only("an NVLink domain", {int(size) for size in _DOMAIN.findall(both)}),
        has_reduction="sharp" in low and not re.search(r"(no|non|not|without)[ -]*sharp", low),
        link=_link(DENIED.sub(" ", low), machines),
        is_rail_optimised=None if "rail" not in low else not re.search(r"(not|non|no|without)[ -]*rail", low),
        oversubscription=_oversubscription(low),
        unread=(*others, *_unread(text, bool(machines or others))),
        num_nodes=_only("nodes", {int(size) for size in _NODES.findall(low)}),
        is_one_node=_ONE_NODE.search(low) is not None,
        scale_up_bandwidth=_scale_up(text),
        machines=machines,
        is_of_instance=re.search(r"\befa", low) is not None,
        is_silent=bool(text.strip() or machines or others)
        and not (network.bandwidth or network.nic_bandwidth)
        and "dgx" not in low,
    )


def _with_adapters(text: str, machines: tuple[Machine, ...]) -> StatedNetwork:
    """Return the rate and the number of adapters, from the named machine where the text states neither."""
    plain = _NOT_NETWORK.sub(" ", text)
    network = _network_bandwidth(plain)
    per_node, per_gpu = count_adapters(plain)
    if not (network.bandwidth or network.nic_bandwidth or per_node or per_gpu):
        rate = card_rate(plain)
        if rate or not machines:
            return replace(network, nic_bandwidth=rate * GIGABIT if rate else None)
        networks = {machine.network for machine in machines}
        if len(networks) > 1:
            raise UnreadableError(f"interconnect names machines with {' and '.join(sorted(networks))}; write one")
        return _network_bandwidth(networks.pop())
    if not (per_node or per_gpu):
        return network
    if network.num_nics:
        if per_node not in (None, network.num_nics):
            raise UnreadableError(
                f"interconnect counts {network.num_nics} and {per_node} adapters of a node; write one"
            )
        return network
    rate = card_rate(plain)
    if network.is_of_unknown:
        network = StatedNetwork(nic_bandwidth=network.bandwidth)
    elif network.is_per_gpu and per_gpu:
        network = StatedNetwork(nic_bandwidth=network.bandwidth / per_gpu if network.bandwidth else network.bandwidth)
    elif rate and not (network.bandwidth or network.nic_bandwidth):
        network = StatedNetwork(nic_bandwidth=rate * GIGABIT)
    return replace(network, num_nics=per_node, nics_per_gpu=per_gpu)


def _scale_up(text: str) -> float | None:
    """Return the stated rate of NVLink; None where not stated. Unit: byte/s."""
    rates = [rate for part in _NOT_NETWORK.findall(text) if "nv" in part.lower() for rate in _NVLINK_RATE.findall(part)]
    return max((float(value) * (1e12 if unit in "tT" else 1e9) for value, unit in rates), default=None)


def _unread(text: str, has_machine: bool) -> tuple[str, ...]:
    """Return the unknown words of a text; raise `UnreadableError` on misspelt words and incomplete rates."""
    reading = Reading(text, has_meaning=has_machine)
    for pattern in (_NOT_NETWORK, CONNECTX, *_NODE, _DOMAIN, _PORTS, _RATE, _GENERATION, _CHIPS):
        reading.take(pattern)
    for pattern in (_MEMORY, _RATIO):
        reading.take(pattern, has_meaning=False)
    reading.take(_COUNTS)
    return reading.check()


def _only(what: str, stated: set[int]) -> int | None:
    """Return the only stated number above 0; None without one. Raises `UnreadableError` if there are several."""
    stated.discard(0)
    if len(stated) > 1:
        raise UnreadableError(f"interconnect states {what} as {' and '.join(map(str, sorted(stated)))}; write one")
    return next(iter(stated), None)


def _link(low: str, machines: tuple[Machine, ...]) -> str:
    """Return the kind of link between nodes, from the named machine where the text names none; RoCE is no Ethernet."""
    is_named = {
        "infiniband": re.search(r"infiniband|\bib\b|\b[qfehnx]dr\d*\b", low),
        "roce": "roce" in low,
        "ethernet": "roce" not in low and re.search(r"ethernet|\btcp\b|\d\s*gbe\b", low),
    }
    stated = [name for name, match in is_named.items() if match]
    if len(stated) > 1:
        raise UnreadableError(f"interconnect {shown(low)} names {' and '.join(stated)}; write the one between nodes")
    if not stated and machines:
        return _link(" ".join(machine.network.lower() for machine in machines), ())
    return stated[0] if stated else "infiniband"


def _oversubscription(low: str) -> float:
    """Return the stated oversubscription, 1 where not stated."""
    if not re.search(r"over-?\s?sub|blocking|taper", low):
        return 1.0
    ratio = re.search(r"(\d{1,3}(?:\.\d{1,3})?)\s*:\s*(\d{1,3}(?:\.\d{1,3})?)", low)
    single = re.search(r"over-?\s?sub\D{0,40}(\d{1,3}(?:\.\d{1,3})?)", low)
    if ratio and float(ratio[1]) and float(ratio[2]):
        numbers = float(ratio[1]), float(ratio[2])
        value = max(numbers) / min(numbers)
    else:
        value = float(single[1]) if single else 1.0
    if not _LEAST_RATIO <= value <= _MOST_RATIO:
        raise UnreadableError(f"interconnect states an oversubscription of {value:g}, expected 1 to {_MOST_RATIO:g}")
    return value


def _network_bandwidth(text: str) -> StatedNetwork:
    """Return the stated bandwidth with its owner, and the number of adapters where it is stated with the rate."""
    ports = {
        (int(match[1]), rate, _owner(text, match.end()) == "gpu")
        for match in _PORTS.finditer(text)
        if (rate := _port_rate(text, match))
    }
    if len(ports) > 1 and not re.search("storage|management|front-?end", text, re.IGNORECASE):
        listed = " and ".join(f"{count}x{rate:g}G" for count, rate, _ in sorted(ports))
        raise UnreadableError(f"interconnect states {listed}; write the adapters of a node once")
    if ports:
        num_nics, rate, is_per_gpu = max(ports, key=lambda port: port[0] * port[1])
        _check_total(text, num_nics * rate * GIGABIT)
        return StatedNetwork(num_nics * rate * GIGABIT, is_per_gpu, None if is_per_gpu else num_nics)
    return _uncounted_rate(text)


def _port_rate(text: str, ports: "re.Match[str]") -> float:
    """Return the rate of one of the counted adapters; 0 for a count of other things, as in 8x H100. Unit: Gb/s."""
    number = int(ports[3]) if ports[3] and len(ports[3]) < 5 else 0
    rate = float(number or _GENERATIONS.get((ports[2] or "").lower(), 0))
    if ports[4][1:] == "B" or (re.match(r"\s*i?B(?!ps|/s)", text[ports.end() :]) and ports[4].lower() == "g"):
        return 0.0
    rate *= 8 if "B" in ports[4] or _BYTES.match(text, ports.end()) else 1
    if len(ports[1]) < 3 and 1 <= int(ports[1]) <= 64 and 10 <= rate <= 3200:
        return rate
    if ports[3] and (ports[4] or rate > 3200 or int(ports[1]) == 0):
        raise UnreadableError(
            f"interconnect has {shown(ports[0])}, expected 1 to 64 adapters of 10 to 3200 Gb/s: 8x400G"
        )
    return 0.0


def _uncounted_rate(text: str) -> StatedNetwork:
    """Return the stated bandwidth of a text that does not count adapters with it."""
    stated: dict[str, set[float]] = {}
    for match in _RATE.finditer(text):
        if (rate := _rate(match)) is None:
            continue
        if not rate:
            raise UnreadableError(f"interconnect has {shown(match[0])}, expected a rate above 0")
        stated.setdefault(_owner(text, match.end()), set()).add(rate)
    for owner, rates in stated.items():
        if len(rates) > 1:
            listed = " and ".join(f"{rate / GIGABIT:g}" for rate in sorted(rates))
            raise UnreadableError(f"interconnect states {listed} Gb/s{' of a ' + owner if owner else ''}; write one")
    for owner in ("node", "gpu", "adapter", ""):
        if owner in stated:
            (rate,) = stated[owner]
            if owner == "adapter":
                return StatedNetwork(nic_bandwidth=rate)
            return StatedNetwork(rate, owner == "gpu", is_of_unknown=not owner)
    if not (generation := _GENERATION.search(text.lower())):
        return StatedNetwork()
    return StatedNetwork(nic_bandwidth=float(generation[2] or _GENERATIONS[generation[1]]) * GIGABIT)


def _owner(text: str, end: int) -> str:
    """Return the owner of the rate that ends at `end`: `gpu`, `node`, `adapter`, or empty where not stated."""
    if _TOTAL.match(text, end):
        return "node"
    owner = _OWNER.match(text.lower(), end)
    if not owner:
        return ""
    names = {
        "gpu": "gpu",
        "nic": "adapter",
        "adapter": "adapter",
        "port": "adapter",
        "hca": "adapter",
        "link": "adapter",
    }
    return names.get(owner[1], "adapter" if owner[1] == "rail" else "node")


def _check_total(text: str, bandwidth: float) -> None:
    """Raise `UnreadableError` if the text states a rate of the node other than the sum of its adapters.

    Args:
        text: Text on the interconnect.
        bandwidth: Sum over the counted adapters. Unit: byte/s.
    """
    for match in _RATE.finditer(text):
        before = text[: match.start()].rstrip().lower()
        total = _rate(match)
        # In `8x400G per node`, the rate is that of one adapter.
        if not total or before.endswith("x") or _owner(text, match.end()) != "node":
            continue
        if not 0.9 < total / bandwidth < 1.1:
            stated = f"adapters of {bandwidth / GIGABIT:g} Gb/s together and {total / GIGABIT:g} Gb/s a node"
            raise UnreadableError(f"interconnect states {stated}; write one")


def _rate(match: "re.Match[str]") -> float | None:
    """Return the rate of a match of `_RATE`; None for a size such as 80GB. Unit: byte/s.

    A capital B means bytes. All other rates of networks are in bits.
    """
    digits, unit = match[1].replace(",", ""), match[3] or ""
    if unit == "B" and not match[4]:
        return None
    value = float(digits) if digits.count(".") <= 1 else 0.0
    return value * (1e9 if unit == "B" else GIGABIT) * (1000 if match[2] in "tT" else 1)
