"""Nodes and network of published tables, as cells state them."""

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
    """Nodes and network as cells state them.

    Attributes:
        bandwidth: One direction, of all adapters of a node or of those of one GPU; None where nothing is stated.
            Unit: byte/s.
        is_per_gpu: Whether the bandwidth is one GPU's.
        num_nics: Adapters of a node; None where they are not counted.
        nic_bandwidth: One direction, of one adapter of the usual number; None where nothing is stated. Unit: byte/s.
        is_of_unknown: Whether nothing says of what the bandwidth is; it is taken as a node's.
        gpus_per_node: GPUs of a node; None where nothing is stated.
        domain_size: GPUs joined by NVLink where it reaches past a node, or not as far; None where nothing is stated.
        has_reduction: Whether switches reduce (SHARP).
        link: Kind of link.
        is_rail_optimised: Whether adapters of one number share a leaf switch; None where nothing is stated.
        oversubscription: Bandwidth into a leaf switch over that out of it.
        unread: Words that say nothing here.
        nics_per_gpu: Adapters of one GPU; None where they are not counted so.
        num_nodes: Nodes of the job; None where they are not counted.
        is_one_node: Whether the text says that all is inside one node.
        scale_up_bandwidth: Of NVLink, as stated, of one direction or both. Unit: byte/s.
        machines: Machines named.
        is_silent: Whether the text says something, and no rate.
        is_of_instance: Whether a rate of EFA is stated, which its provider gives of a whole instance.
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
"""Gb/s of one InfiniBand port of four lanes, by generation. Source: InfiniBand Trade Association, roadmap."""

_PORTS = re.compile(
    r"(?<![\d.])(\d+)\s*x\s*(?:(?!gpu|node)[a-z]+-?\d?\s+){0,3}?([qfehnx]dr)?\s*-?(\d+)?\s*"
    r"(g(?:be|bps|b/s|bits?/s|bits?|b|/s)?|\b)",
    re.IGNORECASE,
)
_BYTES = re.compile(r"\s*B(?:ps|/s)")
"""In the unit of a rate: bytes, a capital B; bits are a small one, or none."""
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
"""Of what a rate is, in the words after it."""
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
"""GPUs of a node: 8 GPUs per node, 4x H200/node, 8-GPU nodes."""
_RATIO = re.compile(r"\d{1,3}(?:\.\d{1,3})?\s*:\s*\d{1,3}(?:\.\d{1,3})?")
_CHIPS = re.compile(r"(?<![a-z0-9.])(?:\d+\s*x\s*)?(?:g?[abhv]\d{2,3}|mi\d{3}x?|l\d{1,2}s?|rtx\s?\d+)(?![a-z0-9])")
_MEMORY = re.compile(r"(?<![\d.])\d{1,4}\s*-?gi?b(?![a-z/0-9])|hbm\d?e?")
_COUNTS = re.compile(
    r"(?<![\d.x])\d+\s*-?\s*x?\s*(?:nodes?|gpus?|nics?|adapters?|hcas?|ports?|servers?|rails?|links?|switch(?:es)?)"
)
_LEAST_RATIO, _MOST_RATIO = 1.0, 64.0


def read_network(text: str, gpu: str = "") -> StatedNetwork:
    """Return the nodes and the network that cells state; other words are kept, misspelt ones refused.

    Args:
        text: What is said of the interconnect.
        gpu: What is said of the GPU, where node and domain may stand too: `GB200 NVL72`.

    Raises:
        UnreadableError: If it contradicts itself, or cannot be read.
    """
    machines = () if is_blank(text) else find_machines(text.lower())
    others = other_instances(text.lower(), machines)
    text = "" if is_blank(text) else normalised(without_machines(text, machines))
    low, found = text.lower(), _with_adapters(text, machines)
    both = f"{low} ; {gpu.lower()}"
    said = DENIED.sub(" ", low)
    return replace(
        found,
        gpus_per_node=_only("GPUs of a node", {int(size) for pattern in _NODE for size in pattern.findall(both)}),
        domain_size=_only("an NVLink domain", {int(size) for size in _DOMAIN.findall(both)}),
        has_reduction="sharp" in low and not re.search(r"(no|non|not|without)[ -]*sharp", low),
        link=_link(said, machines),
        is_rail_optimised=None if "rail" not in low else not re.search(r"(not|non|no|without)[ -]*rail", low),
        oversubscription=_oversubscription(low),
        unread=(*others, *_unread(text, bool(machines or others))),
        num_nodes=_only("nodes", {int(size) for size in _NODES.findall(low)}),
        is_one_node=_ONE_NODE.search(low) is not None,
        scale_up_bandwidth=_scale_up(text),
        machines=machines,
        is_of_instance=re.search(r"\befa", low) is not None,
        is_silent=bool(text.strip() or machines or others)
        and not (found.bandwidth or found.nic_bandwidth)
        and "dgx" not in low,
    )


def _with_adapters(text: str, machines: tuple[Machine, ...]) -> StatedNetwork:
    """Return the rate, and the adapters that are counted apart from it; of a machine where the text states none."""
    plain = _NOT_NETWORK.sub(" ", text)
    found = _network_bandwidth(plain)
    of_node, of_gpu = count_adapters(plain)
    if not (found.bandwidth or found.nic_bandwidth or of_node or of_gpu):
        rate = card_rate(plain)
        if rate or not machines:
            return replace(found, nic_bandwidth=rate * GIGABIT if rate else None)
        networks = {machine.network for machine in machines}
        if len(networks) > 1:
            raise UnreadableError(f"interconnect names machines with {' and '.join(sorted(networks))}; write one")
        return _network_bandwidth(networks.pop())
    if not (of_node or of_gpu):
        return found
    if found.num_nics:
        if of_node not in (None, found.num_nics):
            raise UnreadableError(f"interconnect counts {found.num_nics} and {of_node} adapters of a node; write one")
        return found
    rate = card_rate(plain)
    if found.is_of_unknown or found.is_per_gpu and of_gpu:
        share = found.bandwidth if found.is_of_unknown or not found.bandwidth else found.bandwidth / (of_gpu or 1)
        found = StatedNetwork(nic_bandwidth=share)
    elif rate and not (found.bandwidth or found.nic_bandwidth):
        found = StatedNetwork(nic_bandwidth=rate * GIGABIT)
    return replace(found, num_nics=of_node, nics_per_gpu=of_gpu)


def _scale_up(text: str) -> float | None:
    """Return the rate of NVLink that is stated, None where there is none. Unit: byte/s."""
    stated = [
        rate for part in _NOT_NETWORK.findall(text) if "nv" in part.lower() for rate in _NVLINK_RATE.findall(part)
    ]
    return max((float(value) * (1e12 if unit in "tT" else 1e9) for value, unit in stated), default=None)


def _unread(text: str, has_machine: bool) -> tuple[str, ...]:
    """Return the words that say nothing here; refuse what should and cannot be read."""
    reading = Reading(text, has_meaning=has_machine)
    for pattern in (_NOT_NETWORK, CONNECTX, *_NODE, _DOMAIN, _PORTS, _RATE, _GENERATION, _CHIPS):
        reading.take(pattern)
    for pattern in (_MEMORY, _RATIO, _COUNTS):
        reading.take(pattern, means=pattern is _COUNTS)
    return reading.check()


def _only(what: str, stated: set[int]) -> int | None:
    stated.discard(0)
    if len(stated) > 1:
        raise UnreadableError(f"interconnect states {what} as {' and '.join(map(str, sorted(stated)))}; write one")
    return next(iter(stated), None)


def _link(low: str, machines: tuple[Machine, ...]) -> str:
    """Return the kind of link between nodes, of a machine where nothing else is named; RoCE is Ethernet too."""
    names = {
        "infiniband": re.search(r"infiniband|\bib\b|\b[qfehnx]dr\d*\b", low),
        "roce": "roce" in low,
        "ethernet": "roce" not in low and re.search(r"ethernet|\btcp\b|\d\s*gbe\b", low),
    }
    stated = [name for name, found in names.items() if found]
    if len(stated) > 1:
        raise UnreadableError(f"interconnect {shown(low)} names {' and '.join(stated)}; write the one between nodes")
    if not stated and machines:
        return _link(" ".join(machine.network.lower() for machine in machines), ())
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


def _network_bandwidth(text: str) -> StatedNetwork:
    """Return the bandwidth that is stated, of what it is, and the adapters it is of, where they are counted."""
    ports = {
        (num_nics, rate, _owner(text, stated.end()) == "gpu")
        for stated in _PORTS.finditer(text)
        if (num_nics := int(stated[1])) is not None and (rate := _port_rate(text, stated))
    }
    if len(ports) > 1 and not re.search("storage|management|front-?end", text, re.IGNORECASE):
        named = " and ".join(f"{count}x{rate:g}G" for count, rate, _ in sorted(ports))
        raise UnreadableError(f"interconnect states {named}; write the adapters of a node once")
    if ports:
        num_nics, rate, is_per_gpu = max(ports, key=lambda one: one[0] * one[1])
        _check_total(text, num_nics * rate * GIGABIT)
        return StatedNetwork(num_nics * rate * GIGABIT, is_per_gpu, None if is_per_gpu else num_nics)
    return _plain_rate(text)


def _port_rate(text: str, ports: "re.Match[str]") -> float:
    """Return the rate of each of some adapters, in Gb/s; 0 where they are something else: 8x H100, 8x 80GB."""
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


def _plain_rate(text: str) -> StatedNetwork:
    """Return a bandwidth that stands without a number of adapters."""
    stated: dict[str, set[float]] = {}
    for rated in _RATE.finditer(text):
        if (rate := _rate(rated)) is None:
            continue
        if not rate:
            raise UnreadableError(f"interconnect has {shown(rated[0])}, expected a rate above 0")
        stated.setdefault(_owner(text, rated.end()), set()).add(rate)
    for owner, rates in stated.items():
        if len(rates) > 1:
            named = " and ".join(f"{rate / GIGABIT:g}" for rate in sorted(rates))
            raise UnreadableError(f"interconnect states {named} Gb/s{' of a ' + owner if owner else ''}; write one")
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
    """Return of what a rate is that ends there: gpu, node, adapter, or nothing where no word tells."""
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
    """Refuse a total that is not what the adapters make; the rate of one adapter may be written with its node too."""
    for rated in _RATE.finditer(text):
        before = text[: rated.start()].rstrip().lower()
        total = _rate(rated)
        if not total or before.endswith("x") or _owner(text, rated.end()) != "node":
            continue
        if not 0.9 < total / bandwidth < 1.1:
            stated = f"adapters of {bandwidth / GIGABIT:g} Gb/s together and {total / GIGABIT:g} Gb/s a node"
            raise UnreadableError(f"interconnect states {stated}; write one")


def _rate(rated: "re.Match[str]") -> float | None:
    """Return a rate in byte/s, None of a size. A capital B is a byte, GB/s; all else about networks is in bits."""
    digits, unit = rated[1].replace(",", ""), rated[3] or ""
    if unit == "B" and not rated[4]:
        return None
    value = float(digits) if digits.count(".") <= 1 else 0.0
    return value * (1e9 if unit == "B" else GIGABIT) * (1000 if rated[2] in "tT" else 1)
