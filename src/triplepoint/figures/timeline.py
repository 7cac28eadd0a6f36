"""Ranks over time in one run: phases and communication; power, temperature and clock below, on the same axis."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from pandas import DataFrame, Series, concat

from triplepoint.effects.courses import over_step
from triplepoint.figures import labels, marks, style
from triplepoint.status import Status
from triplepoint.units import MS_PER_S, NS_PER_S

LANES = ("phase", "comm")
"""Lanes that are drawn; the report's timeline has the others."""
MAX_RANKS = 16
"""Ranks drawn of one run; more would be thinner than a line of text."""
NOTHING = "no run of this selection finished with a trace"
NOTE = (
    "One step of one run: the layout with the shortest step of the first model and cluster. Upper strip: phase, in "
    "which a rank works; lower strip: communication in flight; white: neither.{heat}"
)
_HEAT = " Right: mean power and temperature (bars: 10th to 90th percentile) of each rank's GPU over the other steps."
_CURVES = (
    " Below: mean of all GPUs (line) and lowest to highest GPU (band) in the steps without the profiler, laid "
    "over each other."
)
NO_GPU = " No GPU, so no course of power, temperature and clock."
_COURSES = {
    "gpu_power_w": ("GPU power\n(W)", "power", 1.0, ("gpu_power_limit_w", "power limit {:.0f} W")),
    "gpu_temp_c": ("GPU\n(°C)", "temperature", 1.0, ("gpu_throttle_temp_c", "throttled at {:.0f} °C")),
    "sm_clock_mhz": ("clock\n(GHz)", "clock", 1e-3, ("", "")),
}
"""Columns of `step_samples`: title of the axis, colour, what values are multiplied by, and their limit."""

_RASTER_FROM = 2000
"""Spans from which they are stored as pixels: a PDF of many thousand boxes opens slowly."""
_PHASE_TOP, _PHASE_HEIGHT, _COMM_HEIGHT = 0.04, 0.6, 0.26
"""Parts of a rank's row."""
_RANK_IN = 0.3
_COURSE_IN = 0.75


@style.styled
def draw(tables: Mapping[str, DataFrame]) -> tuple[Figure, DataFrame]:
    """Return the figure and the spans it draws, with power and temperature of their rank.

    Args:
        tables: `points`, `timeline`, `gpus` and `step_samples`.
    """
    points = labels.prepare(tables["points"])
    timeline = tables["timeline"][tables["timeline"]["lane"].isin(LANES)]
    chosen = _fastest(points, set(timeline["run"]))
    if chosen.empty:
        page = style.new_page("Nothing to draw", points)
        style.say(page.axes[0][0], NOTHING)
        return page.finish(), _numbers(timeline.iloc[:0], "", {}).assign(layout="")
    run = str(chosen["run"].iloc[0])
    of_run = timeline[timeline["run"] == run]
    spans = _ranks_to_draw(of_run)
    heat = _heat_of(tables["gpus"], run, spans)
    courses = _courses(tables["step_samples"], run, spans)
    said = _working(of_run) + _temperatures(tables["gpus"], run)
    page = _page(chosen, _end_s(of_run), (spans["rank"].nunique(), of_run["rank"].nunique()), heat, courses, said)
    _draw_lanes(page.axes[0][0], spans)
    for axes, (column, title) in zip(page.axes[0][1:], heat.items(), strict=True):
        _draw_heat(axes, tables["gpus"], run, sorted(spans["rank"].unique()), (column, title))
    _draw_courses([row[0] for row in page.axes], courses, chosen.iloc[0])
    for axes in [axes for row in page.axes[1:] for axes in row[1:]]:
        axes.set_axis_off()
    page.legend(_legend(spans))
    return page.finish(), _numbers(spans, run, courses).assign(layout=chosen["layout"].iloc[0])


def runs_to_draw(points: DataFrame, traced: set[str]) -> list[str]:
    """Return the run that is drawn, so that of a large table only its rows need to be read; empty where there is none.

    Args:
        points: Rows of `points`.
        traced: Ids of the runs that have a timeline.
    """
    return [str(run) for run in _fastest(labels.prepare(points), traced)["run"]]


def _fastest(points: DataFrame, traced: set[str]) -> DataFrame:
    """Return the traced point with the shortest step of the first model and cluster that has one."""
    done = points[(points["status"] == Status.OK) & points["run"].isin(traced) & points["step_time_s"].notna()]
    first = done[done["group"] == done["group"].iloc[0]] if len(done) else done
    return first.sort_values("step_time_s", kind="stable").head(1)


