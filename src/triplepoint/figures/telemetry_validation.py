"""Figure `telemetry_validation`: energy against its counter and Zeus, cost, timing, clocks, gaps and sensors."""

import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from pandas import DataFrame

from triplepoint import effects
from triplepoint.effects import between_gpus
from triplepoint.effects.titles import signed
from triplepoint.figures import marks, style
from triplepoint.units import counted

_ROW_IN, _LINE_IN = 0.3, 0.125
"""Heights of a row of a panel and of a line of notes. Unit: inch."""
_CHARACTERS = 125
"""Characters per line over the width of the page."""
_PERCENT, _MS = 100.0, 1000.0


@dataclass(frozen=True)
class _Row:
    """One check.

    Attributes:
        check: Name of the check in table `telemetry_checks`.
        label: Label of its row.
        counted: Noun for what a value is computed from.
        limit: Largest value that is asked for, in the unit of the axis; None for no limit.
    """

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
"""Checks of two quantities that should be equal: the first over the second minus 1."""
_TIMES = (
    _Row("lateness_fast", "lateness, fast lane", "samples", 2.0),
    _Row("lateness_slow", "lateness, slow lane", "samples", 2.0),
    _Row("latency_fast", "read latency, fast lane", "samples"),
    _Row("latency_slow", "read latency, slow lane", "samples"),
    _Row("clock", "clocks of nodes, uncertainty", "nodes", 1.0),
)
_SHARES = (_Row("gaps", "gaps", "samples"), _Row("stale", "stale energy counters", "samples"))
_FEW = 8
"""Largest number of runs in a row at which marks have their full size."""
_LEAST_MS = 1e-3
"""Lower end of the logarithmic axis of time; smaller values are drawn there."""
_LEAST_REACH_PERCENT = 2.5
"""Least reach of the axis of differences on both sides of zero."""


NOTE = (
    "Dot: median of a run or trial; bar: 10th to 90th percentile, for overhead the 95 % interval; tick: 99th. Hollow: "
    "simulated; dashed: what is asked for. Right: mean over runs with its {about}, or their median."
)


@style.styled
def draw(tables: Mapping[str, DataFrame]) -> tuple[Figure, DataFrame]:
    """Return the figure and the numbers it plots: table `telemetry_checks`."""
    checks = tables["telemetry_checks"]
    notes = _notes(checks)
    heights = [_ROW_IN * len(_DIFFERENCES), _ROW_IN * len(_TIMES), _LINE_IN * len(notes)]
    page = style.new_page(
        _answer(checks), _stamped(tables["points"], checks), 3, 1, style.PAGE,
        min(style.TALLEST, 2.2 + sum(heights)), NOTE.format(about=between_gpus.INTERVAL), height_ratios=heights,
    )  # fmt: skip
    energy, time, last = page.all_axes
    _prepare(energy, "Energy and cost", _DIFFERENCES, checks)
    _draw_differences(energy, checks)
    _prepare(time, "Time", _TIMES, checks)
    _draw_times(time, checks)
    last.set_axis_off()
    last.set_title("Samples and sensors")
    for number, line in enumerate(notes):
        last.text(0.5, 1 - (number + 0.5) / len(notes), line, transform=last.transAxes, ha="center", va="center")
    return page.finish(), checks


def _answer(checks: DataFrame) -> str:
    """Return the title: difference between two measurements of energy; else cost of sampling; else its lateness."""
    for check, words in (
        ("integral_60s", "Integrated power is {} the energy counter"),
        ("overhead", "Steps with sampling are {} steps without"),
    ):
        mean = _mean(_values(checks, check))
        if mean is not None:
            more, less = ("above", "below") if check == "integral_60s" else ("longer than", "shorter than")
            return words.format(f"{mean.text} {more}" if mean.value > 0 else f"{mean.negated.text} {less}")
    for row in _TIMES:
        rows = _values(checks, row.check)
        if row.check.startswith("lateness") and len(rows):
            lateness = f"Samples are {_MS * float(rows['value'].median()):.2g} ms late, {row.limit:g} ms are allowed"
            return f"{lateness}; energy and the cost of sampling were not checked"
    return "Neither energy nor the cost of sampling was checked"


