"""Ranks that run the same steps, one of them differently."""

import numpy as np
import pytest

from tests.unit.trace.cross.worlds import MS, T0, US, collectives_of, lane_of
from triplepoint.tables.traces import RANKS
from triplepoint.trace.compare import Standing, compare_ranks, find_stragglers
from triplepoint.trace.rank_results import Collectives, Label, Segments, Step

COMPUTE, COMM = Label("compute", "gemm"), Label("comm", "all_reduce", "dp")


def train(compute: np.ndarray, late: np.ndarray | None = None) -> tuple[list[Segments], list[Collectives]]:
    """Return ranks that compute, shape (num_ranks, num_steps), and meet at the end of every step.

    `late` is how much later, not computing, each comes to the meeting.
    """
    late = np.zeros_like(compute) if late is None else late
    lanes, collectives = [], []
    arrive = compute + late
    for rank in range(len(compute)):
        at, segments, steps, parts = T0, [], [], []
        for step in range(compute.shape[1]):
            end = at + int(arrive[:, step].max()) + MS
            idle = at + int(compute[rank, step])
            comm = idle + int(late[rank, step])
            segments += [(COMPUTE, at, idle), (Label("idle", "host"), idle, comm), (COMM, comm, end)]
            steps.append(Step(step, at, end))
            parts.append(("all_reduce", comm, end))
            at = end
        lanes.append(lane_of(rank, [one for one in segments if one[1] < one[2]], steps))
        collectives.append(collectives_of(rank, parts))
    return lanes, collectives


def standings(
    compute: np.ndarray, late: np.ndarray | None = None, peers: list[tuple[int, ...]] | None = None
) -> list[Standing]:
    return compare_ranks(*train(compute, late), peers or []).standings


def noisy(num_ranks: int = 8, num_steps: int = 10, seed: int = 0) -> np.ndarray:
    """Return steps of 100 ms computation that differ by 0.1 %."""
    return np.random.default_rng(seed).normal(100 * MS, 100 * US, (num_ranks, num_steps)).astype(np.int64)


def flagged(found: list[Standing]) -> list[int]:
    return [standing.rank for standing in found if standing.is_straggler]


def test_find_stragglers_equal_ranks_flag_nobody() -> None:
    found = standings(np.full((8, 10), 100 * MS))
    assert flagged(found) == []
    assert {standing.z_score for standing in found} == {0.0}
    # All come at once, so nobody comes last.
    assert {standing.share_last for standing in found} == {0.0}


@pytest.mark.parametrize("seed", range(10))
def test_find_stragglers_noise_flags_nobody(seed: int) -> None:
    assert flagged(standings(noisy(seed=seed))) == []


@pytest.mark.parametrize("others", [np.full((8, 10), 100 * MS), noisy()], ids=["equal", "noisy"])
def test_find_stragglers_five_percent_slow_of_eight(others: np.ndarray) -> None:
    compute = others.copy()
    compute[3] = compute[3] * 105 // 100
    found = standings(compute)
    assert flagged(found) == [3]
    assert found[3].compute_excess == pytest.approx(0.05, abs=0.003)
    assert found[3].share_last == 1.0
    assert found[3].waited_ns == 0


def test_find_stragglers_by_hand() -> None:
    found = standings(np.array([[10, 20], [30, 20], [14, 20]]) * MS)[1]
    # Medians 14 and 20: excess 16/14 and 0, half of that in the median. Last once, 20 ms after the first.
    assert found.compute_excess == pytest.approx(16 / 14 / 2)
    assert found.compute_ns == 25 * MS
    assert (found.num_collectives, found.share_last, found.lateness_ns) == (2, 0.5, 20 * MS)
    assert standings(np.array([[10, 20], [30, 20], [14, 20]]) * MS)[0].waited_ns == 20 * MS


def test_find_stragglers_outlier_below_two_percent_is_none() -> None:
    compute = noisy()
    compute[3] += 3 * MS // 2
    found = standings(compute)
    assert found[3].z_score is not None and found[3].z_score > 3.5
    assert flagged(found) == []


def test_find_stragglers_slowest_of_a_wide_field_is_none() -> None:
    compute = np.repeat(np.linspace(90, 110, 8)[:, None] * MS, 10, axis=1).astype(np.int64)
    found = standings(compute)
    assert found[7].share_last == 1.0
    assert found[7].compute_excess == pytest.approx(0.1)
    assert flagged(found) == []


def test_find_stragglers_late_by_a_random_walk_is_none() -> None:
    for seed in range(10):
        rng = np.random.default_rng(seed)
        late = np.zeros((8, 50), dtype=np.int64)
        late[2] = np.abs(np.cumsum(rng.normal(0, 3 * MS, 50))).astype(np.int64)
        found = standings(noisy(num_steps=50), late)
        assert found[2].share_last is not None and found[2].share_last > 0.5
        assert flagged(found) == []


def test_find_stragglers_more_work_that_nobody_waits_for_is_none() -> None:
    compute, late = noisy(), np.zeros((8, 10), dtype=np.int64)
    compute[3] += 17 * MS
    late[6] = 30 * MS
    assert flagged(standings(compute, late)) == []


def test_find_stragglers_without_collectives_goes_by_computation() -> None:
    compute = noisy()
    compute[5] = compute[5] * 11 // 10
    lanes, _ = train(compute)
    found = find_stragglers(lanes, [])
    assert flagged(found) == [5]
    assert found[5].share_last is None


def test_find_stragglers_stages_differ_by_design() -> None:
    compute = noisy()
    compute[6:] = compute[6:] * 13 // 10
    peers = [(0, 1, 2), (3, 4, 5), (6, 7)]
    assert flagged(standings(compute)) == [6, 7]
    found = standings(compute, peers=peers)
    assert flagged(found) == []
    assert found[6].z_score is None


def test_find_stragglers_one_long_step_is_none() -> None:
    compute = noisy()
    compute[4, 3] *= 5
    assert flagged(standings(compute)) == []


def test_find_stragglers_lane_without_steps() -> None:
    lane = Segments(0, [], *(np.zeros(0, dtype=np.int64),) * 3, [])
    assert find_stragglers([lane], []) == [Standing(0, 0, None, None, 0, None, None, None, False)]


def test_rank_rows_fit_their_table() -> None:
    rows = compare_ranks(*train(noisy(3))).rank_rows()
    table = RANKS.from_rows(rows).to_pylist()
    assert [row["rank"] for row in table] == [0, 1, 2]
    assert [row["clock_reference"] for row in table] == [0, 0, 0]
    alone = RANKS.from_rows(compare_ranks(*train(noisy(1))).rank_rows()).to_pylist()
    assert [alone[0][name] for name in ("clock_reference", "clock_spread_ns", "z_score")] == [None, None, None]
