"""Mark steps in every Python process of a job under `triplepoint record`, which puts this folder first on the path.

Python imports a module of this name when it starts. A `sitecustomize` of the environment is imported after this one.
"""

import importlib.util
import os
import sys
from importlib.machinery import PathFinder
from pathlib import Path


def _load(name: str, path: Path) -> object:
    """Return a module loaded from its file, without its package."""
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


_HERE = Path(__file__).resolve().parent
_OTHERS = [entry for entry in sys.path if Path(entry or ".").resolve() != _HERE]

if _SESSION := os.environ.get("TRIPLEPOINT_RECORD"):
    _load("_triplepoint_marks", _HERE.parent / "marks.py").install(Path(_SESSION))  # type: ignore[attr-defined]

_OWN = PathFinder.find_spec("sitecustomize", _OTHERS)
if _OWN is not None and _OWN.origin:
    _load("_sitecustomize_of_environment", Path(_OWN.origin))
