"""Comparisons at equal work: pairs of points that differ only in GPU type, model size, task or batch."""

from collections.abc import Hashable, Mapping, Sequence

from pandas import DataFrame

from triplepoint import effects
from triplepoint.effects import titles
from triplepoint.status import Status
from triplepoint.units import counted

FAMILIES: Mapping[str, str] = {
    "gpt3-30b": "GPT-3",
    "gpt3-175b": "GPT-3",
    "llama3-30b": "Llama 3",
    "llama3-70b": "Llama 3",
}
"""Family of each model: a full model and its scaled-down version have one family."""
SCALED_DOWN = frozenset({"gpt3-30b", "llama3-30b"})
"""Models scaled down to 30 billion parameters."""


def change_of_pairs(
    points: DataFrame,
    by: Sequence[str],
    setting: str,
    values: tuple[Hashable, Hashable],
    quantities: Mapping[str, str],
    words: tuple[str, str],
) -> titles.Change:
    """Return the effect of changing one setting on several quantities, over all layouts that ran with both values.

    Args:
        points: Rows of table `points`.
        by: Columns that must be equal in a pair.
        setting: Column of the setting that changes.
        values: Value of the setting before and after the change.
        quantities: Names of the quantities in texts by column, the main quantity first. Columns that `points` lacks
            are left out.
        words: Names of the two values in texts, such as 'MI250' and 'H200'.
    """
    effects_by_name = {
        name: effects.pair_points(points, column, by, setting, *values)
        for column, name in quantities.items()
        if column in points
    }
    return titles.Change(words[1], words[0], effects_by_name)


def answer_order(points: DataFrame, by: Sequence[str], setting: str, column: str = "tokens_per_s_per_gpu") -> str:
    """Return a sentence: in how many cases the same layout is best with all values of a setting.

    A case counts if two layouts or more ran with all values. The sentence tells in how many cases the best layout is
    tied with the next.

    Args:
        points: Rows of table `points`, with column `layout`.
        by: Columns that must be equal in a case.
        setting: Column of the setting whose values are compared.
        column: The quantity; the highest value is best.

    Returns:
        The sentence; '' if there is no such case.
    """
    done = points[(points["status"] == Status.OK) & points[column].notna()]
    same = tied = num = 0
    for _, members in done.groupby(list(by), sort=False):
        means = members.groupby(["layout", setting])[column].mean().unstack(setting).dropna()
        if means.shape[1] > 1 and len(means) > 1:
            num += 1
            same += means.idxmax().nunique() == 1
            compared = members[members["layout"].isin(means.index)]
            tied += any(_is_tied(rows, column) for _, rows in compared.groupby(setting, sort=False))
    if not num:
        return ""
    sentence = f"the fastest layout is the same in {same} of {counted(num, 'case')}"
    return f"{sentence}, but tied with another in {tied}" if tied else sentence


def _is_tied(points: DataFrame, column: str) -> bool:
    """Return whether the best layout is tied with the next one."""
    first, second = points.groupby("layout")[column].mean().sort_values(ascending=False).index[:2]
    return effects.compare(points[points["layout"] == first], points[points["layout"] == second], column).is_tie
