"""Timelines: closed forms, cases computed by hand, the definition asked directly, conservation of time."""

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.examples import examples
from tests.unit.simulate.pipelines import durations
from triplepoint.simulate.timeline.durations import Durations
from triplepoint.simulate.timeline.schedule import BACKWARD, FORWARD, Order, make_order
from triplepoint.simulate.timeline.tasks import Timeline, run, run_together

US = 1e-6


@pytest.mark.parametrize(("num_stages", "num_microbatches"), [(1, 4), (2, 1), (4, 8), (4, 2), (8, 64)])
@pytest.mark.parametrize("schedule", ["gpipe", "1f1b"])
def test_run_bubble_of_even_stages(schedule: str, num_stages: int, num_microbatches: int) -> None:
    """Source: Narayanan et al. 2021, section 2.2.1: (p-1)/m of the ideal time, so (p-1)/(m+p-1) of the step."""
    times = durations(np.full((num_stages, 1, 1), 1.0), 1.0, 1.0)
    found = run(times, make_order(schedule, num_stages, num_microbatches))
    expected = (num_stages - 1) / (num_microbatches + num_stages - 1)
    assert found.bubble_fraction == pytest.approx(expected, rel=1e-12)
    assert found.step_time_s == pytest.approx(3.0 * (num_microbatches + num_stages - 1), rel=1e-12)


@pytest.mark.parametrize(
    ("num_stages", "num_microbatches", "num_chunks"), [(2, 2, 2), (4, 8, 2), (4, 4, 3), (8, 32, 5)]
)
def test_run_bubble_of_interleaved_stages(num_stages: int, num_microbatches: int, num_chunks: int) -> None:
    """Source: Narayanan et al. 2021, section 2.2.2: the bubble shrinks by the number of chunks."""
    times = durations(np.full((num_stages, num_chunks, 1), 1.0), 1.0, 1.0)
    found = run(times, make_order("interleaved_1f1b", num_stages, num_microbatches, num_chunks))
    expected = (num_stages - 1) / (num_chunks * num_microbatches + num_stages - 1)
    assert found.bubble_fraction == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize(("num_stages", "num_microbatches"), [(2, 2), (4, 8), (8, 8)])
def test_run_bubble_of_zero_bubble(num_stages: int, num_microbatches: int) -> None:
    """Source: Qi et al. 2023, table 2: the bubble of ZB-H1 is (p-1)(T_F + T_B - T_W), where 1F1B has all added."""
    times = durations(np.full((num_stages, 1, 1), 2.0), 3.0, 1.5)
    found = run(times, make_order("zero_bubble", num_stages, num_microbatches))
    bubble = (num_stages - 1) * (2.0 + 3.0 - 1.5)
    assert found.step_time_s == pytest.approx(num_microbatches * 6.5 + bubble, rel=1e-12)
    assert found.bubble_fraction < run(times, make_order("1f1b", num_stages, num_microbatches)).bubble_fraction


def two_stages() -> Timeline:
    """Stage 1 takes twice as long; a message takes 1 us, gradients 5 us, the optimizer 3 us.

    us       0    10    20    30              70              92            131          152   157  160
    stage 0  |F0   |F1   |                     .|B0            |             .|B1         |sync |opt |
    stage 1       .|F0        |B0              |F1        |B1               |sync  |            |opt |
    """
    forward = np.array([10.0, 20.0]).reshape(2, 1, 1) * US
    times = durations(forward, forward, forward, send=US, sync_exposed=5 * US, optimizer=3 * US)
    return run(times, make_order("1f1b", 2, 2))


def test_run_two_stages_by_hand() -> None:
    found = two_stages()
    assert found.start[:, :, 0] / US == pytest.approx(np.array([[0, 10, 72, 132], [11, 31, 71, 91]]))
    assert found.end[:, :, 0] / US == pytest.approx(np.array([[10, 20, 92, 152], [31, 71, 91, 131]]))
    assert found.arrival[:, :, 0] / US == pytest.approx(np.array([[11, 21, 92, 152], [31, 72, 91, 132]]))
    assert found.final_sync / US == pytest.approx(np.array([[152, 157], [131, 136]]))
    assert found.optimizer_start / US == pytest.approx(157)
    assert found.step_time_s / US == pytest.approx(160)


