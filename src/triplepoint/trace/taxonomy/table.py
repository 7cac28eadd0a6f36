"""An ordered table of rules that is quick to load and to search: the first rule that matches decides.

Hundreds of patterns against a name would cost more than reading a small trace. So a pattern is split into its
alternatives (`layer_?norm|ln_fwd`), each is found by three letters that must stand in the name, most are plain words,
and only the few expressions a name comes near are compiled.
"""

import re
from collections.abc import Iterator
from functools import cache
from typing import NamedTuple

from triplepoint.trace.taxonomy.kernel import Kernel

_KEY_LETTERS = 3

_TOKEN = re.compile(r"\\.|\[[^\]]*\]|\{[^}]*\}|.")
_PLAIN = re.compile(r"[\w: ]")


class _Alternative(NamedTuple):
    """One alternative of the pattern of a rule: `word` stands in every text that `pattern` matches."""

    rule: int
    word: str
    pattern: str


class Table:
    """Rules in order.

    Args:
        rules: Class, kind and pattern of each, the pattern without inline flags.
    """

    def __init__(self, rules: list[tuple[str, str, str]]) -> None:
        self.kernels = [Kernel(cls, kind) for cls, kind, _ in rules]
        self._by_key: dict[str, list[_Alternative]] = {}
        self._wordless: list[_Alternative] = []
        for number, (_, _, pattern) in enumerate(rules):
            for word, alternative in split_alternatives(pattern):
                key = word[:_KEY_LETTERS]
                of_key = self._by_key.setdefault(key, []) if len(key) == _KEY_LETTERS else self._wordless
                of_key.append(_Alternative(number, word, alternative))

    def first(self, text: str) -> Kernel | None:
        """Return what the first rule that matches anywhere in the text says, None if none matches."""
        near = set(self._wordless)
        for at in range(len(text) - _KEY_LETTERS + 1):
            near.update(self._by_key.get(text[at : at + _KEY_LETTERS], ()))
        for rule, word, pattern in sorted(near):
            if word in text and (word == pattern or _compiled(pattern).search(text)):
                return self.kernels[rule]
        return None


@cache
def _compiled(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern)


def split_alternatives(pattern: str) -> Iterator[tuple[str, str]]:
    """Yield each alternative of a pattern after the longest plain word that it cannot do without."""
    depth = start = 0
    word = longest = ""
    for token in _TOKEN.finditer(pattern + "|"):
        if depth == 0 and _PLAIN.fullmatch(token[0]):
            word += token[0]
            continue
        if token[0][0] in "?*{":
            word = word[:-1]
        longest = max(longest, word, key=len)
        word = ""
        depth += (token[0] == "(") - (token[0] == ")")
        if token[0] == "|" and depth == 0:
            yield longest, pattern[start : token.start()]
            start, longest = token.end(), ""
