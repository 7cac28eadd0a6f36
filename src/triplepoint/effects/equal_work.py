"""What changes where the work stays the same: pairs of points that differ in GPU type, model size or task alone."""

from collections.abc import Hashable, Mapping, Sequence

from pandas import DataFrame

from triplepoint import effects
from triplepoint.status import Status

FAMILIES: Mapping[str, str] = {
    "gpt3-30b": "GPT-3",
    "gpt3-175b": "GPT-3",
    "llama3-30b": "Llama 3",
    "llama3-70b": "Llama 3",
}
"""Models and the family whose shape they share, scaled down or whole."""
SCALED_DOWN = frozenset({"gpt3-30b", "llama3-30b"})
_TWICE = 1.0
"""From twice as much on, factors are said instead of per cent."""


def sum_up(found: Sequence[effects.Effect]) -> str:
    """Return the mean of effects with its 90 % t interval where it has a sign, else the range of effects."""
    mean = effects.over_settings(found)
    if mean.is_tie and len(found) > 1:
        values = sorted(found, key=lambda effect: effect.value)
        return f"from {_signed(values[0])} to {_signed(values[-1])}"
    if mean.is_relative and mean.value >= _TWICE:
        ends = "" if mean.low != mean.low else f" [{1 + mean.low:.1f}, {1 + mean.high:.1f}]"
        return f"{1 + mean.value:.1f} times{ends}"
    return f"{'+' * (mean.value > 0)}{mean.text}"


def answer_pairs(
    points: DataFrame,
    by: Sequence[str],
    setting: str,
    values: tuple[Hashable, Hashable],
    asked: Mapping[str, str],
    said: str,
) -> str:
    """Return what changing one setting does to some quantities, over all that ran with both values, as a title.

    Args:
        points: Rows of table `points`.
        by: Columns that must be equal in a pair.
        setting: The column that changes.
        values: Its value before and afterwards.
        asked: Columns and what they are called.
        said: What is changed, such as 'H200 instead of MI250'.
    """
    parts, num = [], 0
    for column, name in asked.items():
        if found := list(effects.pair_points(points, column, by, setting, *values).values()):
            num = max(num, len(found))
            parts.append(f"{name} {sum_up(found)}")
    return f"{said}, {num} layouts: {', '.join(parts)}" if parts else f"{said}: no layout ran with both"


def answer_order(points: DataFrame, by: Sequence[str], setting: str, column: str = "tokens_per_s_per_gpu") -> str:
    """Return on how many of some groups the fastest of the layouts that ran with all values is the same one.

    Args:
        points: Rows of table `points`, with column `layout`.
        by: Columns that must be equal in a group.
        setting: The column whose values are compared.
        column: The quantity of which the highest value is best.
    """
    done = points[(points["status"] == Status.OK) & points[column].notna()]
    same = num = 0
    for _, members in done.groupby(list(by), sort=False):
        wide = members.groupby(["layout", setting])[column].mean().unstack(setting).dropna()
        if wide.shape[1] > 1 and len(wide) > 1:
            num += 1
            same += wide.idxmax().nunique() == 1
    return f"the fastest layout is the same in {same} of {num}" if num else ""


def _signed(effect: effects.Effect) -> str:
    return f"{'+' if effect.value > 0 else '-' if effect.value < 0 else ''}{effect.size.removeprefix('-')}"
