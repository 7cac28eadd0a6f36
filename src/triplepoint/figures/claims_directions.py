"""Published directions, orders and what fits in memory, beside ours: verdicts of every claim, counted."""

from collections.abc import Mapping

from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from pandas import DataFrame

from triplepoint.figures import marks, style
from triplepoint.figures.claims import behind, name_of
from triplepoint.verdicts.sum_up import VERDICTS, answer_directions, counts

KINDS = ("trend", "sign", "order", "fits", "finding", "unknown")
NOTE = (
    "Bars: share of each claim's points by verdict; at the right how many agree of those that can be told, and "
    "where it is said. Cannot tell: no such run, or a change within the uncertainty of either. Findings are "
    "contradictions within the study itself. * constants of the simulator were set by this figure."
)
_ROW_IN, _HEAD_IN = 0.155, 1.7
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
    height = min(style.TALLEST, _HEAD_IN + _ROW_IN * max(len(found), 1))
    page = style.new_page(answer_directions(found), points, 1, 1, style.PAGE, height, NOTE)
    if found.empty:
        style.say(page.axes[0][0], "no claims in this configuration")
        return page.finish(), found
    _draw_bars(page.axes[0][0], found)
    page.legend(_legend(found))
    return page.finish(), found


def _draw_bars(axes: Axes, found: DataFrame) -> None:
    whole = found[list(VERDICTS)].sum(axis=1)
    start = whole * 0.0
    for verdict in VERDICTS:
        mark, share = marks.VERDICTS[verdict], found[verdict] / whole
        axes.barh(
            range(len(found)),
            share,
            0.72,
            left=start,
            color=mark.colour,
            hatch=mark.hatch,
            edgecolor="white",
            linewidth=0,
        )
        start = start + share
    names = [_name(str(row["says"]), bool(row["was_fitted"]), str(row["kind"])) for _, row in found.iterrows()]
    axes.set_yticks(range(len(names)), names)
    axes.set_ylim(len(names) - 0.4, -0.6)
    axes.set_xlim(0, 1)
    axes.set_xticks([0, 0.5, 1], ["0", "50", "100 %"])
    axes.set_xlabel("points of the claim")
    axes.grid(axis="y", visible=False)
    right = axes.secondary_yaxis("right")
    told = [_told(int(row["agrees"]), int(row["differs"]), str(row["figure"])) for _, row in found.iterrows()]
    right.set_yticks(range(len(names)), told)
    for ticks in (axes, right):
        ticks.tick_params(axis="y", length=0)


def _name(says: str, was_fitted: bool, kind: str) -> str:
    """Return what a claim says as rows are labelled, shortened to fit."""
    return name_of(f"{_KIND_WORDS[kind]}: {says[0].lower()}{says[1:]}" if kind in _KIND_WORDS else says, was_fitted)


def _told(agree: int, differ: int, source: str) -> str:
    return (f"{agree} of {agree + differ}, " if agree + differ else "") + source


def _legend(found: DataFrame) -> list[Artist]:
    return [
        Patch(
            facecolor=marks.VERDICTS[name].colour, hatch=marks.VERDICTS[name].hatch, edgecolor="white", linewidth=0,
            label=name,
        )
        for name in VERDICTS
        if found[name].any()
    ]  # fmt: skip
