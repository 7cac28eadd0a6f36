"""Published directions, orders and what fits in memory, beside ours: verdicts of every claim, counted."""

import itertools
from collections.abc import Mapping, Sequence

from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from pandas import DataFrame

from triplepoint.figures import drawing, marks, style
from triplepoint.figures.claims import behind, in_even_lines, name_of, told
from triplepoint.verdicts.sum_up import VERDICTS, answer_directions, counts

KINDS = ("trend", "sign", "order", "fits", "unknown")
NOTE = (
    "Bars: share of each claim's points; right: how many agree of those that can be told. Cannot tell: no such run, or "
    "a change within the uncertainty of either. * the simulator was fitted to this figure."
)
_LINE_IN, _GAP_IN, _HEAD_IN = 0.115, 0.04, 1.45
"""Height of a line of a label, and of what is between rows."""
_CHARACTERS = range(44, 100, 4)
"""Of a line of a label: as few as the height of the page allows."""
_KIND_WORDS = {"trend": "trend of", "order": "order by"}
"""What a label says before a claim whose numbers, too, are judged."""


@style.styled
def draw(tables: Mapping[str, DataFrame]) -> tuple[Figure, DataFrame]:
    """Return the figure and the numbers it plots, one row per claim and kind of statement.

    Args:
        tables: `claims`, and `points`, which stamp and provenance are made from.
    """
    claims = tables["claims"]
    found = counts(claims, KINDS)
    points = behind(claims[claims["kind"].isin(KINDS)], tables["points"])
    names = [_name(str(row["says"]), bool(row["was_fitted"]), str(row["kind"])) for _, row in found.iterrows()]
    right = [
        told(int(row["agrees"]), int(row["agrees"] + row["differs"]), str(row["figure"])) for _, row in found.iterrows()
    ]
    for width in _CHARACTERS:
        left = [in_even_lines(name, width) for name in names]
        heights = [
            _LINE_IN * (1 + max(one.count("\n"), other.count("\n"))) + _GAP_IN
            for one, other in zip(left, right, strict=True)
        ]
        if _HEAD_IN + sum(heights) <= style.TALLEST:
            break
    height = min(style.TALLEST, _HEAD_IN + max(sum(heights), 4 * _LINE_IN))
    page = style.new_page(answer_directions(found), points, 1, 1, style.PAGE, height, NOTE)
    if found.empty:
        drawing.say(page.axes[0][0], "no claims in this configuration")
        return page.finish(), found
    ends = list(itertools.accumulate(heights))
    middles = [end - one / 2 for end, one in zip(ends, heights, strict=True)]
    _draw_bars(page.axes[0][0], found, middles, ends[-1])
    _label(page.axes[0][0], middles, left, right)
    page.legend(_legend(found))
    return page.finish(), found


def _draw_bars(axes: Axes, found: DataFrame, middles: Sequence[float], end: float) -> None:
    whole = found[list(VERDICTS)].sum(axis=1)
    start = whole * 0.0
    for verdict in VERDICTS:
        mark, share = marks.VERDICTS[verdict], found[verdict] / whole
        axes.barh(
            middles, share, _LINE_IN, left=start, color=mark.colour, hatch=mark.hatch, edgecolor="white", linewidth=0,
        )  # fmt: skip
        start = start + share
    axes.set_ylim(end, 0)
    axes.set_xlim(0, 1)
    axes.set_xticks([0, 0.5, 1], ["0", "50", "100 %"])
    axes.set_xlabel("points of the claim")
    axes.grid(axis="y", visible=False)


def _label(axes: Axes, middles: Sequence[float], left: Sequence[str], right: Sequence[str]) -> None:
    axes.set_yticks(middles, left)
    beside = axes.secondary_yaxis("right")
    beside.set_yticks(middles, right)
    for ticks in (axes, beside):
        ticks.tick_params(axis="y", length=0)


def _name(says: str, was_fitted: bool, kind: str) -> str:
    """Return what a claim says as rows are labelled."""
    return name_of(f"{_KIND_WORDS[kind]}: {says[0].lower()}{says[1:]}" if kind in _KIND_WORDS else says, was_fitted)


def _legend(found: DataFrame) -> list[Artist]:
    return [
        Patch(
            facecolor=marks.VERDICTS[name].colour, hatch=marks.VERDICTS[name].hatch, edgecolor="white", linewidth=0,
            label=name,
        )
        for name in VERDICTS
        if found[name].any()
    ]  # fmt: skip
