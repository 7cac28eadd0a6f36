"""Checks of the telemetry: energy against its counter and Zeus, timing and clocks, gaps, sensors, cost."""

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

_ROW_IN = 0.3
_LINE_IN = 0.125
_CHARACTERS = 125
"""Of a line of notes and of a reason over the page's width."""
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
        min(style.TALLEST, 2.2 + sum(heights)), NOTE.format(about=between_gpus.ABOUT), height_ratios=heights,
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
    """Return how far two ways to measure energy are apart; without them what sampling costs, or how late it is."""
    for check, words in (
        ("integral_60s", "Integrated power is {} the energy counter"),
        ("overhead", "Steps with sampling are {} steps without"),
    ):
        mean = _mean(_found(checks, check))
        if mean is not None:
            more, less = ("above", "below") if check == "integral_60s" else ("longer than", "shorter than")
            return words.format(f"{mean.text} {more}" if mean.value > 0 else f"{mean.opposite.text} {less}")
    for row in _TIMES:
        found = _found(checks, row.check)
        if row.check.startswith("lateness") and len(found):
            late = f"Samples are {_MS * float(found['value'].median()):.2g} ms late, {row.limit:g} ms are allowed"
            return f"{late}; energy and the cost of sampling were not checked"
    return "Neither energy nor the cost of sampling was checked"


def _mean(found: DataFrame) -> effects.Effect | None:
    """Return the mean of differences over runs; None where there is none."""
    values = [between_gpus.single(float(value), True) for value in found["value"]]
    return effects.over_settings(values) if values else None


def _write_beside(axes: Axes, number: int, text: str) -> None:
    """Write at the right of a row what its runs show together."""
    axes.text(1.01, number, text, transform=axes.get_yaxis_transform(), va="center", linespacing=1.15)


def _stamped(points: DataFrame, checks: DataFrame) -> DataFrame:
    """Return points whose origins are those of the checks drawn: sensor cards and trials of the cost are of no run."""
    drawn = checks[checks["value"].notna()]
    runs = points[points["run"].isin(drawn["subject"])]
    origins = drawn["origin"].dropna().unique()
    shown = points[points["origin"].isin(origins)] if runs.empty else runs[runs["origin"].isin(origins)]
    return points if shown.empty else shown


def _prepare(axes: Axes, title: str, rows: Sequence[_Row], checks: DataFrame) -> None:
    """Write title and labels of some checks, row 0 on top at y = 0, and in rows without a value the reason."""
    axes.set_title(title)
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.grid(axis="x")
    axes.grid(visible=False, axis="y")
    names = []
    for number, row in enumerate(rows):
        found = _found(checks, row.check)
        names.append(row.label if found.empty else f"{row.label}\n{_counted(row, found)}")
        if found.empty:
            text = textwrap.shorten(
                f"not measured: {_reason(checks, row.check)}", 2 * _CHARACTERS // 3, placeholder=" …"
            )
            axes.text(
                0.5, number, text, transform=axes.get_yaxis_transform(), ha="center", va="center", color=marks.GREY,
                bbox={"facecolor": "white", "edgecolor": "none", "pad": 1.0}, zorder=4,
            )  # fmt: skip
    axes.set_yticks(range(len(rows)), names)
    axes.tick_params(axis="y", length=0)


def _counted(row: _Row, found: DataFrame) -> str:
    subject = "trial" if row.check == "overhead" else "run"
    words = f"{counted(len(found), subject)}, {int(found['num'].sum())} {row.counted}"
    return f"{words}, {int(found['of_total'].sum())} agree" if row.check == "zeus" else words


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
        mean = _mean(found)
        if mean is not None:
            _write_beside(axes, number, signed(mean).replace(" [", "\n["))
            reach = max(reach, 1.1 * _PERCENT * float(found[["value", "low", "high"]].abs().max().max()))
    axes.axvline(0, color=marks.GREY, linewidth=0.5)
    axes.set_xlim(-reach, reach)
    axes.set_xlabel("difference (%)")


def _draw_times(axes: Axes, checks: DataFrame) -> None:
    axes.set_xscale("log")
    axes.minorticks_off()
    axes.xaxis.set_major_formatter(lambda at, _: f"{at:g}")  # the usual one writes powers as formulas, which are off
    for number, row in enumerate(_TIMES):
        found = _found(checks, row.check)
        _draw_row(axes, number, found, _MS, _LEAST_MS)
        if not found.empty:
            _write_beside(axes, number, f"{_MS * float(found['value'].median()):.2g} ms")
        if row.limit is not None and not found.empty:
            _draw_limit(axes, number, row.limit)
    axes.set_xlim(_LEAST_MS, max(1e2, axes.get_xlim()[1]))
    axes.set_xlabel("time (ms)")


def _draw_row(axes: Axes, number: int, found: DataFrame, factor: float, least: float) -> None:
    """Draw the rows of one check side by side: no two of them share a height."""
    step = 0.6 / max(len(found), 1)
    scale = 1.0 if len(found) <= _FEW else (_FEW / len(found)) ** 0.5
    for index, (_, row) in enumerate(found.iterrows()):
        y = number + (index - (len(found) - 1) / 2) * step
        is_simulated = row["origin"] == "simulated"
        colour = marks.ORIGINS["simulated"].colour if is_simulated else marks.BLUE
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
    axes.plot([at, at], [number - 0.42, number + 0.42], color=marks.BLACK, linewidth=0.8, linestyle="--")


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
    return [line for text in texts for line in textwrap.wrap(text, _CHARACTERS)]
