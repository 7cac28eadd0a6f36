"""Figure style: sizes, fonts, colours, and the stamp that says where the numbers come from."""

import functools
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

import matplotlib
from pandas import DataFrame

from triplepoint.status import Status

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")

COLUMN_WIDTH_IN = 3.35
"""One column of a two-column page. Unit: inch."""
PAGE_WIDTH_IN = 7.0
"""Both columns. Unit: inch."""
TEXT_PT = 7.0
"""Labels. Unit: point."""
SMALL_PT = 5.8
"""Ticks and settings. Unit: point."""

BLACK, ORANGE, SKY, GREEN = "#000000", "#E69F00", "#56B4E9", "#009E73"
YELLOW, BLUE, VERMILION, PURPLE = "#F0E442", "#0072B2", "#D55E00", "#CC79A7"
"""Eight colours that stay apart under the common colour deficiencies.

Source:
    Okabe and Ito 2008, Color Universal Design, https://jfly.uni-koeln.de/color/
"""
BROWN, TAN = "#7f4f24", "#c09a6b"
"""Two more, for fillings that are also told apart by place or hatch."""
GREY, PALE, FAINT = "#6b6b6b", "#c8c8c8", "#ececec"

LINES = (BLUE, VERMILION, GREEN, PURPLE, ORANGE, SKY, BLACK)
"""Colours of lines in order; yellow is too pale on white."""
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
"""Markers in the same order, so that no line is told by colour alone."""

COMMS = {
    "all_reduce": VERMILION,
    "all_gather": ORANGE,
    "reduce_scatter": PURPLE,
    "all_to_all": BLACK,
    "send": BROWN,
    "recv": TAN,
    "send_recv": BROWN,
}
"""Colour of each kind of communication, the same in every figure; other kinds are grey."""

NOT_RUN = "not run"

_RC: dict[Any, Any] = {
    "font.family": "DejaVu Sans",
    "font.size": TEXT_PT,
    "axes.labelsize": TEXT_PT,
    "axes.titlesize": TEXT_PT,
    "xtick.labelsize": SMALL_PT,
    "ytick.labelsize": SMALL_PT,
    "legend.fontsize": SMALL_PT,
    "axes.linewidth": 0.5,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "grid.color": FAINT,
    "grid.linewidth": 0.5,
    "lines.linewidth": 1.0,
    "hatch.linewidth": 0.4,
    "legend.frameon": False,
    "xtick.major.size": 2,
    "ytick.major.size": 2,
    "xtick.major.width": 0.5,
    "ytick.major.width": 0.5,
    "xtick.major.pad": 1.5,
    "ytick.major.pad": 1.5,
    # Embedded as TrueType: publishers refuse Type 3 fonts.
    "pdf.fonttype": 42,
    "axes.unicode_minus": False,
    # A user's matplotlibrc must not change a figure.
    "text.usetex": False,
    "text.parse_math": False,
    "savefig.bbox": None,
    "savefig.facecolor": "white",
}


def styled(function: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
    """Return `function` run under this style, with matplotlib's settings as they were afterwards."""

    @functools.wraps(function)
    def run(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
        with matplotlib.rc_context():
            matplotlib.rcdefaults()
            matplotlib.rcParams.update(_RC)
            return function(*args, **kwargs)

    return run


def word(status: str | None) -> str:
    """Return what to write in the place of a point that gave no numbers."""
    return NOT_RUN if status is None else Status(status).label


def provenance(points: DataFrame) -> str:
    """Return one line on what made the numbers: engines, versions, stacks, commits, hosts."""
    parts = [
        _named(points, "engine", "engine", "engines"),
        _named(points, "torch_version", "torch", "torch"),
        _named(points, "stack", "on", "on"),
        _named(points.assign(git_commit=points["git_commit"].str[:7]), "git_commit", "commit", "commits"),
        _hosts(points),
    ]
    return ", ".join(part for part in parts if part)


def origin(found: DataFrame) -> str:
    """Return 'measured', 'simulated' or 'measured + simulated'."""
    return " + ".join(sorted(found["origin"].dropna().unique()))


def absent(found: DataFrame) -> str:
    """Return what to say of a quantity these points have no value of: 'not measured', 'not simulated'."""
    return f"not {origin(found).replace(' + ', ' or ') or 'measured'}"


def _named(points: DataFrame, column: str, one: str, many: str) -> str:
    values = sorted(points[column].dropna().unique())
    if not values:
        return ""
    return f"{one if len(values) == 1 else many} {'/'.join(values[:2])}{'/…' if values[2:] else ''}"


def _hosts(points: DataFrame) -> str:
    hosts = sorted({host for line in points["host"].dropna() for host in line.split(",")})
    if not hosts:
        return ""
    return f"host {hosts[0]}" if len(hosts) == 1 else f"{len(hosts)} hosts"
