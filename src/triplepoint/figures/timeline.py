"""Ranks over time for a few runs: the phases of each, and the communication in flight below it."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from pandas import DataFrame, concat

from triplepoint.figures import labels
from triplepoint.figures import old_page as style
from triplepoint.figures.old_page import HEAD_IN, MARGIN_IN, POINTS_PER_INCH, Canvas, shortened
from triplepoint.status import Status
from triplepoint.units import MS_PER_S, NS_PER_S

LANES = ("phase", "comm")
"""Lanes that are drawn; the report's timeline has the others."""
MAX_PANELS = 4
MAX_RANKS = 16
"""Ranks drawn of one run; more would be thinner than a line of text."""

_RASTER_FROM = 2000
"""Spans in a panel from which they are stored as pixels: a PDF of many thousand boxes opens slowly."""
_TITLE_IN, _AXIS_IN, _LABEL_IN, _LEGEND_IN = 0.18, 0.36, 0.5, 0.32
_MIN_ROW_IN, _MAX_ROW_IN, _PANEL_IN = 0.13, 0.32, 1.7
_PHASE_TOP, _PHASE_HEIGHT, _COMM_HEIGHT = 0.04, 0.6, 0.26
"""Parts of a rank's row."""
_NUMBER_PT = 5.0
_DIGIT_WIDTH = 0.64
"""Width of a DejaVu digit over its size."""

_PHASES = {"forward": style.SKY, "backward": style.BLUE, "optimizer": style.GREEN, "grad_sync": style.YELLOW}
_KIND_ORDER = (("pp",), ("tp",), ("dp",), ("fsdp",), ("ep",))
"""Kinds of layout with one degree above 1, drawn before combined ones: they are the easiest to read."""


@style.styled
def draw(tables: Mapping[str, DataFrame]) -> tuple[Figure, DataFrame]:
    """Return the figure and the spans it draws.

    Drawn is the first finished run of each kind of layout (which degrees are above 1), single degrees first, then
    combinations with a pipeline; at most `MAX_PANELS` runs, and of each at most `MAX_RANKS` ranks.
    """
    points = labels.prepare(tables["points"])
    timeline = tables["timeline"][tables["timeline"]["lane"].isin(LANES)]
    chosen = _choose(points, set(timeline["run"]))
    of_run = {run: timeline[timeline["run"] == run] for run in chosen["run"]}
    spans = {run: _ranks_to_draw(found) for run, found in of_run.items()}
    heights = [_height_in(spans[run]["rank"].nunique()) for run in chosen["run"]] or [_TITLE_IN * 2]
    canvas = Canvas.make(style.PAGE_WIDTH_IN, HEAD_IN + sum(heights) + _LEGEND_IN + MARGIN_IN)
    canvas.stamp(chosen if len(chosen) else points)
    if chosen.empty:
        canvas.text(MARGIN_IN, HEAD_IN + 0.05, "no run of this selection finished with a trace")
    top_in = HEAD_IN
    for height_in, (_, point) in zip(heights, chosen.iterrows(), strict=False):
        num_ranks = of_run[point["run"]]["rank"].nunique()
        _draw_panel(canvas, point, spans[point["run"]], num_ranks, (top_in, height_in))
        top_in += height_in
    _draw_legend(canvas, list(spans.values()))
    drawn = [found.assign(layout=_name(chosen, run)) for run, found in spans.items()]
    return canvas.figure, concat(drawn, ignore_index=True) if drawn else timeline.iloc[:0].assign(layout="")


def _name(chosen: DataFrame, run: str) -> str:
    return str(chosen.loc[chosen["run"] == run, "layout"].iloc[0])


def _choose(points: DataFrame, traced: set[str]) -> DataFrame:
    """Return the points to draw, by the rule in `draw`."""
    done = points[(points["status"] == Status.OK) & points["run"].isin(traced)]
    first: dict[tuple[str, ...], Any] = {}
    for index, row in done.iterrows():
        first.setdefault(_kind(row), index)

    def rank(kind: tuple[str, ...]) -> tuple:
        single = _KIND_ORDER.index(kind) if kind in _KIND_ORDER else len(_KIND_ORDER)
        return single, "pp" not in kind, -len(kind), kind

    kinds = sorted((kind for kind in first if kind), key=rank)
    kinds += [kind for kind in first if not kind]
    return done.loc[[first[kind] for kind in kinds[:MAX_PANELS]]]


def _kind(row: Any) -> tuple[str, ...]:
    sharding = row["data_parallel_sharding"] == "optim_grads_params"
    degrees = [degree for degree in labels.DEGREES if row[degree] > 1]
    return tuple("fsdp" if sharding and degree == "dp" else degree for degree in degrees)


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


def _row_in(num_ranks: int) -> float:
    return min(_MAX_ROW_IN, max(_MIN_ROW_IN, _PANEL_IN / max(num_ranks, 1)))


def _height_in(num_ranks: int) -> float:
    return _TITLE_IN + _row_in(num_ranks) * num_ranks + _AXIS_IN


