"""The site's file goes over the profile; dry runs, so no Slurm is needed."""

from pathlib import Path
from unittest.mock import Mock

import pytest
from snakemake.resources import Resources  # type: ignore[import-untyped]

from tests.workflow.conftest import Outcome, Project
from triplepoint.workflow_site import apply_site

pytestmark = pytest.mark.workflow


def dry_run(project: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, site: str) -> Outcome:
    project.edit("config/studies/mini.yaml", "cpu-local", "h200x32")
    project.edit("config/studies/mini.yaml", "num_gpus: 2", "num_gpus: 4")
    cluster = "name: h200x32\ndevice: cpu\nnum_nodes: 4\ngpus_per_node: 1\nexecutor: slurm\n"
    (project.folder / "config/clusters/h200x32.yaml").write_text(cluster)
    path = tmp_path / "site.yaml"
    path.write_text(site)
    monkeypatch.setenv("TRIPLEPOINT_SITE", str(path))
    return project.snakemake("--profile", "slurm-h200", "-n", "all")


def test_site_resources_go_over_the_profile(fresh: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    outcome = dry_run(fresh, tmp_path, monkeypatch, "stages: {slurm_partition: cpu, slurm_account: p1}")
    assert outcome.status == 0, outcome.output
    lines = [line for line in outcome.output.splitlines() if "resources:" in line and "runtime" in line]
    assert lines
    assert all("slurm_partition=cpu" in line and "slurm_account=p1" in line for line in lines)


def test_site_room_goes_over_the_profile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "site.yaml"
    path.write_text("room_nodes: 3")
    monkeypatch.setenv("TRIPLEPOINT_SITE", str(path))
    workflow = Mock()  # a dry run does not bound resources
    workflow.resource_settings.default_resources = Resources()
    apply_site(workflow)
    workflow.register_resource.assert_called_once_with("gang_nodes", 3)


def test_site_unknown_key_is_one_line(fresh: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    outcome = dry_run(fresh, tmp_path, monkeypatch, "partition: cpu")
    assert outcome.status == 2
    assert "site.yaml: unknown key 'partition' (known: gangs, room_nodes, stages)" in outcome.output
    assert "Traceback" not in outcome.output
