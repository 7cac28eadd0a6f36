"""The layers of the package: imports point one way, and start-up stays cheap."""

import ast
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

import triplepoint

PACKAGE = Path(triplepoint.__file__).parent

LAYERS = [
    {"units", "errors", "status", "provenance", "text"},
    {"ask_forks", "files"},
    {"processes", "prices", "forks", "redact"},
    {"config", "claims", "node_clock"},
    {"tables"},
    {"manifest", "recording", "power_sensor"},
    {"metrics", "slow_nodes", "swings"},
    {"flops", "source_files"},
    {"launch", "telemetry", "trace", "simulate"},
    {"published", "verdicts", "ranking", "effects", "recorded"},
    {"doctor", "plan", "plan_cost", "aggregate", "calibrate", "importers"},
    {"figures", "predictions", "budget"},
    {"compare"},
    {"why"},
    {"whatif", "exports", "advise"},
    {"report"},
    {"workflow", "workflow_site", "cli", "library"},
    {"__main__"},
]
"""From the ground up: a module imports from its own part or from a layer below, never from beside or above."""


def layer_of(part: str) -> int:
    for index, layer in enumerate(LAYERS):
        if part in layer:
            return index
    raise AssertionError(f"triplepoint.{part} is in no layer; add it to LAYERS where it belongs")


@cache
def imported(path: Path) -> list[tuple[str, tuple[str, ...]]]:
    """Return each import of a file: the module and the names from it, none where the module itself is imported."""
    found = list[tuple[str, tuple[str, ...]]]()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found.append((node.module, tuple(alias.name for alias in node.names)))
        elif isinstance(node, ast.Import):
            found += [(alias.name, ()) for alias in node.names]
    return found


def parts_imported(path: Path) -> set[str]:
    dotted = {f"{module}.{name}" if name else module for module, names in imported(path) for name in names or ("",)}
    parts = {name.split(".")[1] for name in dotted if name.startswith("triplepoint.")}
    return {part for part in parts if (PACKAGE / f"{part}.py").exists() or (PACKAGE / part).is_dir()}


@pytest.mark.parametrize("path", sorted(PACKAGE.rglob("*.py")), ids=lambda p: str(p.relative_to(PACKAGE)))
def test_imports_point_one_way(path: Path) -> None:
    own = path.relative_to(PACKAGE).parts[0].removesuffix(".py")
    if own == "__init__":
        assert parts_imported(path) == set()
        return
    for part in parts_imported(path) - {own}:
        assert layer_of(part) < layer_of(own), f"{path.name} imports triplepoint.{part}, which is not below it"


def test_only_predict_and_fitting_know_published_tables() -> None:
    knowing = {path.relative_to(PACKAGE).parts for path in PACKAGE.rglob("*.py") if "published" in parts_imported(path)}
    assert {parts if parts[0] == "cli" else parts[:1] for parts in knowing} == {
        ("published",),
        ("calibrate",),
        ("cli", "predict.py"),
    }


def modules_imported(path: Path, known: set[str]) -> set[str]:
    """Modules of the package a file imports: anywhere in it, for types only as well."""
    found = set()
    for module, names in imported(path):
        deeper = {f"{module}.{name}" for name in names}
        found |= (deeper & known) | ({module} if deeper - known or not names else set())
    return found & known


def circles(graph: dict[str, set[str]]) -> list[set[str]]:
    """Largest sets of nodes each of which leads to all others, those of one node left out."""
    reached: dict[str, set[str]] = {}
    for start in graph:
        reached[start], waiting = set(), [start]
        while waiting:
            new = graph[waiting.pop()] - reached[start]
            reached[start] |= new
            waiting += new
    found = {frozenset(other for other in reached[node] if node in reached[other]) for node in graph}
    return [set(circle) for circle in found if len(circle) > 1]


def test_circles_by_hand() -> None:
    graph = {"a": {"b"}, "b": {"c"}, "c": {"b", "d"}, "d": set(), "e": {"e"}}
    assert circles(graph) == [{"b", "c"}]


def test_modules_import_in_no_circle() -> None:
    files = {
        ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts).removesuffix(".__init__"): path
        for path in PACKAGE.rglob("*.py")
    }
    graph = {module: modules_imported(path, set(files)) - {module} for module, path in files.items()}
    found = [{module.removeprefix("triplepoint.") for module in circle} for circle in circles(graph)]
    assert not found, "modules import one another: move what both need into one of them, or below"


@pytest.mark.parametrize(
    ("module", "heavy"),
    [
        ("triplepoint", {"torch", "numpy", "pyarrow", "pydantic", "pandas", "matplotlib", "submitit", "yaml"}),
        ("triplepoint.cli", {"torch", "numpy", "pyarrow", "pydantic", "pandas", "matplotlib", "submitit", "yaml"}),
        ("triplepoint.cli.launch", {"torch", "pandas", "matplotlib"}),
        ("triplepoint.plan", {"torch", "pandas", "matplotlib", "pyarrow"}),
        ("triplepoint.telemetry.align", {"torch", "pandas", "matplotlib"}),
        ("triplepoint.telemetry.sampler", {"torch", "pandas", "matplotlib", "pydantic", "scipy"}),
        ("triplepoint.doctor.probe", {"torch", "pandas", "matplotlib", "submitit"}),
        ("triplepoint.launch.launch_run", {"torch", "pandas", "matplotlib", "submitit", "psutil"}),
        ("triplepoint.launch.rank", {"torch", "numpy", "pyarrow", "pandas", "submitit", "psutil"}),
        ("triplepoint.aggregate", {"torch", "pandas", "matplotlib"}),
        ("triplepoint.workflow", {"torch", "pandas", "matplotlib"}),
        ("triplepoint.figures.write", {"torch"}),
    ],
)
def test_importing_module_leaves_heavy_packages_alone(module: str, heavy: set[str]) -> None:
    code = f"import sys, {module}; print(' '.join(sorted({{m.split('.')[0] for m in sys.modules}} & {heavy!r})))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""
