"""Page of a figure: sizes, seaborn theme, title, stamp and provenance, heads of columns, and the legend."""

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
"""Width of one column of a two-column paper. Unit: inch."""
PAGE = 7.0
"""Width of both columns. Unit: inch."""
TALLEST = 8.5
"""Largest height of a figure. Unit: inch."""
TEXT_PT = 7.0
"""Size of all text except titles. Unit: point."""
TITLE_PT = 8.0
"""Size of titles. Unit: point."""
_CHARACTERS_PER_IN = {TEXT_PT: 19, TITLE_PT: 14.5}
"""Characters per inch by size, at which lines are wrapped: fewer than fit in DejaVu Sans. Titles are bold."""
_LINE_PT = 1.3 * TEXT_PT
"""Distance between lines of text. Unit: point."""

_INTERVAL = re.compile(r" ?\[[-\d., +]+\]")
_SPACE_BEFORE_UNIT = re.compile(r"(?<=\d) (?=(?:%|°C|K|W|s|MHz|Hz)(?!\w))")
"""Space between a number and its unit, where a line must not be wrapped."""
BAR_NAMES = "bar_names"
"""Attribute of panels with named bars: the names, each on one line."""

_INTERVALS = {"measured": "10th to 90th percentile over steps", "simulated": "90 % interval of the model"}
"""Replacement of {intervals} in a note, by origin of the numbers."""
_MOST_NOTE = 2
"""Largest number of lines of a note."""
_MOST_BESIDE = 7
"""Largest number of lines that fit beside a panel."""
_PHRASES = (r"[,;:] ", r" (?=\()", r" (?=(?:than|as|in|on|of|for|by|with|and|to) )")
"""Places to wrap a title, the best first: after punctuation, before a bracket, before these words."""

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
    # Embeds fonts as TrueType, since publishers refuse Type 3 fonts.
    "pdf.fonttype": 42,
    # A user's matplotlibrc must not change a figure.
    "text.usetex": False,
    "text.parse_math": False,
    "savefig.bbox": None,
    "savefig.facecolor": "white",
}  # fmt: skip


