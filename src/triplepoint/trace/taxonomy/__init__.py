"""Taxonomy of kernels and operators: their class and kind by name, and the kind of a collective.

The rules are data: `default.yaml`, and the mappings of others in `paper.yaml` and `hta.yaml` for comparison. The first
rule that matches decides. Matching hundreds of patterns against a name would cost more than reading a small trace.
So each pattern is split into its alternatives (`layer_?norm|ln_fwd`), and each alternative is indexed by three letters
that every matching name contains. Most alternatives are plain words. Of the regular expressions, only those whose
letters occur in a name are compiled.

A kernel of PyTorch or CUTLASS is a template: `vectorized_elementwise_kernel<4, FillFunctor<float>, ...>(int, ...)`. The
function's name stands before the first bracket. The rules are applied to it first, then to the whole name. Names of
ROCm kernels can be mangled (`_ZN7ck_tile6kentryI...`); then the rules are applied to the identifiers in them.
"""

import difflib
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache, cached_property
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple

import yaml

from triplepoint.errors import UserError, nearest

CATEGORIES: Final = ("compute", "comm", "memory")

_NOT_COMPUTE: Final = {
    "comm": "comm",
    "communication": "comm",
    "AllReduce": "comm",
    "AllGather": "comm",
    "ReduceScatter": "comm",
    "SendRecv": "comm",
    "memory": "memory",
    "neither": "memory",
}
"""Classes of the built-in schemes that are not computation."""
_KEY_LETTERS = 3

_TOKEN = re.compile(r"\\.|\[[^\]]*\]|\{[^}]*\}|.")
_PLAIN = re.compile(r"[\w: ]")
_READ_CHARACTERS = 320
"""Number of characters of a name that are read.

Names of templates have up to thousands of characters. The operation stands at the start, argument types follow.
None of 1,900 recorded or labelled names changes its class when 200 characters or more are read.
"""

_MANGLED = re.compile(r"L[a-z]n?\d+E|S[0-9A-Z]*_|DF\d+[b_]|T\d*_|(\d+)")
"""Next token of a mangled name that contains digits.

Only the last group is the length of an identifier. Digits of literals, substitutions, short floats and parameters are
not.
"""


class Kernel(NamedTuple):
    """Class and kind of a kernel or operator.

    Attributes:
        cls: Class, such as gemm, attention or comm.
        kind: Kind within the class, such as grouped, forward or all_reduce.
    """

    cls: str
    kind: str

    @property
    def category(self) -> str:
        """Return compute, comm or memory. A class that a user adds is compute."""
        return _NOT_COMPUTE.get(self.cls, "compute")


OTHER: Final = Kernel("other", "unknown")


_KINDS: Final = (
    (r"barrier", "barrier"),
    (r"reduce_?scatter", "reduce_scatter"),
    (r"all_?reduce", "all_reduce"),
    (r"all_?gather", "all_gather"),
    (r"all_?to_?all", "all_to_all"),
    (r"broadcast", "broadcast"),
    (r"send_?recv|point_?to_?point|isend_irecv", "send_recv"),
    (r"send", "send"),
    (r"recv", "recv"),
    (r"reduce", "reduce"),
    (r"gather", "gather"),
    (r"scatter", "scatter"),
)
"""Patterns and kinds in order: NCCL's barrier is `nccl:all_reduce_barrier`, and other names contain `reduce`."""

POINT_TO_POINT: Final = ("send", "recv", "send_recv")
"""Kinds of communication between two ranks."""


def is_of_pipeline(kind: str, group: str | None) -> bool:
    """Return whether a wait in communication is a pipeline bubble: a wait for another stage, not for a straggler.

    Args:
        kind: Kind of communication, such as all_reduce or recv.
        group: Role of the process group (tp, pp, dp, ...). If None (unknown), point-to-point messages count as the
            pipeline's.
    """
    return group == "pp" or (group is None and kind in POINT_TO_POINT)


@cache
def collective_kind(name: str) -> str | None:
    """Return the kind that the name of a collective states, None if it states none (`nccl:coalesced`).

    Args:
        name: A name such as `nccl:all_reduce`, `nccl:send 0->1`, `c10d::_allgather_base_`, or the value of
            `Collective name` in a trace.
    """
    lowered = name.lower()
    return next((kind for pattern, kind in _KINDS if re.search(pattern, lowered)), None)


class _Alternative(NamedTuple):
    """One alternative in the pattern of a rule.

    Attributes:
        rule: Position of the rule.
        word: Plain word that every text that `pattern` matches contains.
        pattern: Regular expression of the alternative; the word itself if it is plain.
    """

    rule: int
    word: str
    pattern: str


