"""Why nothing runs: every reason by hand. A first kernel runs from 0 to 10, the awaited work from 40 to 50; in us."""

import pytest

from tests.unit.trace.rank.parsed import parse
from tests.unit.trace.traces import ALL_REDUCE, COPY, FILL, GEMM, SEND_RECV, event, kernel, launch, note

BEFORE = [kernel(GEMM, 0, 10, correlation=1), launch(-5, 1)]


def idle_us(*events: dict) -> dict[str, float]:
    return parse([*BEFORE, *events]).idle_us


def test_idle_host_is_late_with_the_launch() -> None:
    assert idle_us(launch(35, 2), kernel(GEMM, 40, 10, correlation=2)) == {"host": 25, "other": 5}


def test_idle_launched_long_before_is_a_dependency() -> None:
    assert idle_us(launch(5, 2), kernel(GEMM, 40, 10, correlation=2)) == {"other": 30}


@pytest.mark.parametrize(
    ("name", "cat", "reason"),
    [
        (GEMM, "kernel", "other"),
        (COPY, "gpu_memcpy", "other"),
        (FILL, "gpu_memset", "other"),
        (SEND_RECV, "kernel", "bubble"),
        (ALL_REDUCE, "kernel", "straggler"),
        ("ncclDevKernel_AllGather_RING_LL(x)", "kernel", "straggler"),
    ],
)
def test_idle_device_waits_for_what_comes_next(name: str, cat: str, reason: str) -> None:
    awaited = event(name, 40, 10, cat, 7, stream=7, correlation=2)
    assert idle_us(launch(30, 2), awaited) == {"host": 20, reason: 10}


def test_idle_next_work_of_many_is_the_one_that_begins_first() -> None:
    events = [
        launch(30, 2),
        kernel(SEND_RECV, 40, 10, correlation=2),
        launch(5, 3),
        kernel(GEMM, 41, 30, correlation=3),
    ]
    assert idle_us(*events) == {"host": 20, "bubble": 10}


@pytest.mark.parametrize("kind", ["send", "recv"])
def test_idle_collective_named_by_its_arguments_is_a_message(kind: str) -> None:
    awaited = kernel("ncclDevKernel_Generic(x)", 40, 10, correlation=2, **{"Collective name": kind})
    assert idle_us(launch(30, 2), awaited) == {"host": 20, "bubble": 10}


def test_idle_launch_that_was_not_recorded_leaves_it_to_the_device() -> None:
    assert idle_us(kernel(GEMM, 40, 10, correlation=2)) == {"other": 30}
    assert idle_us(kernel(ALL_REDUCE, 40, 10)) == {"straggler": 30}


def test_idle_launch_after_its_own_work_is_all_the_hosts() -> None:
    # Clocks of host and device may be apart.
    assert idle_us(launch(90, 2), kernel(GEMM, 40, 10, correlation=2)) == {"host": 30}


def test_idle_host_was_blocked_by_others() -> None:
    blocked = [note("gloo:recv", 12, 4), note("gloo:all_reduce", 14, 6), event("c10d::barrier", 25, 3)]
    # 12-16 a message, 16-20 and 25-28 a collective; the rest of 10-35 the host itself.
    assert idle_us(*blocked, launch(35, 2), kernel(GEMM, 40, 10, correlation=2)) == {
        "bubble": 4,
        "straggler": 7,
        "host": 14,
        "other": 5,
    }


def test_idle_blocked_host_does_not_matter_once_the_work_was_launched() -> None:
    blocked = [note("gloo:recv", 20, 15)]
    assert idle_us(*blocked, launch(25, 2), kernel(GEMM, 40, 10, correlation=2)) == {
        "host": 10,
        "bubble": 5,
        "other": 15,
    }


@pytest.mark.parametrize("name", ["mpi:all_gather", "ucc:barrier", "gloo:all_to_all"])
def test_idle_host_blocked_by_any_backend(name: str) -> None:
    assert idle_us(note(name, 10, 25), launch(35, 2), kernel(GEMM, 40, 10, correlation=2)) == {
        "straggler": 25,
        "other": 5,
    }


def test_idle_of_steps_before_the_first_and_after_the_last_work() -> None:
    parsed = parse([note("ProfilerStep#0", -20, 100), *BEFORE, note("gloo:barrier", 60, 10)])
    idle = {row["kind"]: row["exposed_ns"] / 1000 for row in parsed.intervals if row["category"] == "idle"}
    # -20 to -5 until the launch, -5 to 0 after it; 10-60 and 70-80 nothing follows: the host launches no more.
    assert idle == {"host": 15 + 50 + 10, "other": 5, "straggler": 10}
    assert parsed.idle_us == {}, "the totals are over the time from first to last work"


def test_idle_of_a_cpu_is_the_hosts_but_for_messages_on_their_way() -> None:
    events = [
        event("aten::mm", 0, 10),
        event("c10d::send", 10, 5),
        note("gloo:send", 10, 40),
        event("aten::mm", 70, 10),
    ]
    # The message counts to 15, where its call ends, and is on its way until 50.
    assert parse(events).idle_us == {"bubble": 35, "host": 20}


def test_idle_work_of_no_length_ends_a_gap_too() -> None:
    events = [launch(5, 2), kernel(ALL_REDUCE, 20, 0, correlation=2), launch(5, 3), kernel(GEMM, 40, 10, correlation=3)]
    for capacity in (1, 100):
        assert parse([*BEFORE, *events], capacity=capacity).idle_us == {"straggler": 10, "other": 20}