def _mean(rows: DataFrame) -> effects.Effect | None:
    """Return the mean of differences over runs; None if there are none."""
    values = [between_gpus.single(float(value), True) for value in rows["value"]]
    return effects.over_settings(values) if values else None


def _write_beside(axes: Axes, number: int, text: str) -> None:
    """Write the mean over runs at the right of a row."""
    axes.text(1.01, number, text, transform=axes.get_yaxis_transform(), va="center", linespacing=1.15)


def _stamped(points: DataFrame, checks: DataFrame) -> DataFrame:
    """Return points for the stamp: runs with checks, else points of the same origin.

    Trials of the cost of sampling and cards of sensors belong to no run.
    """
    drawn = checks[checks["value"].notna()]
    runs = points[points["run"].isin(drawn["subject"])]
    origins = drawn["origin"].dropna().unique()
    shown = points[points["origin"].isin(origins)] if runs.empty else runs[runs["origin"].isin(origins)]
    return points if shown.empty else shown


def _prepare(axes: Axes, title: str, rows: Sequence[_Row], checks: DataFrame) -> None:
    """Write title and labels of a panel, with row 0 at the top at y = 0, and the reason in rows without a value."""
    axes.set_title(title)
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.grid(axis="x")
    axes.grid(visible=False, axis="y")
    names = []
    for number, row in enumerate(rows):
        values = _values(checks, row.check)
        names.append(row.label if values.empty else f"{row.label}\n{_counts_text(row, values)}")
        if values.empty:
            text = textwrap.shorten(
                f"not measured: {_reason(checks, row.check)}", 2 * _CHARACTERS // 3, placeholder=" …"
            )
            axes.text(
                0.5, number, text, transform=axes.get_yaxis_transform(), ha="center", va="center", color=marks.GREY,
                bbox={"facecolor": "white", "edgecolor": "none", "pad": 1.0}, zorder=4,
            )  # fmt: skip
    axes.set_yticks(range(len(rows)), names)
    axes.tick_params(axis="y", length=0)


def _counts_text(row: _Row, values: DataFrame) -> str:
    """Return the numbers of runs and of values behind a row."""
    subject = "trial" if row.check == "overhead" else "run"
    text = f"{counted(len(values), subject)}, {int(values['num'].sum())} {row.counted}"
    return f"{text}, {int(values['of_total'].sum())} agree" if row.check == "zeus" else text


def _values(checks: DataFrame, check: str) -> DataFrame:
    """Return the rows of a check that have a value."""
    return checks[(checks["check"] == check) & checks["value"].notna()]


def _reason(checks: DataFrame, check: str) -> str:
    """Return the most frequent reason why a check has no value."""
    reasons = checks.loc[checks["check"] == check, "absent"].dropna()
    if len(reasons):
        return str(reasons.mode().iloc[0])
    return "no trial in results/sensors (triplepoint overhead)" if check == "overhead" else "no run finished"


def _draw_differences(axes: Axes, checks: DataFrame) -> None:
    """Draw the checks of `_DIFFERENCES` in per cent."""
    reach = _LEAST_REACH_PERCENT
    for number, row in enumerate(_DIFFERENCES):
        rows = _values(checks, row.check)
        _draw_row(axes, number, rows, _PERCENT, 0.0)
        limit = row.limit if not rows.empty else None
        if limit is not None:
            for at in (-limit, limit) if row.check != "overhead" else (limit,):
                _draw_limit(axes, number, at)
        mean = _mean(rows)
        if mean is not None:
            _write_beside(axes, number, signed(mean).replace(" [", "\n["))
            reach = max(reach, 1.1 * _PERCENT * float(rows[["value", "low", "high"]].abs().max().max()))
    axes.axvline(0, color=marks.GREY, linewidth=0.5)
    axes.set_xlim(-reach, reach)
    axes.set_xlabel("difference (%)")


