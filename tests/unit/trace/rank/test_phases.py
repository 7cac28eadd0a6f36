"""Steps and phases: by time on the CPU, by launches on a GPU."""

from pathlib import Path

from tests.unit.trace.traces import BASE_NS, event, kernel, note, write_trace
from triplepoint.trace.kineto.reader import read_trace
from triplepoint.trace.lanes import Step
from triplepoint.trace.rank.collectives import GroupRecord
from triplepoint.trace.rank.phases import Phases, Tag, find_phases, find_steps
from triplepoint.trace.rank.work import find_work


def found(tmp_path: Path, events: list[dict]) -> tuple[list[Step], Phases]:
    trace = read_trace(write_trace(tmp_path / "t.json", events))
    work = find_work(trace, GroupRecord())
    return find_steps(trace, work), find_phases(trace, work)


def spans_us(phases: Phases) -> list[tuple[float, float, str, int | None, int | None]]:
    return [
        ((start - BASE_NS) / 1000, (end - BASE_NS) / 1000, *tag)
        for start, end, tag in zip(phases.start.tolist(), phases.end.tolist(), phases.tags, strict=True)
    ]


def launch(at_us: float, correlation: int, tid: int = 1) -> dict:
    return event("cudaLaunchKernel", at_us, 1, "cuda_runtime", tid, correlation=correlation)


def test_find_phases_cpu_annotations_of_the_engine(tmp_path: Path) -> None:
    steps, phases = found(
        tmp_path,
        [
            note("ProfilerStep#4", 0, 100),
            note("forward stage=1 microbatch=0", 10, 20),
            note("backward stage=1 microbatch=0", 30, 20),
            note("backward_weight stage=1 microbatch=0", 50, 10),
            note("grad_sync", 60, 10),
            note("optimizer", 70, 10),
            note("Optimizer.step#AdamW.step", 72, 4),
            event("aten::mm", 12, 5),
        ],
    )
    assert steps == [Step(4, BASE_NS, BASE_NS + 100_000)]
    assert spans_us(phases) == [
        (10, 30, "forward", 1, 0),
        (30, 50, "backward", 1, 0),
        (50, 60, "backward_weight", 1, 0),
        (60, 70, "grad_sync", None, None),
        (70, 80, "optimizer", None, None),
    ]
    assert [tag.phase for tag in phases.tags] == ["forward", "backward", "backward", "other", "optimizer"]


def test_find_phases_nested_annotation_takes_its_time(tmp_path: Path) -> None:
    _, phases = found(tmp_path, [note("backward stage=0 microbatch=3", 0, 100), note("grad_sync", 40, 10)])
    assert spans_us(phases) == [
        (0, 40, "backward", 0, 3),
        (40, 50, "grad_sync", None, None),
        (50, 100, "backward", 0, 3),
    ]


def test_find_phases_gpu_time_is_of_what_was_launched_from_any_thread(tmp_path: Path) -> None:
    events = [
        note("forward stage=0 microbatch=0", 0, 10),
        note("backward stage=0 microbatch=0", 10, 10),
        launch(5, 1),
        launch(12, 2, tid=2),
        launch(18, 3, tid=2),
        launch(25, 4),
        kernel("ampere_sgemm_a", 100, 10, correlation=1),
        kernel("ampere_sgemm_b", 150, 10, correlation=2),
        kernel("ampere_sgemm_c", 190, 10, correlation=3),
        kernel("ampere_sgemm_d", 300, 10, correlation=4),
    ]
    _, phases = found(tmp_path, events)
    assert spans_us(phases) == [(100, 110, "forward", 0, 0), (150, 200, "backward", 0, 0)]


def test_find_phases_gpu_without_launches_uses_device_annotations(tmp_path: Path) -> None:
    events = [
        note("optimizer", 0, 10),
        event("optimizer", 50, 10, "gpu_user_annotation", 7),
        kernel("ampere_sgemm_a", 52, 5),
    ]
    _, phases = found(tmp_path, events)
    assert spans_us(phases) == [(50, 60, "optimizer", None, None)]


def test_find_phases_foreign_names_are_read_where_ours_are_missing(tmp_path: Path) -> None:
    events = [note("## forward ##", 0, 10), note("## backward ##", 10, 10), note("Optimizer.step#SGD.step", 20, 5)]
    _, phases = found(tmp_path, events)
    assert phases.tags == [Tag("forward", None, None), Tag("backward", None, None), Tag("optimizer", None, None)]


def test_find_steps_without_profiler_steps_is_one_step_of_all_work(tmp_path: Path) -> None:
    steps, _ = found(tmp_path, [kernel("a", 10, 5), kernel("b", 30, 10), event("aten::mm", 0, 100)])
    assert steps == [Step(0, BASE_NS + 10_000, BASE_NS + 40_000)]


def test_find_steps_gpu_last_step_lasts_until_its_work_is_done(tmp_path: Path) -> None:
    events = [note("ProfilerStep#11", 50, 50), note("ProfilerStep#9", 0, 50), kernel("a", 60, 100)]
    steps, _ = found(tmp_path, events)
    assert steps == [Step(9, BASE_NS, BASE_NS + 50_000), Step(11, BASE_NS + 50_000, BASE_NS + 160_000)]


def test_find_steps_empty_trace_has_none(tmp_path: Path) -> None:
    assert found(tmp_path, [])[0] == []
