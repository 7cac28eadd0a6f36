"""Critical paths by hand, against an independent forward computation, and what must hold of any."""

from dataclasses import dataclass, replace

import numpy as np
from hypothesis import assume, given
from hypothesis import strategies as st

from tests.unit.trace.cross.worlds import T0, collectives_of, lane_of, numbered
from triplepoint.tables.traces import CRITICAL_PATH
from triplepoint.trace.clocks import Arrivals, Clock
from triplepoint.trace.compare import CriticalPath, PathSegment, compare_ranks, find_critical_paths, path_rows
from triplepoint.trace.rank_results import Collectives, CollectiveSignature, Label, Segments, Step

GEMM, COMM = Label("compute", "gemm"), Label("comm", "all_reduce", "dp")
IDLE, BEFORE = Label("idle", "other"), Label("idle", "before")


def paths_of(lanes: list[Segments], collectives: list[Collectives] | None = None) -> list[CriticalPath]:
    """Return the paths of ranks, without collectives if none are told."""
    return compare_ranks(lanes, collectives or [collectives_of(lane.rank, []) for lane in lanes]).paths


def two_ranks(at_moment: Label = COMM) -> tuple[list[Segments], list[Collectives]]:
    """Return ranks 0 and 1, which start 5 apart; 0 computes to 30, 1 to 70; they meet until 90; 0 computes to 120."""
    lanes = [
        lane_of(0, [(GEMM, 0, 30), (at_moment, 30, 75), (COMM, 75, 90), (GEMM, 90, 120)]),
        lane_of(1, [(IDLE, 5, 10), (GEMM, 10, 70), (COMM, 70, 90), (GEMM, 90, 100)]),
    ]
    return lanes, [collectives_of(0, [("all_reduce", 30, 90)]), collectives_of(1, [("all_reduce", 70, 90)])]


def test_find_critical_paths_by_hand() -> None:
    (path,) = paths_of(*two_ranks())
    assert path.segments == [PathSegment(1, 0, 70), PathSegment(0, 70, 120)]
    assert path.num_jumps == 1
    assert path.times == {(1, BEFORE): 5, (1, IDLE): 5, (1, GEMM): 60, (0, COMM): 20, (0, GEMM): 30}


def test_find_critical_paths_wait_behind_computation_is_passed_by() -> None:
    (path,) = paths_of(*two_ranks(at_moment=GEMM))
    assert path.segments == [PathSegment(0, 0, 120)]
    assert path.times == {(0, GEMM): 105, (0, COMM): 15}


def test_find_critical_paths_wait_at_the_end_of_the_lane() -> None:
    for label, num_jumps in ((COMM, 1), (GEMM, 0)):
        lanes, collectives = two_ranks()
        lanes[0] = lane_of(0, [(label, 0, 70)], [Step(0, 0, 120)])
        assert paths_of(lanes, collectives)[0].num_jumps == num_jumps


def test_find_critical_paths_exposed_wait_before_a_hidden_one() -> None:
    lanes = [
        lane_of(0, [(GEMM, 0, 10), (COMM, 10, 40), (GEMM, 40, 120)]),
        lane_of(1, [(GEMM, 0, 30), (COMM, 30, 40), (GEMM, 40, 80), (COMM, 80, 100)]),
    ]
    parts = [[(10, 40), (50, 100)], [(30, 40), (80, 100)]]
    collectives = [collectives_of(rank, [("all_reduce", *part) for part in own]) for rank, own in enumerate(parts)]
    (path,) = paths_of(lanes, collectives)
    assert path.segments == [PathSegment(1, 0, 30), PathSegment(0, 30, 120)]


def test_find_critical_paths_rank_that_is_always_last_is_never_left() -> None:
    segments = [(IDLE, 0, 40), (COMM, 40, 50), (IDLE, 50, 90), (COMM, 90, 100)]
    last = [("all_reduce", 40, 50), ("all_reduce", 90, 100)]
    first = [("all_reduce", 20, 50), ("all_reduce", 60, 100)]
    lanes = [lane_of(0, segments, [Step(0, 0, 101)]), lane_of(1, segments, [Step(0, 0, 100)])]
    (path,) = paths_of(lanes, [collectives_of(0, last), collectives_of(1, first)])
    assert path.segments == [PathSegment(0, 0, 101)]
    assert path.num_jumps == 0


def test_find_critical_paths_last_rank_has_no_lane() -> None:
    lanes, collectives = two_ranks()
    (path,) = paths_of(lanes[:1], collectives)
    assert path.segments == [PathSegment(0, 0, 120)]


def test_find_critical_paths_wait_shown_as_idle_counts() -> None:
    assert paths_of(*two_ranks(at_moment=IDLE))[0].num_jumps == 1


