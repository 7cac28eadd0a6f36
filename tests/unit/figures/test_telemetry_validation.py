"""The figure on the telemetry itself: what was measured, what is missing, and that it says so."""

import pandas as pd
import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from tests.checks import checks_of
from tests.unit.figures.test_figures import read, texts
from triplepoint import figures


def draw(checks: pd.DataFrame, points: pd.DataFrame) -> Figure:
    return figures.load("telemetry_validation").draw({"telemetry_checks": checks, "points": points})[0]


@pytest.fixture
def points(studies: dict) -> pd.DataFrame:
    return read(studies["smoke"])["points"]


def dots(axes: Axes, row: int) -> list[float]:
    """Return the medians drawn in a row."""
    return [
        float(line.get_xdata()[0])
        for line in axes.lines
        if line.get_marker() == "o" and abs(line.get_ydata()[0] - row) < 0.5
    ]


def test_draw_shows_every_run_and_trial_in_percent_and_ms(points: pd.DataFrame) -> None:
    checks = checks_of()
    energy, time, _ = draw(checks, points).axes
    for axes, row, check, factor in (
        (energy, 0, "integral_10s", 100),
        (energy, 3, "overhead", 100),
        (time, 4, "clock", 1000),
    ):
        wanted = checks.loc[checks["check"] == check, "value"] * factor
        assert dots(axes, row) == pytest.approx(wanted.tolist())
    low, high = energy.get_xlim()
    assert low <= -2 and high >= 2


def test_draw_says_what_was_not_measured_and_why(points: pd.DataFrame) -> None:
    checks = checks_of()
    reason = "Zeus is not installed"
    checks.loc[checks["check"] == "zeus", ["value", "low", "high", "p99"]] = float("nan")
    checks.loc[checks["check"] == "zeus", "absent"] = reason
    checks = checks[checks["subject"] != "trial"]
    found = texts(draw(checks, points))
    assert f"not measured: {reason}" in found
    assert "not measured: no trial in results/sensors (triplepoint overhead)" in found
    assert "h200, gpu_memory_power_w: not measured here" in found


def test_draw_counts_gaps_and_names_sensors(points: pd.DataFrame) -> None:
    found = texts(draw(checks_of(), points))
    assert "gaps: 36 of 36000 samples, in the worst run 0.1 %" in found
    assert "h200, gpu_power_w: period 100 ms, window 25 ms, lag 4 ms" in found
    assert any("3 runs, 120 windows, 117 agree" in text for text in found)


def test_draw_of_nothing_at_all_keeps_its_reasons(points: pd.DataFrame) -> None:
    figure = draw(checks_of().iloc[:0], points)
    found = texts(figure)
    assert found.count("not measured: no run finished") == 8
    assert "sensors: not characterised: no card in results/sensors (triplepoint characterise)" in found


def test_draw_tells_simulated_from_measured(points: pd.DataFrame) -> None:
    energy, *_ = draw(checks_of(), points).axes
    faces = [
        line.get_markerfacecolor() for line in energy.lines if line.get_marker() == "o" and line.get_ydata()[0] < 0.5
    ]
    assert faces.count("white") == 1 and len(faces) == 4


def test_draw_labels_ticks_as_plain_numbers(studies: dict) -> None:
    tables = read(studies["one"])
    _, time, _ = draw(tables["telemetry_checks"], tables["points"]).axes
    labels = [label.get_text() for label in time.get_xticklabels()]
    assert {"0.001", "1", "100"} <= set(labels)
