"""Words about interconnects in published tables: those with a meaning, those without, and misspelt ones."""

import difflib
import re
from dataclasses import dataclass, field

from triplepoint.errors import shown
from triplepoint.published.words import UnreadableError

_MEANING = """
    infiniband ethernet roce rdma efa srd omni-path omnipath slingshot aries gigabit nvlink nvswitch xgmi pcie
    gpudirect-tcpx gpudirect-tcpxo gpudirect-rdma sharp rail-optimised rail-optimized oversubscription oversubscribed
    non-blocking nonblocking blocking
    dragonfly fat-tree superpod gpudirect connectx bluefield spectrum-x mellanox
"""
"""Words about nodes or network whose misspellings are recognised."""
_ALSO_MEANING = """
    ib tcp udp opa rail rails railed leaf spine clos torus taper tapered dgx hgx sxm oam mgx quantum spectrum thor
    thor2 pollara nvl gdr single eos eos-class eos-like selene
"""
"""Further words about nodes or network. Eos and Selene have the usual networks of H100 and A100."""
_MACHINES = """
    frontier lumi lumi-g summit perlmutter polaris leonardo jupiter juwels alps isambard isambard-ai miyabi abci
    tuolumne jean-zay juwels-booster marenostrum aws azure gcp oci coreweave lambda crusoe nebius
"""
"""Machines and providers whose network is not known here."""
_WITHOUT_MEANING = """
    a all an and as at by each for from in into is its no not non of on only or per plus s so the to up via with
    without x one two four eight sixteen single dual quad inter intra internode intranode inter-node intra-node
    node nodes gpu gpus nic nics hca hcas port ports adapter adapters card cards rate line link links interconnect
    network networks networking fabric bandwidth bw total aggregate bidirectional unidirectional direction full
    fully duplex class config configs configuration vtrain system cluster server servers host hosts machine
    machines rack racks cloud instance module modules switch switches switched domain domains pod gen generation
    level levels topology factor ratio usual default assumed published stated same network's between inside within
    across high speed compute storage management frontend backend front-end back-end optimised optimized infinity
    express path tree fat memory nvidia amd intel hpe cray broadcom multi multi-node single-node data center
    datacenter v1 v2 v3 v4 v5 over optical copper superchip grace hopper blackwell ampere volta instinct sub peak
    measured half quarter
"""
"""Words that do not describe nodes or network."""
_KNOWN = frozenset(f"{_MEANING} {_ALSO_MEANING} {_WITHOUT_MEANING}".split())
_WITH_MEANING = frozenset(f"{_MEANING} {_ALSO_MEANING} {_MACHINES}".split())
_KNOWN_PATTERN = re.compile(
    r"gen\d|v\d|\d{4}-\d\d|(?:connectx|cx)-?\d[a-z]*|nvlink-?v?\d?(?:\.0)?|nvswitch-?\d?|roce-?v?\d?|nvl-?\d+|"
    r"xgmi-?\d?|pci-?e?-?\d?|quantum-?\w?\d*|"
    r"[qfehnx]dr\d*|efa-?v?\d?|rocev\d|bf-?3|bluefield-?\d|slingshot-?\d*|sxm\d?|p\d[a-z]*\.\d*xlarge|nd[a-z0-9]*|a3-\w+gpu[\w-]*|"
    r"a2-\w+gpu[\w-]*|oversub\w*|rail\w*|nvlink-c2c|tomahawk-?\d|\d+(?:-|x)?gpus?"
)
"""Known words with numbers or endings, with or without a meaning."""
_WITH_MEANING_PATTERN = re.compile(
    r"connectx|cx|nvlink|nvswitch|roce|nvl|xgmi|pci|[qfehnx]dr|efa|bluefield|slingshot|sxm|p\d|nd|a[23]-|oversub|rail"
)
DENIED = re.compile(r"(?:no|not|non|without)[ -]+(infiniband|ib|rdma|roce|efa|ethernet|network|nics?|interconnect)\b")
"""A network that the text states to be absent."""
_USUAL_RATES = {10, 25, 40, 50, 56, 100, 200, 400, 800, 1600, 3200}
"""Rates of adapters and nodes, as numbers that lack their unit when they stand alone. Unit: Gb/s."""
_LEAST_SIMILARITY = 0.75
"""Least similarity of a misspelt word to the correct one."""


@dataclass
class Reading:
    """A text about an interconnect whose parts are read one after the other.

    Attributes:
        text: The text.
        rest: Part of the text that is not read yet, in lower case.
        has_meaning: Whether any part with a meaning was read.
    """

    text: str
    rest: str = field(init=False)
    has_meaning: bool = False

    def __post_init__(self) -> None:
        self.rest = self.text.lower()

    def take(self, pattern: "re.Pattern[str]", has_meaning: bool = True) -> None:
        """Remove the matches of a pattern from the unread part.

        Args:
            pattern: Pattern of the parts to remove.
            has_meaning: Whether these parts describe nodes or network.
        """
        self.rest, count = pattern.subn(" ", self.rest)
        self.has_meaning |= bool(count) and has_meaning

    def check(self) -> tuple[str, ...]:
        """Return the unknown words of the unread part.

        Raises:
            UnreadableError: If a word is misspelt or an incomplete rate, or no part of the text has a meaning.
        """
        self._check_negation()
        words = re.findall(r"[^\W_]+(?:[-.'][^\W_]+)*", self.rest)
        unknown = [word for word in words if not self._is_known(word)]
        for word in unknown:
            if near := difflib.get_close_matches(word, _MEANING.split(), n=1, cutoff=_LEAST_SIMILARITY):
                raise UnreadableError(f"interconnect has {shown(word)} (did you mean {near[0]!r}?)")
            if re.fullmatch(r"\d+x\w*|x\d+|\d+[gt]\w*", word) or (word.isdecimal() and int(word) in _USUAL_RATES):
                raise UnreadableError(
                    f"interconnect has {shown(word)}, expected a rate such as 8x400G or 800 Gb/s per node"
                )
        if self.text.strip() and not self.has_meaning:
            raise UnreadableError(
                f"interconnect is {shown(self.text)}, expected nodes and network such as '8x400G IB/node' or '100GbE'"
            )
        return tuple(word for word in unknown if not word.isdecimal())

    def _is_known(self, word: str) -> bool:
        """Return whether a word is known, and note whether it has a meaning."""
        if _KNOWN_PATTERN.fullmatch(word):
            self.has_meaning |= _WITH_MEANING_PATTERN.match(word) is not None
            return True
        parts = (word, *word.split("-"))
        self.has_meaning |= bool(_WITH_MEANING & set(parts))
        return word in _KNOWN or all(part in _KNOWN or _KNOWN_PATTERN.fullmatch(part) for part in parts[1:])

    def _check_negation(self) -> None:
        """Raise `UnreadableError` on a text that excludes one network between nodes and states no other."""
        low = self.text.lower()
        denied = DENIED.search(low)
        if not denied:
            return
        others = r"ethernet|\btcp\b|\d\s*gbe\b" + ("" if denied[1] == "rdma" else r"|roce|infiniband|\bib\b")
        if not re.search(others, low.replace(denied[0], " ")):
            example = "write what is between nodes, such as 100 Gb/s Ethernet"
            raise UnreadableError(f"interconnect says {shown(denied[0])}; {example}")
