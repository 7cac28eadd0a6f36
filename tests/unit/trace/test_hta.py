"""HTA's selection of rows and its classes, by hand. What the real HTA says of recorded traces is among the judges."""

from pathlib import Path

import pytest

from tests.unit.trace.traces import ALL_REDUCE, COPY, GEMM, event, kernel, launch, note, write_trace
from triplepoint.errors import UserError
from triplepoint.trace.hta import hta_breakdown_row, kernel_table, read_hta
from triplepoint.trace.parsing import find_traces


def row(folder: Path, events: list[dict]) -> dict[str, str]:
    path = write_trace(folder / "rank0.json", events)
    (one,) = read_hta(find_traces([path]), lambda line: None)
    return hta_breakdown_row(one)


def test_rows_are_all_with_a_stream_of_whatever_category(tmp_path: Path) -> None:
    events = [
        kernel(GEMM, 0, 10),
        event("Event Sync", 5, 10, "cuda_sync", stream=7),
        event("triton_poi_0", 20, 5, "cpu_op", stream=7),
        event("hipMemcpy", 90, 5, "cuda_runtime", stream="0x0"),
        event("aten::mm", 90, 5),
        kernel("on no stream", 90, 5, stream=-1),
    ]
    found = row(tmp_path, events)
    assert (found["num_gpu_events"], found["span_us"]) == ("3", "25.000")
    # Synchronisation is busy time, but no kind of work: 10-15 is neither idle nor computation.
    assert (found["compute_us"], found["idle_us"], found["non_compute_us"]) == ("15.000", "5.000", "5.000")


def test_communication_is_by_nccls_name_alone(tmp_path: Path) -> None:
    events = [kernel(ALL_REDUCE, 0, 10), kernel("deepep::dispatch", 5, 10), event(COPY, 20, 5, "gpu_memcpy", stream=7)]
    found = row(tmp_path, events)
    assert (found["comm_us"], found["compute_us"], found["memory_us"]) == ("10.000", "10.000", "5.000")
    assert (found["comm_overlapped_us"], found["comm_exposed_us"]) == ("5.000", "5.000")
    assert found["comm_overlap_fraction"] == "0.500000000"


STEPS = [note("ProfilerStep#1", 0, 100), note("ProfilerStep#2", 100, 100)]


def test_of_two_steps_what_was_launched_from_the_last_on_is_left_out(tmp_path: Path) -> None:
    events = [
        *STEPS,
        launch(10, 1),
        kernel(GEMM, 20, 10, correlation=1),
        launch(99, 2),
        kernel(GEMM, 150, 10, correlation=2),
        launch(100, 3),
        kernel(GEMM, 120, 10, correlation=3),
        kernel(GEMM, 40, 10, correlation=4),
    ]
    # The first two: of the third the launch is in the last step, of the fourth it was not recorded.
    found = row(tmp_path, events)
    assert (found["num_gpu_events"], found["span_us"], found["compute_us"]) == ("2", "140.000", "20.000")


def test_of_one_step_nothing_is_left_out(tmp_path: Path) -> None:
    found = row(tmp_path, [*STEPS[:1], kernel(GEMM, 150, 10, correlation=3), kernel(GEMM, 170, 10)])
    assert (found["num_gpu_events"], found["compute_us"]) == ("2", "20.000")


def test_steps_are_counted_over_all_ranks(tmp_path: Path) -> None:
    work = [launch(10, 1), kernel(GEMM, 20, 10, correlation=1)]
    write_trace(tmp_path / "rank0.json", [STEPS[0], *work])
    write_trace(tmp_path / "rank1.json", [STEPS[1], *work])
    ranks = read_hta(find_traces([tmp_path]), lambda line: None)
    # Of rank 0 the last step starts before all of its work, of rank 1 after it.
    assert [hta_breakdown_row(one)["num_gpu_events"] for one in ranks] == ["0", "1"]


def test_trace_without_any_row_is_all_zero(tmp_path: Path) -> None:
    found = row(tmp_path, [event("aten::mm", 0, 5)])
    assert (found["span_us"], found["idle_us"], found["num_gpu_events"]) == ("0.000", "0.000", "0")
    assert found["comm_overlap_fraction"] == ""


def test_kernels_are_by_htas_classes(tmp_path: Path) -> None:
    events = [kernel(GEMM, 0, 10), kernel(GEMM, 10, 4), kernel(ALL_REDUCE, 20, 1)]
    path = write_trace(tmp_path / "rank3.json", [*events, event("Event Sync", 5, 1, "cuda_sync", stream=7)])
    table = kernel_table(read_hta(find_traces([path]), lambda line: None))
    assert sorted(tuple(one.values()) for one in table.to_pylist()) == [
        (3, "comm", "comm", ALL_REDUCE, 1, 1_000, 1_000, 1_000),
        (3, "compute", "compute", GEMM, 2, 14_000, 4_000, 10_000),
        (3, "other", "other", "Event Sync", 1, 1_000, 1_000, 1_000),
    ]


def test_read_hta_ranks_are_as_written_and_in_order(tmp_path: Path) -> None:
    for name, rank in (("a.json", 7), ("b.json", 2)):
        write_trace(tmp_path / name, [kernel(GEMM, 0, 1)], distributedInfo={"rank": rank})
    assert [one.rank for one in read_hta(find_traces([tmp_path]), lambda line: None)] == [2, 7]
    write_trace(tmp_path / "c.json", [kernel(GEMM, 0, 2)], distributedInfo={"rank": 7})
    with pytest.raises(UserError, match=r"c\.json: rank 7 is also in .*a\.json"):
        read_hta(find_traces([tmp_path]), lambda line: None)
