"""Clocks of made-up ranks, whose offsets are known."""

import numpy as np
import pytest

from tests.unit.trace.cross.worlds import MS, T0, US, Int64, collectives_of, cut, rank_seeing, together, true_ends
from triplepoint.trace.clocks import Clock, align
from triplepoint.trace.matching import match_collectives
from triplepoint.trace.rank_results import Collectives

OFFSETS = {0: 0, 1: 3 * MS, 2: -40 * MS, 3: 250 * US}


def world(seed: int = 0, num: int = 60) -> list[Collectives]:
    rng = np.random.default_rng(seed)
    ends = true_ends(rng, num)
    return [rank_seeing(rng, rank, ends, offset) for rank, offset in OFFSETS.items()]


def clocks_of(collectives: list[Collectives]) -> dict[int, Clock]:
    return align(match_collectives(collectives))


def assert_recovered(clocks: dict[int, Clock], expected: dict[int, int] = OFFSETS) -> None:
    for rank, offset in expected.items():
        # Ends scatter by 10 us on both sides, and the median of dozens is good to a fraction of that.
        assert abs(clocks[rank].offset_ns - offset) < max(clocks[rank].spread_ns, 1), rank


def test_align_recovers_offsets() -> None:
    clocks = clocks_of(world())
    assert_recovered(clocks)
    assert [clocks[rank].num_matched for rank in range(4)] == [60] * 4
    # Two ends of 10 us each: 14 us.
    assert all(10 * US < clocks[rank].spread_ns < 20 * US for rank in (1, 2, 3))


def test_align_aligned_times_agree() -> None:
    own = world()
    clocks = clocks_of(own)
    ends = np.array([clocks[one.rank].aligned(one.end) for one in own])
    assert np.median(np.ptp(ends, axis=0)) < 50 * US


def test_align_ignores_outliers() -> None:
    own = world()
    rng = np.random.default_rng(9)
    for one in own[1:]:
        one.end[rng.choice(60, 12, replace=False)] += 30 * MS
    assert_recovered(clocks_of(own))


def test_align_missing_rank() -> None:
    own = world()
    del own[0], own[1]
    clocks = clocks_of(own)
    assert clocks[1].reference == clocks[3].reference == 1
    assert clocks[3].offset_ns == pytest.approx(OFFSETS[3] - OFFSETS[1], abs=20 * US)


def test_align_trace_that_began_later() -> None:
    own = world()
    own[1], own[2] = cut(own[1], 5), cut(own[2], 9, 50)
    clocks = clocks_of(own)
    assert_recovered(clocks)
    assert clocks[2].num_matched == 41


def test_align_late_rank_does_not_move_the_clock() -> None:
    own = world()
    own[3].start[:] = own[3].end - 1 * US
    assert_recovered(clocks_of(own))


def test_align_ranks_that_never_meet_are_tied_through_others() -> None:
    rng = np.random.default_rng(4)
    one, two, three = (true_ends(rng, 40) for _ in range(3))
    clocks = clocks_of(
        [
            rank_seeing(rng, 0, one, OFFSETS[0], group="a"),
            together(*(rank_seeing(rng, 1, ends, OFFSETS[1], group=name) for name, ends in (("a", one), ("b", two)))),
            together(*(rank_seeing(rng, 2, ends, OFFSETS[2], group=name) for name, ends in (("b", two), ("c", three)))),
            rank_seeing(rng, 3, three, OFFSETS[3], group="c"),
        ]
    )
    # Three ties in a row: their uncertainties add up.
    assert [clocks[rank].reference for rank in range(4)] == [0] * 4
    assert_recovered(clocks)
    assert clocks[1].spread_ns < clocks[2].spread_ns < clocks[3].spread_ns


def test_align_chain_goes_against_the_order_of_ranks() -> None:
    rng = np.random.default_rng(4)
    one, two = (true_ends(rng, 40) for _ in range(2))
    both = (rank_seeing(rng, 2, ends, OFFSETS[2], group=name) for name, ends in (("a", one), ("b", two)))
    clocks = clocks_of(
        [
            rank_seeing(rng, 0, one, OFFSETS[0], group="a"),
            rank_seeing(rng, 1, two, OFFSETS[1], group="b"),
            together(*both),
        ]
    )
    assert_recovered(clocks, {0: OFFSETS[0], 1: OFFSETS[1], 2: OFFSETS[2]})


def test_align_chain_is_less_sure_than_its_ties() -> None:
    rng = np.random.default_rng(4)
    one, two = (true_ends(rng, 40) for _ in range(2))
    first = rank_seeing(rng, 0, one, group="a", noise=20 * US)
    last = rank_seeing(rng, 2, two, 70 * US, group="b", noise=20 * US)
    middle = [rank_seeing(rng, 1, ends, group=name, noise=20 * US) for name, ends in (("a", one), ("b", two))]
    # Scatter 28 us on a tie, so that its uncertainty is 28 * (1 + 3 * 1.25 / sqrt(40)) = 45 us: 70 us are beyond it,
    # and within that of two.
    chained = clocks_of([first, together(*middle), last])[2]
    direct = clocks_of([middle[1], last])[2]
    assert chained.measured_ns == pytest.approx(70 * US, abs=20 * US)
    assert (chained.offset_ns, direct.offset_ns) == (0, direct.measured_ns)


