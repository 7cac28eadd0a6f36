"""Recorded runs: written from samples and steps, then through telemetry and aggregate like any other."""

from pathlib import Path

import numpy as np
import pytest

from tests.synthetic import CONFIG
from triplepoint.aggregate import aggregate
from triplepoint.cli import main
from triplepoint.config.catalogue import Catalogue
from triplepoint.config.plan import read_planned_run
from triplepoint.errors import UserError
from triplepoint.figures import labels, spec_of
from triplepoint.figures.gpu_map import with_gpus
from triplepoint.manifest import Evidence, read_manifest
from triplepoint.plan import select, write_plan
from triplepoint.recorded.description import Description
from triplepoint.recorded.run import Ending, RecordedGpu, RecordedNode, write_run
from triplepoint.recorded.studies import read_recorded
from triplepoint.recording import Part
from triplepoint.report.machines import sum_up
from triplepoint.status import Status
from triplepoint.tables.results import RESULT_TABLES
from triplepoint.tables.studies import read_joined
from triplepoint.tables.traces import STEPS
from triplepoint.telemetry.align import align_run
from triplepoint.verdicts.runs import Runs

T0_NS = 1_790_000_000_000_000_000
"""Wall clock of the first sample: 2026. Unit: ns."""
S = 1_000_000_000
COLUMNS = ("gpu_power_w", "gpu_temp_c", "sm_clock_mhz")
PRODUCT = "NVIDIA H100 80GB HBM3"


def node(
    host: str, power_w: float, num_gpus: int = 8, seconds: int = 120, product: str | None = PRODUCT
) -> RecordedNode:
    """Return a host sampled once a second at constant power."""
    t_ns = T0_NS + np.arange(seconds) * S
    values = np.tile([power_w, 60.0, 1980.0], (seconds, 1))
    parts = [Part(f"gpu{i}", t_ns, np.zeros(seconds, int), COLUMNS, values) for i in range(num_gpus)]
    gpus = [RecordedGpu(f"gpu{i}", product, f"GPU-{host}-{i}") for i in range(num_gpus)]
    return RecordedNode(host, gpus, parts, period_s=1.0)


def steps(ranks: range, num: int, length_s: float = 2.0) -> list[dict[str, object]]:
    """Return back-to-back steps from 10 s on, the first a warm-up."""
    starts = [T0_NS + 10 * S + round(number * length_s * S) for number in range(num)]
    return [
        {"rank": rank, "step": number, "kind": "measured" if number else "warmup"}
        | {"t_start_ns": start, "t_end_ns": start + round(length_s * S)}
        for rank in ranks
        for number, start in enumerate(starts)
    ]


def through(results: Path, run: str) -> dict[str, object]:
    """Return the row of `points` that a recorded run comes to."""
    plan = read_recorded(results)
    align_run(results / "runs" / run / "raw", results / "runs" / run / "telemetry.parquet")
    aggregate(plan, results, CONFIG)
    rows = RESULT_TABLES["points"].read(results / "tables" / "recorded" / "points.parquet").to_pylist()
    return next(row for row in rows if row["run"] == run)


def test_write_run_without_description_leaves_settings_unknown(tmp_path: Path) -> None:
    run = write_run(
        tmp_path / "runs", Description(), [node("a", 500.0), node("b", 600.0)], {}, steps(range(16), 21),
        source="import: test", catalogue=Catalogue(CONFIG),
    )  # fmt: skip
    row = through(tmp_path, run)
    assert (row["gpu"], row["num_gpus"], row["status"], row["origin"]) == ("h100", 16, "ok", "measured")
    assert [row[name] for name in ("tp", "micro_batch_size", "precision", "recompute", "overlap", "mfu")] == [None] * 6
    assert row["tokens_per_s"] is None and row["num_microbatches"] is None and row["flops_per_token"] is None
    assert row["step_time_s"] == pytest.approx(2.0)
    assert row["job_gpu_power_w"] == pytest.approx(8 * 500 + 8 * 600)
    assert "model, tp" in str(row["prediction_absent"])


