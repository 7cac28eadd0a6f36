"""Collectives are matched by their numbers, and by what fits where the traces begin apart."""

import numpy as np
import pytest

from tests.unit.trace.cross.worlds import MS, T0, US, collectives_of, cut, numbered, rank_seeing, together, true_ends
from triplepoint.trace.matching import MatchedCollectives, match_collectives
from triplepoint.trace.rank_results import Collectives, CollectiveSignature


def pairs(matched: MatchedCollectives) -> list[list[tuple[int, int]]]:
    """Return the parts of every collective as (rank, index)."""
    found: dict[int, list[tuple[int, int]]] = {}
    for number, lane, index in zip(matched.number, matched.lane, matched.index, strict=True):
        found.setdefault(int(number), []).append((matched.collectives[lane].rank, int(index)))
    return list(found.values())


def two_ranks(num: int = 40, seed: int = 1, noise: int = 10 * US) -> tuple[Collectives, Collectives]:
    rng = np.random.default_rng(seed)
    ends = true_ends(rng, num)
    return rank_seeing(rng, 0, ends, noise=noise), rank_seeing(rng, 1, ends, offset=7 * MS, noise=noise)


def test_match_collectives_by_number() -> None:
    one = collectives_of(0, [("all_reduce", 10, 20), ("all_gather", 30, 40), ("all_reduce", 50, 60)])
    two = collectives_of(1, [("all_reduce", 12, 20), ("all_gather", 31, 40), ("all_reduce", 55, 60)])
    found = match_collectives([two, one])
    assert sorted(pairs(found)) == [[(0, 0), (1, 0)], [(0, 1), (1, 1)], [(0, 2), (1, 2)]]
    assert found.ends_together.all()
    assert found.start[found.lane == 1].tolist() == [12, 55, 31]


def test_match_collectives_without_process_group_is_left_out() -> None:
    one = collectives_of(0, [("all_reduce", 10, 20)])
    nameless = numbered(1, [CollectiveSignature(None, "all_reduce")], one.start, one.end)
    assert pairs(match_collectives([one, nameless])) == [[(0, 0)]]


def test_match_collectives_same_name_but_other_ranks_is_another_group() -> None:
    part = [("all_reduce", 10, 20)]
    ranks = [(0, (0, 1)), (1, (0, 1)), (2, (2, 3)), (3, (2, 3))]
    found = match_collectives([collectives_of(rank, part, members) for rank, members in ranks])
    assert pairs(found) == [[(0, 0), (1, 0)], [(2, 0), (3, 0)]]


def test_match_collectives_ranks_written_on_one_trace_only() -> None:
    part = [("all_reduce", 10, 20)]
    found = match_collectives([collectives_of(0, part, (0, 1)), collectives_of(1, part)])
    assert pairs(found) == [[(0, 0), (1, 0)]]


@pytest.mark.parametrize("late", [1, 7])
def test_match_collectives_trace_that_began_later_is_shifted(late: int) -> None:
    one, two = two_ranks()
    found = match_collectives([one, cut(two, late)])
    matched = [pair for pair in pairs(found) if len(pair) == 2]
    assert matched == [[(0, index + late), (1, index)] for index in range(40 - late)]
    assert found.notes == [f"rank 1: its trace of process group 0 begins {late} collectives later than that of rank 0"]


def test_match_collectives_trace_that_ended_earlier_is_not_shifted() -> None:
    one, two = two_ranks()
    found = match_collectives([cut(one, 0, 33), two])
    assert [pair for pair in pairs(found) if len(pair) == 2] == [[(0, index), (1, index)] for index in range(33)]
    assert not found.notes


def test_match_collectives_equal_counts_from_different_starts() -> None:
    one, two = two_ranks()
    found = match_collectives([cut(one, 0, 36), cut(two, 4)])
    assert [pair for pair in pairs(found) if len(pair) == 2] == [[(0, index + 4), (1, index)] for index in range(32)]