def _draw_times(axes: Axes, checks: DataFrame) -> None:
    """Draw the checks of `_TIMES` on a logarithmic axis in ms."""
    axes.set_xscale("log")
    axes.minorticks_off()
    # The default formatter writes powers as formulas, which this style has switched off.
    axes.xaxis.set_major_formatter(lambda at, _: f"{at:g}")
    for number, row in enumerate(_TIMES):
        rows = _values(checks, row.check)
        _draw_row(axes, number, rows, _MS, _LEAST_MS)
        if not rows.empty:
            _write_beside(axes, number, f"{_MS * float(rows['value'].median()):.2g} ms")
        if row.limit is not None and not rows.empty:
            _draw_limit(axes, number, row.limit)
    axes.set_xlim(_LEAST_MS, max(1e2, axes.get_xlim()[1]))
    axes.set_xlabel("time (ms)")


def _draw_row(axes: Axes, number: int, rows: DataFrame, factor: float, least: float) -> None:
    """Draw the values of one check, each at a height of its own.

    Args:
        axes: The panel.
        number: Number of the row of the check.
        rows: Rows of table `telemetry_checks`.
        factor: Factor from values to the unit of the axis.
        least: Least value that is drawn, in the unit of the axis; 0 for none.
    """
    step = 0.6 / max(len(rows), 1)
    scale = 1.0 if len(rows) <= _FEW else (_FEW / len(rows)) ** 0.5
    for index, (_, value) in enumerate(rows.iterrows()):
        y = number + (index - (len(rows) - 1) / 2) * step
        is_simulated = value["origin"] == "simulated"
        colour = marks.ORIGINS["simulated"].colour if is_simulated else marks.BLUE
        low, middle, high = (
            max(factor * float(value[name]), least) if least else factor * float(value[name])
            for name in ("low", "value", "high")
        )
        axes.plot([low, high], [y, y], color=colour, linewidth=1.4 * scale, alpha=0.45, solid_capstyle="butt")
        if least and value["p99"] == value["p99"]:
            axes.plot([max(factor * float(value["p99"]), least)], [y], "|", color=colour, markersize=4 * scale)
        face = "white" if is_simulated else colour
        size = 2.6 * max(scale, 0.6)
        axes.plot([middle], [y], "o", color=colour, markerfacecolor=face, markersize=size, markeredgewidth=0.6)


def _draw_limit(axes: Axes, number: int, at: float) -> None:
    """Draw a limit across one row."""
    axes.plot([at, at], [number - 0.42, number + 0.42], color=marks.BLACK, linewidth=0.8, linestyle="--")


def _notes(checks: DataFrame) -> list[str]:
    """Return lines of text on gaps and stale samples, and on every sensor."""
    texts = []
    for row in _SHARES:
        rows = _values(checks, row.check)
        if rows.empty:
            texts.append(f"{row.label}: not measured: {_reason(checks, row.check)}")
            continue
        num, total = int(rows["num"].sum()), int(rows["of_total"].sum())
        worst = _PERCENT * float(rows["value"].max())
        texts.append(f"{row.label}: {num} of {total} {row.counted}, in the worst run {worst:.2g} %")
    sensors = checks[checks["check"].str.startswith("sensor_")]
    if sensors.empty:
        texts.append("sensors: not characterised: no card in results/sensors (triplepoint characterise)")
    for (subject, what), rows in sensors.groupby(["subject", "what"], sort=False):
        values = dict(zip(rows["check"].str.removeprefix("sensor_"), rows["value"], strict=True))
        if rows["value"].isna().any():
            texts.append(f"{subject}, {what}: {rows['absent'].iloc[0]}")
        else:
            texts.append(f"{subject}, {what}: " + ", ".join(f"{name} {_MS * at:.3g} ms" for name, at in values.items()))
    return [line for text in texts for line in textwrap.wrap(text, _CHARACTERS)]
