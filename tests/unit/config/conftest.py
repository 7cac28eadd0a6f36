"""A scratch copy of the configuration folder that tests may spoil."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[3]

WriteStudy = Callable[..., Path]


@pytest.fixture
def config_dir(tmp_path: Path) -> Path:
    """The real models, clusters and GPUs, and no study."""
    folder = tmp_path / "config"
    shutil.copytree(REPOSITORY / "config", folder, ignore=shutil.ignore_patterns("studies"))
    (folder / "studies").mkdir()
    return folder


@pytest.fixture
def write_study(config_dir: Path) -> WriteStudy:
    """Write a study whose sweeps are given as YAML, over small defaults."""

    def write(sweeps: str, name: str = "test", defaults: str = "global_batch_size: 8") -> Path:
        path = config_dir / "studies" / f"{name}.yaml"
        common = "model: tiny-llama, cluster: cpu-local, engine: simulated, num_gpus: 4"
        path.write_text(f"description: made for a test\ndefaults: {{{common}, {defaults}}}\nsweeps:\n{sweeps}\n")
        return path

    return write