def test_match_collectives_shift_holds_for_all_kinds_of_the_group() -> None:
    rng = np.random.default_rng(2)
    ends = true_ends(rng, 30)
    kinds = dict.fromkeys(range(0, 30, 3), "broadcast")
    one, two = (rank_seeing(rng, rank, ends, kinds=kinds) for rank in (0, 1))
    found = match_collectives([one, cut(two, 4)])
    assert sorted(pair for pair in pairs(found) if len(pair) == 2) == [[(0, i + 4), (1, i)] for i in range(26)]


def test_match_collectives_more_but_later() -> None:
    rng = np.random.default_rng(2)
    ends = true_ends(rng, 40)
    kinds = dict.fromkeys(range(0, 40, 3), "broadcast")
    one, two = (rank_seeing(rng, rank, ends, kinds=kinds) for rank in (0, 1))
    found = match_collectives([cut(one, 4), cut(two, 0, 30)])
    assert sorted(pair for pair in pairs(found) if len(pair) == 2) == [[(0, i), (1, i + 4)] for i in range(26)]
    assert found.notes == ["rank 1: its trace of process group 0 begins 4 collectives earlier than that of rank 0"]


def test_match_collectives_even_times_are_told_apart_by_kinds() -> None:
    rng = np.random.default_rng(8)
    ends = T0 + np.arange(40) * MS
    kinds = dict.fromkeys(rng.choice(40, 20, replace=False).tolist(), "all_gather")
    one, two = (rank_seeing(rng, rank, ends, kinds=kinds, noise=0) for rank in (0, 1))
    found = match_collectives([one, cut(two, 2)])
    assert sorted(pair for pair in pairs(found) if len(pair) == 2) == [[(0, i + 2), (1, i)] for i in range(38)]


def test_match_collectives_even_bursts_are_told_apart_by_their_gaps() -> None:
    rng = np.random.default_rng(3)
    # Steps of 24 all-reduces 300 us apart: within a step one shift fits as well as the next.
    gaps = np.tile([300 * US] * 23 + [100 * MS], 4)
    gaps[23::24] += rng.integers(-MS, MS, 4)
    ends = T0 + np.cumsum(gaps)
    one, two = (rank_seeing(rng, rank, ends) for rank in (0, 1))
    found = match_collectives([one, cut(two, 1)])
    assert [pair for pair in pairs(found) if len(pair) == 2] == [[(0, i + 1), (1, i)] for i in range(95)]


def test_match_collectives_refuses_where_every_shift_fits() -> None:
    part = [("all_reduce", T0 + index * MS, T0 + index * MS + 50 * US) for index in range(20)]
    found = match_collectives([collectives_of(0, part), collectives_of(1, part[1:])])
    assert [pair for pair in pairs(found) if len(pair) == 2] == []
    assert found.notes == [
        "rank 1: its collectives in process group 0 match those of rank 0 in no way that is clearly best; left out"
    ]


def test_match_collectives_refuses_few_of_unequal_count() -> None:
    one, two = two_ranks(4)
    assert len(match_collectives([one, cut(two, 1)]).notes) == 1


def test_match_collectives_equal_counts_stay_however_noisy() -> None:
    # Ends of gloo on busy cores scatter by milliseconds, as much as the gaps: no shift may be read into that.
    for seed in range(30):
        assert match_collectives(list(two_ranks(12, seed, noise=2 * MS))).notes == []


def test_match_collectives_few_even_ones_stay_where_clocks_agree() -> None:
    """One all-reduce a step of 125 ms whose ends scatter by 20 ms: another shift may fit far better by chance."""
    for seed in range(60):
        rng = np.random.default_rng(seed)
        ends = T0 + np.arange(6) * 125 * MS
        ranks = [rank_seeing(rng, rank, ends + rng.integers(0, 20 * MS, 6)) for rank in (0, 1)]
        assert match_collectives(ranks).notes == [], seed


