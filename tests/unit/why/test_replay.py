"""What-if replay by hand: two workers, passes and transfers."""

import numpy as np
import pytest

from triplepoint.why.operations import Operations, Worker
from triplepoint.why.replay import find_gaps, find_order, replay, with_unrecorded_waits
from triplepoint.why.sensed import Sensed
from triplepoint.why.slowdown import find_slowdown
from triplepoint.why.suspects import find_suspects

Row = tuple[int, str, int, bool, float, float]
"""Worker, kind, transfer, whether communication, start and end in s."""


def operations(rows: list[Row], workers: list[Worker] | None = None, num_steps: int = 1) -> Operations:
    kinds = list(dict.fromkeys(row[1] for row in rows))
    kind = np.array([kinds.index(row[1]) for row in rows])
    times = np.array([row[4:] for row in rows])
    return Operations(
        workers=workers or [Worker(0, 0, 0), Worker(1, 0, 1)],
        kinds=kinds,
        steps=np.arange(num_steps),
        worker=np.array([row[0] for row in rows]),
        kind=kind,
        transfer=np.array([row[2] for row in rows]),
        is_comm=np.array([row[3] for row in rows]),
        duration_class=kind,
        rate_class=kind,
        size_bytes=np.ones(len(rows)),
        start_s=np.repeat(times[:, :1], num_steps, axis=1),
        duration_s=np.repeat(times[:, 1:] - times[:, :1], num_steps, axis=1),
    )


PIPELINE: list[Row] = [
    (0, "forward-compute", 0, False, 0.0, 2.0),
    (0, "forward-send", 1, True, 2.0, 3.0),
    (1, "forward-recv", 1, True, 0.0, 3.0),
    (1, "forward-compute", 2, False, 3.5, 4.5),
]
"""Worker 1 waits 2 s for a transfer of 1 s, and starts 0.5 s after it could."""


def test_work_of_a_transfer_is_without_waiting() -> None:
    assert operations(PIPELINE).work_s[:, 0].tolist() == [2.0, 1.0, 1.0, 1.0]


def test_gap_is_what_passes_before_an_operation_that_could_start() -> None:
    made = operations(PIPELINE)
    gaps, is_first = find_gaps(made, find_order(made))
    assert gaps[:, 0].tolist() == pytest.approx([0, 0, 0, 0.5])
    assert is_first.tolist() == [True, False, True, False]


def test_replay_of_other_durations_moves_what_waits() -> None:
    made = operations(PIPELINE)
    work_s = np.array([[1.0], [1.0], [1.0], [1.0]])
    assert replay(made, find_order(made), work_s).end_s[:, 0].tolist() == [1.0, 2.0, 2.0, 3.0]


def test_replay_with_gaps_is_the_recorded_step() -> None:
    made = operations(PIPELINE)
    order = find_order(made)
    assert replay(made, order, made.work_s, find_gaps(made, order)[0]).end_s == pytest.approx(made.end_s)


def test_buffered_send_does_not_wait_for_its_receiver() -> None:
    late: list[Row] = [
        (0, "forward-send", 0, True, 0.0, 0.1),
        (0, "forward-compute", 1, False, 0.1, 1.1),
        (1, "forward-compute", 2, False, 0.0, 5.0),
        (1, "forward-recv", 0, True, 5.0, 5.2),
    ]
    made = operations(late)
    order = find_order(made)
    assert replay(made, order, made.work_s).end_s[:, 0].tolist() == pytest.approx([0.1, 1.1, 5.0, 5.2])


def test_transfer_beside_computation_holds_up_the_pass_that_needs_it_only() -> None:
    beside: list[Row] = [
        (0, "forward-compute", 0, False, 0.0, 1.0),
        (0, "forward-pp-comm", 1, True, 1.0, 1.2),
        (1, "forward-compute", 2, False, 0.0, 2.0),
        (1, "forward-pp-comm", 1, True, 1.0, 1.2),
        (1, "backward-compute", 3, False, 2.0, 3.0),
        (1, "forward-compute", 4, False, 3.0, 4.0),
    ]
    made = operations(beside)
    work_s = made.work_s.copy()
    work_s[0] = 3.5
    end_s = replay(made, find_order(made), work_s).end_s[:, 0]
    assert end_s[4] == pytest.approx(3.0)  # the backward pass does not wait for what the forward pass needs
    assert end_s[5] == pytest.approx(3.5 + 0.2 + 1.0)


OVERLAPPING: list[Row] = [
    (0, "forward-compute", 0, False, 0.0, 2.0),
    (0, "forward-pp-comm", 1, True, 2.0, 2.5),
    (1, "forward-pp-comm", 1, True, 2.0, 2.5),
    (2, "backward-compute", 2, False, 0.0, 3.0),
    (2, "backward-pp-comm", 3, True, 3.0, 3.5),
    (1, "backward-pp-comm", 3, True, 2.2, 3.5),
    (1, "backward-compute", 4, False, 3.5, 4.5),
    (1, "forward-compute", 5, False, 4.5, 5.5),
]
"""Worker 1 receives from both sides at once, then has a backward and a forward pass."""


def test_received_transfer_delays_the_pass_of_its_direction_alone() -> None:
    made = operations(OVERLAPPING, [Worker(rank, 0, rank) for rank in range(3)])
    work_s = made.work_s.copy()
    work_s[0], work_s[3] = 3.5, 1.0  # the forward transfer comes late, the backward one early
    end_s = replay(made, find_order(made), work_s).end_s[:, 0]
    assert end_s[[2, 5]].tolist() == pytest.approx([4.0, 1.5])
    assert end_s[[6, 7]].tolist() == pytest.approx([2.5, 5.0])


