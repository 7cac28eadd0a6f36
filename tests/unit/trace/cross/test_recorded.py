"""Eight V100 of one host in one recorded step."""

import csv
from pathlib import Path

import pytest

from tests.unit.trace.cross.worlds import US, collectives_of
from triplepoint.trace.clocks import align, find_arrivals
from triplepoint.trace.matching import MatchedCollectives, match_collectives

RECORDED = Path(__file__).parents[3] / "data" / "traces" / "dlrm_v100_collectives.csv"


@pytest.fixture(scope="module")
def matched() -> MatchedCollectives:
    parts: dict[int, list[tuple[str, int, int]]] = {}
    with RECORDED.open() as file:
        for row in csv.DictReader(file):
            start = int(row["start_us"]) * US
            parts.setdefault(int(row["rank"]), []).append((row["kind"], start, start + int(row["duration_us"]) * US))
    return match_collectives([collectives_of(rank, own, tuple(range(8))) for rank, own in parts.items()])


def test_align_ranks_of_one_host_share_a_clock(matched: MatchedCollectives) -> None:
    clocks = align(matched)
    assert [clock.offset_ns for clock in clocks.values()] == [0] * 8
    assert all(abs(clock.measured_ns) < 2 * US and clock.spread_ns < 2 * US for clock in clocks.values())


def test_find_arrivals_last_ranks_read_off_the_trace(matched: MatchedCollectives) -> None:
    arrivals = find_arrivals(matched, align(matched))
    assert all(found.is_known.all() for found in arrivals)
    assert arrivals[0].last_rank.tolist() == [7, 7, 7, 7, 7, 5, 5, 4]
    # First all-to-all: rank 1 starts at ...424306 us, rank 7 at ...431930 us.
    assert arrivals[1].waited_ns[0] == 7624 * US


def test_find_arrivals_who_waits_least_is_who_hta_calls_a_straggler(matched: MatchedCollectives) -> None:
    arrivals = find_arrivals(matched, align(matched))
    waited = {found.rank: int(found.waited_ns.sum()) for found in arrivals}
    # HolisticTraceAnalysis 0.6.1, get_potential_stragglers() with 3 candidates, by time in communication kernels.
    assert set(sorted(waited, key=waited.__getitem__)[:3]) == {2, 6, 7}