def _page(
    chosen: DataFrame, drawn_s: float, ranks: tuple[int, int], heat: Mapping[str, str],
    courses: Mapping[str, DataFrame], said: str,
) -> style.Page:  # fmt: skip
    more = (_HEAT if heat else "") + (_CURVES if courses else "" if heat else NO_GPU)
    note = NOTE.format(heat=more)
    lanes_in, courses_in = _RANK_IN * ranks[0] + 0.3, _COURSE_IN * len(courses)
    return style.new_page(
        _answer(chosen.iloc[0], drawn_s, ranks) + said, chosen, 1 + len(courses), 1 + len(heat), style.PAGE,
        min(style.TALLEST, 1.9 + 0.15 * bool(courses) + lanes_in + courses_in), note, sharey="row",
        width_ratios=[6.0] + [1.0] * len(heat), height_ratios=[lanes_in] + [_COURSE_IN] * len(courses),
    )  # fmt: skip


def _answer(point: "Series[Any]", drawn_s: float, ranks: tuple[int, int]) -> str:
    """Return which step is drawn and how long it lasts, for a title; of a measured one also the time without profiler.

    Args:
        point: The row of `points` of the run.
        drawn_s: From the start to the end of the step that is drawn.
        ranks: Ranks that are drawn, and that were traced.
    """
    part = "" if ranks[0] == ranks[1] else f", {ranks[0]} of {ranks[1]} traced ranks"
    size = "" if "micro_batch_size" in point["unknown"] else f", micro-batch {point['micro_batch_size']}"
    what = f"{point['layout']}, {point['group']}{size}{part}"
    if point["origin"] == "simulated":
        return f"{what}: the step takes {drawn_s:.3g} s"
    usual = f"median without the profiler: {point['step_time_s']:.3g} s"
    return f"{what}: the first profiled step takes {drawn_s:.3g} s ({usual})"


def _working(spans: DataFrame) -> str:
    """Return how much of the step the traced ranks are in a phase, as the end of a title."""
    end_s = _end_s(spans)
    shares = []
    for _, own in spans[spans["lane"] == "phase"].sort_values("t_start_ns").groupby("rank"):
        starts = own["t_start_ns"].to_numpy(float)
        ends = np.maximum.accumulate(starts + own["duration_ns"].to_numpy(float))
        before = np.concatenate([[-np.inf], ends[:-1]])
        shares.append(float(np.clip(ends - np.maximum(starts, before), 0, None).sum()) / NS_PER_S / end_s)
    return f", of which ranks work {_ends([100 * share for share in shares], '%')}" if shares else ""


def _temperatures(gpus: DataFrame, run: str) -> str:
    """Return how warm the GPUs of a run are, as the end of a title."""
    known = gpus.loc[gpus["run"] == run, "gpu_temp_c"].dropna()
    return f"; its GPUs have {_ends(list(known), '°C')} on average" if len(known) else ""


def _ends(values: Sequence[float], unit: str) -> str:
    """Return the lowest and the highest of some values, as whole numbers."""
    low, high = round(min(values)), round(max(values))
    return f"{low} {unit}" if low == high else f"{low} to {high} {unit}"


def _end_s(spans: DataFrame) -> float:
    """Return when the last span of a step ends. Unit: s since the step began."""
    return float((spans["t_start_ns"] + spans["duration_ns"]).max()) / NS_PER_S


def _heat_of(gpus: DataFrame, run: str, spans: DataFrame) -> dict[str, str]:
    """Return the columns of `gpus` that are known of the drawn ranks, with their titles."""
    own = gpus[(gpus["run"] == run) & gpus["rank"].isin(spans["rank"])]
    titles = {"gpu_power_w": "power (W)", "gpu_temp_c": "GPU (°C)"}
    return {column: title for column, title in titles.items() if own[column].notna().any()}


def _ranks_to_draw(spans: DataFrame) -> DataFrame:
    """Return the spans of at most `MAX_RANKS` ranks, evenly chosen among the first ones of each stage."""
    ranks = sorted(int(rank) for rank in spans["rank"].unique())
    if len(ranks) <= MAX_RANKS:
        return spans
    staged = spans.dropna(subset=["stage"]).sort_values("rank")
    leaders = sorted(int(rank) for rank in staged.drop_duplicates("stage")["rank"].unique())
    # Without several stages nothing tells ranks apart.
    choice = leaders if len(leaders) > 1 else ranks
    picks = np.linspace(0, len(choice) - 1, min(len(choice), MAX_RANKS)).round().astype(int)
    return spans[spans["rank"].isin([choice[pick] for pick in picks])]


def _draw_lanes(axes: Axes, spans: DataFrame) -> None:
    ranks = sorted(int(rank) for rank in spans["rank"].unique())
    end_s = _end_s(spans)
    factor, unit = (MS_PER_S, "ms") if end_s < 1 else (1, "s")
    for row, rank in enumerate(ranks):
        _draw_rank(axes, spans[spans["rank"] == rank], row, factor / NS_PER_S, len(spans) > _RASTER_FROM)
    axes.set_xlim(0, end_s * factor)
    axes.set_ylim(len(ranks), 0)
    axes.set_yticks([row + 0.45 for row in range(len(ranks))], labels=[f"rank {rank}" for rank in ranks])
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)
    axes.grid(visible=False)
    axes.set_xlabel(f"time since the step began ({unit})")