def test_find_critical_paths_copy_beside_the_wait_is_on_the_path() -> None:
    assert paths_of(*two_ranks(at_moment=Label("memory", "h2d")))[0].num_jumps == 0


def test_find_critical_paths_last_rank_was_on_time() -> None:
    lanes, collectives = two_ranks()
    steps = [Step(0, 0, 80), Step(0, 5, 100)]
    cut = [
        Segments(lane.rank, [step], *(lane.start, lane.end, lane.label, lane.labels))
        for lane, step in zip(lanes, steps, strict=True)
    ]
    (path,) = paths_of(cut, collectives)
    assert path.segments == [PathSegment(1, 0, 100)]


def test_find_critical_paths_on_the_aligned_clock() -> None:
    lanes, collectives = two_ranks()
    one = lanes[1]
    lanes[1] = Segments(1, [Step(0, 1005, 1100)], one.start + 1000, one.end + 1000, one.label, one.labels)
    own = collectives[1]
    collectives[1] = replace(own, start=own.start + 1000, end=own.end + 1000)
    arrivals = compare_ranks(*two_ranks()).arrivals
    (path,) = find_critical_paths(lanes, arrivals, {0: Clock(0, 0), 1: Clock(1, 0, offset_ns=1000)})
    assert path == paths_of(*two_ranks())[0]


def test_find_critical_paths_time_outside_the_lane_is_idle() -> None:
    lane = Segments(0, [Step(3, 0, 100)], np.array([20]), np.array([60]), np.array([0]), [GEMM])
    (path,) = paths_of([lane])
    assert path.times == {(0, GEMM): 40, (0, IDLE): 60}


def test_find_critical_paths_only_steps_that_all_ranks_have() -> None:
    segments = [(GEMM, 0, 100)]
    lanes = [
        lane_of(0, segments, [Step(1, 0, 30), Step(2, 30, 60), Step(3, 60, 100)]),
        lane_of(1, segments, [Step(2, 20, 70), Step(3, 70, 90), Step(4, 90, 100)]),
    ]
    paths = paths_of(lanes)
    assert [(path.step, path.segments) for path in paths] == [
        (2, [PathSegment(1, 20, 70)]),
        (3, [PathSegment(0, 60, 100)]),
    ]


def test_find_critical_paths_of_nothing() -> None:
    assert paths_of([]) == []
    assert paths_of([Segments(0, [], *(np.zeros(0, dtype=np.int64),) * 3, [])]) == []


def test_path_rows_fit_their_table() -> None:
    table = CRITICAL_PATH.from_rows(path_rows(paths_of(*two_ranks()))).to_pylist()
    assert [(row["rank"], row["category"], row["kind"], row["group"], row["duration_ns"]) for row in table] == [
        (0, "comm", "all_reduce", "dp", 20),
        (0, "compute", "gemm", None, 30),
        (1, "compute", "gemm", None, 60),
        (1, "idle", "before", None, 5),
        (1, "idle", "other", None, 5),
    ]
    assert {(row["step"], row["num_jumps"]) for row in table} == {(0, 1)}


@dataclass
class Round:
    """Some ranks compute, then meet; `transfer` is from the last one's arrival to the end."""

    compute: dict[int, int]
    transfer: int


@st.composite
def programs(draw: st.DrawFn) -> tuple[list[int], list[Round], list[int]]:
    """Return when each rank starts, what they do, and the computation each ends with."""
    num_ranks = draw(st.integers(1, 4))
    lengths = st.integers(0, 50)
    rounds = []
    for _ in range(draw(st.integers(0, 6))):
        members = draw(st.sets(st.integers(0, num_ranks - 1), min_size=1))
        rounds.append(Round({rank: draw(lengths) for rank in sorted(members)}, draw(st.integers(1, 20))))
    start = [draw(lengths) for _ in range(num_ranks)]
    return start, rounds, [draw(lengths) + 1 for _ in range(num_ranks)]


def played(start: list[int], rounds: list[Round], tail: list[int]) -> tuple[list[Segments], list[Collectives]]:
    """Return the lanes and collectives of a program; every set of members is a process group."""
    at = [T0 + begin for begin in start]
    segments: list[list[tuple[Label, int, int]]] = [[] for _ in start]
    parts: list[list[tuple[str, int, int]]] = [[] for _ in start]
    for one in rounds:
        arrive = {rank: at[rank] + length for rank, length in one.compute.items()}
        end = max(arrive.values()) + one.transfer
        for rank in one.compute:
            segments[rank] += [(GEMM, at[rank], arrive[rank]), (COMM, arrive[rank], end)]
            parts[rank].append((str(sorted(one.compute)), arrive[rank], end))
            at[rank] = end
    lanes, collectives = [], []
    for rank, length in enumerate(tail):
        segments[rank].append((GEMM, at[rank], at[rank] + length))
        step = Step(0, T0 + start[rank], at[rank] + length)
        lanes.append(lane_of(rank, [one for one in segments[rank] if one[1] < one[2]], [step]))
        groups = [group for group, _, _ in parts[rank]]
        own = collectives_of(rank, [("all_reduce", *times) for _, *times in parts[rank]])
        signatures = [CollectiveSignature(group, "all_reduce") for group in groups]
        collectives.append(numbered(rank, signatures, own.start, own.end))
    return lanes, collectives