def test_gpus_of_a_type_nobody_told_keep_their_power_and_heat(tmp_path: Path) -> None:
    nodes = [node("a", 475.0, product=None)]
    run = write_run(
        tmp_path / "runs", Description(), nodes, {}, steps(range(8), 9), source="x", catalogue=Catalogue(CONFIG)
    )
    row = through(tmp_path, run)
    assert (row["gpu"], row["power_absent"], row["mfu"]) == (None, None, None)
    assert row["gpu_power_w"] == pytest.approx(475.0)
    assert (row["gpu_temp_c"], row["sm_clock_mhz"]) == (pytest.approx(60.0), pytest.approx(1980.0))
    # Figures of power and heat draw them: that they are GPUs is known.
    assert row["device_type"] == "cuda" and spec_of("recorded/thermal_heatmap").need.admits("pretrain", "cuda")
    assert not spec_of("recorded/thermal_heatmap").need.admits("pretrain", "cpu")
    tables = {name: read_joined(tmp_path, ("recorded",), name).to_pandas() for name in ("points", "gpus")}
    drawn, gpus = with_gpus(tables)
    assert list(drawn["run"]) == [run] and sorted(gpus["number"]) == list(range(8))
    assert labels.rank_word(tables["points"]) == "GPU"


def test_recordings_of_the_same_second_are_two_runs(tmp_path: Path) -> None:
    one, other = (
        write_run(tmp_path / "runs", Description(), [node("a", power_w)], {}, steps(range(8), 9), source="x")
        for power_w in (475.0, 775.0)
    )
    assert one != other


def test_write_run_without_steps_has_power_but_no_step_time(tmp_path: Path) -> None:
    run = write_run(
        tmp_path / "runs", Description(), [node("a", 500.0)], {}, [], source="import: test", catalogue=Catalogue(CONFIG)
    )
    row = through(tmp_path, run)
    assert row["step_time_s"] is None and row["num_measured_steps"] is None
    assert row["gpu_power_w"] == pytest.approx(500.0)


def test_write_run_described_whole_has_a_prediction_beside_it(tmp_path: Path) -> None:
    described = Description(
        model="llama3-70b", cluster="h100x64", tp=8, pp=8, micro_batch_size=1, global_batch_size=128,
        sequence_length=8192, precision="bf16", engine="megatron",
    )  # fmt: skip
    nodes = [node(f"n{i}", 500.0) for i in range(8)]
    run = write_run(
        tmp_path / "runs", described, nodes, {}, steps(range(1), 21, 20.0), source="triplepoint record",
        catalogue=Catalogue(CONFIG),
    )  # fmt: skip
    point = read_planned_run(tmp_path / "runs" / run / "point.json").point
    assert (point.layout.tp, point.layout.pp, point.layout.dp) == (8, 8, 1)
    assert point.knows("tp", "dp", "cp") and not point.knows("recompute")
    row = through(tmp_path, run)
    assert row["prediction_absent"] is None and row["predicted_step_time_s"] > 1
    assert row["tokens_per_s"] == pytest.approx(128 * 8192 / 20.0)
    assert row["recompute"] is None
    assert row["predicted_gpu_power_lo_w"] < row["predicted_gpu_power_w"] < row["predicted_gpu_power_hi_w"] <= 700
    assert row["gpu_power_error"] == pytest.approx(row["predicted_gpu_power_w"] / 500 - 1)
    assert 40 < row["predicted_gpu_temp_max_c"] < 95, "sampled at 60 degC"
    assert row["gpu_temp_error_c"] == pytest.approx(row["predicted_gpu_temp_max_c"] - 60)
    said = dict(sum_up([row]))
    assert said["GPU power"].startswith("1 runs, off by ") and "K at worst" in said["Hottest GPU"]


