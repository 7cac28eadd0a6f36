"""Counts of network adapters in cells, such as `8x400G`, `4 NICs` or `one HDR NIC per 2 GPUs`."""

import re

from triplepoint.errors import shown
from triplepoint.published.words import UnreadableError

_NUMBERS = {"one": 1, "two": 2, "four": 4, "six": 6, "eight": 8, "sixteen": 16}
_NIC = r"(?:nics?|hcas?|adapters?|rails?)\b"
_RATE = r"\d+\s*[gG][a-zA-Z/]*"
_NUMBER_WORD = re.compile(
    rf"\b({'|'.join(_NUMBERS)})\b(?=\s+(?:[\w/-]+\s+){{0,3}}(?:{_NIC}|ports?\b)|\s*x\b)", re.IGNORECASE
)
_REPLACEMENTS = (
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
"""`HDR 4x` may be four lanes of one port or four adapters."""
_NEGATIVE = re.compile(r"(?:^|[\s,;:(+])[-\u2212]\d")
ADAPTER_RATES = {5: 100, 6: 200, 7: 400, 8: 800}
"""Rate of one ConnectX adapter by generation. Source: NVIDIA, ConnectX data sheets. Unit: Gb/s."""
_CARD = re.compile(r"(?:connectx|cx)-?([5-8])", re.IGNORECASE)


def normalised(text: str) -> str:
    """Return a text with counts and rates in a standard order: `eight 400G NICs` becomes `8x400G per NIC`.

    Raises:
        UnreadableError: If a number is negative, or may count lanes or adapters.
    """
    text = text.replace("\u00d7", "x").replace("*", "x")
    if match := _NEGATIVE.search(text):
        raise UnreadableError(f"interconnect has {shown(match[0].strip())}, expected a number above 0")
    if match := _LANES.search(text):
        raise UnreadableError(
            f"interconnect has {shown(match[0])}, lanes or adapters of a node; write adapters, as in 4x HDR"
        )
    text = _NUMBER_WORD.sub(lambda word: str(_NUMBERS[word[1].lower()]), text)
    for pattern, replacement in _REPLACEMENTS:
        text = pattern.sub(replacement, text)
    return text


def count_adapters(text: str) -> tuple[int | None, float | None]:
    """Return the adapters per node and per GPU that a normalised text counts; None for a count that is not stated.

    Raises:
        UnreadableError: If the text states two counts of the same kind, or a count of 0.
    """
    per_node: set[int] = {int(match[1]) for match in CONNECTX.finditer(text)}
    per_gpu: set[float] = set()
    for match in _COUNTED.finditer(text):
        if (match[3] or "").lower().startswith("gpu"):
            per_gpu.add(int(match[1]) / max(1, int(match[2] or 1)))
        else:
            per_node.add(int(match[1]))
    if re.search(_NIC, text, re.IGNORECASE):
        per_node |= {int(match[1]) for match in _PER_NODE.finditer(text)}
    counts = per_node | per_gpu
    if len(per_node) > 1 or len(per_gpu) > 1 or 0 in counts:
        listed = " and ".join(f"{count:g}" for count in sorted(counts))
        raise UnreadableError(f"interconnect counts {listed} adapters; write those of a node once")
    return next(iter(per_node), None), next(iter(per_gpu), None)


def card_rate(text: str) -> float | None:
    """Return the rate of the ConnectX adapter that a text names; None where it names none. Unit: Gb/s."""
    rates = {ADAPTER_RATES[int(number)] for number in _CARD.findall(text)}
    return float(rates.pop()) if len(rates) == 1 else None