def _draw_panel(canvas: Canvas, point: Any, spans: DataFrame, num_ranks: int, place: tuple[float, float]) -> None:
    """Draw one run.

    Args:
        canvas: The page.
        point: Row of `points`.
        spans: What to draw of it.
        num_ranks: Traced ranks of the run, drawn or not.
        place: Top and height. Unit: inch.
    """
    top_in, height_in = place
    ranks = sorted(int(rank) for rank in spans["rank"].unique())
    part = "" if len(ranks) == num_ranks else f", {len(ranks)} of {num_ranks} ranks"
    title = f"{point['layout']}, {point['group']}"
    text = shortened(
        f"{title}, micro-batch {point['micro_batch_size']}{part}", canvas.width_in - 0.2, style.TEXT_PT + 0.8
    )
    canvas.text(MARGIN_IN, top_in + 0.03, text, weight="bold")
    width_in = canvas.width_in - _LABEL_IN - 2 * MARGIN_IN
    axes = canvas.axes(MARGIN_IN + _LABEL_IN, top_in + _TITLE_IN, width_in, height_in - _TITLE_IN - _AXIS_IN)
    end_s = float((spans["t_start_ns"] + spans["duration_ns"]).max()) / NS_PER_S
    factor, unit = (MS_PER_S, "ms") if end_s < 1 else (1, "s")
    raster = len(spans) > _RASTER_FROM
    scale = factor / NS_PER_S
    for row, rank in enumerate(ranks):
        _draw_rank(axes, spans[spans["rank"] == rank], row, scale, raster)
    axes.set_xlim(0, end_s * factor)
    axes.set_ylim(len(ranks), 0)
    axes.set_yticks([row + 0.45 for row in range(len(ranks))], labels=[f"rank {rank}" for rank in ranks])
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)
    axes.set_xlabel(f"time since the step began ({unit})", labelpad=1)
    _write_numbers(axes, spans, ranks, scale, width_in / (end_s * factor))


def _draw_rank(axes: Axes, spans: DataFrame, row: int, scale: float, raster: bool) -> None:
    lanes = (
        ("phase", _PHASES, _PHASE_TOP, _PHASE_HEIGHT),
        ("comm", style.COMMS, _PHASE_TOP + _PHASE_HEIGHT, _COMM_HEIGHT),
    )
    for lane, colours, top, height in lanes:
        own = spans[spans["lane"] == lane]
        for label, found in own.groupby("label", sort=False):
            boxes = np.column_stack([found["t_start_ns"] * scale, found["duration_ns"] * scale])
            axes.broken_barh(
                boxes.tolist(), (row + top, height), facecolors=colours.get(str(label), style.PALE),
                edgecolors="white" if lane == "phase" else "none", linewidth=0.3, rasterized=raster,
            )  # fmt: skip


def _write_numbers(axes: Axes, spans: DataFrame, ranks: Sequence[int], scale: float, inch_per_unit: float) -> None:
    """Write the micro-batch on each phase that is wide enough for it."""
    numbered = spans[(spans["lane"] == "phase") & spans["microbatch"].notna()]
    rows = {rank: row for row, rank in enumerate(ranks)}
    for rank, label, number, start, duration in zip(
        *(numbered[name] for name in ("rank", "label", "microbatch", "t_start_ns", "duration_ns")), strict=True
    ):
        text = str(int(number))
        width_pt = duration * scale * inch_per_unit * POINTS_PER_INCH
        if width_pt < (len(text) * _DIGIT_WIDTH + 0.2) * _NUMBER_PT:
            continue
        colour = "white" if label == "backward" else style.BLACK
        axes.text(
            (start + duration / 2) * scale, rows[int(rank)] + _PHASE_TOP + _PHASE_HEIGHT / 2, text, fontsize=_NUMBER_PT,
            color=colour, ha="center", va="center_baseline",
        )  # fmt: skip


def _draw_legend(canvas: Canvas, spans: Sequence[DataFrame]) -> None:
    """Name the colours that occur, phases first; whatever has no colour of its own is grey."""
    found = {(lane, str(label)) for part in spans for lane, label in zip(part["lane"], part["label"], strict=True)}
    entries = [(label, colour) for label, colour in _PHASES.items() if ("phase", label) in found]
    entries += [(label, colour) for label, colour in style.COMMS.items() if ("comm", label) in found]
    named = {label for label, _ in entries}
    others = sorted(label for _, label in found if label not in named)
    entries += [(", ".join(others), style.PALE)] if others else []
    canvas.figure.legend(
        [Patch(facecolor=colour, linewidth=0) for _, colour in entries], [label for label, _ in entries],
        ncols=max(len(entries), 1), loc="lower center", bbox_to_anchor=(0.5, MARGIN_IN / canvas.height_in / 2),
        borderpad=0, handlelength=1.4, columnspacing=1.2, handletextpad=0.4,
    )  # fmt: skip
