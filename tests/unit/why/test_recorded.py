"""`why` of a recorded job: telemetry and marks of steps, without traces, layout or inlet."""

from pathlib import Path

import numpy as np
import pytest

from triplepoint.cli import main
from triplepoint.recorded.description import Description
from triplepoint.recorded.run import RecordedGpu, RecordedNode, write_run
from triplepoint.recording import Part
from triplepoint.telemetry.align import align_run
from triplepoint.why.answer import why_run

T0_NS, S = 1_790_000_000_000_000_000, 1_000_000_000
COLUMNS = ("gpu_power_w", "gpu_temp_c", "sm_clock_mhz")
SOUND, HOT = (600.0, 60.0, 1980.0), (350.0, 86.0, 1400.0)


def node(host: str, hot: int | None = None, seconds: int = 120) -> RecordedNode:
    """Return a host of eight GPUs sampled once a second, one of them hot and slow."""
    t_ns = T0_NS + np.arange(seconds) * S
    parts = [
        Part(f"gpu{i}", t_ns, np.zeros(seconds, int), COLUMNS, np.tile(HOT if i == hot else SOUND, (seconds, 1)))
        for i in range(8)
    ]
    gpus = [RecordedGpu(f"gpu{i}", "NVIDIA H100 80GB HBM3", f"GPU-{host}-{i}") for i in range(8)]
    return RecordedNode(host, gpus, parts, period_s=1.0)


def steps(num: int = 40) -> list[dict[str, object]]:
    starts = [T0_NS + 10 * S + 2 * number * S for number in range(num)]
    return [
        {"rank": rank, "step": number, "kind": "measured", "t_start_ns": start, "t_end_ns": start + 2 * S}
        for rank in range(16)
        for number, start in enumerate(starts)
    ]


@pytest.mark.parametrize("marks", [steps(), []], ids=["steps", "one window"])
def test_hot_gpu_of_a_recorded_job_is_named_with_a_bound(marks: list[dict[str, object]], tmp_path: Path) -> None:
    nodes = [node("a"), node("b", hot=3)]
    run = tmp_path / "runs" / write_run(tmp_path / "runs", Description(), nodes, {}, marks, source="test")
    align_run(run / "raw", run / "telemetry.parquet")
    answer = why_run(run)
    assert answer.source == ("step times" if marks else "recording")
    assert any("no step was seen" in note for note in answer.notes) == (not marks)
    (found,) = answer.findings
    assert (found.rank, found.cause, found.is_bound) == (11, "contact", True)
    assert "gpu3 of b" in found.name
    assert "86 degC against 60" in found.evidence
    assert found.lost_s / answer.step_s == pytest.approx(1 - 1400 / 1980)
    (row,) = answer.rows()
    assert row["lost_gpu_hours_per_day"] == pytest.approx((1 - 1400 / 1980) * 16 * 24)
    power_w = (15 * SOUND[0] + HOT[0]) / 16
    assert row["lost_energy_per_day_j"] == pytest.approx((1 - 1400 / 1980) * 16 * power_w * 86_400)
    assert main(["why", str(run)]) == 0


def test_clock_tells_more_than_a_step_that_ends_a_little_later(tmp_path: Path) -> None:
    """Ranks wait for the slow one in every step: that its own steps are 4 % longer is not what it costs."""
    marks = [row | {"t_end_ns": row["t_end_ns"] + (S // 12 if row["rank"] == 11 else 0)} for row in steps()]  # type: ignore[operator]
    run = (
        tmp_path
        / "runs"
        / write_run(tmp_path / "runs", Description(), [node("a"), node("b", hot=3)], {}, marks, source="test")
    )
    align_run(run / "raw", run / "telemetry.parquet")
    answer = why_run(run)
    (found,) = answer.findings
    assert (found.rank, found.cause, found.is_bound) == (11, "contact", True)
    assert found.lost_s / answer.step_s == pytest.approx(1 - 1400 / 1980)


def test_recorded_job_of_equal_gpus_is_said_to_have_no_heat(tmp_path: Path) -> None:
    nodes = [node("a"), node("b")]
    run = tmp_path / "runs" / write_run(tmp_path / "runs", Description(), nodes, {}, steps(), source="test")
    align_run(run / "raw", run / "telemetry.parquet")
    answer = why_run(run)
    assert answer.findings == []
    assert "Heat explains nothing here" in answer.heat
    assert answer.sentence == "no GPU among 16 is found to delay the job"


def test_headline_names_a_low_clock_that_is_no_outlier(tmp_path: Path) -> None:
    """Clocks of 16 GPUs from 1800 to 1980 MHz: the lowest is far below the median, though none is an outlier."""
    nodes = [node("a"), node("b")]
    for number, part in enumerate([*nodes[0].parts, *nodes[1].parts]):
        part.values[:, COLUMNS.index("sm_clock_mhz")] = 1800 + 12 * number
    run = tmp_path / "runs" / write_run(tmp_path / "runs", Description(), nodes, {}, steps(), source="test")
    align_run(run / "raw", run / "telemetry.parquet")
    answer = why_run(run)
    assert answer.findings == []
    lowest = "the lowest clock is 5.1 % below the median of the 15 others, no outlier"
    assert answer.sentence == f"no GPU among 16 is found to delay the job; {lowest}"


def test_raw_run_is_parsed_first_and_one_window_compares_gpus(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    nodes = [node("a"), node("b", hot=3)]
    name = write_run(tmp_path / "runs", Description(), nodes, {}, [], source="test")
    assert main(["why", name, "--results", str(tmp_path)]) == 0
    text = capsys.readouterr().out
    assert "gpu3 of b (rank 11)  contact" in text
    assert "hottest: gpu3 of b (rank 11), 86 degC, 26.0 K above the median of the 15 others at -42 % power" in text
    assert (
        "lowest clock: gpu3 of b (rank 11), 1400 MHz, 29.3 % below the median of the 15 others at -42 % power" in text
    )
    assert not (tmp_path / "runs" / name / "telemetry.parquet").exists()
