"""How the results stand against all that is published: deviations and verdicts by claim, and both in a sentence."""

from collections.abc import Sequence

import numpy as np
from pandas import DataFrame

VERDICTS = ("agrees", "cannot tell", "differs", "finding")
"""In the order they are drawn."""
_PERCENTILES = (5.0, 95.0)


def deviations(claims: DataFrame) -> DataFrame:
    """Return every published number that has one of ours beside it, with columns `deviation`, `low` and `high`.

    They are ours over published, of temperatures (degC) ours less published in kelvin. Both intervals are in `low` and
    `high`: the number agrees where 1, or 0 K, is between them.

    Args:
        claims: Table `claims`.
    """
    values = claims[(claims["kind"] == "value") & claims["ours"].notna() & claims["published"].notna()].copy()
    has_ratio = (values["published_lo"] > 0) & (values["ours"] > 0)
    values = values[(values["unit"] == "degC") | has_ratio]
    is_kelvin = (values["unit"] == "degC").to_numpy()
    ends = {"deviation": ("ours", "published"), "low": ("ours_lo", "published_hi"), "high": ("ours_hi", "published_lo")}
    for name, (ours, published) in ends.items():
        one, other = values[ours].to_numpy(float), values[published].to_numpy(float)
        values[name] = np.where(is_kelvin, one - other, one / np.where(is_kelvin, 1.0, other))
    return values.assign(is_kelvin=is_kelvin, was_fitted=values["fitted"].notna()).reset_index(drop=True)


def counts(claims: DataFrame, kinds: Sequence[str]) -> DataFrame:
    """Return how many rows of each claim have each verdict: one row per claim and kind, a column per verdict."""
    chosen = claims[claims["kind"].isin(list(kinds))]
    keys = ["figure", "claim", "says", "kind"]
    found = DataFrame({verdict: chosen["verdict"] == verdict for verdict in VERDICTS}).astype(int)
    whole = chosen[keys].join(found).assign(was_fitted=chosen["fitted"].notna())
    how = dict.fromkeys(VERDICTS, "sum") | {"was_fitted": "any"}
    return whole.groupby(keys, sort=False, as_index=False).agg(how)


def answer_values(found: DataFrame) -> str:
    """Return how many numbers of `deviations` agree, also of those that nothing was fitted to."""
    if found.empty:
        return "No published number has one of ours beside it"
    free = found[~found["was_fitted"]]
    said = f"{_agreeing(found)} published numbers agree with ours"
    if 0 < len(free) < len(found):
        said += f", {_agreeing(free)} where nothing was fitted"
    return said


def range_of_ratios(found: DataFrame) -> str:
    """Return the median of ours over published, and from where to where 9 of 10 are: 5th to 95th percentile."""
    ratios = found.loc[~found["is_kelvin"], "deviation"].to_numpy(float)
    low, high = np.percentile(ratios, _PERCENTILES)
    return f"median {np.median(ratios):.2f}, 9 of 10 from {low:.2f} to {high:.2f}"


def answer_directions(found: DataFrame) -> str:
    """Return how many of the directions, orders and fits of `counts` agree, of those that can be told."""
    agree, differ, open_ = (int(found[name].sum()) for name in ("agrees", "differs", "cannot tell"))
    if not agree + differ:
        return f"None of {open_} published directions can be told from these results"
    return f"{agree} of {agree + differ} published directions, orders and fits agree; {open_} more cannot be told"


def _agreeing(found: DataFrame) -> str:
    return f"{int((found['verdict'] == 'agrees').sum())} of {len(found)}"