class RuleTable:
    """Ordered rules, indexed by letters of their patterns.

    Attributes:
        kernels: Class and kind of each rule, in order.
    """

    def __init__(self, rules: list[tuple[str, str, str]]) -> None:
        """Index rules.

        Args:
            rules: Class, kind and pattern of each rule, in order. A pattern has no inline flags.
        """
        self.kernels = [Kernel(cls, kind) for cls, kind, _ in rules]
        self._by_key: dict[str, list[_Alternative]] = {}
        # Alternatives whose word has fewer letters than a key.
        self._wordless: list[_Alternative] = []
        for number, (_, _, pattern) in enumerate(rules):
            for word, alternative in split_alternatives(pattern):
                key = word[:_KEY_LETTERS]
                alternatives = self._by_key.setdefault(key, []) if len(key) == _KEY_LETTERS else self._wordless
                alternatives.append(_Alternative(number, word, alternative))

    def first(self, text: str) -> Kernel | None:
        """Return class and kind by the first rule that matches anywhere in the text, None if none matches."""
        candidates = set(self._wordless)
        for start in range(len(text) - _KEY_LETTERS + 1):
            candidates.update(self._by_key.get(text[start : start + _KEY_LETTERS], ()))
        for rule, word, pattern in sorted(candidates):
            if word in text and (word == pattern or _compiled(pattern).search(text)):
                return self.kernels[rule]
        return None


@cache
def _compiled(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern)


def split_alternatives(pattern: str) -> Iterator[tuple[str, str]]:
    """Yield the alternatives of a pattern: the longest plain word that each requires, and its expression."""
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
_MISSPELT_LIKENESS: Final = 0.8
"""Likeness to a known class from which a new class counts as misspelt: `norms` for `norm` does, `softmax_topk` not."""


@dataclass(frozen=True)
class BuiltinRules:
    """Rules of a built-in scheme. Each is a class, a kind and a pattern.

    Attributes:
        names: Form of a kernel's name that patterns are applied to: its parts (see `split_name`), the whole name in
            lower case, or the whole name unchanged.
        device: Rules for GPU kernels, copies and fills, in order.
        host: Rules for operators and communication annotations on the CPU, in order, for names in lower case. If
            empty, those of `default` apply.
        launchers: Pattern of templates that run the function they are called with, so that their name says nothing.
    """

    names: Literal["parts", "lower_case", "as_they_stand"]
    device: list[tuple[str, str, str]]
    host: list[tuple[str, str, str]] = field(default_factory=list)
    launchers: str = ""

    @property
    def classes(self) -> set[str]:
        """Return the classes of all rules."""
        return {cls for cls, _, _ in self.device + self.host}


class _ExtraRule(NamedTuple):
    kernel: Kernel
    pattern: re.Pattern[str]


@dataclass(frozen=True)
class ExtraRules:
    """Rules that a user adds, by table (device, host), in order."""

    tables: dict[str, list[_ExtraRule]] = field(default_factory=dict)

    def first(self, table: Literal["device", "host"], name: str) -> Kernel | None:
        """Return class and kind by the first rule that matches a name, None if none matches."""
        return next((rule.kernel for rule in self.tables.get(table, ()) if rule.pattern.search(name)), None)


def read_builtin(scheme: str) -> BuiltinRules:
    """Return the rules of a built-in scheme."""
    text = Path(__file__).with_name(f"{scheme}.yaml").read_text(encoding="utf-8")
    return BuiltinRules(**yaml.load(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader)))


def read_extra(path: Path, known_classes: set[str]) -> ExtraRules:
    """Return the rules that a user adds.

    Args:
        path: A YAML file with keys `device` and `host`, each a list of `[class, kind, 'pattern']`. Patterns ignore
            case and are searched in the name as in the trace.
        known_classes: Classes of the scheme that the rules are added to. A class that is nearly one of them is
            refused as misspelt.

    Raises:
        UserError: If the file is missing or has another layout.
    """
    # This module imports pydantic, which takes longer to import than the rest of the command. Few users add rules.
    from triplepoint.config.yaml_file import read_yaml

    tables = read_yaml(path)
    for table in tables:
        if table not in _TABLES:
            raise UserError(f"{path}: unknown key {table!r}{nearest(str(table), _TABLES)}")
    return ExtraRules({table: _parse_table(path, table, rules, known_classes) for table, rules in tables.items()})


def _parse_table(path: Path, table: str, rules: Any, known_classes: set[str]) -> list[_ExtraRule]:
    if not isinstance(rules, list):
        raise UserError(f"{path}: {table}: expected a list of rules {_LAYOUT}, found {type(rules).__name__}")
    parsed = []
    for number, rule in enumerate(rules, 1):
        try:
            parsed.append(_parse_rule(rule, known_classes))
        except ValueError as error:
            raise UserError(f"{path}: {table}, rule {number}: {error}") from None
    return parsed


