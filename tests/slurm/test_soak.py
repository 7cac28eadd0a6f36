"""A few random faults; `python -m tests.benchmarks.slurm_soak` does fifty."""

import pytest

from tests.slurm.cluster import Cluster
from tests.slurm.launches import Place
from tests.slurm.soak import inject

pytestmark = [pytest.mark.slurm, pytest.mark.timeout(600)]


@pytest.mark.parametrize("seed", [1, 2])
def test_soak_loses_and_doubles_nothing(cluster: Cluster, place: Place, seed: int) -> None:
    found = inject(cluster, place, seed)
    assert not found.problems, str(found)
