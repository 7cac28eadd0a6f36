"""What changes where the work stays the same: pairs of points that differ in GPU type, model size or task alone."""

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
"""Models and the family whose shape they share, scaled down or whole."""
SCALED_DOWN = frozenset({"gpt3-30b", "llama3-30b"})


def change_of_pairs(
    points: DataFrame,
    by: Sequence[str],
    setting: str,
    values: tuple[Hashable, Hashable],
    asked: Mapping[str, str],
    words: tuple[str, str],
) -> titles.Change:
    """Return what changing one setting does to some quantities, over all layouts that ran with both values.

    Args:
        points: Rows of table `points`.
        by: Columns that must be equal in a pair.
        setting: The column that changes.
        values: Its value before and afterwards.
        asked: Columns and what they are called, the main one first; those that are not there are left out.
        words: What is compared with, and what is changed to, such as 'MI250' and 'H200'.
    """
    found = {
        name: effects.pair_points(points, column, by, setting, *values)
        for column, name in asked.items()
        if column in points
    }
    return titles.Change(words[1], words[0], found)


def answer_order(points: DataFrame, by: Sequence[str], setting: str, column: str = "tokens_per_s_per_gpu") -> str:
    """Return on how many of some groups one layout is best with all values, of those that ran with all.

    Where one value's best is tied with the next layout, since the interval holds no difference, that is said.

    Args:
        points: Rows of table `points`, with column `layout`.
        by: Columns that must be equal in a group.
        setting: The column whose values are compared.
        column: The quantity of which the highest value is best.
    """
    done = points[(points["status"] == Status.OK) & points[column].notna()]
    same = tied = num = 0
    for _, members in done.groupby(list(by), sort=False):
        wide = members.groupby(["layout", setting])[column].mean().unstack(setting).dropna()
        if wide.shape[1] > 1 and len(wide) > 1:
            num += 1
            same += wide.idxmax().nunique() == 1
            compared = members[members["layout"].isin(wide.index)]
            tied += any(_is_tied(found, column) for _, found in compared.groupby(setting, sort=False))
    if not num:
        return ""
    said = f"the fastest layout is the same in {same} of {counted(num, 'case')}"
    return f"{said}, but tied with another in {tied}" if tied else said


def _is_tied(found: DataFrame, column: str) -> bool:
    """Return whether the best layout is tied with the next one."""
    first, second = found.groupby("layout")[column].mean().sort_values(ascending=False).index[:2]
    return effects.compare(found[found["layout"] == first], found[found["layout"] == second], column).is_tie