def test_write_run_gives_ranks_without_marks_those_of_another_on_their_own_clock(tmp_path: Path) -> None:
    nodes = [
        RecordedNode("a", num_ranks=1, monotonic_ns=1_000 * S, wall_ns=T0_NS),
        RecordedNode("b", num_ranks=1, monotonic_ns=5_000 * S, wall_ns=T0_NS + 2 * S),
    ]
    rows = [
        {"rank": 0, "step": step, "kind": "measured", "t_start_ns": (1_010 + step) * S, "t_end_ns": (1_011 + step) * S}
        for step in range(3)
    ]
    run = write_run(tmp_path / "runs", Description(), nodes, {}, rows, source="test")
    table = STEPS.read(tmp_path / "runs" / run / "raw" / "steps.parquet").to_pylist()
    assert [row["t_start_ns"] // S for row in table if row["rank"] == 1] == [5_008, 5_009, 5_010]
    row = through(tmp_path, run)
    assert row["step_time_s"] == pytest.approx(1.0)
    gpus = RESULT_TABLES["gpus"].read(tmp_path / "tables" / "recorded" / "gpus.parquet").to_pylist()
    assert [gpu["step_time_s"] for gpu in gpus] == [pytest.approx(1.0), None]


@pytest.mark.parametrize(
    ("described", "rows", "expected"),
    [
        (Description(tp=3, pp=1), [], r"tp\*pp\*cp = 3\*1\*1 = 3, which does not divide the 8 ranks"),
        (Description(tp=2, dp=2), [], r"tp\*pp\*cp\*dp = 2\*1\*1\*2 = 4, its recording has 8 ranks"),
        (Description(num_gpus=64), [], "num_gpus 64, the recording 8"),
        (Description(), steps(range(9), 3), "steps of rank 8, the recording has 8 ranks"),
        (Description(cluster="h200x32"), [], "whose GPUs are h200; its recording has h100"),
    ],
)
def test_write_run_contradictions_are_refused(
    tmp_path: Path, described: Description, rows: list[dict[str, object]], expected: str
) -> None:
    with pytest.raises(UserError, match=expected):
        write_run(tmp_path / "runs", described, [node("a", 500.0)], {}, rows, source="x", catalogue=Catalogue(CONFIG))
    assert not list((tmp_path / "runs").iterdir()) and not (tmp_path / "recorded").exists()


def test_recorded_runs_are_taken_along_and_leave_other_studies_as_they_were(tmp_path: Path) -> None:
    before = select(CONFIG, ["smoke"], ["cpu-local"], ())
    run = write_run(tmp_path / "runs", Description(), [node("a", 500.0)], {}, [], source="x", study="mine")
    plan = select(CONFIG, ["smoke"], ["cpu-local"], (), tmp_path)
    assert plan.of_study("smoke").digest() == before.of_study("smoke").digest()
    assert [entry.run for entry in plan.of_study("mine").entries] == [run]
    text = (tmp_path / "runs" / run / "point.json").read_text()
    write_plan(plan, tmp_path)
    assert (tmp_path / "runs" / run / "point.json").read_text() == text
    assert read_manifest(tmp_path / "runs" / run / "raw" / "manifest.json").run == run


def test_labels_leave_out_what_is_not_known(tmp_path: Path) -> None:
    run = write_run(tmp_path / "runs", Description(micro_batch_size=4), [node("a", 500.0)], {}, [], source="x")
    through(tmp_path, run)
    points = RESULT_TABLES["points"].read(tmp_path / "tables" / "recorded" / "points.parquet").to_pandas()
    ((_, row),) = labels.prepare(points).iterrows()
    assert row["layout"] == labels.UNKNOWN_LAYOUT
    assert labels.setting_text(row) == "micro-batch 4"


def test_claims_are_not_judged_by_settings_nobody_knows(tmp_path: Path) -> None:
    run = write_run(tmp_path / "runs", Description(), [node("a", 500.0)], {}, [], source="x")
    row = through(tmp_path, run)
    runs = Runs({"points": [row], "gpus": [], "kernels": []}, lambda *_: None)  # type: ignore[arg-type, return-value]
    assert runs.matching({"overlap": []}) == []
    assert runs.matching({"num_gpus": 8}) == [row]


def test_crashed_job_keeps_its_steps_and_says_why(tmp_path: Path) -> None:
    ending = Ending(Status.CRASHED, Evidence(rank=None, host="a", message="ValueError: x", log_tail=()))
    run = write_run(
        tmp_path / "runs", Description(), [node("a", 500.0)], {}, steps(range(8), 9), source="x", ending=ending
    )
    row = through(tmp_path, run)
    assert (row["status"], row["step_time_s"]) == ("crashed", pytest.approx(2.0))
    assert "ValueError: x" in str(row["reason"])


def test_plan_of_recorded_runs_costs_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_run(tmp_path / "runs", Description(), [node("a", 500.0)], {}, [], source="x", study="mine")
    assert main(["plan", "mine", "--results", str(tmp_path), "--config", str(CONFIG)]) == 0
    assert capsys.readouterr().out == "1 recorded runs: nothing is ahead\n"


def test_damaged_point_of_a_recorded_run_is_in_no_plan(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    run = write_run(tmp_path / "runs", Description(), [node("a", 500.0)], {}, [], source="triplepoint record")
    (tmp_path / "runs" / run / "point.json").write_text('{"run"')
    assert main(["why", run, "--results", str(tmp_path)]) == 2
    line = capfd.readouterr().err
    assert "point.json: not whole JSON" in line and "put back a copy of the file" in line and "--write" not in line


def test_launch_of_a_recorded_run_is_refused(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    run = write_run(tmp_path / "runs", Description(), [node("a", 500.0)], {}, [], source="triplepoint record")
    assert main(["launch", run, "--results", str(tmp_path), "--force"]) == 2
    assert "recorded by triplepoint record, not launched" in capfd.readouterr().err
