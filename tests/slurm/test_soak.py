"""A few random faults. `python -m tests.benchmarks.slurm_soak` injects fifty."""

import pytest

from tests.slurm.cluster import Cluster
from tests.slurm.launches import Workspace
from tests.slurm.soak import inject

pytestmark = [pytest.mark.slurm, pytest.mark.timeout(600)]


@pytest.mark.parametrize("seed", [1, 2])
def test_soak_loses_and_doubles_nothing(cluster: Cluster, workspace: Workspace, seed: int) -> None:
    injection = inject(cluster, workspace, seed)
    assert not injection.problems, str(injection)
