"""The page every figure stands on: sizes, seaborn theme, head, names and numbers beside panels, limits, outliers."""

import functools
import importlib.util
import re
import sys
import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any, ParamSpec, TypeVar

import matplotlib
import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.offsetbox import AnchoredOffsetbox, HPacker, TextArea, VPacker
from pandas import DataFrame, Series

from triplepoint.effects.titles import Statement, at_place, write_statements
from triplepoint.figures import ANSWER, marks
from triplepoint.status import Status

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")

COLUMN = 3.35
"""One column of a two-column paper. Unit: inch."""
PAGE = 7.0
"""Both columns. Unit: inch."""
TALLEST = 8.5
"""What does not fit so much is another figure. Unit: inch."""
TEXT_PT = 7.0
"""All text but titles. Unit: point."""
TITLE_PT = 8.0
"""Titles. Unit: point."""
_CHARACTERS_PER_IN = {TEXT_PT: 19, TITLE_PT: 14.5}
"""Of lines that are broken to the page: fewer than fit in DejaVu Sans, the title's in bold."""
_LINE_PT = 1.3 * TEXT_PT
"""From one line of text to the next. Unit: point."""

_INTERVAL = re.compile(r" ?\[[-\d., +]+\]")
_NUMBER_WITH_UNIT = re.compile(r"(?<=\d) (?=(?:%|°C|K|W|s|MHz|Hz)(?!\w))")
"""The blank between them, where no line may end."""
BAR_NAMES = "bar_names"
"""Attribute of panels whose bars are named: the names in one line each."""

_INTERVALS = {"measured": "10th to 90th percentile over steps", "simulated": "90 % interval of the model"}
"""What {intervals} of a note stands for, by where numbers are from."""
_MOST_NOTE = 2
"""Lines of a note."""
_MOST_BESIDE = 7
"""Lines that fit beside a panel."""
_PHRASES = (r"[,;:] ", r" (?=\()", r" (?=(?:than|as|in|on|of|for|by|with|and|to) )")
"""Where a title is best broken: after a comma and the like, before a bracket, before these words."""

NOT_RUN = "not run"

_RC: dict[str, Any] = {
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans"],
    **dict.fromkeys(
        (
            "font.size", "axes.labelsize", "axes.titlesize", "xtick.labelsize", "ytick.labelsize", "legend.fontsize",
            "legend.title_fontsize", "figure.labelsize",
        ),
        TEXT_PT,
    ),
    "axes.linewidth": 0.5,
    "axes.labelpad": 2,
    "axes.titlepad": 3,
    "axes.titleweight": "bold",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "axes.grid": True,
    "axes.grid.axis": "y",
    "axes.unicode_minus": False,
    "grid.color": marks.FAINT,
    "grid.linewidth": 0.5,
    "lines.linewidth": 1.0,
    "lines.markersize": 3.5,
    "hatch.linewidth": 0.5,
    "legend.frameon": False,
    "legend.handlelength": 1.4,
    "legend.columnspacing": 1.2,
    "legend.labelspacing": 0.3,
    "xtick.major.size": 2, "ytick.major.size": 2, "xtick.major.width": 0.5, "ytick.major.width": 0.5,
    "xtick.major.pad": 1.5, "ytick.major.pad": 1.5,
    # Embedded as TrueType: publishers refuse Type 3 fonts.
    "pdf.fonttype": 42,
    # A user's matplotlibrc must not change a figure.
    "text.usetex": False,
    "text.parse_math": False,
    "savefig.bbox": None,
    "savefig.facecolor": "white",
}  # fmt: skip


@functools.cache
def _themes() -> ModuleType:
    """Return seaborn's module of themes without the rest of seaborn, whose imports take as long as matplotlib's.

    An empty package stands in while they are imported; a later `import seaborn` imports all of it as usual.
    """
    name = "seaborn"
    spec = importlib.util.find_spec(name)
    assert spec is not None
    is_new = name not in sys.modules
    if is_new:
        sys.modules[name] = importlib.util.module_from_spec(spec)
    try:
        importlib.import_module(f"{name}.cm")  # registers the colours that the theme names
        return importlib.import_module(f"{name}.rcmod")
    finally:
        for module in [module for module in sys.modules if is_new and module.partition(".")[0] == name]:
            del sys.modules[module]


