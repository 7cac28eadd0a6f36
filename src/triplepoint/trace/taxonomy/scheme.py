"""Schemes: ordered tables of rules that turn names into classes; the first rule that matches decides."""

import re
from functools import cache, cached_property
from pathlib import Path
from typing import Final

from triplepoint.errors import UserError, nearest
from triplepoint.trace.taxonomy.kernel import OTHER, Kernel
from triplepoint.trace.taxonomy.names import split
from triplepoint.trace.taxonomy.rules import ExtraRules, read_builtin, read_extra
from triplepoint.trace.taxonomy.table import Table

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