def _parse_rule(rule: Any, known_classes: set[str]) -> _ExtraRule:
    if not (isinstance(rule, list) and len(rule) == 3 and all(isinstance(part, str) for part in rule)):
        raise ValueError(f"expected {_LAYOUT}, found {rule!r}")
    cls, kind, pattern = rule
    if cls not in known_classes:
        near = difflib.get_close_matches(cls, known_classes, n=1, cutoff=_MISSPELT_LIKENESS)
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


class NameParts(NamedTuple):
    """A kernel's name in lower case, without return type, anonymous namespaces and PyTorch's `at::native`.

    Attributes:
        function: Name of the function, such as `vectorized_elementwise_kernel`.
        whole: Name of the function with template arguments and parameters.
    """

    function: str
    whole: str


def split_name(name: str) -> NameParts:
    """Return the parts of a kernel's name."""
    if name.startswith("_Z"):
        return _split_mangled(name[:_READ_CHARACTERS])
    text = name[:_READ_CHARACTERS].removesuffix(".kd")
    if text.startswith("std::enable_if<"):
        # A return type that is a template; the function follows it.
        text = text.partition(">::type ")[2] or text
    for noise in ("(anonymous namespace)::", "<unnamed>::", "at::native::"):
        text = text.replace(noise, "")
    text = text.removeprefix("void ").lower()
    return NameParts(re.split(r"[<(]", text, maxsplit=1)[0], text)


def _split_mangled(name: str) -> NameParts:
    function: list[str] = []
    arguments: list[str] = []
    position = end = 3 if name.startswith("_ZN") else 2
    while token := _MANGLED.search(name, position):
        position = token.end()
        if token[1]:
            position += int(token[1])
            # The first identifiers, without a gap between them, are the function; after a gap come its arguments.
            words = function if not arguments and token.start() == end else arguments
            words.append(name[token.end() : position].lower())
            end = position
    function = [word for word in function if not word.startswith("_global__n")]
    return NameParts("::".join(function), " ".join(function + arguments))


SCHEMES: Final = ("default", "paper", "hta")


class Scheme:
    """Classifier of kernels and operators by their names. Each name is looked up once.

    A scheme is pickled as its name and the user's file, which the other process reads again.
    """

    def __init__(self, name: str, extra: Path | None) -> None:
        """Read the rules.

        Args:
            name: Name of a built-in scheme.
            extra: File of the rules that a user adds, which precede the built-in ones; None if there is none.
        """
        self._read_from = (name, extra)
        self._rules = read_builtin(name)
        self._extra = read_extra(extra, self._rules.classes) if extra else ExtraRules()
        self._launchers = re.compile(self._rules.launchers)
        self._device_table = RuleTable(self._rules.device)
        self._device: dict[str, Kernel] = {}
        self._host: dict[str, Kernel] = {}

    def __reduce__(self) -> tuple[object, tuple[str, Path | None]]:
        """Pickle as the arguments of `load_scheme`."""
        return load_scheme, self._read_from

    def device(self, name: str) -> Kernel:
        """Return class and kind of a GPU kernel, copy or fill."""
        if name not in self._device:
            kernel = self._extra.first("device", name)
            texts = () if kernel else self._texts(name)
            self._device[name] = kernel or next(filter(None, map(self._device_table.first, texts)), OTHER)
        return self._device[name]

    def host(self, name: str) -> Kernel:
        """Return class and kind of an operator or a communication annotation on the CPU."""
        if name not in self._host:
            self._host[name] = self._extra.first("host", name) or self._host_table.first(name.lower()) or OTHER
        return self._host[name]

    @cached_property
    def _host_table(self) -> RuleTable:
        # Built on first use: few traces are of a CPU alone.
        return RuleTable(self._rules.host or read_builtin("default").host)

    def _texts(self, name: str) -> tuple[str, ...]:
        """Return the forms of a kernel's name to match, in order."""
        if self._rules.names == "as_they_stand":
            return (name,)
        if self._rules.names == "lower_case":
            return (name.lower(),)
        function, whole = split_name(name)
        return (whole,) if self._launchers.search(function) else (function, whole)


@cache
def load_scheme(name: str = "default", extra: Path | None = None) -> Scheme:
    """Return a scheme.

    Args:
        name: Name of a built-in scheme.
        extra: File of the rules that a user adds; None if there is none.

    Raises:
        UserError: If the scheme is unknown, or the file cannot be read or holds an invalid rule.
    """
    if name not in SCHEMES:
        raise UserError(f"unknown scheme of kernel classes {name!r}{nearest(name, SCHEMES)}")
    return Scheme(name, extra)
