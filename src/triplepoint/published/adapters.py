"""Network adapters as cells count them: `8x400G`, `4 NICs`, `one HDR NIC per 2 GPUs`."""

import re

from triplepoint.errors import shown
from triplepoint.published.words import UnreadableError

_NUMBERS = {"one": 1, "two": 2, "four": 4, "six": 6, "eight": 8, "sixteen": 16}
_NIC = r"(?:nics?|hcas?|adapters?|rails?)\b"
_RATE = r"\d+\s*[gG][a-zA-Z/]*"
_SPELLED = re.compile(
    rf"\b({'|'.join(_NUMBERS)})\b(?=\s+(?:[\w/-]+\s+){{0,3}}(?:{_NIC}|ports?\b)|\s*x\b)", re.IGNORECASE
)
_REWRITTEN = (
    (re.compile(r"\bsingle[- ]rail\b", re.IGNORECASE), "1 NIC"),
    (re.compile(r"\bdual[- ]rail\b", re.IGNORECASE), "2 NICs"),
    (re.compile(r"\bquad[- ]rail\b", re.IGNORECASE), "4 NICs"),
    (re.compile(r"\b(\d+)[ -]gigabit\b(?!\s*(?:/|per))", re.IGNORECASE), r"\1Gb"),
    (re.compile(rf"(?<![\w.])(\d{{1,2}})\s+({_RATE}(?=\s+(?:[a-z]+\s+)?{_NIC}))", re.IGNORECASE), r"\1x\2"),
    (re.compile(rf"({_RATE})\s+((?:[a-z]+\s+){{0,2}})x\s?(\d{{1,2}})\b", re.IGNORECASE), r"\3x\1 \2"),
    (re.compile(r"\b([efhnqx]dr\d*)\s+((?:[a-z]+\s+){0,2})x\s?(\d{1,2})\b", re.IGNORECASE), r"\3x \1 \2"),
    (re.compile(r"(omni-?path)\s+(100|400)\b(?!\s*g)", re.IGNORECASE), r"\1 \2 Gb/s per NIC"),
    (re.compile(rf"({_RATE})\s+((?:[a-z]+\s+)?)(nics|hcas|adapters)\b", re.IGNORECASE), r"\1 per NIC \2"),
)
_GPUS = r"\s*(?:per|/|for each|for)\s*(?:(\d+)\s*)?(gpus?|nodes?|servers?|hosts?|machines?)?\b"
_COUNTED = re.compile(
    rf"(?<![\w.-])(\d{{1,2}})\s*x?\s*-?\s*(?:(?:ib|infiniband|roce|ethernet|efa|[efhnqx]dr\d*|mellanox|nvidia)\s+){{0,2}}{_NIC}"
    rf"(?:\s+(?:[efhnqx]dr\d*))?(?:{_GPUS})?",
    re.IGNORECASE,
)
_PER_NODE = re.compile(r"(?<![\w.])(\d{1,2})\s*(?:per|/|a)\s*(?:node|server|host|machine)\b", re.IGNORECASE)
CONNECTX = re.compile(r"(?<![\w.])(\d{1,2})\s*x\s*(?:mellanox\s+|nvidia\s+)?(?:connectx|cx)-?\d", re.IGNORECASE)
_LANES = re.compile(r"\b[efhnqx]dr\s+\d+x(?!\s*\d)", re.IGNORECASE)
_NEGATIVE = re.compile(r"(?:^|[\s,;:(+])[-\u2212]\d")
ADAPTER_RATES = {5: 100, 6: 200, 7: 400, 8: 800}
"""Gb/s of one ConnectX adapter, by generation. Source: NVIDIA, ConnectX data sheets."""
_CARD = re.compile(r"(?:connectx|cx)-?([5-8])", re.IGNORECASE)


def normalised(text: str) -> str:
    """Return a text with counts and rates in one order: `eight 400G NICs` is `8x400G per NIC`.

    Raises:
        UnreadableError: If a number is negative, or may be lanes as well as adapters.
    """
    text = text.replace("\u00d7", "x").replace("*", "x")
    if found := _NEGATIVE.search(text):
        raise UnreadableError(f"interconnect has {shown(found[0].strip())}, expected a number above 0")
    if found := _LANES.search(text):
        raise UnreadableError(
            f"interconnect has {shown(found[0])}, lanes or adapters of a node; write adapters, as in 4x HDR"
        )
    text = _SPELLED.sub(lambda word: str(_NUMBERS[word[1].lower()]), text)
    for pattern, order in _REWRITTEN:
        text = pattern.sub(order, text)
    return text


def count_adapters(text: str) -> tuple[int | None, float | None]:
    """Return the adapters of a node, and of a GPU, that a normalised text counts; None where it does not.

    Raises:
        UnreadableError: If it states two counts, or none at all.
    """
    of_node: set[int] = {int(found[1]) for found in CONNECTX.finditer(text)}
    of_gpu: set[float] = set()
    for found in _COUNTED.finditer(text):
        if (found[3] or "").lower().startswith("gpu"):
            of_gpu.add(int(found[1]) / max(1, int(found[2] or 1)))
        else:
            of_node.add(int(found[1]))
    if re.search(_NIC, text, re.IGNORECASE):
        of_node |= {int(found[1]) for found in _PER_NODE.finditer(text)}
    counts = of_node | of_gpu
    if len(of_node) > 1 or len(of_gpu) > 1 or 0 in counts:
        named = " and ".join(f"{count:g}" for count in sorted(counts))
        raise UnreadableError(f"interconnect counts {named} adapters; write those of a node once")
    return next(iter(of_node), None), next(iter(of_gpu), None)


def card_rate(text: str) -> float | None:
    """Return the rate of the ConnectX adapter that a text names, in Gb/s; None where it names none."""
    rates = {ADAPTER_RATES[int(number)] for number in _CARD.findall(text)}
    return float(rates.pop()) if len(rates) == 1 else None
