"""Predictions of single jobs, their intervals, and tables of them."""

import csv
import math
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.published.cells import NEMOTRON
from triplepoint.calibrate.protocol import conformal_quantile
from triplepoint.cli import main
from triplepoint.config.point import Layout
from triplepoint.published.rows import read_row, settle
from triplepoint.simulate import intervals
from triplepoint.simulate.calibration import Calibration
from triplepoint.simulate.costs import Constants, slowest_gpu_factor
from triplepoint.simulate.intervals import Calibrated, Features, Uncertainty
from triplepoint.simulate.job import Job
from triplepoint.simulate.predict.prediction import COLUMNS, predict
from triplepoint.simulate.step import simulate_step

CONFIG = Path("config")


def job_of(**changes: str) -> Job:
    return settle(read_row(NEMOTRON | changes, 1, CONFIG))


@pytest.fixture(scope="module")
def calibration() -> Calibration:
    return Calibration.load(CONFIG)


def test_predict_numbers_agree_with_each_other(calibration: Calibration) -> None:
    job = job_of()
    found = predict(job, calibration, CONFIG)
    assert found.status == "ok"
    tokens_per_s = 64 * 4096 / found.step_time_s
    assert found.tokens_per_s_per_gpu == pytest.approx(tokens_per_s / 16)
    assert found.step_time_lo_s < found.step_time_s < found.step_time_hi_s
    assert 0 < found.mfu < 1
    assert found.bubble_fraction == pytest.approx(0, abs=1e-9)
    assert found.bottleneck.startswith("matrix products")


def test_predict_too_large_says_by_how_much(calibration: Calibration) -> None:
    found = predict(job_of(tp="1", dp="16", mbs="1"), calibration, CONFIG)
    assert found.status == "oom"
    assert found.memory_gib > 80
    assert "weights" in found.reason and "GiB" in found.reason


def test_predict_schedule_that_cannot_run_is_invalid(calibration: Calibration) -> None:
    cells = NEMOTRON | {"pp": "2", "vp": "2", "tp": "2", "gbs": "12", "mbs": "1", "dp": "4"}
    found = read_row(cells, 1, CONFIG).predict(CONFIG)
    assert (found.status, math.isnan(found.step_time_s)) == ("invalid", True)
    assert "num_microbatches 3 divisible by pp: 2" in found.reason


def test_step_bubble_of_a_pipeline_with_equal_stages() -> None:
    job = job_of(pp="4", tp="4", dp="1", gbs="32", mbs="1")
    step = simulate_step(job, Constants(), CONFIG)
    # (pp-1)/m of the ideal time for m micro-batches, were the stages equal: the last one has the output layer.
    assert 0.5 < step.timeline.bubble_fraction / (3 / (32 + 3)) < 4


def test_step_more_kernel_time_is_never_faster() -> None:
    job = job_of()
    assert simulate_step(job, Constants(factor=1.2), CONFIG).time_s > simulate_step(job, Constants(), CONFIG).time_s


def test_step_slow_host_holds_up_small_kernels_only() -> None:
    small = job_of(hidden="1024", heads="16", kv_heads="16", ffn="4096", params_B="", mbs="1")
    slow, fast = Constants(host_s=100e-6), Constants(host_s=1e-6)
    assert simulate_step(small, slow, CONFIG).time_s > 2 * simulate_step(small, fast, CONFIG).time_s
    large = job_of()
    assert simulate_step(large, slow, CONFIG).time_s == pytest.approx(
        simulate_step(large, fast, CONFIG).time_s, rel=0.02
    )


def test_step_twice_the_batch_takes_no_more_than_twice() -> None:
    once, twice = (
        simulate_step(job_of(), Constants(), CONFIG).time_s,
        simulate_step(job_of(gbs="128"), Constants(), CONFIG).time_s,
    )
    assert once < twice <= 2 * once


def test_step_more_replicas_cost_little() -> None:
    job = job_of()
    wide = replace(job, layout=Layout(**(job.layout.model_dump() | {"dp": 64})), global_batch_size=1024)
    assert 1 < simulate_step(wide, Constants(), CONFIG).time_s / simulate_step(job, Constants(), CONFIG).time_s < 1.1


def test_slowest_of_many_by_hand() -> None:
    # The larger of two normal values is 1 / sqrt(pi) above the mean, 0.564; Blom's formula has 0.589.
    assert slowest_gpu_factor(1) == 1
    assert slowest_gpu_factor(2) == pytest.approx(1 + 0.0133 / math.sqrt(math.pi), abs=0.0005)


