"""Figure `timeline`: phases and communication of ranks over one step, with power, temperature and clock below."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch, PathPatch
from matplotlib.path import Path
from pandas import DataFrame, Series, concat

from triplepoint.effects.courses import over_step
from triplepoint.figures import drawing, labels, marks, style
from triplepoint.status import Status
from triplepoint.units import MS_PER_S, NS_PER_S

LANES = ("phase", "comm")
"""Lanes of table `timeline` that are drawn; the timeline of the report has the others."""
MAX_RANKS = 16
"""Largest number of ranks that are drawn; rows of more ranks would be thinner than a line of text."""
NOTHING = "no run of this selection finished with a trace"
NOTE = "Upper strip of a rank: phase; lower strip: communication in flight{mixed}; white: neither.{heat}"
_MIXED = ", its height the share of the time"
_HEAT = " Right: mean of each GPU; bars: 10th to 90th percentile."
_CURVES = " Below: mean, lowest and highest GPU."
NO_GPU = " No GPU, so no power, temperature and clock."
_COURSES = {
    "gpu_power_w": ("GPU power\n(W)", "power", 1.0, ("gpu_power_limit_w", "power limit {:.0f} W")),
    "gpu_temp_c": ("GPU\n(°C)", "temperature", 1.0, ("gpu_throttle_temp_c", "throttled at {:.0f} °C")),
    "sm_clock_mhz": ("clock\n(GHz)", "clock", 1e-3, ("", "")),
}
"""Columns of `step_samples`: label of the axis, key of the colour, factor to the axis, and limit with its text."""

_MOST_SPANS = 400
"""Largest number of spans in a strip that are drawn one by one. More would be narrower than a line in print, so the
step is then divided into `_PARTS` equal parts, and each part shows the shares of its time by kind."""
_PARTS = 300
"""Number of parts of a step, each about 1 pt wide in print."""
_PHASE_TOP, _PHASE_HEIGHT, _COMM_TOP, _COMM_HEIGHT = 0.04, 0.56, 0.64, 0.26
"""Places of the two strips in the row of a rank, as shares of its height."""
_RANK_IN, _COURSE_IN = 0.3, 0.75
"""Heights of the row of a rank and of a panel below. Unit: inch."""


@style.styled
def draw(tables: Mapping[str, DataFrame]) -> tuple[Figure, DataFrame]:
    """Return the figure, and the spans and the courses over the step that it plots.

    Args:
        tables: `points`, `timeline`, `gpus` and `step_samples`.
    """
    points = labels.prepare(tables["points"])
    timeline = tables["timeline"][tables["timeline"]["lane"].isin(LANES)]
    chosen = _fastest(points, set(timeline["run"]))
    if chosen.empty:
        page = style.new_page("Nothing to draw", points)
        drawing.write_reason(page.axes[0][0], NOTHING)
        return page.finish(), _numbers(timeline.iloc[:0], "", {}).assign(layout="")
    run = str(chosen["run"].iloc[0])
    of_run = timeline[timeline["run"] == run]
    spans = _ranks_to_draw(of_run)
    heat = _heat_of(tables["gpus"], run, spans)
    courses = _courses(tables["step_samples"], run, spans)
    page = _page(chosen.iloc[0], spans, of_run, heat, courses)
    page.head([("", _drawn(chosen.iloc[0], spans, of_run)), *_temperatures(tables["gpus"], run, heat)])
    _draw_lanes(page.axes[0][0], spans)
    for axes, (column, title) in zip(page.axes[0][1:], heat.items(), strict=True):
        _draw_heat(axes, tables["gpus"], run, sorted(spans["rank"].unique()), (column, title))
    _draw_courses([row[0] for row in page.axes], courses, chosen.iloc[0])
    for axes in [axes for row in page.axes[1:] for axes in row[1:]]:
        axes.set_axis_off()
    page.legend(_legend(spans))
    return page.finish(), _numbers(spans, run, courses).assign(layout=chosen["layout"].iloc[0])


def runs_to_draw(points: DataFrame, traced: set[str]) -> list[str]:
    """Return the run to draw; empty if there is none. Only its rows of large tables have to be read.

    Args:
        points: Rows of table `points`.
        traced: Ids of the runs with a timeline.
    """
    return [str(run) for run in _fastest(labels.prepare(points), traced)["run"]]


def _fastest(points: DataFrame, traced: set[str]) -> DataFrame:
    """Return the traced point with the shortest step in the first group with traced points."""
    done = points[(points["status"] == Status.OK) & points["run"].isin(traced) & points["step_time_s"].notna()]
    first = done[done["group"] == done["group"].iloc[0]] if len(done) else done
    return first.sort_values("step_time_s", kind="stable").head(1)


def _page(
    point: "Series[Any]", spans: DataFrame, of_run: DataFrame, heat: Mapping[str, str], courses: Mapping[str, DataFrame]
) -> style.Page:
    """Return the page: lanes at the top left, courses below them, and quantities of single GPUs at the right.

    Args:
        point: The point that is drawn.
        spans: Spans of the ranks that are drawn.
        of_run: Spans of all traced ranks.
        heat: Columns of table `gpus` that are drawn at the right, with their titles.
        courses: Courses over the step by column.
    """
    mixed = _MIXED if any(_is_mixed(strip) for _, strip in spans.groupby(["rank", "lane"])) else ""
    note = NOTE.format(mixed=mixed, heat=(_HEAT if heat else "") + (_CURVES if courses else "" if heat else NO_GPU))
    lanes_in, courses_in = _RANK_IN * spans["rank"].nunique() + 0.3, _COURSE_IN * len(courses)
    return style.new_page(
        _answer(point, of_run), DataFrame([point]), 1 + len(courses), 1 + len(heat), style.PAGE,
        min(style.TALLEST, 1.8 + 0.15 * bool(courses) + lanes_in + courses_in), note, sharey="row",
        width_ratios=[6.0] + [1.0] * len(heat), height_ratios=[lanes_in] + [_COURSE_IN] * len(courses),
    )  # fmt: skip


def _answer(point: "Series[Any]", of_run: DataFrame) -> str:
    """Return the title: share of the step that ranks spend in phases, and the length of the step."""
    end_s = _end_s(of_run)
    shares = []
    for _, phases in of_run[of_run["lane"] == "phase"].sort_values("t_start_ns").groupby("rank"):
        starts = phases["t_start_ns"].to_numpy(float)
        ends = np.maximum.accumulate(starts + phases["duration_ns"].to_numpy(float))
        before = np.concatenate([[-np.inf], ends[:-1]])
        shares.append(100 * float(np.clip(ends - np.maximum(starts, before), 0, None).sum()) / NS_PER_S / end_s)
    model, _, place = str(point["group"]).partition(" on ")
    where = f"{model} {point['layout']} on {place.removesuffix(', simulated')}"
    if not shares:
        return f"{where}: a step takes {end_s:.3g} s"
    return f"{where}: ranks work {_ends(shares, '%')} of a step of {end_s:.3g} s"


def _drawn(point: "Series[Any]", spans: DataFrame, of_run: DataFrame) -> str:
    """Return the note above the lanes: micro-batch size, ranks, and if measured the step time without profiler."""
    ranks, traced = spans["rank"].nunique(), of_run["rank"].nunique()
    size = [] if "micro_batch_size" in point["unknown"] else [f"micro-batch {point['micro_batch_size']}"]
    num_gpus = int(point.get("num_gpus", traced))
    part = [] if ranks == traced == num_gpus else [f"{ranks} of {num_gpus} ranks"]
    part = part if ranks == traced else [f"{ranks} of {traced} traced ranks"]
    if part and "stage" in spans and spans.groupby("rank")["stage"].first().nunique() == ranks > 1:
        part += [
            "the first of each pipeline stage" if of_run["stage"].nunique() == ranks else "one of a pipeline stage"
        ]
    if point["origin"] != "simulated":
        size.insert(0, f"first profiled step (median without the profiler: {point['step_time_s']:.3g} s)")
    return ", ".join([*size, *part])


def _temperatures(gpus: DataFrame, run: str, heat: Mapping[str, str]) -> list[tuple[str, str]]:
    """Return the heads of the panels at the right: the range of temperatures of the GPUs of the run."""
    known = gpus.loc[gpus["run"] == run, "gpu_temp_c"].dropna()
    return [("", _ends(list(known), "°C") if column == "gpu_temp_c" else "") for column in heat]


def _ends(values: Sequence[float], unit: str) -> str:
    """Return the range of values as text with whole numbers."""
    low, high = round(min(values)), round(max(values))
    return f"{low} {unit}" if low == high else f"{low} to {high} {unit}"


def _end_s(spans: DataFrame) -> float:
    """Return the end of the last span. Unit: s since the step began."""
    return float((spans["t_start_ns"] + spans["duration_ns"]).max()) / NS_PER_S


def _heat_of(gpus: DataFrame, run: str, spans: DataFrame) -> dict[str, str]:
    """Return the columns of table `gpus` with values for the ranks that are drawn, with their titles."""
    rows = gpus[(gpus["run"] == run) & gpus["rank"].isin(spans["rank"])]
    titles = {"gpu_power_w": "power (W)", "gpu_temp_c": "GPU (°C)"}
    return {column: title for column, title in titles.items() if rows[column].notna().any()}


def _ranks_to_draw(spans: DataFrame) -> DataFrame:
    """Return the spans of at most `MAX_RANKS` ranks, evenly spaced among the first rank of each stage."""
    ranks = sorted(int(rank) for rank in spans["rank"].unique())
    if len(ranks) <= MAX_RANKS:
        return spans
    staged = spans.dropna(subset=["stage"]).sort_values("rank")
    first_ranks = sorted(int(rank) for rank in staged.drop_duplicates("stage")["rank"].unique())
    # With a single stage all ranks are candidates.
    candidates = first_ranks if len(first_ranks) > 1 else ranks
    picks = np.linspace(0, len(candidates) - 1, min(len(candidates), MAX_RANKS)).round().astype(int)
    return spans[spans["rank"].isin([candidates[pick] for pick in picks])]


def _draw_lanes(axes: Axes, spans: DataFrame) -> None:
    """Draw one row per rank over the time of the step."""
    ranks = sorted(int(rank) for rank in spans["rank"].unique())
    end_s = _end_s(spans)
    factor, unit = (MS_PER_S, "ms") if end_s < 1 else (1, "s")
    for row, rank in enumerate(ranks):
        _draw_rank(axes, spans[spans["rank"] == rank], row, factor / NS_PER_S, end_s * NS_PER_S)
    axes.set_xlim(0, end_s * factor)
    axes.set_ylim(len(ranks), 0)
    axes.set_yticks([row + 0.45 for row in range(len(ranks))], labels=[f"rank {rank}" for rank in ranks])
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)
    axes.grid(visible=False)
    axes.set_xlabel(f"time since the step began ({unit})")


def _draw_rank(axes: Axes, spans: DataFrame, row: int, scale: float, end_ns: float) -> None:
    """Draw the two strips of one rank.

    Args:
        axes: The panel.
        spans: Spans of the rank.
        row: Number of its row.
        scale: Factor from ns to the unit of the x axis.
        end_ns: End of the step. Unit: ns.
    """
    lanes = (
        ("phase", marks.PHASES, _PHASE_TOP, _PHASE_HEIGHT),
        ("comm", marks.COMMUNICATION, _COMM_TOP, _COMM_HEIGHT),
    )
    for lane, known, top, height in lanes:
        strip = spans[spans["lane"] == lane]
        draw = _draw_shares if _is_mixed(strip) else _draw_boxes
        draw(axes, _by_look(strip, known), row + top, height, scale, end_ns)


def _by_look(spans: DataFrame, known: Mapping[str, marks.Mark]) -> dict[marks.Mark, DataFrame]:
    """Return the spans by mark; several kinds may have the same mark."""
    looks = {label: known.get(str(label), known["other"]) for label in spans["label"].unique()}
    return {
        mark: spans[spans["label"].isin([label for label, look in looks.items() if look == mark])]
        for mark in looks.values()
    }


def _is_mixed(spans: DataFrame) -> bool:
    """Return whether a strip has too many spans to draw them one by one."""
    return len(spans) > _MOST_SPANS


def _draw_boxes(
    axes: Axes, looks: Mapping[marks.Mark, DataFrame], top: float, height: float, scale: float, end_ns: float
) -> None:
    """Draw each span as a box. The boxes of a mark are one path, which is exact at any resolution and small."""
    edge = 0.2 if all((of_mark["duration_ns"] > end_ns / 200).all() for of_mark in looks.values()) else 0.0
    for mark, of_mark in looks.items():
        start, end = (
            (of_mark["t_start_ns"] * scale).to_numpy(),
            ((of_mark["t_start_ns"] + of_mark["duration_ns"]) * scale).to_numpy(),
        )
        low, high = np.full(len(of_mark), top), np.full(len(of_mark), top + height)
        corners = np.stack([[start, low], [end, low], [end, high], [start, high], [start, low]])  # 5, 2, num
        codes = [Path.MOVETO, Path.LINETO, Path.LINETO, Path.LINETO, Path.CLOSEPOLY] * len(of_mark)
        path = Path(corners.transpose(2, 0, 1).reshape(-1, 2), codes)
        axes.add_patch(PathPatch(path, facecolor=mark.colour, edgecolor="white", linewidth=edge, snap=False))


def _draw_shares(
    axes: Axes, looks: Mapping[marks.Mark, DataFrame], top: float, height: float, scale: float, end_ns: float
) -> None:
    """Draw the shares of time of each mark in equal parts of the step, stacked from the top of the strip."""
    edges = np.linspace(0, end_ns, _PARTS + 1)
    reached: dict[marks.Mark, np.ndarray] = {}
    taken = np.zeros(_PARTS)
    for mark, of_mark in looks.items():
        start, length = of_mark["t_start_ns"].to_numpy(float), of_mark["duration_ns"].to_numpy(float)
        taken = taken + np.diff([np.clip(edge - start, 0, length).sum() for edge in edges]) / (end_ns / _PARTS)
        # Concurrent spans fill the strip at most. Rounded, since a hundredth of its height is less than a pixel.
        reached[mark] = np.minimum(taken, 1).round(2)
    for mark, shares in reversed(reached.items()):  # all begin at the top, so smaller ones are drawn over larger ones
        changes = np.append(True, np.diff(shares) != 0)
        at = np.append(edges[:-1][changes], end_ns) * scale
        axes.stairs(top + height * shares[changes], at, baseline=top, fill=True, color=mark.colour, linewidth=0)


def _courses(samples: DataFrame, run: str, spans: DataFrame) -> dict[str, DataFrame]:
    """Return the course over the step of each sampled quantity."""
    of_run = samples[samples["run"] == run]
    end_s = _end_s(spans)
    return {column: over_step(of_run, column, end_s) for column in _COURSES if of_run[column].notna().any()}


def _draw_courses(column_of_axes: Sequence[Axes], courses: Mapping[str, DataFrame], point: "Series[Any]") -> None:
    """Draw the courses in the panels below the lanes, with the same x axis."""
    lanes = column_of_axes[0]
    scale = MS_PER_S if lanes.get_xlabel().endswith("(ms)") else 1
    for axes, (column, course) in zip(column_of_axes[1:], courses.items(), strict=True):
        title, colour, factor, (limit, words) = _COURSES[column]
        at = np.append(course["t_start_s"], course["t_end_s"].iloc[-1]) * scale
        low, mean, high = (course[name].to_numpy(float) * factor for name in ("lowest", "mean", "highest"))
        axes.stairs(high, at, baseline=low, fill=True, color=marks.QUANTITIES[colour], alpha=0.25, linewidth=0)
        axes.stairs(mean, at, baseline=None, color=marks.QUANTITIES[colour], linewidth=1.0)
        axes.set_ylabel(title)
        axes.set_xlim(lanes.get_xlim())
        axes.locator_params(axis="y", nbins=4)
        if limit in point and point[limit] == point[limit]:
            drawing.draw_limit(axes, float(point[limit]), words.format(point[limit]))
        axes.tick_params(axis="x", labelbottom=axes is column_of_axes[-1])
    if courses:
        column_of_axes[-1].set_xlabel(lanes.get_xlabel())
        lanes.set_xlabel("")
        lanes.tick_params(axis="x", labelbottom=False)


def _numbers(spans: DataFrame, run: str, courses: Mapping[str, DataFrame]) -> DataFrame:
    """Return the plotted numbers: spans, then one row per part of a course.

    In rows of courses `lane` is the quantity, and `mean`, `lowest` and `highest` have values.
    """
    parts = [
        course.assign(
            run=run, lane=column, t_start_ns=(course["t_start_s"] * NS_PER_S).round().astype("int64"),
            duration_ns=((course["t_end_s"] - course["t_start_s"]) * NS_PER_S).round().astype("int64"),
        ).drop(columns=["t_start_s", "t_end_s"])
        for column, course in courses.items()
    ]  # fmt: skip
    return (
        concat([spans, *parts], ignore_index=True)
        if parts
        else spans.assign(mean=np.nan, lowest=np.nan, highest=np.nan)
    )


def _draw_heat(axes: Axes, gpus: DataFrame, run: str, ranks: list[Any], quantity: tuple[str, str]) -> None:
    """Draw a quantity of the GPU of each rank at the right of its row."""
    column, title = quantity
    rows = gpus[gpus["run"] == run].set_index("rank").reindex(ranks)
    places = np.arange(len(ranks)) + 0.45
    colour = marks.QUANTITIES["power" if column == "gpu_power_w" else "temperature"]
    ends: list[Series] = [rows[name] for name in ("gpu_temp_p10_c", "gpu_temp_p90_c") if column == "gpu_temp_c"]
    if ends:
        axes.hlines(places, ends[0].astype(float), ends[1].astype(float), color=colour, linewidth=2, alpha=0.4)
    axes.plot(rows[column].to_numpy(float), places, "o", color=colour)
    axes.set_xlabel(title)
    axes.tick_params(axis="y", length=0)
    axes.grid(axis="x")
    if column == "gpu_power_w":  # from zero, so that a few per cent look like a few per cent
        axes.set_xlim(0, 1.1 * float(rows[column].max()))
    axes.locator_params(axis="x", nbins=3)


def _legend(spans: DataFrame) -> list[Patch]:
    """Return the legend entries of the phases and the kinds of communication that occur."""
    handles = []
    for lane, known in (("phase", marks.PHASES), ("comm", marks.COMMUNICATION)):
        present = {str(label) for label in spans.loc[spans["lane"] == lane, "label"]}
        names = [name for name in known if name in present or (name == "other" and present - set(known))]
        looks = dict.fromkeys(known[name] for name in names)
        handles += [Patch(facecolor=mark.colour, linewidth=0, label=mark.name) for mark in looks]
    return handles
