"""Replicas that differ: who waits for a slow GPU."""

import numpy as np
import pytest

from triplepoint.config.point import Layout
from triplepoint.simulate.costs import LAUNCH_BEND
from triplepoint.simulate.timeline.durations import Pass, sort_replicas

LAYOUT = Layout(tp=2, pp=2, dp=4, schedule="1f1b")
"""Ranks 0-7 are stage 0, two a replica."""


def test_sort_replicas_all_alike_is_one_class() -> None:
    found = sort_replicas(LAYOUT, {}, 2)
    assert found.num_alike.tolist() == [4]
    assert found.factor.tolist() == [[1.0], [1.0]]


@pytest.mark.parametrize(
    ("slow", "lockstep", "of_replica"),
    [
        ({5: 1.1}, 2, [(1, 1), (1, 1), (1.1, 1), (1, 1)]),
        ({4: 1.1, 5: 1.3}, 2, [(1, 1), (1, 1), (1.3, 1), (1, 1)]),
        ({5: 1.1, 8: 1.2}, 2, [(1, 1.2), (1, 1), (1.1, 1), (1, 1)]),
        ({5: 1.1}, 4, [(1, 1), (1, 1), (1.1, 1), (1.1, 1)]),
        ({5: 1.1}, 8, [(1.1, 1)] * 4),
        ({5: 1.1}, 1, [(1, 1), (1, 1), (1.1, 1), (1, 1)]),
    ],
)
def test_sort_replicas_go_at_the_pace_of_the_slowest(
    slow: dict[int, float], lockstep: int, of_replica: list[tuple[float, float]]
) -> None:
    found = sort_replicas(LAYOUT, slow, lockstep)
    assert found.factor[:, found.class_of_replica].T.tolist() == [list(map(float, one)) for one in of_replica]
    assert len(found.num_alike) == len(set(of_replica)), "those that behave alike are one class"
    assert np.sum(found.num_alike) == LAYOUT.dp


def test_slow_gpu_that_waits_for_its_host_loses_less() -> None:
    """Kernels of 3 s and a host that needs 6 s: 4 s of kernels are hidden by most of the wait."""
    kernels, host, bend = 3.0, 6.0, LAUNCH_BEND
    whole = (kernels**bend + host**bend) ** (1 / bend)
    found = Pass(np.array([[whole]]), np.array([[0.0]]), np.array([[1 - kernels / whole]]))
    slower = found.slowed(np.array([[4 / 3]]))
    assert slower.total[0, 0] == pytest.approx((4.0**bend + host**bend) ** (1 / bend))
    assert slower.compute[0, 0] - slower.host_at((0, 0)) == pytest.approx(4.0)
    assert found.host_at((0, 0), 4 / 3) == pytest.approx(slower.host_at((0, 0)))
    assert found.host_at((0, 0), 0.5) > found.host_at((0, 0))  # faster kernels wait more for the host
    free = Pass(np.array([[kernels]]), np.array([[1.0]])).slowed(np.array([[4 / 3]]))
    assert (free.compute[0, 0], free.comm[0, 0], free.host_at((0, 0))) == (4.0, 1.0, 0.0)
