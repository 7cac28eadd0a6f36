"""What counts as work: of a GPU its kernels, copies and fills alone, else the CPU's own operators."""

from pathlib import Path

from tests.unit.trace.rank.parsed import parse, work_of, work_rows
from tests.unit.trace.traces import ALL_REDUCE, COPY, FILL, GEMM, event, kernel, note
from triplepoint.trace.rank_results import Label


def busy_us(events: list[dict]) -> dict[str, list[tuple[float, float]]]:
    """Return the work of every category, by time."""
    busy: dict[str, list[tuple[float, float]]] = {"compute": [], "comm": [], "memory": []}
    with_labels = parse(events)
    labels = [account.label for account in with_labels.summary.accounts]
    base = with_labels.summary.span[0]
    for row in with_labels.segments:
        label: Label = labels[row["label"]]
        if label.category in busy:
            start = (row["t_start_ns"] - base) / 1000
            busy[label.category].append((start, start + row["duration_ns"] / 1000))
    return busy


def test_read_work_gpu_rows_alone_count(tmp_path: Path) -> None:
    work = work_of(
        tmp_path,
        [
            event("aten::mm", 0, 100),
            event("triton_poi_fused_add_0", 0, 100, stream=7),
            event("cudaDeviceSynchronize", 0, 500, "cuda_sync", stream=7),
            event("hipMemcpyWithStream", 0, 500, "cuda_runtime", stream="0x0"),
            event("nccl:all_reduce", 0, 500, "gpu_user_annotation", 9, stream=9),
            kernel(GEMM, 10, 10),
            kernel(GEMM, 15, 10, stream=8),
            kernel(ALL_REDUCE, 22, 10, stream=9),
            event(COPY, 40, 2, "gpu_memcpy"),
            event(FILL, 43, 1, "gpu_memset"),
        ],
    )
    assert work.is_device
    assert [(name, start, end) for name, _, _, start, end in work_rows(work)] == [
        (GEMM, 10, 20),
        (GEMM, 15, 25),
        (ALL_REDUCE, 22, 32),
        (COPY, 40, 42),
        (FILL, 43, 44),
    ]
    assert work.span == (10_000, 44_000)


def test_read_work_spelling_of_2021(tmp_path: Path) -> None:
    events = [event(GEMM, 5, 2, "Kernel", 7), event("aten::mm", 0, 9, "Operator"), event(COPY, 8, 1, "Memcpy", 7)]
    work = work_of(tmp_path, [*events, event("ProfilerStep#7", 0, 20, "Operator")])
    assert [(name, start, end) for name, _, _, start, end in work_rows(work)] == [(GEMM, 5, 7), (COPY, 8, 9)]
    assert [step.number for step in work.steps] == [7]


def test_read_work_times_before_the_base_are_times(tmp_path: Path) -> None:
    work = work_of(tmp_path, [kernel(GEMM, -50, 10), kernel(GEMM, -30, 5)])
    assert work.span == (-50_000, -25_000)
    assert [(start, end) for *_, start, end in work_rows(work)] == [(-50, -40), (-30, -25)]


def test_parse_cpu_counts_self_time_of_operators() -> None:
    events = [
        note("forward stage=0 microbatch=0", 0, 100),
        event("autograd::engine::evaluate_function: MmBackward0", 0, 50),
        event("MmBackward0", 2, 46),
        event("aten::linear", 5, 20),
        event("aten::mm", 10, 10),
        event("c10d::allreduce_", 30, 10),
        event("aten::copy_", 33, 2),
        event("aten::mul", 8, 4, tid=2),
    ]
    parsed = parse(events)
    assert not parsed.summary.is_device
    assert parsed.summary.num_gpu_events == 0
    assert {row["name"]: row["sum_ns"] / 1000 for row in parsed.kernels} == {
        "aten::linear": 10,
        "aten::mm": 10,
        "aten::copy_": 2,
        "aten::mul": 4,
    }
    busy = busy_us(events)
    # From 5, where the first work is, on; of two threads at once the operator that began first counts.
    assert (busy["compute"][0][0], busy["compute"][-1][1]) == (0, 20)
    assert sum(end - start for start, end in busy["compute"]) == 20
    assert busy["memory"] == [(28, 30)]


def test_parse_cpu_operator_that_calls_itself_counts_each_once() -> None:
    parsed = parse([event("aten::mm", 0, 30), event("aten::mm", 10, 10)])
    assert [(row["count"], row["sum_ns"], row["min_ns"], row["max_ns"]) for row in parsed.kernels] == [
        (2, 30_000, 10_000, 20_000)
    ]


def test_parse_cpu_operators_of_foreign_libraries_compute() -> None:
    names = ["vllm::attention", "fbgemm::permute", "autograd::x", "c10d::allreduce_", "profiler::_record", "MyModule"]
    parsed = parse([event(name, 10 * index, 5) for index, name in enumerate(names)])
    assert sorted(row["name"] for row in parsed.kernels) == ["fbgemm::permute", "vllm::attention"]


def test_read_work_empty_trace_is_no_work(tmp_path: Path) -> None:
    work = work_of(tmp_path, [])
    assert (work.span, work.steps, work.rows.count, work.is_device) == ((0, 0), [], 0, False)
