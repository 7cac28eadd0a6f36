"""Figure `claims_directions`: counts of verdicts on published trends, orders and fits in memory, a bar per claim."""

import itertools
from collections.abc import Mapping, Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from pandas import DataFrame

from triplepoint.figures import drawing, marks, style
from triplepoint.figures.claims import agreement_text, in_even_lines, name_of, points_behind
from triplepoint.verdicts.sum_up import VERDICTS, answer_directions, counts

KINDS = ("trend", "sign", "order", "fits", "unknown")
NOTE = (
    "Bars: share of each claim's points; right: how many agree of those that can be told. Cannot tell: no such run, or "
    "a change within the uncertainty of either. * the simulator was fitted to this figure."
)
_LINE_IN, _GAP_IN, _HEAD_IN = 0.115, 0.04, 1.45
"""Heights of a line of a label, of the gap between rows, and of the head of the page. Unit: inch."""
_CHARACTERS = range(44, 100, 4)
"""Characters per line of a label; the first that fits the height of the page is used."""
_KIND_WORDS = {"trend": "Trend", "order": "Order"}
"""Words before the label of a claim of which the numbers are judged as well."""


@style.styled
def draw(tables: Mapping[str, DataFrame]) -> tuple[Figure, DataFrame]:
    """Return the figure and the numbers it plots, one row per claim and kind of statement.

    Args:
        tables: `claims`, and `points` for the stamp and the provenance.
    """
    claims = tables["claims"]
    verdicts = counts(claims, KINDS)
    points = points_behind(claims[claims["kind"].isin(KINDS)], tables["points"])
    rows = [row for _, row in verdicts.iterrows()]
    names = [_name(str(row["says"]), bool(row["was_fitted"]), str(row["kind"])) for row in rows]
    right = [
        agreement_text(int(row["agrees"]), int(row["agrees"] + row["differs"]), str(row["figure"])) for row in rows
    ]
    for width in _CHARACTERS:
        left = [in_even_lines(name, width) for name in names]
        num_lines = [1 + max(text.count("\n") for text in texts) for texts in zip(left, right, strict=True)]
        heights = [_LINE_IN * num + _GAP_IN for num in num_lines]
        if _HEAD_IN + sum(heights) <= style.TALLEST:
            break
    height = min(style.TALLEST, _HEAD_IN + max(sum(heights), 4 * _LINE_IN))
    page = style.new_page(answer_directions(verdicts), points, 1, 1, style.PAGE, height, NOTE)
    if verdicts.empty:
        drawing.write_reason(page.axes[0][0], "no claims in this configuration")
        return page.finish(), verdicts
    ends = list(itertools.accumulate(heights))
    middles = [end - height / 2 for end, height in zip(ends, heights, strict=True)]
    _draw_bars(page.axes[0][0], verdicts, middles, ends[-1])
    _label(page.axes[0][0], middles, left, right)
    page.legend([drawing.as_patch(marks.VERDICTS[name]) for name in VERDICTS if verdicts[name].any()])
    return page.finish(), verdicts


def _draw_bars(axes: Axes, verdicts: DataFrame, middles: Sequence[float], end: float) -> None:
    """Draw the shares of verdicts as one stacked bar per claim.

    Args:
        axes: The panel.
        verdicts: Counts of verdicts, one row per claim and kind.
        middles: Position of each bar on the y axis.
        end: Lower end of the y axis.
    """
    total = verdicts[list(VERDICTS)].sum(axis=1)
    start = total * 0.0
    for verdict in VERDICTS:
        mark, share = marks.VERDICTS[verdict], verdicts[verdict] / total
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
    """Write texts at the left and at the right of each bar."""
    axes.set_yticks(middles, left)
    beside = axes.secondary_yaxis("right")
    beside.set_yticks(middles, right)
    for ticks in (axes, beside):
        ticks.tick_params(axis="y", length=0)


def _name(says: str, was_fitted: bool, kind: str) -> str:
    """Return the label of a claim and kind from its sentence."""
    return name_of(f"{_KIND_WORDS[kind]}: {says[0].lower()}{says[1:]}" if kind in _KIND_WORDS else says, was_fitted)
