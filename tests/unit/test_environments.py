"""The environments of compute nodes take the versions that were tested together, and no others."""

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

ENVS = Path("envs")
PIN = re.compile(r"([A-Za-z0-9._-]+)==([^+\s]+)(\+\S+)?")
KINDS = ("cuda", "rocm")


def canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def lines_of(path: Path) -> list[str]:
    lines = [line.partition("#")[0].strip() for line in path.read_text().splitlines()]
    return [line for line in lines if line]


def pins(path: Path) -> dict[str, str]:
    """Version of every package a file pins, its build tag left out."""
    found = [PIN.fullmatch(line) for line in lines_of(path) if not line.startswith("-")]
    assert None not in found, f"{path} names a package without one version"
    return {canonical(match[1]): match[2] for match in found if match}


def environment(kind: str) -> dict[str, Any]:
    content: dict[str, Any] = yaml.safe_load((ENVS / f"launch-{kind}.yaml").read_text())
    return content


CONSTRAINTS = pins(ENVS / "constraints.txt")


@pytest.mark.parametrize("kind", KINDS)
def test_launch_environment_agrees_with_the_constraints(kind: str) -> None:
    found = pins(ENVS / f"launch-{kind}.txt")
    assert {name: version for name, version in found.items() if CONSTRAINTS.get(name) != version} == {}


@pytest.mark.parametrize("kind", KINDS)
def test_launch_environment_has_torch_engines_and_device_library(kind: str) -> None:
    library = {"cuda": "nvidia-ml-py", "rocm": "amdsmi"}[kind]
    assert {"torch", "megatron-core", "deepspeed", "zeus", library} <= set(pins(ENVS / f"launch-{kind}.txt"))


@pytest.mark.parametrize("kind", KINDS)
def test_launch_environment_is_made_from_its_list_with_the_constraints(kind: str) -> None:
    (pip,) = [part["pip"] for part in environment(kind)["dependencies"] if isinstance(part, dict)]
    assert pip == [f"-r launch-{kind}.txt", "-e .."]
    assert "-c constraints.txt" in lines_of(ENVS / f"launch-{kind}.txt")
    recipe = (ENVS / f"launch-{kind}.def").read_text()
    assert f"-r launch-{kind}.txt -c constraints.txt /opt/triplepoint" in recipe


@pytest.mark.parametrize("kind", KINDS)
def test_launch_environment_has_the_python_of_the_project(kind: str) -> None:
    required = tomllib.loads(Path("pyproject.toml").read_text())["project"]["requires-python"].removeprefix(">=")
    assert f"python={required}" in environment(kind)["dependencies"]
    assert f"From: python:{required}-" in (ENVS / f"launch-{kind}.def").read_text()


def test_torch_of_amd_is_built_for_the_rocm_of_its_index() -> None:
    lines = lines_of(ENVS / "launch-rocm.txt")
    (index,) = [line for line in lines if line.startswith("--extra-index-url")]
    (torch,) = [line for line in lines if line.startswith("torch==")]
    assert torch.partition("+")[2] == index.rpartition("/")[2]


def test_constraints_name_each_package_once() -> None:
    names = [canonical(line.partition("==")[0]) for line in lines_of(ENVS / "constraints.txt")]
    assert sorted(names) == sorted(set(names))


def test_dependencies_of_the_project_are_pinned() -> None:
    project = tomllib.loads(Path("pyproject.toml").read_text())["project"]
    needed = [*project["dependencies"], *project["optional-dependencies"]["dev"]]
    named = {canonical(re.split(r"[<>=\[ ]", name)[0]) for name in needed}
    assert named - set(CONSTRAINTS) == set()
