"""Triplepoint: what a distributed LLM training run costs in time, power and heat, and why."""

import sys
from importlib import import_module
from types import ModuleType

__version__ = "0.1.0"

MEASUREMENT_VERSION = 1
"""Raised whenever the way of measuring changes; part of every point, so what was measured before is launched again."""


_LIBRARY = {
    "predict": "triplepoint.predictions",
    "load": "triplepoint.library",
    "record": "triplepoint.recorded.in_loop",
    "trace": "triplepoint.trace",
    "simulate": "triplepoint.simulate",
    "UserError": "triplepoint.errors",
}
"""What the library offers, by the module it is in; `trace` and `simulate` are packages that can be called."""


def __getattr__(name: str) -> object:
    """Return what the library offers, imported where it is first asked for: commands start without it."""
    if name not in _LIBRARY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = import_module(_LIBRARY[name])
    return module if module.__name__ == f"{__name__}.{name}" else getattr(module, name)


def __dir__() -> list[str]:
    """Return the names of the library, imported or not, without what this module needs itself."""
    return sorted({"MEASUREMENT_VERSION", "__version__", *_LIBRARY})


class _CallablePackage(ModuleType):
    """A package whose name is also a function of the library: `triplepoint.trace(files)`."""

    def __call__(self, *arguments: object, **options: object) -> object:
        """Call the function of the library that has the name of the package."""
        function = getattr(import_module("triplepoint.library"), self.__name__.rpartition(".")[2])
        return function(*arguments, **options)


def make_callable(package: str) -> None:
    """Make a package of this one the function of the library of its name, too: importing it sets the name to it."""
    sys.modules[package].__class__ = _CallablePackage