def test_transfers_that_never_overlap_keep_their_order() -> None:
    rows = [row if row[2] != 3 or row[0] != 1 else (*row[:4], 2.5, 3.5) for row in OVERLAPPING]
    made = operations(rows, [Worker(rank, 0, rank) for rank in range(3)])
    work_s = made.work_s.copy()
    work_s[0], work_s[3] = 3.5, 1.0
    assert replay(made, find_order(made), work_s).end_s[5, 0] == pytest.approx(4.5)


def test_slow_rank_costs_nothing_beside_a_stage_with_more_layers() -> None:
    """A stage may have more layers by design, so its repair does not make another rank costly."""
    workers = [Worker(rank, 0, rank // 2) for rank in range(8)]
    own_s = [1.0, 1.0, 1.0, 1.3, 1.0, 1.0, 1.5, 1.5]
    ends_s = [max(own_s[2 * worker.stage :][:2]) for worker in workers]
    rows: list[Row] = [(rank, "forward-compute", rank, False, 0.0, end_s) for rank, end_s in enumerate(ends_s)]
    rows += [(rank, "all-gather", 8, True, end_s, 1.6) for rank, end_s in enumerate(ends_s)]
    sensed = {rank: Sensed(rank, "", "", 0, compute_s=one_s, passes_s=one_s) for rank, one_s in enumerate(own_s)}
    lost_s = {one.ranks: one.lost_s for one in find_suspects(operations(rows, workers), None, sensed)}
    assert lost_s == {(3,): 0.0, (6, 7): pytest.approx(0.5)}


def test_slow_rank_costs_what_others_wait_and_not_its_kernels() -> None:
    """Where the host is late, kernels that take longer fill time in which the GPUs of the others wait for launches."""
    workers = [Worker(rank, 0, rank // 4) for rank in range(8)]
    rows: list[Row] = [(rank, "forward-compute", rank, False, 0.0, 1.0) for rank in range(8)]
    sensed = {rank: Sensed(rank, "", "", 0, compute_s=0.5, passes_s=0.9) for rank in range(8)}
    sensed[1] = Sensed(1, "", "", 0, compute_s=0.7, passes_s=1.0)
    (suspect,) = [one for one in find_suspects(operations(rows, workers), None, sensed) if one.is_single]
    assert (suspect.ranks, suspect.excess) == ((1,), pytest.approx(0.4))
    assert suspect.excess_s == pytest.approx(0.1)


def test_unrecorded_barrier_is_no_late_host() -> None:
    workers = [Worker(rank, rank, 0) for rank in range(4)]
    rows: list[Row] = [(rank, "backward-compute", rank, False, 0.0, 1.0 if rank else 3.0) for rank in range(4)]
    rows += [(rank, "optimizer", 4 + rank, False, 3.0, 3.1) for rank in range(4)]
    made = operations(rows, workers)
    order = find_order(made)
    found = with_unrecorded_waits(made, order, find_gaps(made, order)[0])
    assert find_gaps(made, found)[0].max() == 0
    (suspect,) = find_suspects(made)
    assert (suspect.ranks, suspect.respect) == ((0,), "computation")
    assert suspect.lost_s == pytest.approx(2.0, rel=0.05)


def test_two_equally_slow_workers_share_what_they_cost() -> None:
    workers = [Worker(rank, rank, 0) for rank in range(8)]
    rows: list[Row] = [(rank, "backward-compute", rank, False, 0.0, 2.0 if rank < 2 else 1.0) for rank in range(8)]
    rows += [(rank, "grads-reduce-scatter", 8, True, 2.0 if rank < 2 else 1.0, 2.1) for rank in range(8)]
    found = find_suspects(operations(rows, workers))
    assert [one.ranks for one in found] == [(0,), (1,)]
    assert [one.lost_s for one in found] == pytest.approx([0.5, 0.5])


def test_slowdown_of_equal_workers_is_one() -> None:
    workers = [Worker(rank, rank, 0) for rank in range(3)]
    rows: list[Row] = [(rank, "backward-compute", rank, False, 0.0, 1.0) for rank in range(3)]
    rows += [(rank, "grads-reduce-scatter", 3, True, 1.0, 1.5) for rank in range(3)]
    assert find_slowdown(operations(rows, workers)).slowdown == 1.0
    assert find_suspects(operations(rows, workers)) == []


@pytest.mark.parametrize(
    ("excess", "found"),
    [
        ((0.0, 0.11), [(3,)]),
        ((0.0, 0.05), []),  # two pairs do not show how much pairs differ
        ((0.0, 0.05, 0.001), [(3,)]),
        ((0.04, 0.05, 0.03), []),
    ],
)
def test_slower_of_two_ranks_of_a_tensor_parallel_group(
    excess: tuple[float, ...], found: list[tuple[int, ...]]
) -> None:
    workers = [Worker(rank, 0, rank // 2) for rank in range(2 * len(excess))]
    ends_s = [1.0 + excess[worker.stage] for worker in workers]
    rows: list[Row] = [(rank, "forward-compute", rank, False, 0.0, end_s) for rank, end_s in enumerate(ends_s)]
    rows += [(rank, "all-gather", len(workers), True, end_s, max(ends_s) + 0.1) for rank, end_s in enumerate(ends_s)]
    own_s = {rank: end_s if rank % 2 else 1.0 for rank, end_s in enumerate(ends_s)}
    sensed = {rank: Sensed(rank, "", "", 0, compute_s=one_s, passes_s=one_s) for rank, one_s in own_s.items()}
    suspects = [one for one in find_suspects(operations(rows, workers), None, sensed) if one.is_single]
    assert [one.ranks for one in suspects] == found
    if found:
        assert suspects[0].lost_s == pytest.approx(max(excess), rel=0.03)
