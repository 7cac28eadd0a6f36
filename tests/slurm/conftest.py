"""Fixtures: the test cluster, intact before each test, and a folder for runs."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.slurm.cluster import Cluster
from tests.slurm.launches import Workspace

SITE = """\
stages: {mem_mb: 1000}
gangs:
  h200x32: {partition: h200, constraint: H200, gres: "gpu:h200:8", exclusive: false, cpus: 4, mem: 4G,
            switches: "2", file_lag_s: 4, retries: 0}
  mi250x32: {partition: mi250, constraint: MI250, gres: "gpu:mi250:8", exclusive: false, cpus: 4, mem: 4G,
             file_lag_s: 4, retries: 0}
"""
"""File of the site. Jobs share nodes, so that a job left by one test does not block the next."""


@pytest.fixture(scope="session")
def running_cluster() -> Cluster:
    """The cluster, if it is up."""
    cluster = Cluster()
    if not cluster.is_up():
        pytest.skip("no test cluster; as root: python3 -m tests.slurm up")
    cluster.mend()
    return cluster


@pytest.fixture
def cluster(running_cluster: Cluster) -> Iterator[Cluster]:
    """The cluster with all its nodes, and without the jobs a test leaves."""
    yield running_cluster
    running_cluster.mend()


@pytest.fixture
def workspace(cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Workspace]:
    """A folder for results, and a file of the site."""
    site = tmp_path / "site.yaml"
    site.write_text(SITE)
    monkeypatch.setenv("TRIPLEPOINT_SITE", str(site))
    workspace = Workspace(tmp_path / "results", site)
    yield workspace
    workspace.end()