@functools.cache
def _themes() -> ModuleType:
    """Return seaborn's module of themes without importing the rest of seaborn, which takes as long as matplotlib.

    During the import an empty package replaces seaborn. A later `import seaborn` works as usual.
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
    """Return a function that runs `function` with this style and restores matplotlib's settings afterwards."""

    @functools.wraps(function)
    def run(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
        with matplotlib.rc_context():
            matplotlib.rcdefaults()
            _themes().set_theme(context="paper", style="ticks", rc=_RC)
            return function(*args, **kwargs)

    return run


Answer = str | Statement | Sequence[str | Statement]
"""Lines of a title. The report lists each `Statement` as a finding."""


class AnsweringFigure(Figure):
    """A figure with statements for the report, as text of `effects.titles.write_statements`."""

    statements = ""


@dataclass(frozen=True)
class Page:
    """A figure with a title and panels in rows and columns.

    Attributes:
        figure: The figure.
        axes: Panels by row and column.
    """

    figure: Figure
    axes: list[list[Axes]]

    @property
    def all_axes(self) -> list[Axes]:
        """All panels, row by row."""
        return [axes for row in self.axes for axes in row]

    def finish(self) -> Figure:
        """Lay out the figure once for all its files, and return it."""
        self.figure.draw_without_rendering()
        named = [axes for axes in self.figure.axes if hasattr(axes, BAR_NAMES)]
        if any(_is_crowded(axes) for axes in named):
            for axes in named:
                axes.set_xticks(axes.get_xticks(), getattr(axes, BAR_NAMES), rotation=90)
            self.figure.draw_without_rendering()
        for axes in self.figure.axes:
            _keep_labels(axes)
        # Unlike "none", None also avoids a trial drawing before each file.
        self.figure.set_layout_engine(None)
        return self.figure

    def head(self, heads: Sequence[tuple[str, str]], row: int = 0) -> None:
        """Write a bold name and a note above each panel of a row.

        Args:
            heads: Name and note of each panel from the left; notes are wrapped to the width of the panel.
            row: Number of the row.
        """
        notes = [
            _wrapped(note, _width_in(axes), TEXT_PT) for axes, (_, note) in zip(self.axes[row], heads, strict=False)
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
        """Write a column of texts at the right of the panels, one per row, below a heading.

        Args:
            texts: Text of each row; intervals and ranges get their own lines. If all are empty, nothing is written.
            heading: Heading of the column.
        """
        style: dict[str, Any] = {"fontsize": TEXT_PT, "ha": "left", "linespacing": 1.15}
        if not any(texts):
            return
        for row, text in zip(self.axes, texts, strict=False):
            lines = re.sub(r" (?=[\[(])", "\n", text)
            # A text that is higher than its panel begins at the top of the panel and continues below it.
            y, anchor = (1.0, "top") if lines.count("\n") >= _MOST_BESIDE else (0.5, "center")
            row[-1].text(1.04, y, lines, transform=row[-1].transAxes, va=anchor, **style)
        last = self.axes[0][-1]
        last.text(1.04, 1.02, heading, transform=last.transAxes, va="bottom", color=marks.GREY, **style)

    def legend(self, handles: Sequence[Artist]) -> None:
        """Write one legend for all panels below them, in as many columns as fit.

        Args:
            handles: Artists with labels; the first of several with the same label is used.
        """
        unique = list({str(handle.get_label()): handle for handle in reversed(handles)}.values())[::-1]
        lengths = [len(str(handle.get_label())) + 6 for handle in unique]
        width = self.figure.get_figwidth() * _CHARACTERS_PER_IN[TEXT_PT]
        fit = next((num for num in range(len(lengths), 1, -1) if sum(_widths(lengths, num)) <= width), 1)
        self.figure.legend(handles=unique, loc="outside lower center", ncols=fit)


def _widths(lengths: Sequence[int], num_columns: int) -> list[int]:
    """Return the widths of the columns of a legend; matplotlib fills columns in turn and makes the first ones longer.

    Args:
        lengths: Width of each entry. Unit: characters.
        num_columns: Number of columns.
    """
    rows, num_longer = divmod(len(lengths), num_columns)
    ends = [0]
    for col in range(num_columns):
        ends.append(ends[-1] + rows + (col < num_longer))
    return [max(lengths[start:end]) for start, end in zip(ends, ends[1:], strict=False)]


def _keep_labels(axes: Axes) -> None:
    """Fix the labels of both axes at their present place; aligning them takes a third of the time of each drawing."""
    to_axes = axes.transAxes.inverted()
    for axis in (axes.xaxis, axes.yaxis):
        # The position along the axis is a fraction of it; the position across it is in pixels.
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
    """Return a page with title, note, stamp and provenance at the top and panels below.

    Args:
        answer: Lines of the title, computed from the numbers that the figure draws.
        points: Rows of table `points` that are drawn, and no others: they give the stamp and the provenance.
        rows: Number of rows of panels.
        cols: Number of columns of panels.
        width: `COLUMN` or `PAGE`. Unit: inch.
        height: At most `TALLEST`. Unit: inch.
        note: Meaning of marks and {intervals}, the most important sentence first; two lines are shown.
        **grid: Further arguments of `Figure.subplots`, such as sharex and width_ratios.

    Raises:
        ValueError: If the page is higher than `TALLEST`.
    """
    if height > TALLEST:
        raise ValueError(f"a page of {height} in is higher than {TALLEST} in: draw it as two figures")
    lines = [answer] if isinstance(answer, (str, Statement)) else answer
    statements = [line for line in lines if isinstance(line, Statement)]
    title = [at_place("", line.sentence) if isinstance(line, Statement) else line for line in lines]
    figure = AnsweringFigure(figsize=(width, height), layout="constrained")
    figure.statements = write_statements(statements, points)
    FigureCanvasAgg(figure)
    _write_head(figure, title, points, note)
    return Page(figure, [list(row) for row in figure.subplots(rows, cols, squeeze=False, **grid)])


def _write_head(figure: Figure, answer: Sequence[str], points: DataFrame, note: str) -> None:
    """Write title, note, stamp and provenance at the top, and reserve the rest of the page for the panels."""
    # The report reads the title from this label and shows it above the figure.
    figure.set_label("\n".join(answer))
    width_in, stamp = figure.get_figwidth(), origin(points).upper()
    title = TextArea(
        "\n".join(_title(line, width_in) for line in answer),
        textprops={"fontsize": TITLE_PT, "fontweight": "bold", "gid": ANSWER},
    )
    grey = {"fontsize": TEXT_PT, "color": marks.GREY}
    # The stamp is in bold capitals, which are wider than other letters.
    made_by = _wrapped(provenance(points), width_in - 1.4 * len(stamp) / _CHARACTERS_PER_IN[TEXT_PT], TEXT_PT)
    stamped = [TextArea(stamp, textprops={"fontsize": TEXT_PT, "fontweight": "bold"} | _look_of_stamp(stamp))]
    last = HPacker(children=[*(stamped if stamp else []), TextArea(made_by, textprops=grey)], align="top", pad=0, sep=5)
    middle = [TextArea(_note(note, points, width_in), textprops=grey)] if note else []
    packed = VPacker(children=[title, *middle, last], align="left", pad=0, sep=3.5)
    head = AnchoredOffsetbox(
        "upper left", child=packed, frameon=False, pad=0.4, borderpad=0, bbox_to_anchor=(0, 1),
        bbox_transform=figure.transFigure,
    )  # fmt: skip
    figure.add_artist(head)
    # The head has a fixed place, so the layout engine must not reserve room for it.
    head.set_in_layout(False)
    canvas = figure.canvas
    assert isinstance(canvas, FigureCanvasAgg)
    taken = head.get_window_extent(canvas.get_renderer()).height / figure.bbox.height
    engine = figure.get_layout_engine()
    assert isinstance(engine, ConstrainedLayoutEngine)
    engine.set(rect=(0.0, 0.0, 1.0, 1.0 - taken), w_pad=0.03, h_pad=0.03)


def _look_of_stamp(stamp: str) -> dict[str, Any]:
    """Return the text properties of a stamp: white on red if anything was simulated, else grey."""
    is_simulated = "SIMULATED" in stamp
    face, edge = (marks.VERMILION, marks.VERMILION) if is_simulated else ("white", marks.GREY)
    box = {"boxstyle": "square,pad=0.15", "facecolor": face, "edgecolor": edge, "linewidth": 0.6}
    return {"color": "white" if is_simulated else marks.GREY, "bbox": box}


def _wrapped(text: str, width_in: float, size_pt: float) -> str:
    """Return text wrapped to a width; numbers with their unit and intervals stay on one line."""
    width = max(int(width_in * _CHARACTERS_PER_IN[size_pt]), 1)
    return "\n".join(textwrap.fill(line, width, break_long_words=False) for line in _unbreakable(text).splitlines())


def _note(note: str, points: DataFrame, width_in: float) -> str:
    """Return as many sentences of a note as fit into two lines, at least the first; the caption repeats all of them."""
    words = " or ".join(words for name, words in _INTERVALS.items() if (points["origin"] == name).any())
    sentences = re.split(r"(?<=\.) ", note.replace("{intervals}", words))
    for num in range(len(sentences), 1, -1):
        lines = _wrapped(" ".join(sentences[:num]), width_in, TEXT_PT)
        if lines.count("\n") < _MOST_NOTE:
            return lines
    return _wrapped(sentences[0], width_in, TEXT_PT)


def _title(line: str, width_in: float) -> str:
    """Return a line of a title; if two lines are needed and enough, it is wrapped between phrases."""
    text, width = _unbreakable(line), int(width_in * _CHARACTERS_PER_IN[TITLE_PT])
    if len(text) > width:
        for phrase in _PHRASES:
            ends = [match.end() for match in re.finditer(phrase, text)]
            fitting = [end for end in ends if end <= width + 1 and len(text) - end <= width]
            if fitting:
                return f"{text[: fitting[-1]].rstrip()}\n{text[fitting[-1] :]}"
    return _wrapped(line, width_in, TITLE_PT)


def _unbreakable(text: str) -> str:
    """Return text with no-break spaces inside intervals and between a number and its unit."""
    return _INTERVAL.sub(lambda match: match[0].replace(" ", "\u00a0"), _SPACE_BEFORE_UNIT.sub("\u00a0", text))


def _width_in(axes: Axes) -> float:
    """Return an estimate of the width of a panel before the layout. Unit: inch."""
    place, page = axes.get_subplotspec(), axes.get_figure(root=True)
    assert place is not None and page is not None
    ratios = np.asarray(place.get_gridspec().get_width_ratios(), float)
    share = ratios[place.colspan.start : place.colspan.stop].sum() / ratios.sum()
    # 0.6 in and 0.1 in allow for the labels of the axes and the texts at the right of the page.
    return float((page.get_figwidth() - 0.6) * share - 0.1)


def _is_crowded(axes: Axes) -> bool:
    """Return whether names of bars overlap."""
    shown = [label for label in axes.get_xticklabels() if label.get_visible() and label.get_text()]
    boxes = [label.get_window_extent() for label in shown]
    return any(left.x1 > right.x0 for left, right in zip(boxes, boxes[1:], strict=False))


def status_text(status: str | None) -> str:
    """Return the text for a point without numbers, from its status; None if it was not run."""
    return NOT_RUN if status is None else Status(status).label


def provenance(points: DataFrame) -> str:
    """Return one line on the origin of the numbers: engines, software, hosts and commits of launched runs."""
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


def origin(points: DataFrame) -> str:
    """Return 'measured', 'simulated' or 'measured + simulated'."""
    return " + ".join(sorted(points["origin"].dropna().unique()))


def absent_text(points: DataFrame) -> str:
    """Return the text for a quantity without values: 'not measured' or 'not simulated'."""
    return f"not {origin(points).replace(' + ', ' or ') or 'measured'}"


def _named(kind: str, column: "Series[Any]") -> str:
    """Return the first two distinct values of a column after a word for them; '' if there is no value."""
    values = sorted(column.dropna().unique())
    return f"{kind}{'/'.join(values[:2])}{'/…' if values[2:] else ''}" if values else ""
