"""Triplepoint: what a distributed LLM training run costs in time, power and heat, and why."""

import sys
from importlib import import_module
from types import ModuleType

__version__ = "0.1.0"

MEASUREMENT_VERSION = 1
"""Version of the measuring method. It is part of every point, so raising it launches all measurements again."""


_LIBRARY = {
    "predict": "triplepoint.predictions",
    "load": "triplepoint.library",
    "record": "triplepoint.recorded.in_loop",
    "trace": "triplepoint.trace",
    "simulate": "triplepoint.simulate",
    "UserError": "triplepoint.errors",
}
"""Public names of the library, with the module of each; `trace` and `simulate` are packages that can be called."""


def __getattr__(name: str) -> object:
    """Import a public name of the library at its first use, so that commands start without it."""
    if name not in _LIBRARY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = import_module(_LIBRARY[name])
    return module if module.__name__ == f"{__name__}.{name}" else getattr(module, name)


def __dir__() -> list[str]:
    """Return the public names, imported or not, without what this module itself imports."""
    return sorted({"MEASUREMENT_VERSION", "__version__", *_LIBRARY})


class _CallablePackage(ModuleType):
    """A package that can be called like a function: `triplepoint.trace(files)`."""

    def __call__(self, *arguments: object, **options: object) -> object:
        """Call the function of `triplepoint.library` with the name of the package."""
        function = getattr(import_module("triplepoint.library"), self.__name__.rpartition(".")[2])
        return function(*arguments, **options)


def make_callable(package: str) -> None:
    """Make a subpackage callable. Importing it binds its name here, which hides the function of the same name."""
    sys.modules[package].__class__ = _CallablePackage
