"""Checks of the telemetry: energy against its counter and Zeus, timing and clocks, gaps, sensors, cost."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from pandas import DataFrame

from triplepoint.figures import old_page as style
from triplepoint.figures.old_page import HEAD_IN, MARGIN_IN, Canvas, shortened, wrapped
from triplepoint.figures.rows import mark_slot

_ROW_IN = 0.26
_TITLE_IN = 0.2
_AXIS_IN = 0.4
_LINE_IN = 0.115
_LABEL_IN = 2.05
_PERCENT, _MS = 100.0, 1000.0


@dataclass(frozen=True)
class _Row:
    """One check: its words, what a value counts, and how large it may be, in the unit of the axis."""

    check: str
    label: str
    counted: str
    limit: float | None = None


_DIFFERENCES = (
    _Row("integral_10s", "power integral, counter: 10 s", "windows", 2.0),
    _Row("integral_60s", "power integral, counter: 60 s", "windows", 1.0),
    _Row("zeus", "Zeus, energy counter", "windows"),
    _Row("overhead", "step time, sampled or not", "pairs", 0.5),
)
"""Two things that should be equal, the first over the second less 1."""
_TIMES = (
    _Row("lateness_fast", "lateness, fast lane", "samples", 2.0),
    _Row("lateness_slow", "lateness, slow lane", "samples", 2.0),
    _Row("latency_fast", "read latency, fast lane", "samples"),
    _Row("latency_slow", "read latency, slow lane", "samples"),
    _Row("clock", "clocks of nodes, uncertainty", "nodes", 1.0),
)
_SHARES = (_Row("gaps", "gaps", "samples"), _Row("stale", "stale energy counters", "samples"))
_FEW = 8
"""Up to so many runs in a row marks keep their size."""
_LEAST_MS = 1e-3
"""Shown for less: the axis has no zero."""
_FEWEST_PERCENT = 2.5
"""The axis reaches at least this far either way."""


@style.styled
def draw(tables: Mapping[str, DataFrame]) -> tuple[Figure, DataFrame]:
    """Return the figure and the numbers it plots: table `telemetry_checks`."""
    checks = tables["telemetry_checks"]
    notes = _notes(checks)
    heights = [_TITLE_IN + _ROW_IN * len(rows) + _AXIS_IN for rows in (_DIFFERENCES, _TIMES)]
    height_in = HEAD_IN + sum(heights) + _TITLE_IN + _LINE_IN * (len(notes) + 2) + MARGIN_IN
    canvas = Canvas.make(style.PAGE_WIDTH_IN, height_in)
    _stamp(canvas, tables["points"], checks)
    axes = _panel(canvas, HEAD_IN, "Energy and cost", _DIFFERENCES, checks)
    _draw_differences(axes, checks)
    axes = _panel(canvas, HEAD_IN + heights[0], "Time", _TIMES, checks)
    _draw_times(axes, checks)
    top_in = HEAD_IN + sum(heights)
    canvas.text(MARGIN_IN, top_in + 0.02, "Samples and sensors", weight="bold")
    for number, line in enumerate(notes):
        canvas.text(MARGIN_IN, top_in + _TITLE_IN + number * _LINE_IN, line, fontsize=style.SMALL_PT)
    legend = "dot: median of a run or trial; bar: 10th to 90th percentile, of the overhead 95 % interval; "
    legend += "tick: 99th percentile; hollow: simulated; dashed: what is asked for"
    at_in = top_in + _TITLE_IN + (len(notes) + 0.7) * _LINE_IN
    canvas.text(MARGIN_IN, at_in, legend, fontsize=style.SMALL_PT, color=style.GREY)
    return canvas.figure, checks


def _stamp(canvas: Canvas, points: DataFrame, checks: DataFrame) -> None:
    """Stamp the page by the checks that have a value; sensor cards and trials of the overhead are of no run."""
    drawn = checks[checks["value"].notna()]
    runs = points[points["run"].isin(drawn["subject"])]
    canvas.stamp(points if runs.empty else runs, style.origin(drawn))


def _panel(canvas: Canvas, top_in: float, title: str, rows: Sequence[_Row], checks: DataFrame) -> Axes:
    """Write title and labels of some checks and return axes with a row for each, row 0 on top at y = 0."""
    canvas.text(MARGIN_IN, top_in + 0.02, title, weight="bold")
    top_in += _TITLE_IN
    width_in = canvas.width_in - _LABEL_IN - 4 * MARGIN_IN
    axes = canvas.axes(MARGIN_IN + _LABEL_IN, top_in, width_in, _ROW_IN * len(rows))
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.set_yticks([])
    axes.grid(axis="x")
    for number, row in enumerate(rows):
        found = _found(checks, row.check)
        right_in, middle_in = MARGIN_IN + _LABEL_IN - 0.06, top_in + (number + 0.5) * _ROW_IN
        canvas.text(right_in, middle_in - (0 if found.empty else 0.05), row.label, ha="right", va="center")
        if found.empty:
            text = shortened(f"not measured: {_reason(checks, row.check)}", width_in - 0.2, style.SMALL_PT)
            mark_slot(axes, number, text)
            continue
        subject = "trial" if row.check == "overhead" else "run"
        counted = f"{len(found)} {subject}{'s' if len(found) > 1 else ''}, {int(found['num'].sum())} {row.counted}"
        if row.check == "zeus":
            counted += f", {int(found['of_total'].sum())} agree"
        canvas.text(
            right_in, middle_in + 0.06, counted, ha="right", va="center", fontsize=style.SMALL_PT, color=style.GREY
        )
    return axes


def _found(checks: DataFrame, check: str) -> DataFrame:
    """Return the rows of a check that have a value."""
    return checks[(checks["check"] == check) & checks["value"].notna()]


def _reason(checks: DataFrame, check: str) -> str:
    """Return the most frequent reason why a check has no value."""
    reasons = checks.loc[checks["check"] == check, "absent"].dropna()
    if len(reasons):
        return str(reasons.mode().iloc[0])
    return "no trial in results/sensors (triplepoint overhead)" if check == "overhead" else "no run finished"


def _draw_differences(axes: Axes, checks: DataFrame) -> None:
    reach = _FEWEST_PERCENT
    for number, row in enumerate(_DIFFERENCES):
        found = _found(checks, row.check)
        _draw_row(axes, number, found, _PERCENT, 0.0)
        limit = row.limit if not found.empty else None
        if limit is not None:
            for at in (-limit, limit) if row.check != "overhead" else (limit,):
                _draw_limit(axes, number, at)
        if not found.empty:
            reach = max(reach, 1.1 * _PERCENT * float(found[["value", "low", "high"]].abs().max().max()))
    axes.axvline(0, color=style.GREY, linewidth=0.5)
    axes.set_xlim(-reach, reach)
    axes.set_xlabel("difference (%)", labelpad=1)


def _draw_times(axes: Axes, checks: DataFrame) -> None:
    axes.set_xscale("log")
    axes.minorticks_off()
    axes.xaxis.set_major_formatter(lambda at, _: f"{at:g}")  # the usual one writes powers as formulas, which are off
    for number, row in enumerate(_TIMES):
        found = _found(checks, row.check)
        _draw_row(axes, number, found, _MS, _LEAST_MS)
        if row.limit is not None and not found.empty:
            _draw_limit(axes, number, row.limit)
    axes.set_xlim(_LEAST_MS, max(1e2, axes.get_xlim()[1]))
    axes.set_xlabel("time (ms)", labelpad=1)


def _draw_row(axes: Axes, number: int, found: DataFrame, factor: float, least: float) -> None:
    """Draw the rows of one check side by side: no two of them share a height."""
    step = 0.6 / max(len(found), 1)
    scale = 1.0 if len(found) <= _FEW else (_FEW / len(found)) ** 0.5
    for index, (_, row) in enumerate(found.iterrows()):
        y = number + (index - (len(found) - 1) / 2) * step
        is_simulated = row["origin"] == "simulated"
        colour = style.ORANGE if is_simulated else style.BLUE
        low, value, high = (
            max(factor * float(row[name]), least) if least else factor * float(row[name])
            for name in ("low", "value", "high")
        )
        axes.plot([low, high], [y, y], color=colour, linewidth=1.4 * scale, alpha=0.45, solid_capstyle="butt")
        if least and row["p99"] == row["p99"]:
            axes.plot([max(factor * float(row["p99"]), least)], [y], "|", color=colour, markersize=4 * scale)
        face = "white" if is_simulated else colour
        axes.plot(
            [value], [y], "o", color=colour, markerfacecolor=face, markersize=2.6 * max(scale, 0.6), markeredgewidth=0.6
        )


def _draw_limit(axes: Axes, number: int, at: float) -> None:
    axes.plot([at, at], [number - 0.42, number + 0.42], color=style.VERMILION, linewidth=0.8, linestyle="--")


def _notes(checks: DataFrame) -> list[str]:
    """Return lines on samples that are missing or stale, and on every sensor."""
    texts = []
    for row in _SHARES:
        found = _found(checks, row.check)
        if found.empty:
            texts.append(f"{row.label}: not measured: {_reason(checks, row.check)}")
            continue
        num, total = int(found["num"].sum()), int(found["of_total"].sum())
        worst = _PERCENT * float(found["value"].max())
        texts.append(f"{row.label}: {num} of {total} {row.counted}, in the worst run {worst:.2g} %")
    sensors = checks[checks["check"].str.startswith("sensor_")]
    if sensors.empty:
        texts.append("sensors: not characterised: no card in results/sensors (triplepoint characterise)")
    for (subject, what), found in sensors.groupby(["subject", "what"], sort=False):
        values = dict(zip(found["check"].str.removeprefix("sensor_"), found["value"], strict=True))
        if found["value"].isna().any():
            texts.append(f"{subject}, {what}: {found['absent'].iloc[0]}")
        else:
            texts.append(f"{subject}, {what}: " + ", ".join(f"{name} {_MS * at:.3g} ms" for name, at in values.items()))
    width_in = style.PAGE_WIDTH_IN - 2 * MARGIN_IN
    return [line for text in texts for line in wrapped(text, width_in, style.SMALL_PT)]