def test_accounts_two_stages_by_hand() -> None:
    accounts = two_stages().accounts
    assert accounts.compute_s[:, 0] / US == pytest.approx([63, 123])
    # Stage 0: F1 sent, B0 and B1 received, gradients. Stage 1: F0 received, gradients beside which B1 is sent.
    assert accounts.exposed_comm_s[:, 0] / US == pytest.approx([3 + 5, 1 + 5])
    assert accounts.bubble_s[:, 0] / US == pytest.approx([160 - 63 - 8, 160 - 123 - 6])
    assert accounts.straggler_s[:, 0] / US == pytest.approx([0, 0], abs=1e-9)


def test_run_blocking_sends_hold_the_sender() -> None:
    forward = np.full((2, 1, 1), 10.0)
    found = run(durations(forward, 10.0, 10.0, send=1.0, is_send_blocking=True), make_order("1f1b", 2, 2))
    # F1 of stage 0 waits until F0 has gone; stage 1's F1 until B0 has.
    assert found.start[0, :2, 0] == pytest.approx([0, 11])
    assert found.start[1, :, 0] == pytest.approx([11, 21, 42, 52])


def test_run_link_carries_one_message_at_a_time() -> None:
    found = run(durations(np.full((2, 1, 1), 1.0), 1.0, 1.0, send=5.0), make_order("gpipe", 2, 4))
    assert found.arrival[0, :4, 0] == pytest.approx([6, 11, 16, 21])
    assert found.start[1, :4, 0] == pytest.approx([6, 11, 16, 21])


def test_run_slow_replica_makes_the_others_wait() -> None:
    forward = np.array([[[1.0, 1.1]]])
    found = run(durations(forward, forward, forward, sync_exposed=0.5), make_order("1f1b", 1, 10))
    assert found.accounts.straggler_s[0] == pytest.approx([3.0, 0.0])
    assert found.accounts.bubble_s[0] == pytest.approx([0.0, 0.0], abs=1e-12)
    assert found.step_time_s == pytest.approx(33.5)


def test_run_slow_stage_of_one_replica_holds_up_that_replica_and_then_all() -> None:
    forward = np.ones((4, 1, 2))
    forward[2, 0, 1] = 1.2
    found = run(durations(forward, forward, forward), make_order("1f1b", 4, 8))
    alone = run(durations(forward[:, :, :1], 1.0, 1.0), make_order("1f1b", 4, 8))
    assert found.end[:, :, 0] == pytest.approx(alone.end[:, :, 0])
    assert found.critical_stage == 2
    assert (found.accounts.straggler_s[:, 0] > 0).all()
    assert found.accounts.bubble_s[0, 1] > alone.accounts.bubble_s[0, 0]


def test_run_gradients_of_a_chunk_are_reduced_beside_its_last_backward_pass() -> None:
    times = durations(np.full((1, 1, 1), 1.0), 1.0, 1.0, sync_overlapped=1.5, sync_exposed=0.25)
    found = run(times, make_order("1f1b", 1, 3))
    # The last backward pass runs from 7 to 9.
    assert found.sync[0, 0] == pytest.approx([7.0, 8.5])
    assert found.final_sync[0] == pytest.approx([9.0, 9.25])
    assert found.accounts.exposed_comm_s[0, 0] == pytest.approx(0.25)
    longer = run(durations(np.full((1, 1, 1), 1.0), 1.0, 1.0, sync_overlapped=3.0), make_order("1f1b", 1, 3))
    assert longer.step_time_s == pytest.approx(10.0)
    assert longer.accounts.exposed_comm_s[0, 0] == pytest.approx(1.0)


def test_run_interleaved_chunks_are_reduced_last_chunk_first() -> None:
    times = durations(np.full((1, 2, 1), 1.0), 1.0, 1.0, sync_overlapped=3.0)
    found = run(times, make_order("interleaved_1f1b", 1, 1, 2))
    # Fa 0-1, Fb 1-2, Bb 2-4, Ba 4-6: the second chunk's gradients go first and hold up those of the first.
    assert found.sync[0] == pytest.approx(np.array([[5.0, 8.0], [2.0, 5.0]]))


