"""Figure `power_swings`: power of a whole job over some steps, and its spectrum, a column per model and cluster."""

from collections.abc import Mapping

import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from pandas import DataFrame, concat

from triplepoint.effects import swings
from triplepoint.figures import drawing, labels, marks, style
from triplepoint.status import Status

MOST_GROUPS = 4
"""Largest number of groups, one per model and cluster, on one page."""
NUM_STEPS = 6
"""Number of steps whose power is drawn."""
NOTHING = "no job whose nodes all have a power meter, with 100 readings or more"
NOTE = (
    "Power at the plug, read every {period}. Swing: 1st to 99th percentile, over the mean. Brackets: lowest and "
    "highest repeat."
)
_LINE = "job_power_line_fraction"


@style.styled
def draw(tables: Mapping[str, DataFrame]) -> tuple[Figure, DataFrame]:
    """Return the figure and the numbers it plots: power over time and spectrum of one run per model and cluster.

    Args:
        tables: `points`, `job_power` and `published`.
    """
    points = labels.prepare(tables["points"])
    known = points[(points["status"] == Status.OK) & points[swings.SWING].notna()]
    known = known[known["run"].isin(tables["job_power"]["run"])]
    if known.empty:
        page = style.new_page("Nothing to draw", points)
        drawing.write_reason(page.axes[0][0], NOTHING)
        return page.finish(), DataFrame(columns=["run", "group", "layout", "t_s", "job_power_w"])
    groups = [_fastest(DataFrame(members)) for _, members in known.groupby("group", sort=False)][:MOST_GROUPS]
    courses = [_course(tables["job_power"], str(repeats["run"].iloc[0])) for repeats in groups]
    page = _page(groups, courses, tables["published"])
    handles: list[Artist] = []
    numbers = []
    for col, (repeats, course) in enumerate(zip(groups, courses, strict=True)):
        spectrum = swings.spectrum(course)
        _draw_course(page.axes[0][col], course, float(repeats["step_time_s"].iloc[0]))
        handles += _draw_spectrum(page.axes[1][col], spectrum, repeats, tables["published"])
        names = {name: repeats[name].iloc[0] for name in ("run", "group", "layout")}
        numbers += [course.assign(**names), spectrum.assign(**names)]
    page.axes[0][0].set_ylabel("power of the job (kW)")
    page.axes[1][0].set_ylabel("amplitude of the swing\n(% of mean power)")
    if handles:
        page.legend(handles)
    return page.finish(), concat(numbers, ignore_index=True)


def _fastest(members: DataFrame) -> DataFrame:
    """Return the repeats of the point with the shortest step."""
    ordered = members.sort_values("step_time_s", kind="stable")
    setting = ordered[labels.SETTING + labels.LAYOUT].apply(tuple, axis=1)
    return DataFrame(ordered[setting == setting.iloc[0]].sort_values("repeat", kind="stable"))


def _course(job_power: DataFrame, run: str) -> DataFrame:
    """Return the power of one run over time."""
    return job_power[job_power["run"] == run].reset_index(drop=True)


def _page(groups: list[DataFrame], courses: list[DataFrame], published: DataFrame) -> style.Page:
    """Return the page. Its title is on the group with the largest swing.

    Args:
        groups: Repeats of one point per model and cluster.
        courses: Power over time of the first run of each group.
        published: Table `published`.
    """
    largest = max(groups, key=lambda repeats: float(repeats[swings.SWING].mean()))
    answer = swings.answer(largest, largest["group"].iloc[0].removesuffix(", simulated"))
    periods = [f"{course['t_s'].diff().median():.3g} s" for course in courses]
    page = style.new_page(
        answer, concat(groups), 2, len(groups), style.PAGE if len(groups) > 1 else style.COLUMN, 4.9,
        NOTE.format(period=" or ".join(dict.fromkeys(periods))),
    )  # fmt: skip
    notes = [swings.notes(repeats, published) for repeats in groups]
    names = [f"{repeats['model'].iloc[0]} {repeats['layout'].iloc[0]}" for repeats in groups]
    page.head([(name, swing) for name, (swing, _) in zip(names, notes, strict=True)])
    page.head([("", line) for _, line in notes], 1)
    return page


def _draw_course(axes: Axes, course: DataFrame, step_s: float) -> None:
    """Draw power over the first `NUM_STEPS` steps, and the ends of the swing of the whole run."""
    power_kw = course["job_power_w"] / 1e3
    drawn = course["t_s"] <= NUM_STEPS * step_s
    axes.plot(course.loc[drawn, "t_s"], power_kw[drawn], ".-", color=marks.QUANTITIES["power"], markersize=2.5)
    for end, value in zip(("1st", "99th"), np.percentile(power_kw, [1, 99]), strict=True):
        axes.axhline(value, color=marks.GREY, linewidth=0.7, linestyle=(0, (4, 2)))
        axes.text(
            0.99, value, f"{end} percentile", transform=axes.get_yaxis_transform(), ha="right", color=marks.GREY,
            va="top" if end == "1st" else "bottom", fontsize=style.TEXT_PT,
        )  # fmt: skip
    axes.margins(y=0.14)
    axes.set_xlabel("time (s)")
    axes.locator_params(axis="y", nbins=5)


def _draw_spectrum(axes: Axes, spectrum: DataFrame, repeats: DataFrame, published: DataFrame) -> list[Artist]:
    """Draw a spectrum and the published strongest line, and return the legend entry of the latter."""
    axes.plot(spectrum["frequency_hz"], 100 * spectrum["amplitude"], color=marks.QUANTITIES["power"], linewidth=0.9)
    axes.set_ylim(0, None)
    axes.set_xlim(0, float(spectrum["frequency_hz"].max()))
    axes.set_xlabel("frequency (Hz)")
    line, amplitude = (swings.published_value(repeats, published, name) for name in (swings.LINE, _LINE))
    if np.isfinite(line) and np.isfinite(amplitude):
        return [drawing.draw_published(axes, [line], [100 * amplitude])]
    return []
