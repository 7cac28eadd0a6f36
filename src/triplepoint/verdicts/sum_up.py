"""Summary of the verdicts on all claims: deviations of numbers, counts of verdicts, and a sentence on each."""

from collections.abc import Sequence

import numpy as np
from pandas import DataFrame

VERDICTS = ("agrees", "cannot tell", "differs", "finding")
"""Verdicts in the order in which figures draw them."""
_PERCENTILES = (5.0, 95.0)
"""Ends of the range of deviations in `answer_values`."""


def deviations(claims: DataFrame) -> DataFrame:
    """Return the rows with a published number and ours, with columns `deviation`, `low` and `high`.

    A deviation is ours over published; for temperatures (degC) it is ours less published, in kelvin. The ends `low` and
    `high` include both intervals, so a number agrees where 1, or 0 K, is between them.

    Args:
        claims: Table `claims`.
    """
    values = claims[(claims["kind"] == "value") & claims["ours"].notna() & claims["published"].notna()].copy()
    has_ratio = (values["published_lo"] > 0) & (values["ours"] > 0)
    values = values[(values["unit"] == "degC") | has_ratio]
    is_kelvin = (values["unit"] == "degC").to_numpy()
    ends = {"deviation": ("ours", "published"), "low": ("ours_lo", "published_hi"), "high": ("ours_hi", "published_lo")}
    for name, columns in ends.items():
        ours, published = (values[column].to_numpy(float) for column in columns)
        values[name] = np.where(is_kelvin, ours - published, ours / np.where(is_kelvin, 1.0, published))
    return values.assign(is_kelvin=is_kelvin, was_fitted=values["fitted"].notna()).reset_index(drop=True)


def counts(claims: DataFrame, kinds: Sequence[str]) -> DataFrame:
    """Return the number of rows by verdict: one row per claim and kind, one column per verdict.

    Args:
        claims: Table `claims`.
        kinds: Kinds of rows to count.
    """
    selected = claims[claims["kind"].isin(list(kinds))]
    keys = ["figure", "claim", "says", "kind"]
    is_verdict = DataFrame({verdict: selected["verdict"] == verdict for verdict in VERDICTS}).astype(int)
    rows = selected[keys].join(is_verdict).assign(was_fitted=selected["fitted"].notna())
    how = dict.fromkeys(VERDICTS, "sum") | {"was_fitted": "any"}
    return rows.groupby(keys, sort=False, as_index=False).agg(how)


def answer_values(values: DataFrame) -> str:
    """Return a sentence on how many rows of `deviations` agree, in all and where nothing was fitted."""
    if values.empty:
        return "No published number has one of ours beside it"
    not_fitted = values[~values["was_fitted"]]
    sentence = f"{_agreeing(values)} published numbers agree with ours"
    if 0 < len(not_fitted) < len(values):
        sentence += f", {_agreeing(not_fitted)} where nothing was fitted"
    return sentence


def range_of_ratios(values: DataFrame) -> str:
    """Return the median of ours over published, and the 5th and 95th percentile, over all values but temperatures."""
    ratios = values.loc[~values["is_kelvin"], "deviation"].to_numpy(float)
    low, high = np.percentile(ratios, _PERCENTILES)
    return f"median {np.median(ratios):.2f}, 9 of 10 from {low:.2f} to {high:.2f}"


def answer_directions(by_claim: DataFrame) -> str:
    """Return a sentence on the number of agreeing directions, orders and fits, from rows of `counts`."""
    agree, differ, open_ = (int(by_claim[name].sum()) for name in ("agrees", "differs", "cannot tell"))
    if not agree + differ:
        return f"None of {open_} published directions can be told from these results"
    return f"{agree} of {agree + differ} published directions, orders and fits agree; {open_} more cannot be told"


def _agreeing(values: DataFrame) -> str:
    return f"{int((values['verdict'] == 'agrees').sum())} of {len(values)}"
