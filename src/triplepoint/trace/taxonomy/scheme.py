"""Schemes: ordered rules that turn the names of kernels and operators into classes.

A kernel of PyTorch or CUTLASS is a template: `vectorized_elementwise_kernel<4, FillFunctor<float>, ...>(int, ...)`. The
function's name stands before the first bracket; the rules are searched in it first, then in the whole. Names of ROCm
may come mangled (`_ZN7ck_tile6kentryI...`); their identifiers are read off, which is enough to recognise them.
"""

import re
from functools import cache, cached_property
from pathlib import Path
from typing import Final, NamedTuple

from triplepoint.errors import UserError, nearest
from triplepoint.trace.taxonomy.classes import OTHER, Kernel
from triplepoint.trace.taxonomy.rules import ExtraRules, Table, read_builtin, read_extra

_READ_CHARACTERS = 320
"""Template names run to thousands of characters; what the kernel does stands at the start, argument types follow.

Of 1,900 names recorded or labelled none changes its class down to 200.
"""

_MANGLED = re.compile(r"L[a-z]n?\d+E|S[0-9A-Z]*_|DF\d+[b_]|T\d*_|(\d+)")
"""A step through a mangled name; digits of literals, substitutions, short floats and parameters are no length."""


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

    Args:
        name: One of `SCHEMES`.
        extra: YAML file of rules that stand before the scheme's own.

    Raises:
        UserError: If there is no such scheme, or the file cannot be read or holds a rule that is not one.
    """
    if name not in SCHEMES:
        raise UserError(f"no scheme of kernel classes is called {name!r}{nearest(name, SCHEMES)}")
    return Scheme(name, extra)
