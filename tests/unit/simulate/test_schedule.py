"""Orders of the pipeline schedules, against orders written out by hand and against those of torch."""

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from triplepoint.errors import UserError
from triplepoint.simulate.timeline.schedule import BACKWARD, BACKWARD_WEIGHT, FORWARD, Order, make_order


def spelled(order: Order, stage: int) -> str:
    letters = zip(order.kind[stage], order.chunk[stage], order.microbatch[stage], strict=True)
    return " ".join("FBW"[kind] + "abcdefgh"[chunk] + str(microbatch) for kind, chunk, microbatch in letters)


@pytest.mark.parametrize(
    ("schedule", "num_chunks", "num_microbatches", "stages"),
    [
        ("gpipe", 1, 3, ["Fa0 Fa1 Fa2 Ba0 Ba1 Ba2", "Fa0 Fa1 Fa2 Ba0 Ba1 Ba2"]),
        ("1f1b", 1, 3, ["Fa0 Fa1 Ba0 Fa2 Ba1 Ba2", "Fa0 Ba0 Fa1 Ba1 Fa2 Ba2"]),
        ("1f1b", 1, 1, ["Fa0 Ba0", "Fa0 Ba0"]),
        # Narayanan et al. 2021, figure 4: two micro-batches through the first chunk, then through the second.
        (
            "interleaved_1f1b",
            2,
            4,
            [
                "Fa0 Fa1 Fb0 Fb1 Fa2 Bb0 Fa3 Bb1 Fb2 Ba0 Fb3 Ba1 Bb2 Bb3 Ba2 Ba3",
                "Fa0 Fa1 Fb0 Bb0 Fb1 Bb1 Fa2 Ba0 Fa3 Ba1 Fb2 Bb2 Fb3 Bb3 Ba2 Ba3",
            ],
        ),
        ("zero_bubble", 1, 3, ["Fa0 Fa1 Ba0 Wa0 Fa2 Ba1 Wa1 Ba2 Wa2", "Fa0 Ba0 Fa1 Ba1 Wa0 Fa2 Ba2 Wa1 Wa2"]),
    ],
)
def test_make_order_by_hand(schedule: str, num_chunks: int, num_microbatches: int, stages: list[str]) -> None:
    order = make_order(schedule, 2, num_microbatches, num_chunks)
    assert [spelled(order, stage) for stage in range(2)] == stages


@pytest.mark.parametrize(
    ("schedule", "num_stages", "num_microbatches", "num_chunks"),
    [
        ("interleaved_1f1b", 2, 4, 3),
        ("interleaved_1f1b", 4, 8, 2),
        ("interleaved_1f1b", 8, 8, 4),
        ("zero_bubble", 4, 12, 1),
        ("zero_bubble", 4, 8, 2),
    ],
)
def test_make_order_is_that_of_torch(
    schedule: str, num_stages: int, num_microbatches: int, num_chunks: int, torch_order: Callable[..., str]
) -> None:
    order = make_order(schedule, num_stages, num_microbatches, num_chunks)
    wanted = [torch_order(schedule, num_stages, num_microbatches, num_chunks, stage) for stage in range(num_stages)]
    assert [spelled(order, stage) for stage in range(num_stages)] == wanted


