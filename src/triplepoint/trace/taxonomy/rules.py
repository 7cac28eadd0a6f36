"""Rules of the taxonomy: reading the built-in and the user's files, and searching an ordered table of rules.

The first rule that matches decides. Hundreds of patterns against a name would cost more than reading a small trace. So
a pattern is split into its alternatives (`layer_?norm|ln_fwd`), each is indexed by three letters that must stand in the
name, most are plain words, and only the few expressions a name comes near are compiled.
"""

import difflib
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple

import yaml

from triplepoint.errors import UserError, nearest
from triplepoint.trace.taxonomy.classes import Kernel

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


_TABLES: Final = ("device", "host")
_LAYOUT: Final = "[class, kind, 'pattern']"
_NEAR: Final = 0.8
"""Likeness from which a new class is taken for a known one misspelt: `norms` for `norm` is, `softmax_topk` is not."""


@dataclass(frozen=True)
class BuiltinRules:
    """The rules of a built-in scheme: of each its class, kind and pattern, in order.

    Attributes:
        names: What of a kernel's name the patterns are searched in: its `parts` (see `names`), the whole in lower case
            or as it stands.
        device: For GPU kernels, copies and fills.
        host: For operators and communication annotations on the CPU, in lower case; none for those of `default`.
        launchers: Templates that run whatever they are called with, so that their own name says nothing.
    """

    names: Literal["parts", "lower_case", "as_they_stand"]
    device: list[tuple[str, str, str]]
    host: list[tuple[str, str, str]] = field(default_factory=list)
    launchers: str = ""

    @property
    def classes(self) -> set[str]:
        """Return the classes the rules name."""
        return {cls for cls, _, _ in self.device + self.host}


class _ExtraRule(NamedTuple):
    kernel: Kernel
    pattern: re.Pattern[str]


@dataclass(frozen=True)
class ExtraRules:
    """The rules a user adds, by table, in order."""

    tables: dict[str, list[_ExtraRule]] = field(default_factory=dict)

    def first(self, table: Literal["device", "host"], name: str) -> Kernel | None:
        """Return what the first rule that matches a name says, None if none does."""
        return next((rule.kernel for rule in self.tables.get(table, ()) if rule.pattern.search(name)), None)


def read_builtin(scheme: str) -> BuiltinRules:
    """Return the rules of a built-in scheme."""
    text = Path(__file__).with_name(f"{scheme}.yaml").read_text(encoding="utf-8")
    return BuiltinRules(**yaml.load(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader)))


def read_extra(path: Path, known_classes: set[str]) -> ExtraRules:
    """Return the rules a user adds: `device` and `host`, each a list of `[class, kind, 'pattern']`.

    Upper and lower case are alike to their patterns, which are searched in the name as the trace has it.

    Args:
        path: A YAML file.
        known_classes: Of the scheme they are added to; one nearly like them is refused as misspelt.

    Raises:
        UserError: If the file is missing or not of this layout.
    """
    # pydantic, which comes with it, costs more start-up than the rest of the command; few add rules.
    from triplepoint.config.yaml_file import read_yaml

    tables = read_yaml(path)
    for table in tables:
        if table not in _TABLES:
            raise UserError(f"{path}: unknown key {table!r}{nearest(str(table), _TABLES)}")
    return ExtraRules({table: _checked(path, table, rules, known_classes) for table, rules in tables.items()})


def _checked(path: Path, table: str, rules: Any, known_classes: set[str]) -> list[_ExtraRule]:
    if not isinstance(rules, list):
        raise UserError(f"{path}: {table}: expected a list of rules {_LAYOUT}, found {type(rules).__name__}")
    checked = []
    for number, rule in enumerate(rules, 1):
        try:
            checked.append(_rule(rule, known_classes))
        except ValueError as error:
            raise UserError(f"{path}: {table}, rule {number}: {error}") from None
    return checked


def _rule(rule: Any, known_classes: set[str]) -> _ExtraRule:
    if not (isinstance(rule, list) and len(rule) == 3 and all(isinstance(part, str) for part in rule)):
        raise ValueError(f"expected {_LAYOUT}, found {rule!r}")
    cls, kind, pattern = rule
    if cls not in known_classes:
        near = difflib.get_close_matches(cls, known_classes, n=1, cutoff=_NEAR)
        if near:
            raise ValueError(f"class {cls!r} is not known, did you mean {near[0]!r}? A new class must be less like it")
        _check_word("class", cls)
    _check_word("kind", kind)
    try:
        compiled = re.compile(pattern, re.IGNORECASE)
    except re.error as error:
        raise ValueError(f"pattern {pattern!r} is not a regular expression: {error}") from None
    if compiled.search(""):
        raise ValueError(f"pattern {pattern!r} matches every name; name what it is to match")
    return _ExtraRule(Kernel(cls, kind), compiled)


def _check_word(what: str, word: str) -> None:
    if not re.fullmatch(r"[a-z_]+", word):
        raise ValueError(f"{what} {word!r}: expected lower-case letters and underscores")
