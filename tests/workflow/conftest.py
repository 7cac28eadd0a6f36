"""A small project that has run once, and Snakemake calls on copies of it."""

import os
import re
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.commands import shell_function, triplepoint
from tests.workflow.forked import call_snakemake

ROOT = Path(__file__).parents[2]
PARTS = ("Snakefile", "rules", "workflow", "profiles", "config", "envs", "src")
PROFILES = ("ci", "local", "slurm-h200", "slurm-h100", "slurm-mi250")

STUDY = """\
description: Two runs and an invalid point, for the tests of the workflow.
# Of those that fit it one of every run, and one of traces: each costs seconds whenever it is drawn again.
figures: [microbatch_power, timeline]
defaults:
  cluster: cpu-local
  engine: native
  model: test-llama
  num_gpus: 2
  global_batch_size: 4
  precision: fp32
  telemetry_period_s: 0.05
  steps: {warmup: 1, measured: 3, profiled: 1}
sweeps:
  - axes:
      micro_batch_size: [1, 2, 4]
"""

MODEL = """\
name: test-llama
source: made for the tests
num_layers: 2
hidden_size: 32
ffn_hidden_size: 64
num_attention_heads: 4
num_query_groups: 2
vocab_size: 256
sequence_length: 32
activation: swiglu
normalization: rmsnorm
position_embedding: rope
"""


@dataclass(frozen=True)
class Outcome:
    """One Snakemake call: `jobs` are (rule, wildcard values) pairs in the order they were started or planned."""

    status: int
    output: str

    @property
    def jobs(self) -> list[tuple[str, str]]:
        blocks = re.findall(r"^(?:local)?rule (\w+):\n((?:    .*\n)*)", self.output, re.MULTILINE)
        wildcards = [(rule, "".join(re.findall(r"wildcards: (.*)", body))) for rule, body in blocks]
        return [(rule, " ".join(re.findall(r"\w+=([^,]+)", found))) for rule, found in wildcards]

    def of(self, rule: str) -> list[str]:
        return [value for name, value in self.jobs if name == rule]

    @property
    def rules(self) -> set[str]:
        return {name for name, _ in self.jobs} - {"all"}


@dataclass(frozen=True)
class Project:
    """A copy of the project in a folder of its own."""

    folder: Path

    def environment(self) -> dict[str, str]:
        # Jobs are read from Snakemake's own text.
        style = {"SNAKEMAKE_LOGGER_TRIPLEPOINT_STYLE": "jobs"}
        return os.environ | {"PYTHONPATH": str(self.folder / "src"), "PYTHONDONTWRITEBYTECODE": "1"} | style

    def command(self, *arguments: str) -> list[str]:
        return [sys.executable, "-m", "snakemake", *arguments]

    def snakemake(self, *arguments: str, tells_cost: bool = False) -> Outcome:
        """Call Snakemake; a dry run works out what lies ahead, for a second of CPU, only if it `tells_cost`."""
        environment = self.environment() | (shell_function() if self.is_copy() else {})
        with tempfile.NamedTemporaryFile() as log:
            status = call_snakemake(arguments, self.folder, environment, Path(log.name), tells_cost)
            return Outcome(status, Path(log.name).read_text())

    def is_copy(self) -> bool:
        """Return whether the package in the folder is that of the repository still, so that either may be called."""
        return all(
            file.stat().st_mtime_ns == (ROOT / file.relative_to(self.folder)).stat().st_mtime_ns
            for file in self.folder.glob("src/**/*.py")
        )

    def triplepoint(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        assert self.is_copy()
        return triplepoint(self.folder, *arguments, environment=self.environment())

    def edit(self, path: str, old: str, new: str) -> None:
        file = self.folder / path
        text = file.read_text()
        assert old in text, f"{path} has no {old!r}"
        file.write_text(text.replace(old, new, 1))

    def manifests(self) -> dict[str, str]:
        """Every run's manifest; it says when the run was launched, so an equal one means the same launch."""
        paths = self.folder.glob("results/runs/*/raw/manifest.json")
        return {path.parents[1].name: path.read_text() for path in paths}


UP_TO_TABLES = ("all", "--until", "aggregate")
"""Everything but what is drawn and written of the tables, which takes as long as the rest."""


def make_project(folder: Path) -> Project:
    """Copy the workflow to `folder`, with one small study and the model it needs."""
    folder.mkdir()
    for part in PARTS:
        source = ROOT / part
        if source.is_dir():
            # With byte code, where it is there: else each of a thousand processes would compile anew.
            ignore = shutil.ignore_patterns("*.egg-info")
            shutil.copytree(source, folder / part, symlinks=True, ignore=ignore)
        else:
            shutil.copy2(source, folder / part)
    for profile in PROFILES:
        (folder / profile).symlink_to(Path("profiles") / profile)
    for study in folder.glob("config/studies/*.yaml"):
        study.unlink()
    (folder / "config/studies/mini.yaml").write_text(STUDY)
    (folder / "config/models/test-llama.yaml").write_text(MODEL)
    return Project(folder)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give tests of the finished project time to make it, as the first of them does, beside the other lanes."""
    for item in items:
        if "finished" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.timeout(900))


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """A project on which `snakemake all` has run from nothing, with jobs that are started as a user's are."""
    project = make_project(tmp_path_factory.mktemp("finished") / "project")
    command = project.command("all")
    done = subprocess.run(command, cwd=project.folder, env=project.environment(), capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return project


@pytest.fixture
def project(finished: Project, tmp_path: Path) -> Project:
    """A copy of the finished project that the test may change."""
    copy = tmp_path / "project"
    shutil.copytree(finished.folder, copy, symlinks=True)
    return Project(copy)


@pytest.fixture
def fresh(tmp_path: Path) -> Project:
    """A project on which nothing has run."""
    return make_project(tmp_path / "project")