@pytest.mark.parametrize("num_stages", [1, 2])
def test_run_first_forward_pass_waits_for_parameters(num_stages: int) -> None:
    times = durations(np.full((num_stages, 1, 1), 1.0), 1.0, 1.0, gather_overlapped=4.0)
    found = run(times, make_order("1f1b", num_stages, 2))
    assert found.end[0, 0, 0] == pytest.approx(4.0)
    assert found.accounts.exposed_comm_s[0, 0] == pytest.approx(3.0)


@pytest.mark.parametrize("num_stages", [1, 3])
def test_run_without_microbatches_is_gradients_and_optimizer(num_stages: int) -> None:
    times = durations(np.full((num_stages, 1, 2), 1.0), 1.0, 1.0, sync_exposed=2.0, optimizer=1.0)
    found = run(times, make_order("1f1b", num_stages, 0))
    assert found.step_time_s == 3.0
    assert found.bubble_fraction == 0.0
    assert (found.accounts.exposed_comm_s == 2.0).all()


def test_run_optimizer_waits_for_the_norm_of_all_stages() -> None:
    times = durations(np.full((2, 1, 1), 1.0), 1.0, 1.0, optimizer=np.array([[1.0], [2.0]]))
    found = run(times, make_order("1f1b", 2, 1))
    assert found.optimizer_start == pytest.approx(6.0)
    assert found.step_time_s == pytest.approx(8.0)


def test_critical_stage_is_the_heavy_one() -> None:
    forward = np.array([1.0, 1.0, 1.3, 1.0]).reshape(4, 1, 1)
    assert run(durations(forward, forward, forward), make_order("1f1b", 4, 16)).critical_stage == 2


seconds = st.floats(0.0, 10.0).map(lambda time: round(time, 6))


@st.composite
def pipelines(draw: st.DrawFn) -> tuple[Durations, Order]:
    schedule = draw(st.sampled_from(["gpipe", "1f1b", "interleaved_1f1b", "zero_bubble"]))
    num_stages, num_chunks = draw(st.integers(1, 4)), draw(st.integers(1, 3)) if schedule[0] in "iz" else 1
    order = make_order(schedule, num_stages, num_stages * draw(st.integers(1, 3)), num_chunks)
    shape = (num_stages, num_chunks, draw(st.integers(1, 3)))
    random = np.random.default_rng(draw(st.integers(0, 2**32)))
    forward, backward, weight = random.uniform(0.0, 10.0, (3, *shape))
    times = durations(
        forward,
        backward,
        weight,
        comm_share=0.2,
        send=random.uniform(0.0, draw(seconds), num_stages),
        sync_overlapped=random.uniform(0.0, draw(seconds), shape[:2]),
        sync_exposed=draw(seconds),
        gather_overlapped=random.uniform(0.0, draw(seconds), shape[:2]),
        optimizer=random.uniform(0.0, 2.0, shape[::2]),
        is_send_blocking=draw(st.booleans()),
    )
    return times, order


def by_definition(times: Durations, order: Order, which: int) -> np.ndarray:
    """Return the end of every task of one class, each asked of those it waits for; shape (num_stages, num_tasks)."""
    tasks = np.stack((order.kind, order.chunk, order.microbatch), axis=2).tolist()
    gathered = np.cumsum(times.gather_overlapped, axis=1)
    last = order.num_stages * order.num_chunks - 1

    @cache
    def end(stage: int, place: int) -> float:
        kind, chunk, microbatch = tasks[stage][place]
        virtual = chunk * order.num_stages + stage
        ready = 0.0
        if place > 0:
            ready = max(end(stage, place - 1), arrival(stage, place - 1) if times.is_send_blocking else 0.0)
        source = virtual + {FORWARD: -1, BACKWARD: 1}.get(kind, 10**9)
        if 0 <= source <= last:
            chunk_there, stage_there = divmod(source, order.num_stages)
            ready = max(ready, arrival(stage_there, tasks[stage_there].index([kind, chunk_there, microbatch])))
        passes = [times.forward, times.backward_input, times.backward_weight]
        took = passes[kind].total[stage, chunk, which]
        if kind == BACKWARD and not order.is_split:
            took += times.backward_weight.total[stage, chunk, which]
        done = ready + took
        return max(done, gathered[stage, chunk]) if kind == FORWARD and microbatch == 0 else done

    @cache
    def arrival(stage: int, place: int) -> float:
        kind, chunk, _ = tasks[stage][place]
        target = chunk * order.num_stages + stage + {FORWARD: 1, BACKWARD: -1}.get(kind, 10**9)
        if not 0 <= target <= last or order.num_stages == 1:
            return end(stage, place)
        earlier = [one for one in range(place) if tasks[stage][one][0] == kind]
        free = max((arrival(stage, one) for one in earlier), default=0.0)
        return max(end(stage, place), free) + times.send[stage if kind == FORWARD else stage - 1]

    return np.array([[end(stage, place) for place in range(order.num_tasks)] for stage in range(order.num_stages)])


