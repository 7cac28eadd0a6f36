"""The class and kind of a kernel or operator by its name, and the kind of a collective by what it was called with.

The rules are data: `default.yaml` and, for comparison, the mappings of others in `paper.yaml` and `hta.yaml`. The first
rule that matches decides. Hundreds of patterns against a name would cost more than reading a small trace, so a pattern
is split into its alternatives (`layer_?norm|ln_fwd`), each is indexed by three letters that must stand in the name,
most are plain words, and only the few expressions a name comes near are compiled.

A kernel of PyTorch or CUTLASS is a template: `vectorized_elementwise_kernel<4, FillFunctor<float>, ...>(int, ...)`. The
function's name stands before the first bracket; the rules are searched in it first, then in the whole. Names of ROCm
may come mangled (`_ZN7ck_tile6kentryI...`); their identifiers are read off, which is enough to recognise them.
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
"""Template names run to thousands of characters; what the kernel does stands at the start, argument types follow.

Of 1,900 names recorded or labelled none changes its class down to 200.
"""

_MANGLED = re.compile(r"L[a-z]n?\d+E|S[0-9A-Z]*_|DF\d+[b_]|T\d*_|(\d+)")
"""A step through a mangled name; digits of literals, substitutions, short floats and parameters are no length."""


class Kernel(NamedTuple):
    """What a kernel is: `cls` as gemm, attention, comm; `kind` within it as grouped, forward, all_reduce."""

    cls: str
    kind: str

    @property
    def category(self) -> str:
        """Return compute, comm or memory. A class a user adds is computation."""
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
"""In this order: NCCL's barrier is annotated `nccl:all_reduce_barrier`, and `reduce` stands within other names."""

POINT_TO_POINT: Final = ("send", "recv", "send_recv")
"""Kinds between two ranks."""


def is_of_pipeline(kind: str, group: str | None) -> bool:
    """Return whether waiting in communication is a pipeline bubble: for another stage, not for a straggler.

    Args:
        kind: all_reduce, recv, ...
        group: Role of the process group (tp, pp, dp, ...); None where not known: then messages are the pipeline's.
    """
    return group == "pp" or (group is None and kind in POINT_TO_POINT)


@cache
def collective_kind(name: str) -> str | None:
    """Return the kind a collective's own name states, None if it names none (`nccl:coalesced`).

    Args:
        name: As in `Collective name`, `nccl:all_reduce`, `nccl:send 0->1`, `c10d::_allgather_base_`.
    """
    lowered = name.lower()
    return next((kind for pattern, kind in _KINDS if re.search(pattern, lowered)), None)


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


class Parts(NamedTuple):
    """A kernel's name in lower case, without return type, anonymous namespaces and namespaces of PyTorch's own.

    Attributes:
        own: The function, `vectorized_elementwise_kernel`.
        whole: The function with what it is called with.
    """

    own: str
    whole: str


def split(name: str) -> Parts:
    """Return the parts of a kernel's name."""
    if name.startswith("_Z"):
        return _split_mangled(name[:_READ_CHARACTERS])
    text = name[:_READ_CHARACTERS].removesuffix(".kd")
    if text.startswith("std::enable_if<"):
        # A return type that computes itself; the function follows it.
        text = text.partition(">::type ")[2] or text
    for noise in ("(anonymous namespace)::", "<unnamed>::", "at::native::"):
        text = text.replace(noise, "")
    text = text.removeprefix("void ").lower()
    return Parts(re.split(r"[<(]", text, maxsplit=1)[0], text)


def _split_mangled(name: str) -> Parts:
    own: list[str] = []
    others: list[str] = []
    at = end = 3 if name.startswith("_ZN") else 2
    while found := _MANGLED.search(name, at):
        at = found.end()
        if found[1]:
            at += int(found[1])
            # Identifiers that follow one another without a gap are the function; then its template arguments begin.
            part_of = own if not others and found.start() == end else others
            part_of.append(name[found.end() : at].lower())
            end = at
    own = [word for word in own if not word.startswith("_global__n")]
    return Parts("::".join(own), " ".join(own + others))


SCHEMES: Final = ("default", "paper", "hta")


class Scheme:
    """Tells what kernels and operators are by their names, each name looked up once.

    A scheme travels to another process as its name and the user's file, and is read again there.
    """

    def __init__(self, name: str, extra: Path | None) -> None:
        self._read_from = (name, extra)
        self._rules = read_builtin(name)
        self._extra = read_extra(extra, self._rules.classes) if extra else ExtraRules()
        self._launchers = re.compile(self._rules.launchers)
        self._device_table = Table(self._rules.device)
        self._device: dict[str, Kernel] = {}
        self._host: dict[str, Kernel] = {}

    def __reduce__(self) -> tuple[object, tuple[str, Path | None]]:
        """Travel as what it was read from."""
        return load_scheme, self._read_from

    def device(self, name: str) -> Kernel:
        """Return what a GPU kernel, copy or fill is."""
        if name not in self._device:
            found = self._extra.first("device", name)
            texts = () if found else self._texts(name)
            self._device[name] = found or next(filter(None, map(self._device_table.first, texts)), OTHER)
        return self._device[name]

    def host(self, name: str) -> Kernel:
        """Return what an operator or a communication annotation on the CPU is."""
        if name not in self._host:
            self._host[name] = self._extra.first("host", name) or self._host_table.first(name.lower()) or OTHER
        return self._host[name]

    @cached_property
    def _host_table(self) -> Table:
        # Few traces are of a CPU alone: read when first asked.
        return Table(self._rules.host or read_builtin("default").host)

    def _texts(self, name: str) -> tuple[str, ...]:
        """Return what of a kernel's name to search, one after the other."""
        if self._rules.names == "as_they_stand":
            return (name,)
        if self._rules.names == "lower_case":
            return (name.lower(),)
        own, whole = split(name)
        return (whole,) if self._launchers.search(own) else (own, whole)


@cache
def load_scheme(name: str = "default", extra: Path | None = None) -> Scheme:
    """Return a scheme.

    Raises:
        UserError: If there is no such scheme, or the file cannot be read or holds a rule that is not one.
    """
    if name not in SCHEMES:
        raise UserError(f"unknown scheme of kernel classes {name!r}{nearest(name, SCHEMES)}")
    return Scheme(name, extra)