@pytest.mark.parametrize("offset", [0, 3 * 3600 * 1000 * MS], ids=["clocks agree", "hours apart"])
@pytest.mark.parametrize(("num_steps", "num_passes"), [(1, 64), (2, 64), (2, 37)])
def test_match_collectives_steps_that_repeat_are_not_mistaken(num_steps: int, num_passes: int, offset: int) -> None:
    """Ends of a rank are early in backward passes: in part of the trace another step seems to fit better."""
    spacing = np.tile(np.concatenate((np.full(34, 245 * US), np.full(34, 2 * MS))), num_steps * num_passes)
    ends = T0 + np.cumsum(spacing)
    is_backward = np.arange(len(ends)) % 68 >= 34
    parts = [("all_reduce", end - 200 * US, end) for end in ends.tolist()]
    early = [("all_reduce", end - 200 * US, end) for end in (ends + offset - 30 * MS * is_backward).tolist()]
    found = match_collectives([collectives_of(0, parts), collectives_of(1, early)])
    assert found.notes == []
    assert found.index[found.lane == 0].tolist() == found.index[found.lane == 1].tolist() == list(range(len(ends)))


def test_match_collectives_shift_of_a_step_is_refused_where_clocks_agree() -> None:
    """The second and third step of one rank last as the first and second of the other, to the nanosecond."""
    rng = np.random.default_rng(4)
    first, second, third, fourth = (np.cumsum(rng.exponential(MS, 40).astype(np.int64)) for _ in range(4))
    ranks = []
    for rank, steps in enumerate([(first, second, third), (fourth, first, second)]):
        ends = (T0 + np.concatenate([number * 100 * MS + step for number, step in enumerate(steps)])).tolist()
        ranks.append(collectives_of(rank, [("all_reduce", end - US, end) for end in ends]))
    assert match_collectives(ranks).notes == []


def test_match_collectives_swapped_kinds_stay_matched() -> None:
    one = collectives_of(0, [("all_reduce", 10, 20), ("all_gather", 11, 22), ("all_reduce", 50, 60)])
    two = collectives_of(1, [("all_gather", 10, 22), ("all_reduce", 11, 20), ("all_reduce", 50, 60)])
    assert sorted(pairs(match_collectives([one, two]))) == [[(0, 0), (1, 1)], [(0, 1), (1, 0)], [(0, 2), (1, 2)]]


def test_match_collectives_send_of_a_pair_meets_its_receive() -> None:
    one = collectives_of(4, [("send", 10, 20), ("recv", 30, 40), ("send", 50, 60)], (4, 5))
    two = collectives_of(5, [("recv", 5, 20), ("send", 30, 40), ("recv", 45, 60)], (4, 5))
    assert sorted(pairs(match_collectives([one, two]))) == [[(4, 0), (5, 0)], [(4, 1), (5, 1)], [(4, 2), (5, 2)]]


def test_match_collectives_send_within_larger_group_is_left_out() -> None:
    calls = [("send", 10, 20), ("send_recv", 30, 40), ("all_reduce", 50, 60)]
    ranks = [collectives_of(rank, calls, (0, 1, 2)) for rank in (0, 1)]
    assert pairs(match_collectives(ranks)) == [[(0, 2), (1, 2)]]


def test_match_collectives_one_rank_alone_meets_nobody() -> None:
    assert pairs(match_collectives([collectives_of(0, [("all_reduce", 50, 60)], (0, 1))])) == []


def test_match_collectives_exchange_of_two() -> None:
    part = [("send_recv", 10, 20)]
    found = match_collectives([collectives_of(rank, part, num_ranks=2) for rank in (0, 1)])
    assert pairs(found) == [[(0, 0), (1, 0)]]
    assert not found.ends_together.any()


def test_match_collectives_groups_are_shifted_on_their_own() -> None:
    rng = np.random.default_rng(5)
    ends = true_ends(rng, 40)
    first = [rank_seeing(rng, rank, ends[::2], group="tp") for rank in (0, 1)]
    second = [rank_seeing(rng, rank, ends[1::2], group="dp") for rank in (0, 1)]
    found = match_collectives([together(first[0], second[0]), together(cut(first[1], 2), second[1])])
    matched = sorted(pair for pair in pairs(found) if len(pair) == 2)
    # By time 0 2 4 ... of rank 0 are tp; rank 1 lacks 0 and 2, so that its row begins 1 3 4 5 ... of them.
    order = [1, 3, *range(4, 40)]
    assert matched == [[(0, index), (1, order.index(index))] for index in order]


def test_match_collectives_of_nothing() -> None:
    assert pairs(match_collectives([])) == []
    assert pairs(match_collectives([collectives_of(0, [])])) == []
