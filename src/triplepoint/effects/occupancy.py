"""Occupancy and launch geometry of kernels, from table `kernels`."""

from collections.abc import Mapping

from pandas import DataFrame

COLUMNS = ("occupancy", "warps_per_sm", "blocks_per_sm", "threads_per_block")
"""Columns of table `kernels` that are averaged."""


def by_class(kernels: DataFrame) -> DataFrame:
    """Return occupancy and launch geometry by run and class: means weighted by kernel time.

    Args:
        kernels: Rows of table `kernels`. Communication and kernels without launch geometry are left out.

    Returns:
        Columns run, class, sum_s and `COLUMNS`.
    """
    known = kernels[kernels["occupancy"].notna() & (kernels["class"] != "comm") & (kernels["sum_s"] > 0)]
    weighted = known[["run", "class", "sum_s"]].copy()
    for column in COLUMNS:
        weighted[column] = known[column] * known["sum_s"]
    sums = weighted.groupby(["run", "class"], sort=False).sum().reset_index()
    for column in COLUMNS:
        sums[column] = sums[column] / sums["sum_s"]
    return sums


def by_run(classes: DataFrame) -> DataFrame:
    """Return occupancy and launch geometry by run, over all classes of the result of `by_class`."""
    weighted = classes[["run", "sum_s"]].copy()
    for column in COLUMNS:
        weighted[column] = classes[column] * classes["sum_s"]
    sums = weighted.groupby("run", sort=False).sum()
    return sums[list(COLUMNS)].div(sums["sum_s"], axis=0)


def answer(classes: DataFrame, names: Mapping[str, str]) -> str:
    """Return a title: the lowest and the highest occupancy of a run.

    Args:
        classes: Result of `by_class`, at least one row.
        names: Name of each run.
    """
    percent = 100 * by_run(classes)["occupancy"]
    low, high = str(percent.idxmin()), str(percent.idxmax())
    if low == high:
        return f"Kernels keep an occupancy of {percent[low]:.0f} % in {names[low]}"
    return (
        f"Kernels keep an occupancy of {percent[low]:.0f} % in {names[low]} to {percent[high]:.0f} % in {names[high]}"
    )


def reason_absent(points: DataFrame, kernels: DataFrame) -> str:
    """Return a sentence: why no run has launch geometry."""
    reasons = [str(reason) for reason in kernels["geometry_absent"].dropna().unique()]
    if not reasons or (points["origin"] == "simulated").all():
        simulated = (points["origin"] == "simulated").all()
        return (
            "Simulated runs have no occupancy: their kernels have times, no blocks and threads"
            if simulated
            else "No run was traced"
        )
    return f"No occupancy: {'; '.join(reasons)}"
