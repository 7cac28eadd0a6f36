"""Arrivals by hand, and what must hold of any."""

from collections.abc import Mapping, Sequence

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.trace.cross.worlds import MS, collectives_of, rank_seeing, true_ends
from triplepoint.trace.clocks import Arrivals, Clock, align, find_arrivals
from triplepoint.trace.matching import match_collectives
from triplepoint.trace.rank_results import Collectives


def arrivals_of(collectives: Sequence[Collectives], offsets: Mapping[int, int] = {}) -> dict[int, Arrivals]:
    clocks = {own.rank: Clock(own.rank, 0, offset_ns=offsets.get(own.rank, 0)) for own in collectives}
    return {found.rank: found for found in find_arrivals(match_collectives(collectives), clocks)}


def test_find_arrivals_by_hand() -> None:
    found = arrivals_of(
        [
            collectives_of(0, [("all_reduce", 100, 400), ("all_gather", 700, 900)]),
            collectives_of(2, [("all_reduce", 350, 401), ("all_gather", 600, 902)]),
            collectives_of(5, [("all_reduce", 130, 398), ("all_gather", 650, 899)]),
        ]
    )
    assert found[0].num_seen.tolist() == [3, 3]
    assert found[0].is_known.all()
    assert [found[rank].lag_ns.tolist() for rank in (0, 2, 5)] == [[0, 100], [250, 0], [30, 50]]
    assert [found[rank].waited_ns.tolist() for rank in (0, 2, 5)] == [[250, 0], [0, 100], [220, 50]]
    assert found[5].skew_ns.tolist() == [250, 100]
    assert found[5].last_rank.tolist() == [2, 0]
    assert found[5].last_start.tolist() == [350, 700]


def test_find_arrivals_on_the_aligned_clock() -> None:
    found = arrivals_of(
        [collectives_of(0, [("all_reduce", 100, 400)]), collectives_of(1, [("all_reduce", 1050, 1400)])], {1: 1000}
    )
    assert found[1].lag_ns.tolist() == [0]
    assert found[1].waited_ns.tolist() == [50]
    assert found[1].last_rank.tolist() == [0]


def test_find_arrivals_seen_by_one_rank_is_unknown() -> None:
    found = arrivals_of([collectives_of(0, [("all_reduce", 100, 400)]), collectives_of(1, [])])
    assert found[0].num_seen.tolist() == [1]
    assert not found[0].is_known.any()
    assert found[0].waited_ns.tolist() == [0]


def test_find_arrivals_send_within_larger_group_is_unknown() -> None:
    ranks = (0, 1, 2)
    found = arrivals_of(
        [collectives_of(0, [("send", 10, 20)], ranks), collectives_of(1, [("recv", 5, 20), ("recv", 25, 30)], ranks)]
    )
    assert found[1].num_seen.tolist() == [1, 1]
    assert not found[1].is_known.any()


def test_find_arrivals_receive_of_a_pair_waits_for_its_send() -> None:
    found = arrivals_of([collectives_of(0, [("send", 70, 90)], (0, 1)), collectives_of(1, [("recv", 10, 90)], (0, 1))])
    assert found[1].waited_ns.tolist() == [60]
    assert found[1].last_rank.tolist() == [0]


def test_find_arrivals_root_that_left_before_waited_for_nobody() -> None:
    found = arrivals_of([collectives_of(0, [("broadcast", 10, 30)]), collectives_of(1, [("broadcast", 50, 70)])])
    assert found[0].waited_ns.tolist() == [0]
    assert found[0].is_known.all()
    assert found[1].lag_ns.tolist() == [40]


def test_find_arrivals_parts_that_never_overlapped_are_unknown() -> None:
    # Nobody leaves an all-reduce before all have come: these two are not the same one.
    found = arrivals_of([collectives_of(0, [("all_reduce", 10, 30)]), collectives_of(1, [("all_reduce", 50, 70)])])
    assert found[0].num_seen.tolist() == [2]
    assert not found[0].is_known.any()
    assert found[1].lag_ns.tolist() == [0]


def test_find_arrivals_apart_by_no_more_than_the_clocks_are_unsure() -> None:
    own = [collectives_of(0, [("all_reduce", 10, 30)]), collectives_of(1, [("all_reduce", 50, 70)])]
    for unsure, is_known, waited in ((19, False, 0), (20, True, 20)):
        clocks = {rank: Clock(rank, 0, uncertainty_ns=unsure * rank) for rank in (0, 1)}
        found = find_arrivals(match_collectives(own), clocks)[0]
        assert found.is_known.tolist() == [is_known]
        assert found.waited_ns.tolist() == [waited]


def test_find_arrivals_all_at_once() -> None:
    part = [("barrier", 10, 30)]
    found = arrivals_of([collectives_of(4, part), collectives_of(2, part)])
    assert found[4].last_rank.tolist() == [2]
    assert found[4].skew_ns.tolist() == [0]


@given(st.integers(0, 10**6), st.integers(2, 5), st.integers(1, 12))
def test_find_arrivals_add_up(seed: int, num_ranks: int, num: int) -> None:
    rng = np.random.default_rng(seed)
    ends = true_ends(rng, num)
    own = [rank_seeing(rng, rank, ends, rank * 50 * MS) for rank in range(num_ranks)]
    found = find_arrivals(matched := match_collectives(own), align(matched))
    is_known = found[0].is_known
    lag = np.array([one.lag_ns for one in found])
    waited = np.array([one.waited_ns for one in found])
    assert (lag.min(axis=0) == 0).all()
    assert (lag.max(axis=0) == found[0].skew_ns).all()
    lengths = np.array([one.end - one.start for one in own])
    assert ((waited == lag.max(axis=0) - lag) | (waited == lengths) | ~is_known).all()
    assert ((waited >= 0) & (waited <= lengths)).all()
    for position in np.flatnonzero(is_known):
        assert lag[found[0].last_rank[position], position] == found[0].skew_ns[position]


def test_find_arrivals_of_nothing() -> None:
    assert find_arrivals(match_collectives([]), {}) == []
    assert len(arrivals_of([collectives_of(1, [])])[1].lag_ns) == 0
