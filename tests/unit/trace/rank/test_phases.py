"""Steps and phases: by time on the CPU, by launches on a GPU."""

from pathlib import Path

from tests.unit.trace.rank.parsed import parse, work_of
from tests.unit.trace.traces import ALL_REDUCE, GEMM, event, kernel, launch, note
from triplepoint.trace.rank.phases import Tag
from triplepoint.trace.rank_results import Step


def phases_us(folder: Path, events: list[dict]) -> list[tuple[float, float, str, int | None, int | None]]:
    phases = work_of(folder, events).phases
    return [
        (start / 1000, end / 1000, *tag)
        for start, end, tag in zip(phases.start.tolist(), phases.end.tolist(), phases.tags, strict=True)
    ]


def steps_us(folder: Path, events: list[dict]) -> list[Step]:
    return [Step(step.number, step.start // 1000, step.end // 1000) for step in work_of(folder, events).steps]


def test_phases_cpu_annotations_of_the_engine(tmp_path: Path) -> None:
    events = [
        note("ProfilerStep#4", 0, 100),
        note("forward stage=1 microbatch=0", 10, 20),
        note("backward stage=1 microbatch=0", 30, 20),
        note("backward_weight stage=1 microbatch=0", 50, 10),
        note("grad_sync", 60, 10),
        note("optimizer", 70, 10),
        note("Optimizer.step#AdamW.step", 72, 4),
        event("aten::mm", 12, 5),
    ]
    assert steps_us(tmp_path, events) == [Step(4, 0, 100)]
    assert phases_us(tmp_path, events) == [
        (10, 30, "forward", 1, 0),
        (30, 50, "backward", 1, 0),
        (50, 60, "backward_weight", 1, 0),
        (60, 70, "grad_sync", None, None),
        (70, 80, "optimizer", None, None),
    ]
    tags = work_of(tmp_path, events).phases.tags
    assert [tag.phase for tag in tags] == ["forward", "backward", "backward", "other", "optimizer"]


def test_phases_nested_annotation_takes_its_time(tmp_path: Path) -> None:
    events = [note("backward stage=0 microbatch=3", 0, 100), note("grad_sync", 40, 10)]
    assert phases_us(tmp_path, events) == [
        (0, 40, "backward", 0, 3),
        (40, 50, "grad_sync", None, None),
        (50, 100, "backward", 0, 3),
    ]


def test_phases_gpu_time_is_of_what_was_launched_from_any_thread(tmp_path: Path) -> None:
    events = [
        note("forward stage=0 microbatch=0", 0, 10),
        note("backward stage=0 microbatch=0", 10, 10),
        launch(5, 1),
        launch(12, 2, tid=2),
        launch(18, 3, tid=2),
        launch(25, 4),
        kernel(GEMM, 100, 10, correlation=1),
        kernel(GEMM, 150, 10, correlation=2),
        kernel(GEMM, 190, 10, correlation=3),
        kernel(GEMM, 300, 10, correlation=4),
    ]
    assert phases_us(tmp_path, events) == [(100, 110, "forward", 0, 0), (150, 200, "backward", 0, 0)]


def test_phases_gpu_time_is_of_computation_alone(tmp_path: Path) -> None:
    # A collective launched in a phase may run long after it, and says nothing of where the phase ends.
    events = [
        note("forward stage=0 microbatch=0", 0, 10),
        launch(5, 1),
        launch(6, 2),
        kernel(GEMM, 100, 10, correlation=1),
        kernel(ALL_REDUCE, 105, 500, correlation=2, stream=9),
    ]
    assert phases_us(tmp_path, events) == [(100, 110, "forward", 0, 0)]


def test_phases_gpu_without_launches_uses_device_annotations(tmp_path: Path) -> None:
    events = [note("optimizer", 0, 10), event("optimizer", 50, 10, "gpu_user_annotation", 7), kernel(GEMM, 52, 5)]
    assert phases_us(tmp_path, events) == [(50, 60, "optimizer", None, None)]


def test_phases_gpu_without_launches_nor_device_annotations_uses_the_hosts(tmp_path: Path) -> None:
    assert phases_us(tmp_path, [note("optimizer", 0, 10), kernel(GEMM, 2, 5)]) == [(0, 10, "optimizer", None, None)]


def test_phases_foreign_names_are_read_where_ours_are_missing(tmp_path: Path) -> None:
    events = [
        note("## forward ##", 0, 10),
        note("DistributedDataParallel.forward", 12, 5),
        note("## backward ##", 20, 10),
        note("Optimizer.step#SGD.step", 30, 5),
    ]
    assert phases_us(tmp_path, events) == [
        (0, 10, "forward", None, None),
        (12, 17, "forward", None, None),
        (20, 30, "backward", None, None),
        (30, 35, "optimizer", None, None),
    ]
    ours = note("forward stage=0 microbatch=0", 50, 5)
    assert phases_us(tmp_path, [*events, ours]) == [(50, 55, "forward", 0, 0)]


def test_phases_names_that_only_begin_alike_are_none(tmp_path: Path) -> None:
    events = [note("forward_pass", 0, 10), note("optimizer.zero_grad", 10, 10), note("backward stage=x", 20, 10)]
    assert phases_us(tmp_path, events) == []


def test_tag_of_a_phase(tmp_path: Path) -> None:
    (tag,) = work_of(tmp_path, [note("backward_weight stage=3 microbatch=12", 0, 10)]).phases.tags
    assert tag == Tag("backward_weight", 3, 12)
    assert tag.phase == "backward"


def test_steps_without_profiler_steps_are_one_of_all_work(tmp_path: Path) -> None:
    events = [kernel(GEMM, 10, 5), kernel(GEMM, 30, 10), event("aten::mm", 0, 100)]
    assert steps_us(tmp_path, events) == [Step(0, 10, 40)]


def test_steps_gpu_last_one_lasts_until_its_work_is_done(tmp_path: Path) -> None:
    steps = [note("ProfilerStep#11", 50, 50), note("ProfilerStep#9", 0, 50)]
    assert steps_us(tmp_path, [*steps, kernel(GEMM, 60, 100)]) == [Step(9, 0, 50), Step(11, 50, 160)]
    assert steps_us(tmp_path, [*steps, kernel(GEMM, 60, 10)]) == [Step(9, 0, 50), Step(11, 50, 100)]
    assert steps_us(tmp_path, [*steps, event("aten::mm", 60, 100)]) == [Step(9, 0, 50), Step(11, 50, 100)]


def test_steps_of_the_device_are_not_the_hosts(tmp_path: Path) -> None:
    events = [
        event("ProfilerStep#9", 5, 50, "gpu_user_annotation", 7),
        note("ProfilerStep#9", 0, 50),
        kernel(GEMM, 6, 1),
    ]
    assert steps_us(tmp_path, events) == [Step(9, 0, 50)]


def test_steps_empty_trace_has_none(tmp_path: Path) -> None:
    assert steps_us(tmp_path, []) == []


def test_parse_step_of_a_summary_is_since_1970() -> None:
    parsed = parse([note("ProfilerStep#9", 1, 50), kernel(GEMM, 6, 1)], baseTimeNanoseconds=17)
    assert parsed.summary.steps == [Step(9, 1_017, 51_017)]
    assert parsed.summary.span == (6_017, 7_017)


def test_steps_are_numbered_ranges_where_no_profiler_named_them(tmp_path: Path) -> None:
    events = [
        note("train_step_7", 0, 50),
        note("Iteration 3", 10, 20, tid=2),  # within a step: none of its own
        note("train_step_8", 60, 40),
        note("step", 110, 5),
        kernel(GEMM, 5, 10),
        kernel(GEMM, 70, 10),
    ]
    assert steps_us(tmp_path, events) == [Step(7, 0, 50), Step(8, 60, 100)]


def test_steps_of_the_profiler_go_before_ranges_called_so(tmp_path: Path) -> None:
    events = [note("ProfilerStep#2", 0, 50), note("iteration 9", 0, 40), kernel(GEMM, 5, 10)]
    assert steps_us(tmp_path, events) == [Step(2, 0, 50)]
