"""Source files behind a module: the Python files, C extensions and data files of this package that it depends on.

Rules take a digest of these files as a parameter, so that a stage runs again when its code changes. Imports are found
by regular expressions, because parsing the whole package takes a second.
"""

import os
import re
from functools import cache
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

PACKAGE = Path(__file__).parent
_ROOT_MODULE = __package__
_DATA_SUFFIXES = (".yaml", ".html")

# Both patterns begin with a fixed character, for which Python searches faster than for a class of characters.
_IMPORT = re.compile(
    rf"\n[ \t]*(?:from[ \t]+({_ROOT_MODULE}[\w.]*)[ \t]+import[ \t]+(?:\(([^)]*)\)|([^\n]*))"
    rf"|import[ \t]+({_ROOT_MODULE}[\w.]*))"
)
"""An import of this package. Groups: module, names in parentheses, names on the line; or module alone."""
_DATA_NAME_END = re.compile(r"""\.(?:yaml|html)["']""")
"""End of a string that names a data file."""


def source_files(module: str) -> frozenset[Path]:
    """Return the files behind a module: its own, those of all modules of the package it imports, and their data.

    Args:
        module: Dotted name, such as `triplepoint.cli.trace`. Imports inside functions count.
    """
    files: dict[str, frozenset[Path]] = {}
    waiting = [module]
    while waiting:
        name = waiting.pop()
        if name in files:
            continue
        path = _python_file(name)
        if path is None:
            files[name] = _extension_files(name)
        else:
            imports, data = imports_and_data(path)
            files[name] = frozenset([path, *data])
            waiting.extend(imports)
    return frozenset().union(*files.values())


@cache
def _python_file(module: str) -> Path | None:
    """Return the file of a module or package in Python; None for any other name."""
    path = f"{PACKAGE.parent}/{module.replace('.', '/')}"
    return next((Path(file) for file in (f"{path}.py", f"{path}/__init__.py") if file in _python_files()), None)


@cache
def _python_files() -> frozenset[str]:
    """Return all modules and stubs of this package. One listing is faster than a check of each candidate."""
    return frozenset(
        f"{folder}/{name}" for folder, _, names in os.walk(PACKAGE) for name in names if name.endswith((".py", ".pyi"))
    )


@cache
def _extension_files(module: str) -> frozenset[Path]:
    """Return the built library of a C extension and its sources, in a folder of the same name without underscore.

    Returns:
        The files; empty if the name has no stub, so is no extension but for example a function.
    """
    if f"{PACKAGE.parent}/{module.replace('.', '/')}.pyi" not in _python_files():
        return frozenset()
    path = PACKAGE.joinpath(*module.split(".")[1:])
    built = [path.with_name(path.name + suffix) for suffix in EXTENSION_SUFFIXES]
    return frozenset([*filter(Path.is_file, built), *path.with_name(path.name.removeprefix("_")).glob("*.[ch]")])


@cache
def imports_and_data(path: Path) -> tuple[tuple[str, ...], tuple[Path, ...]]:
    """Return what a Python file depends on directly.

    Returns:
        Names of this package that it imports anywhere, and data files beside it that its strings name.
    """
    text = path.read_text(encoding="utf-8")
    imports: list[str] = []
    for module, in_parentheses, on_line, alone in _IMPORT.findall(f"\n{text}"):
        names = re.sub(r"#[^\n]*", "", in_parentheses or on_line).split(",")
        imports += [alone or module, *(f"{module}.{name.split()[0]}" for name in names if name.strip())]
    data: list[Path] = []
    for end in _DATA_NAME_END.finditer(text):
        begin = max(text.rfind(mark, 0, end.start()) for mark in "\"'\n") + 1
        name = text[begin : end.end() - 1].rpartition("}")[2]
        # A suffix alone is the end of an f-string such as f"{name}.yaml", which may mean any file with this suffix.
        data += filter(Path.is_file, path.parent.glob(f"*{name}") if name in _DATA_SUFFIXES else [path.parent / name])
    return tuple(name for name in imports if name.startswith(f"{_ROOT_MODULE}.")), tuple(data)