@given(pipelines())
@settings(max_examples=examples(60), deadline=None)
def test_run_is_as_defined(pipeline: tuple[Durations, Order]) -> None:
    found = run(*pipeline)
    for which in range(found.end.shape[2]):
        assert found.end[:, :, which] == pytest.approx(by_definition(*pipeline, which), rel=1e-12)


@given(pipelines(), st.lists(st.floats(0.5, 2.0), min_size=1, max_size=3))
@settings(max_examples=examples(40), deadline=None)
def test_run_together_is_each_by_itself(pipeline: tuple[Durations, Order], factors: list[float]) -> None:
    first, order = pipeline
    steps = [first, *(replace(first, send=first.send * factor, forward=first.backward_input) for factor in factors)]
    for found, alone in zip(run_together(steps, order), (run(one, order) for one in steps), strict=True):
        assert found.step_time_s == alone.step_time_s
        assert (found.start == alone.start).all() and (found.arrival == alone.arrival).all()


@given(pipelines())
@settings(max_examples=examples(100), deadline=None)
def test_accounts_are_the_step(pipeline: tuple[Durations, Order]) -> None:
    found = run(*pipeline)
    accounts = found.accounts
    busy = accounts.compute_s + accounts.exposed_comm_s
    total = busy + accounts.bubble_s + accounts.straggler_s
    assert total == pytest.approx(np.full_like(total, found.step_time_s), rel=1e-12)
    for part in accounts:
        assert (part >= -1e-12 * found.step_time_s).all()
    own = (found.end - found.start).sum(axis=1) + pipeline[0].optimizer.total
    assert (busy >= own * (1 - 1e-12)).all()
    assert (accounts.bubble_s.min(axis=0) >= 0).all()


@given(pipelines())
@settings(max_examples=examples(60), deadline=None)
def test_run_keeps_order_and_links(pipeline: tuple[Durations, Order]) -> None:
    found, order = run(*pipeline), pipeline[1]
    room = 1e-9
    assert (found.start[:, 1:] >= found.end[:, :-1] - room).all()
    for stage in range(order.num_stages):
        for kind in (FORWARD, BACKWARD):
            own = (order.kind[stage] == kind) & order.is_sent[stage]
            assert (found.sent[stage, own][1:] >= found.arrival[stage, own][:-1] - room).all()


@given(pipelines(), st.integers(0, 3), st.floats(1.0, 2.0))
@settings(max_examples=examples(60), deadline=None)
def test_run_is_no_faster_for_slower_stages(pipeline: tuple[Durations, Order], stage: int, factor: float) -> None:
    times, order = pipeline
    slower = times.forward.compute.copy()
    slower[stage % order.num_stages] *= factor
    changed = replace(times, forward=replace(times.forward, compute=slower))
    assert run(changed, order).step_time_s >= run(times, order).step_time_s * (1 - 1e-12)


def test_run_contention_by_hand() -> None:
    """One stage, one micro-batch: 1 s forward, 2 s backward, 1.5 s of it beside a reduction: a fifth of that more."""
    times = replace(durations(np.full((1, 1, 1), 1.0), 1.0, 1.0), sync_overlapped=np.array([[1.5]]), slowdown=0.2)
    found = run(times, make_order("1f1b", 1, 1))
    assert found.contention_s == pytest.approx(0.3)
    assert found.step_time_s == pytest.approx(3.3)
    assert found.accounts.compute_s[0, 0] == pytest.approx(3.3)
    assert found.accounts.bubble_s[0, 0] + found.accounts.straggler_s[0, 0] == pytest.approx(0.0)
