"""The lanes of the first step, drawn while work streams by."""

import pytest

from tests.unit.trace.rank.parsed import parse, since_base_us
from tests.unit.trace.traces import ALL_REDUCE, COPY, GEMM, event, kernel, launch, note


@pytest.mark.parametrize("capacity", [1, 1000])
def test_timeline_of_the_first_step_by_hand(capacity: int) -> None:
    events = [
        note("ProfilerStep#6", 0, 100),
        note("ProfilerStep#7", 100, 100),
        note("forward stage=1 microbatch=2", 0, 10),
        launch(5, 1),
        kernel(GEMM, 20, 30, correlation=1),
        kernel(ALL_REDUCE, 40, 90, stream=9, **{"Process Group Description": "mesh_tp"}),
        event(COPY, 70, 10, "gpu_memcpy", 8, stream=8),
        kernel(GEMM, 150, 10),
    ]
    drawn = [
        (row["lane"], row["label"], row["group"], row["stage"], row["microbatch"])
        + (since_base_us(row["t_start_ns"]), row["duration_ns"] / 1000)
        for row in parse(events, capacity=capacity).timeline
    ]
    assert sorted(drawn) == [
        ("comm", "all_reduce", "tp", None, None, 40, 60),
        ("compute", "gemm", None, None, None, 20, 30),
        ("memory", "device_to_device", None, None, None, 70, 10),
        ("phase", "forward", None, 1, 2, 20, 30),
    ]


def test_timeline_without_steps_is_of_all_work() -> None:
    assert [row["duration_ns"] for row in parse([kernel(GEMM, 20, 30)]).timeline] == [30_000]


@pytest.mark.parametrize("events", [[], [note("ProfilerStep#6", 5, 0), kernel(GEMM, 1, 1)], [kernel(GEMM, 1, 0)]])
def test_timeline_without_a_step_of_any_length_is_empty(events: list[dict]) -> None:
    assert parse(events).timeline == []