def longest_chain(start: list[int], rounds: list[Round], tail: list[int]) -> list[int]:
    """Return the time on each rank of the longest chain of work, computed forwards."""
    at = list(start)
    chain = [[0] * len(start) for _ in start]
    for rank, begin in enumerate(start):
        chain[rank][rank] = begin - min(start)
    for one in rounds:
        for rank, length in one.compute.items():
            at[rank] += length
            chain[rank][rank] += length
        latest = max(at[rank] for rank in one.compute)
        # Two chains of one length are both longest; then nothing can be compared.
        assume(sum(at[rank] == latest for rank in one.compute) == 1)
        last = next(rank for rank in one.compute if at[rank] == latest)
        carried = list(chain[last])
        for rank in one.compute:
            chain[rank] = list(carried)
            chain[rank][rank] += one.transfer
            at[rank] = latest + one.transfer
    for rank, length in enumerate(tail):
        at[rank] += length
        chain[rank][rank] += length
    assume(at.count(max(at)) == 1)
    return chain[at.index(max(at))]


@given(programs())
def test_find_critical_paths_is_the_longest_chain(program: tuple[list[int], list[Round], list[int]]) -> None:
    expected = longest_chain(*program)
    (path,) = paths_of(*played(*program))
    by_rank = [sum(time for (rank, _), time in path.times.items() if rank == own) for own in range(len(expected))]
    assert by_rank == expected


@given(programs())
def test_find_critical_paths_without_collectives_stays_on_the_last_rank(
    program: tuple[list[int], list[Round], list[int]],
) -> None:
    lanes, _ = played(*program)
    (path,) = paths_of(lanes)
    last = max(lanes, key=lambda lane: (lane.steps[0].end, -lane.rank))
    assert path.num_jumps == 0
    assert {rank for rank, _ in path.times} == {last.rank}


@st.composite
def anything(draw: st.DrawFn) -> tuple[list[Segments], list[Arrivals], dict[int, Clock]]:
    """Return lanes and arrivals that need not fit each other, on clocks that drift."""
    num_ranks = draw(st.integers(1, 4))
    times = st.integers(T0, T0 + 200)
    lanes, arrivals, clocks = [], [], {}
    for rank in range(num_ranks):
        borders = sorted(draw(st.sets(times, min_size=2, max_size=12)))
        labels = draw(
            st.lists(st.sampled_from([GEMM, COMM, IDLE]), min_size=len(borders) - 1, max_size=len(borders) - 1)
        )
        first, last = sorted(draw(st.tuples(times, times)))
        segments = list(zip(labels, borders[:-1], borders[1:], strict=True))
        lanes.append(lane_of(rank, segments, [Step(0, first, last + 1)]))
        waits = draw(st.lists(st.tuples(times, st.integers(0, num_ranks - 1), st.integers(0, 9)), max_size=6))
        at, to, waited = np.array(waits, dtype=np.int64).reshape(-1, 3).T
        arrivals.append(Arrivals(rank, to, to >= 0, waited, waited, waited, to, at))
        clocks[rank] = Clock(rank, 0, draw(st.integers(-50, 50)), draw(st.floats(-0.01, 0.01)), T0)
    return lanes, arrivals, clocks


@given(anything())
def test_find_critical_paths_sums_to_the_step_and_never_goes_back(
    world: tuple[list[Segments], list[Arrivals], dict[int, Clock]],
) -> None:
    lanes, _, clocks = world
    (path,) = find_critical_paths(*world)
    borders = np.array([clocks[lane.rank].aligned(np.array(lane.steps[0][1:])) for lane in lanes])
    length = int(borders[:, 1].max() - borders[:, 0].min())
    assert sum(path.times.values()) == length
    assert all(time > 0 for time in path.times.values())
    assert path.segments[0].start == borders[:, 0].min()
    assert path.segments[-1].end == borders[:, 1].max()
    for before, after in zip(path.segments[:-1], path.segments[1:], strict=True):
        assert before.start < before.end == after.start < after.end