def styled(function: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
    """Return `function` run under this style, with matplotlib's settings as they were afterwards."""

    @functools.wraps(function)
    def run(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
        with matplotlib.rc_context():
            matplotlib.rcdefaults()
            _themes().set_theme(context="paper", style="ticks", rc=_RC)
            return function(*args, **kwargs)

    return run


Answer = str | Statement | Sequence[str | Statement]
"""What a figure says, a line each."""


class AnsweringFigure(Figure):
    """A figure whose file hands statements over to the report, see `effects.titles.write_statements`."""

    statements = ""


@dataclass(frozen=True)
class Page:
    """A figure with its axes in rows and columns, beneath a title that says the answer."""

    figure: Figure
    axes: list[list[Axes]]

    @property
    def all_axes(self) -> list[Axes]:
        """The axes, row by row."""
        return [axes for row in self.axes for axes in row]

    def finish(self) -> Figure:
        """Return the figure with everything in its place for good: laid out once, not for each file anew."""
        self.figure.draw_without_rendering()
        named = [axes for axes in self.figure.axes if hasattr(axes, BAR_NAMES)]
        if any(_is_crowded(axes) for axes in named):
            for axes in named:
                axes.set_xticks(axes.get_xticks(), getattr(axes, BAR_NAMES), rotation=90)
            self.figure.draw_without_rendering()
        for axes in self.figure.axes:
            _keep_labels(axes)
        # None, unlike "none", also spares the trial drawing before each file.
        self.figure.set_layout_engine(None)
        return self.figure

    def head(self, heads: Sequence[tuple[str, str]], row: int = 0) -> None:
        """Write above the panels of a row what each column is, and below that in plain text what it shows.

        Args:
            heads: Name and note of each column, of the first ones; lines of a note end where they must.
            row: The row.
        """
        notes = [
            _broken(note, _width_in(axes), TEXT_PT) for axes, (_, note) in zip(self.axes[row], heads, strict=False)
        ]
        most = max(len(note.splitlines()) for note in notes)
        for axes, (name, _), note in zip(self.axes[row], heads, notes, strict=False):
            axes.set_title(name, pad=3 + most * _LINE_PT)
            if note:
                top = (0, 3 + (most - len(note.splitlines())) * _LINE_PT)
                axes.annotate(
                    note, (0.5, 1), top, xycoords="axes fraction", textcoords="offset points", ha="center", va="bottom",
                    fontsize=TEXT_PT, linespacing=1.15, annotation_clip=False,
                )  # fmt: skip

    def beside(self, texts: Sequence[str], heading: str) -> None:
        """Write at the right of each row of panels what it shows together, as a column of numbers with a heading.

        Args:
            texts: A text per row; intervals and ranges stand on lines of their own. Without any nothing is written.
            heading: What the numbers are.
        """
        how: dict[str, Any] = {"fontsize": TEXT_PT, "ha": "left", "linespacing": 1.15}
        if not any(texts):
            return
        for row, text in zip(self.axes, texts, strict=False):
            lines = re.sub(r" (?=[\[(])", "\n", text)
            # What is longer than a panel is high goes on below it.
            at = (1.0, "top") if lines.count("\n") >= _MOST_BESIDE else (0.5, "center")
            row[-1].text(1.04, at[0], lines, transform=row[-1].transAxes, va=at[1], **how)
        last = self.axes[0][-1]
        last.text(1.04, 1.02, heading, transform=last.transAxes, va="bottom", color=marks.GREY, **how)

    def legend(self, handles: Sequence[Artist]) -> None:
        """Write the legend of the whole figure below its panels, in as many columns as fit.

        Args:
            handles: Artists with labels; of several with one label the first is taken.
        """
        unique = list({str(handle.get_label()): handle for handle in reversed(handles)}.values())[::-1]
        lengths = [len(str(handle.get_label())) + 6 for handle in unique]
        width = self.figure.get_figwidth() * _CHARACTERS_PER_IN[TEXT_PT]
        fit = next((num for num in range(len(lengths), 1, -1) if sum(_widths(lengths, num)) <= width), 1)
        self.figure.legend(handles=unique, loc="outside lower center", ncols=fit)


def _widths(lengths: Sequence[int], num: int) -> list[int]:
    """Return the widths of columns of a legend, which matplotlib fills one after another, the first ones longer."""
    rows, more = divmod(len(lengths), num)
    ends = [0]
    for col in range(num):
        ends.append(ends[-1] + rows + (col < more))
    return [max(lengths[start:end]) for start, end in zip(ends, ends[1:], strict=False)]


def _keep_labels(axes: Axes) -> None:
    """Keep the labels of both axes where they were drawn last: to align them anew takes a third of each drawing."""
    to_axes = axes.transAxes.inverted()
    for axis in (axes.xaxis, axes.yaxis):
        # Along the axis the place is a part of it, and across a pixel.
        x, y = axis.label.get_position()
        across_x, across_y = to_axes.transform((x, y))
        axis.set_label_coords(*((x, across_y) if axis is axes.xaxis else (across_x, y)))


def new_page(
    answer: Answer,
    points: DataFrame,
    rows: int = 1,
    cols: int = 1,
    width: float = COLUMN,
    height: float = 2.5,
    note: str = "",
    **grid: Any,
) -> Page:
    """Return a page: title, what intervals are, stamp and provenance on top, axes in rows and columns below.

    Args:
        answer: What the figure says, computed from what it draws; the report takes changes over as findings.
        points: Points that are drawn, and no others: the stamp and the line of provenance are made from them.
        rows: Rows of axes.
        cols: Columns of axes.
        width: `COLUMN` or `PAGE`. Unit: inch.
        height: At most `TALLEST`. Unit: inch.
        note: What marks and {intervals} are, the most important sentence first: two lines of it are shown.
        **grid: Further arguments of `Figure.subplots`, such as sharex and width_ratios.

    Raises:
        ValueError: If the page is higher than `TALLEST`.
    """
    if height > TALLEST:
        raise ValueError(f"a page of {height} in is higher than {TALLEST} in: draw it as two figures")
    lines = [answer] if isinstance(answer, (str, Statement)) else answer
    statements = [line for line in lines if isinstance(line, Statement)]
    said = [at_place("", line.sentence) if isinstance(line, Statement) else line for line in lines]
    figure = AnsweringFigure(figsize=(width, height), layout="constrained")
    figure.statements = write_statements(statements, points)
    FigureCanvasAgg(figure)
    _write_head(figure, said, points, note)
    return Page(figure, [list(row) for row in figure.subplots(rows, cols, squeeze=False, **grid)])


def _write_head(figure: Figure, answer: Sequence[str], points: DataFrame, note: str) -> None:
    """Write title, note, and stamp with provenance, and leave the rest of the page to the axes."""
    # The report shows it above the figure.
    figure.set_label("\n".join(answer))
    width_in, stamp = figure.get_figwidth(), origin(points).upper()
    title = TextArea(
        "\n".join(_title(line, width_in) for line in answer),
        textprops={"fontsize": TITLE_PT, "fontweight": "bold", "gid": ANSWER},
    )
    grey = {"fontsize": TEXT_PT, "color": marks.GREY}
    # Its letters are bold capitals.
    made_by = _broken(provenance(points), width_in - 1.4 * len(stamp) / _CHARACTERS_PER_IN[TEXT_PT], TEXT_PT)
    stamped = [TextArea(stamp, textprops={"fontsize": TEXT_PT, "fontweight": "bold"} | _look_of_stamp(stamp))]
    last = HPacker(children=[*(stamped if stamp else []), TextArea(made_by, textprops=grey)], align="top", pad=0, sep=5)
    middle = [TextArea(_note(note, points, width_in), textprops=grey)] if note else []
    packed = VPacker(children=[title, *middle, last], align="left", pad=0, sep=3.5)
    head = AnchoredOffsetbox(
        "upper left", child=packed, frameon=False, pad=0.4, borderpad=0, bbox_to_anchor=(0, 1),
        bbox_transform=figure.transFigure,
    )  # fmt: skip
    figure.add_artist(head)
    # Placed here, and so nothing for the layout engine to find room for.
    head.set_in_layout(False)
    canvas = figure.canvas
    assert isinstance(canvas, FigureCanvasAgg)
    taken = head.get_window_extent(canvas.get_renderer()).height / figure.bbox.height
    engine = figure.get_layout_engine()
    assert isinstance(engine, ConstrainedLayoutEngine)
    engine.set(rect=(0.0, 0.0, 1.0, 1.0 - taken), w_pad=0.03, h_pad=0.03)


def _look_of_stamp(stamp: str) -> dict[str, Any]:
    is_simulated = "SIMULATED" in stamp
    face, edge = (marks.VERMILION, marks.VERMILION) if is_simulated else ("white", marks.GREY)
    box = {"boxstyle": "square,pad=0.15", "facecolor": face, "edgecolor": edge, "linewidth": 0.6}
    return {"color": "white" if is_simulated else marks.GREY, "bbox": box}


def _broken(text: str, width_in: float, size_pt: float) -> str:
    """Return text in lines that fit a width, numbers and intervals whole."""
    width = max(int(width_in * _CHARACTERS_PER_IN[size_pt]), 1)
    return "\n".join(textwrap.fill(line, width, break_long_words=False) for line in _whole(text).splitlines())


def _note(note: str, points: DataFrame, width_in: float) -> str:
    """Return as many sentences of a note as fit into two lines, at least the first: the caption has all of it."""
    words = " or ".join(words for name, words in _INTERVALS.items() if (points["origin"] == name).any())
    sentences = re.split(r"(?<=\.) ", note.replace("{intervals}", words))
    for num in range(len(sentences), 1, -1):
        lines = _broken(" ".join(sentences[:num]), width_in, TEXT_PT)
        if lines.count("\n") < _MOST_NOTE:
            return lines
    return _broken(sentences[0], width_in, TEXT_PT)


def _title(line: str, width_in: float) -> str:
    """Return a line of a title, broken between phrases where it has to be and that makes two lines."""
    whole, width = _whole(line), int(width_in * _CHARACTERS_PER_IN[TITLE_PT])
    if len(whole) > width:
        for phrase in _PHRASES:
            ends = [found.end() for found in re.finditer(phrase, whole)]
            fitting = [end for end in ends if end <= width + 1 and len(whole) - end <= width]
            if fitting:
                return f"{whole[: fitting[-1]].rstrip()}\n{whole[fitting[-1] :]}"
    return _broken(line, width_in, TITLE_PT)


def _whole(text: str) -> str:
    """Return text with blanks at which no line may end."""
    return _INTERVAL.sub(lambda found: found[0].replace(" ", "\u00a0"), _NUMBER_WITH_UNIT.sub("\u00a0", text))


def _width_in(axes: Axes) -> float:
    """Return about how wide a panel is, before anything is laid out. Unit: inch."""
    place, page = axes.get_subplotspec(), axes.get_figure(root=True)
    assert place is not None and page is not None
    ratios = np.asarray(place.get_gridspec().get_width_ratios(), float)
    part = ratios[place.colspan.start : place.colspan.stop].sum() / ratios.sum()
    # Labels of the axes, and at the right of the page the column of numbers.
    return float((page.get_figwidth() - 0.6) * part - 0.1)


def _is_crowded(axes: Axes) -> bool:
    """Return whether names of bars touch."""
    shown = [label for label in axes.get_xticklabels() if label.get_visible() and label.get_text()]
    boxes = [label.get_window_extent() for label in shown]
    return any(one.x1 > other.x0 for one, other in zip(boxes, boxes[1:], strict=False))


def word(status: str | None) -> str:
    """Return what to write in the place of a point that gave no numbers."""
    return NOT_RUN if status is None else Status(status).label


def provenance(points: DataFrame) -> str:
    """Return one line on what made the numbers: engines, software, hosts, commits. What the stamp says is left out."""
    launched = points[points["engine"] != "simulated"]
    hosts = sorted({host for line in launched["host"].dropna() for host in line.split(",")})
    # Without any commit, as of a package outside a clone, the column is of numbers.
    commits = points["git_commit"].dropna().astype(str).str[:7]
    parts = [
        _named("", launched["engine"]),
        _named("torch ", launched["torch_version"]),
        _named("", points["stack"]),
        f"host {hosts[0]}" if len(hosts) == 1 else f"{len(hosts)} hosts" if hosts else "",
        _named("commit " if commits.nunique() == 1 else "commits ", commits),
    ]
    return " · ".join(part for part in parts if part)


def origin(found: DataFrame) -> str:
    """Return 'measured', 'simulated' or 'measured + simulated'."""
    return " + ".join(sorted(found["origin"].dropna().unique()))


def absent(found: DataFrame) -> str:
    """Return what to say of a quantity these points have no value of: 'not measured', 'not simulated'."""
    return f"not {origin(found).replace(' + ', ' or ') or 'measured'}"


def _named(kind: str, column: "Series[Any]") -> str:
    values = sorted(column.dropna().unique())
    return f"{kind}{'/'.join(values[:2])}{'/…' if values[2:] else ''}" if values else ""