def _draw_rank(axes: Axes, spans: DataFrame, row: int, scale: float, raster: bool) -> None:
    lanes = (
        ("phase", marks.PHASES, _PHASE_TOP, _PHASE_HEIGHT),
        ("comm", marks.COMMUNICATION, _PHASE_TOP + _PHASE_HEIGHT, _COMM_HEIGHT),
    )
    for lane, known, top, height in lanes:
        for label, found in spans[spans["lane"] == lane].groupby("label", sort=False):
            boxes = np.column_stack([found["t_start_ns"] * scale, found["duration_ns"] * scale])
            axes.broken_barh(
                boxes.tolist(), (row + top, height), facecolors=known.get(str(label), known["other"]).colour,
                edgecolors="white" if lane == "phase" and not raster else "none", linewidth=0.2, rasterized=raster,
            )  # fmt: skip


def _courses(samples: DataFrame, run: str, spans: DataFrame) -> dict[str, DataFrame]:
    """Return the course over the step of each quantity that was sampled."""
    own = samples[samples["run"] == run]
    end_s = _end_s(spans)
    return {column: over_step(own, column, end_s) for column in _COURSES if own[column].notna().any()}


def _draw_courses(column_of_axes: Sequence[Axes], courses: Mapping[str, DataFrame], point: "Series[Any]") -> None:
    """Draw the courses below the lanes, on their axis of time."""
    lanes = column_of_axes[0]
    scale = MS_PER_S if lanes.get_xlabel().endswith("(ms)") else 1
    for axes, (column, found) in zip(column_of_axes[1:], courses.items(), strict=True):
        title, colour, factor, (limit, words) = _COURSES[column]
        at = np.append(found["t_start_s"], found["t_end_s"].iloc[-1]) * scale
        low, mean, high = (found[name].to_numpy(float) * factor for name in ("lowest", "mean", "highest"))
        axes.stairs(high, at, baseline=low, fill=True, color=marks.QUANTITIES[colour], alpha=0.25, linewidth=0)
        axes.stairs(mean, at, baseline=None, color=marks.QUANTITIES[colour], linewidth=1.0)
        axes.set_ylabel(title)
        axes.set_xlim(lanes.get_xlim())
        axes.locator_params(axis="y", nbins=4)
        if limit in point and point[limit] == point[limit]:
            style.draw_limit(axes, float(point[limit]), words.format(point[limit]))
        axes.tick_params(axis="x", labelbottom=axes is column_of_axes[-1])
    if courses:
        column_of_axes[-1].set_xlabel(lanes.get_xlabel())
        lanes.set_xlabel("")
        lanes.tick_params(axis="x", labelbottom=False)


def _numbers(spans: DataFrame, run: str, courses: Mapping[str, DataFrame]) -> DataFrame:
    """Return spans, and below them the parts of the courses: lane is the quantity, with mean, lowest and highest."""
    parts = [
        found.assign(
            run=run, lane=column, t_start_ns=(found["t_start_s"] * NS_PER_S).round().astype("int64"),
            duration_ns=((found["t_end_s"] - found["t_start_s"]) * NS_PER_S).round().astype("int64"),
        ).drop(columns=["t_start_s", "t_end_s"])
        for column, found in courses.items()
    ]  # fmt: skip
    return (
        concat([spans, *parts], ignore_index=True)
        if parts
        else spans.assign(mean=np.nan, lowest=np.nan, highest=np.nan)
    )


def _draw_heat(axes: Axes, gpus: DataFrame, run: str, ranks: list[Any], what: tuple[str, str]) -> None:
    """Draw a quantity of each rank's GPU beside its row."""
    column, title = what
    own = gpus[gpus["run"] == run].set_index("rank").reindex(ranks)
    places = np.arange(len(ranks)) + 0.45
    colour = marks.QUANTITIES["power" if column == "gpu_power_w" else "temperature"]
    ends: list[Series] = [own[name] for name in ("gpu_temp_p10_c", "gpu_temp_p90_c") if column == "gpu_temp_c"]
    if ends:
        axes.hlines(places, ends[0].astype(float), ends[1].astype(float), color=colour, linewidth=2, alpha=0.4)
    axes.plot(own[column].to_numpy(float), places, "o", color=colour)
    axes.set_xlabel(title)
    axes.tick_params(axis="y", length=0)
    axes.grid(axis="x")
    axes.locator_params(axis="x", nbins=3)


def _legend(spans: DataFrame) -> list[Patch]:
    """Return the colours that occur, phases first."""
    found = []
    for lane, known in (("phase", marks.PHASES), ("comm", marks.COMMUNICATION)):
        there = {str(label) for label in spans.loc[spans["lane"] == lane, "label"]}
        names = [name for name in known if name in there or (name == "other" and there - set(known))]
        # Both are drawn in one colour.
        names = [name for name in names if name != "recv" or "send_recv" not in names]
        found += [Patch(facecolor=known[name].colour, linewidth=0, label=known[name].name) for name in names]
    return found
