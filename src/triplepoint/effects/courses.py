"""Course of a quantity over a step: mean, lowest and highest GPU in equal parts of the step."""

import numpy as np
from pandas import DataFrame

MOST_PARTS = 60
"""Largest number of parts of a step; more would not be distinguishable in print."""


def over_step(samples: DataFrame, column: str, end_s: float) -> DataFrame:
    """Return the course of a quantity over a step, all GPUs together.

    Args:
        samples: Rows of table `step_samples` of one run.
        column: The quantity.
        end_s: Length of the step. It is divided into as many parts as a GPU has samples, at most `MOST_PARTS`.

    Returns:
        One row per part that has samples, with columns `t_start_s`, `t_end_s`, and `mean`, `lowest` and `highest` of
        the means of the GPUs.
    """
    known = samples[samples[column].notna() & (samples["t_s"] <= end_s)]
    if known.empty:
        return DataFrame(columns=["t_start_s", "t_end_s", "mean", "lowest", "highest"])
    num = int(np.clip(known.groupby("rank").size().median(), 1, MOST_PARTS))
    edges = np.linspace(0.0, end_s, num + 1)
    part = np.clip(np.searchsorted(edges, known["t_s"].to_numpy(float), side="right") - 1, 0, num - 1)
    gpu_means = known.groupby([part, "rank"])[column].mean().groupby(level=0)
    parts = DataFrame({"mean": gpu_means.mean(), "lowest": gpu_means.min(), "highest": gpu_means.max()})
    places = parts.index.to_numpy(int)
    return parts.assign(t_start_s=edges[places], t_end_s=edges[places + 1]).reset_index(drop=True)