@pytest.fixture
def torch_order() -> Callable[..., str]:
    schedules = pytest.importorskip("torch.distributed.pipelining.schedules")

    def rank_order(schedule: str, num_stages: int, num_microbatches: int, num_chunks: int, stage: int) -> str:
        is_split = schedule == "zero_bubble"
        passes = num_chunks * num_microbatches
        warmup = schedules._get_warmup_ops(stage, num_chunks, num_stages, num_stages, num_microbatches, 2 - is_split)
        actions = schedules._get_1f1b_rank_ops(
            num_chunks,
            num_stages,
            warmup,
            passes - warmup,
            warmup,
            stage,
            lambda step: step // num_stages % num_chunks * num_stages + stage,
            lambda step: (num_chunks - 1 - (step - warmup) // num_stages % num_chunks) * num_stages + stage,
            stage if is_split else 0,
            enable_zero_bubble=is_split,
        )
        letter = {"F": "F", "B": "B", "I": "B", "W": "W"}
        return " ".join(
            letter[action.computation_type.value] + "abcdefgh"[action.stage_index // num_stages] + str(action[2])
            for action in actions
            if action is not None
        )

    return rank_order


shapes = st.tuples(
    st.sampled_from(["gpipe", "1f1b", "interleaved_1f1b", "zero_bubble"]), st.integers(1, 6), st.integers(0, 4)
).flatmap(
    lambda one: st.tuples(
        st.just(one[0]),
        st.just(one[1]),
        st.just(one[1] * one[2]) if one[0][0] in "iz" else st.integers(0, 12),
        st.integers(1, 3) if one[0][0] in "iz" else st.just(1),
    )
)


@given(shapes)
def test_make_order_runs_every_task_once_and_after_what_it_needs(shape: tuple) -> None:
    order = make_order(*shape)
    _, num_stages, num_microbatches, num_chunks = shape
    kinds = 3 if order.is_split else 2
    assert order.num_tasks == kinds * num_microbatches * num_chunks
    wave = order.wave.reshape(-1)
    for stage in range(num_stages):
        done = list(zip(order.kind[stage], order.chunk[stage], order.microbatch[stage], strict=True))
        assert len(set(done)) == order.num_tasks
        place = {task: number for number, task in enumerate(done)}
        for chunk in range(num_chunks):
            for microbatch in range(num_microbatches):
                places = [place[kind, chunk, microbatch] for kind in range(kinds)]
                assert places == sorted(places)
    is_needed = order.needs >= 0
    assert (wave[order.needs[is_needed]] < order.wave[is_needed]).all()
    assert (np.diff(order.wave, axis=1) > 0).all()
    # Every virtual stage but the first is sent activations, every one but the last gradients.
    assert is_needed.sum() == 2 * (num_stages * num_chunks - 1) * num_microbatches


@given(st.integers(1, 8), st.integers(1, 20), st.sampled_from(["1f1b", "zero_bubble"]))
def test_make_order_holds_no_more_activations_than_stages_follow(num_stages: int, count: int, schedule: str) -> None:
    order = make_order(schedule, num_stages, count)
    for stage in range(num_stages):
        held = np.cumsum(np.select([order.kind[stage] == FORWARD, order.kind[stage] == BACKWARD], [1, -1], 0))
        assert held.max() == min(num_stages - stage, count)


@given(st.integers(1, 8), st.integers(1, 20))
def test_completes_is_the_last_of_a_chunk(num_stages: int, count: int) -> None:
    order = make_order("zero_bubble", num_stages, count)
    assert (order.completes(0) == order.num_tasks - 1).all()
    assert (order.kind[:, -1] == BACKWARD_WEIGHT).all()


def test_make_order_is_made_once() -> None:
    assert make_order("1f1b", 4, 8) is make_order("1f1b", 4, 8)
    assert make_order(None, 1, 8) is make_order("1f1b", 1, 8)


def test_make_order_refuses_microbatches_that_leave_a_group_open() -> None:
    with pytest.raises(UserError, match=r"groups of pp: 4, which does not divide their number 6"):
        make_order("interleaved_1f1b", 4, 6, 2)


def test_make_order_refuses_chunks_without_interleaving() -> None:
    with pytest.raises(UserError, match=r"1f1b has one chunk per stage, found vp: 2"):
        make_order("1f1b", 4, 8, 2)


def test_make_order_of_more_passes_than_anybody_trains() -> None:
    with pytest.raises(UserError, match="= 2000000000000 passes, at most 4000000 are simulated"):
        make_order("1f1b", 4, 500_000_000_000)