def test_align_rank_tied_to_nobody_says_so() -> None:
    own = world()
    alone = collectives_of(7, [("all_reduce", T0, T0 + MS)], group="elsewhere")
    clocks = clocks_of([*own, alone])
    assert clocks[7] == Clock(7, 7, at_ns=clocks[7].at_ns)
    assert clocks[7].num_matched == 0
    assert_recovered(clocks)


@pytest.mark.parametrize("kind", ["broadcast", "reduce", "send_recv"])
def test_align_kinds_that_end_apart_tell_nothing(kind: str) -> None:
    rng = np.random.default_rng(1)
    ends = true_ends(rng, 20)
    kinds = dict.fromkeys(range(20), kind)
    clocks = clocks_of([rank_seeing(rng, rank, ends, rank * MS, kinds=kinds, ranks=(0, 1)) for rank in (0, 1)])
    assert [clock.num_matched for clock in clocks.values()] == [0, 0]
    assert [clock.offset_ns for clock in clocks.values()] == [0, 0]


def test_align_one_clock_gets_no_noise() -> None:
    for seed in range(20):
        rng = np.random.default_rng(seed)
        ends = true_ends(rng, 15)
        clocks = clocks_of([rank_seeing(rng, rank, ends, noise=40 * US) for rank in range(4)])
        assert [clock.offset_ns for clock in clocks.values()] == [0] * 4


def test_align_constant_place_in_the_ring_is_no_clock() -> None:
    rng = np.random.default_rng(0)
    ends = true_ends(rng, 2000)
    # However many collectives: who always leaves 7 us later may just be last in the ring.
    clocks = clocks_of([rank_seeing(rng, rank, ends, rank * 7 * US, noise=100) for rank in (0, 1)])
    assert clocks[1].measured_ns == pytest.approx(7 * US, abs=100)
    assert clocks[1].offset_ns == 0


def test_align_few_collectives_move_no_clock_by_less_than_their_length() -> None:
    part = [("all_reduce", T0, T0 + 5 * MS), ("all_reduce", T0 + 9 * MS, T0 + 10 * MS)]
    near, far = (
        collectives_of(1, [(kind, start + offset, end + offset) for kind, start, end in part])
        for offset in (4 * MS, 6 * MS)
    )
    assert clocks_of([collectives_of(0, part), near])[1].offset_ns == 0
    assert clocks_of([collectives_of(0, part), far])[1].offset_ns == 6 * MS


def drifting(ppm: float, seconds: int, noise: int, offset: int = 2 * MS) -> tuple[list[Collectives], Int64]:
    rng = np.random.default_rng(6)
    ends = T0 + np.linspace(0, seconds * 1e9, 400).astype(np.int64) + rng.integers(0, 5 * MS, 400)
    own = [rank_seeing(rng, rank, ends, noise=noise) for rank in (0, 1)]
    own[1].end[:] += offset + (ppm * 1e-6 * (ends - T0)).astype(np.int64)
    return own, ends


def test_align_follows_drift() -> None:
    # 20 ppm over 10 s are 200 us, ten times the scatter.
    own, ends = drifting(20, 10, 20 * US)
    clock = clocks_of(own)[1]
    assert clock.drift == pytest.approx(20e-6, rel=0.1)
    left = clock.aligned(own[1].end) - ends
    assert np.abs(np.median(left[:50])) < 10 * US
    assert np.abs(np.median(left[-50:])) < 10 * US
    assert clock.spread_ns < 40 * US


def test_align_drift_counts_where_the_offset_crosses_zero() -> None:
    own, _ = drifting(20, 10, 20 * US, offset=-100 * US)
    clock = clocks_of(own)[1]
    assert abs(clock.measured_ns) < 20 * US
    assert clock.offset_ns == clock.measured_ns
    assert clock.drift == pytest.approx(20e-6, rel=0.1)


def test_align_what_runs_faster_than_a_clock_may_is_no_drift() -> None:
    own, _ = drifting(1000, 10, 20 * US)
    assert clocks_of(own)[1].drift == 0


def test_align_no_drift_no_slope() -> None:
    own, _ = drifting(0, 10, 20 * US)
    assert clocks_of(own)[1].drift == 0


def test_align_short_trace_has_no_slope() -> None:
    own, _ = drifting(200, 1, 1 * US)
    assert clocks_of([cut(one, 0, 250) for one in own])[1].drift == 0


def test_align_nothing() -> None:
    assert clocks_of([]) == {}
    assert clocks_of([collectives_of(3, [])])[3].num_matched == 0
