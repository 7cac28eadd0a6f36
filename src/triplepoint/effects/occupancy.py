"""How well kernels fill the GPU: occupancy and launch geometry of table `kernels`."""

from collections.abc import Mapping

from pandas import DataFrame

COLUMNS = ("occupancy", "warps_per_sm", "blocks_per_sm", "threads_per_block")
"""What is averaged: see the data dictionary."""


def by_class(kernels: DataFrame) -> DataFrame:
    """Return occupancy and launch geometry of each run and class, means weighted by the time of kernels.

    Args:
        kernels: Rows of table `kernels`; those without launch geometry and communication are left out.

    Returns:
        Columns run, class, sum_s and `COLUMNS`; no row where nothing has launch geometry.
    """
    known = kernels[kernels["occupancy"].notna() & (kernels["class"] != "comm") & (kernels["sum_s"] > 0)]
    weighted = known[["run", "class", "sum_s"]].copy()
    for column in COLUMNS:
        weighted[column] = known[column] * known["sum_s"]
    sums = weighted.groupby(["run", "class"], sort=False).sum().reset_index()
    for column in COLUMNS:
        sums[column] = sums[column] / sums["sum_s"]
    return sums


def of_runs(classes: DataFrame) -> DataFrame:
    """Return the same of each run, over all classes, from what `by_class` returns."""
    weighted = classes[["run", "sum_s"]].copy()
    for column in COLUMNS:
        weighted[column] = classes[column] * classes["sum_s"]
    sums = weighted.groupby("run", sort=False).sum()
    return sums[list(COLUMNS)].div(sums["sum_s"], axis=0)


def answer(classes: DataFrame, names: Mapping[str, str]) -> str:
    """Return the lowest and highest occupancy of runs, as a title.

    Args:
        classes: As `by_class` returns them, at least one row.
        names: Name of each run.
    """
    whole = 100 * of_runs(classes)["occupancy"]
    low, high = str(whole.idxmin()), str(whole.idxmax())
    if low == high:
        return f"Kernels keep an occupancy of {whole[low]:.0f} % in {names[low]}"
    return f"Kernels keep an occupancy of {whole[low]:.0f} % in {names[low]} to {whole[high]:.0f} % in {names[high]}"


def absent(points: DataFrame, kernels: DataFrame) -> str:
    """Return why no run has launch geometry, in one sentence."""
    reasons = [str(reason) for reason in kernels["geometry_absent"].dropna().unique()]
    if not reasons or (points["origin"] == "simulated").all():
        simulated = (points["origin"] == "simulated").all()
        return (
            "Simulated runs have no occupancy: their kernels have times, no blocks and threads"
            if simulated
            else "No run was traced"
        )
    return f"No occupancy: {'; '.join(reasons)}"
