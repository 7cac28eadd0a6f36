"""`triplepoint plan` works on what `config/config.yaml` selects, as Snakemake does; options go before it."""

import shutil
from pathlib import Path

import pytest

from triplepoint.cli import main
from triplepoint.config.plan import read_plan

ROOT = Path(__file__).parents[3]
HERE = """\
description: One point on this machine.
defaults: {cluster: cpu-local, engine: native, model: tiny-llama, num_gpus: 2, global_batch_size: 8}
sweeps: [{}]
"""
THERE = """\
description: One point on a cluster that is simulated, and one on a cluster nobody reaches.
defaults: {engine: megatron, model: llama3-70b, tp: 4, pp: 4, global_batch_size: 128}
sweeps:
  - axes: {cluster: [h200x32, h100x64]}
"""


@pytest.fixture
def config(tmp_path: Path) -> Path:
    folder = tmp_path / "config"
    shutil.copytree(ROOT / "config", folder, ignore=shutil.ignore_patterns("studies"))
    (folder / "studies").mkdir()
    (folder / "studies" / "here.yaml").write_text(HERE)
    (folder / "studies" / "there.yaml").write_text(THERE)
    (folder / "config.yaml").write_text("studies: null\nclusters: [cpu-local]\nsimulated: [h200x32]\n")
    return folder


def planned(config: Path, *words: str) -> set[tuple[str, str]]:
    """Return cluster and engine of each point that `plan --write` writes."""
    results = config.parent / "results"
    assert main(["plan", *words, "--write", "--config", str(config), "--results", str(results)]) == 0
    points = [entry.planned.point for entry in read_plan(results / "plan.json").valid]
    return {(point.cluster.name, point.engine) for point in points}


def test_plan_takes_the_selection_of_the_file(config: Path) -> None:
    assert planned(config) == {("cpu-local", "native"), ("h200x32", "simulated")}
    assert planned(config, "there") == {("h200x32", "simulated")}


def test_plan_takes_the_studies_of_the_file(config: Path) -> None:
    (config / "config.yaml").write_text("studies: [there]\nsimulated: [h200x32, h100x64]\n")
    assert planned(config) == {("h200x32", "simulated"), ("h100x64", "simulated")}
    assert planned(config, "here") == {("cpu-local", "native")}


def test_plan_options_go_before_the_file(config: Path) -> None:
    assert planned(config, "--cluster", "h200x32") == {("h200x32", "megatron")}
    assert planned(config, "--cluster", "cpu-local", "--simulated", "h100x64") == {
        ("cpu-local", "native"),
        ("h100x64", "simulated"),
    }
    assert planned(config, "--simulated", "h100x64") == {("h100x64", "simulated")}
    assert planned(config, "--simulated", "h100x64", "--all-clusters") == {
        ("cpu-local", "native"),
        ("h200x32", "megatron"),
        ("h100x64", "simulated"),
    }
    assert planned(config, "--all-clusters") == {
        ("cpu-local", "native"),
        ("h200x32", "megatron"),
        ("h100x64", "megatron"),
    }


def test_plan_without_the_file_takes_every_point(config: Path) -> None:
    (config / "config.yaml").unlink()
    assert planned(config) == planned(config, "--all-clusters")


def test_plan_shows_simulations_as_what_they_are(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "--summary", "--config", str(config), "--results", str(config.parent)]) == 0
    said = capsys.readouterr().out
    assert "h200x32, simulated: 1 run: 1 missing" in said
    assert "megatron" not in said


@pytest.mark.parametrize(
    ("text", "expected"),
    [("simulatd: [h200x32]", "config.yaml: unknown key 'simulatd' (did you mean 'simulated'?)"), ("[", "config.yaml")],
)
def test_plan_wrong_file_is_one_line(
    config: Path, capsys: pytest.CaptureFixture[str], text: str, expected: str
) -> None:
    (config / "config.yaml").write_text(text)
    assert main(["plan", "--config", str(config)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert expected in line


def test_plan_contradicting_options(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "--cluster", "cpu-local", "--all-clusters", "--config", str(config)]) == 2
    assert "--cluster and --all-clusters contradict each other" in capsys.readouterr().err