def test_interval_widens_away_from_what_was_calibrated(calibration: Calibration) -> None:
    near, far, new = job_of(), job_of(seq="131072", mbs="1"), job_of(framework="Unheard-of 1.0")
    parts = Uncertainty(0.1, 0.1, 0.9)
    assert calibration.scale(near, parts) < calibration.scale(far, parts)
    assert calibration.scale(near, parts) < calibration.scale(new, parts)


def test_constants_of_an_unknown_version_are_those_of_the_middle_one(calibration: Calibration) -> None:
    versions = [one for one in calibration.fitted.stacks if one.stack.startswith("NeMo dgxc")]
    known = [calibration.constants(job_of(framework=one.stack)).factor for one in versions]
    found = calibration.constants(job_of(framework="NeMo dgxc v25.07")).factor
    assert found in known and min(known) < found <= max(known)


def test_conformal_quantile_by_hand() -> None:
    # Nine scores and the one to come: 90 % of ten are reached at the ninth.
    assert conformal_quantile([1, 2, 3, 4, 5, 6, 7, 8, 9]) == 9
    assert conformal_quantile([1, 2, 3, 4, 5, 6, 7, 8, 9], coverage=0.5) == 5
    # Three quarters of the weight on the first.
    assert conformal_quantile([1, 2], [3, 1], coverage=0.5) == 1


@given(st.lists(st.floats(0, 100), min_size=1, max_size=60))
def test_conformal_quantile_holds_the_share_of_its_own_scores(scores: list[float]) -> None:
    found = conformal_quantile(scores)
    assert sum(score <= found for score in scores) >= min(0.9 * (len(scores) + 1), len(scores)) - 1e-9


def test_distance_counts_octaves_to_the_nearest() -> None:
    known = [Features("a", "h100 bf16", 3, 11, 33), Features("a", "h100 bf16", 6, 11, 33)]
    assert intervals.distance(Features("b", "h100 bf16", 7, 12, 33), Calibrated.of(known).places) == 2


def test_command_writes_every_row_in_order(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [NEMOTRON, NEMOTRON | {"id": "bad", "hidden": "\x00'; drop"}, NEMOTRON | {"id": "tpu", "gpu": "TPU v5"}]
    with (tmp_path / "in.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, [*NEMOTRON, "unknown"])
        writer.writeheader()
        writer.writerows(rows)
    assert main(["predict", "--published", str(tmp_path / "in.csv"), str(tmp_path / "out.csv")]) == 0
    found = list(csv.DictReader((tmp_path / "out.csv").open()))
    assert list(found[0]) == ["id", *COLUMNS]
    assert [(row["id"], row["status"]) for row in found] == [("T1", "ok"), ("bad", "invalid"), ("tpu", "unsupported")]
    assert "3 rows" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("content", "message"), [(None, "no such file"), ("", "no known column"), ("a,b\n1,2\n", "no known column")]
)
def test_command_refuses_what_is_no_table(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], content: str | None, message: str
) -> None:
    if content is not None:
        (tmp_path / "in.csv").write_text(content)
    assert main(["predict", "--published", str(tmp_path / "in.csv"), str(tmp_path / "out.csv")]) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "out.csv").exists()


def test_command_missing_column_is_a_status_of_each_row(tmp_path: Path) -> None:
    cells = {name: text for name, text in NEMOTRON.items() if name != "gbs"}
    (tmp_path / "in.csv").write_text(",".join(cells) + "\n" + ",".join(cells.values()) + "\n")
    assert main(["predict", "--published", str(tmp_path / "in.csv"), str(tmp_path / "out.csv")]) == 0
    found = next(csv.DictReader((tmp_path / "out.csv").open()))
    assert (found["status"], found["reason"]) == ("invalid", "gbs is blank, expected a whole number")


def test_command_calibrates_to_what_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [NEMOTRON | {"id": str(gbs), "gbs": str(gbs), "step_time_s": str(gbs / 20)} for gbs in (16, 64, 128)]
    with (tmp_path / "in.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, rows[0])
        writer.writeheader()
        writer.writerows(rows)
    out = tmp_path / "fitted.yaml"
    assert main(["calibrate", str(tmp_path / "in.csv"), "--out", str(out), "--stack", "dgxc"]) == 0
    assert "stack: NeMo dgxc v24.11.1" in out.read_text()
    assert main(["calibrate", str(tmp_path / "in.csv"), "--out", str(out), "--max-gpus", "8"]) == 2
    assert "no row left" in capsys.readouterr().err
