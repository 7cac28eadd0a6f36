"""Courses over a step: mean, lowest and highest GPU in equal parts of it, from table `step_samples`."""

import numpy as np
from pandas import DataFrame

MOST_PARTS = 60
"""Parts of a step: more could not be told apart in print."""


def over_step(samples: DataFrame, column: str, end_s: float) -> DataFrame:
    """Return the course of a quantity over a step, all GPUs together.

    Args:
        samples: Rows of table `step_samples` of one run.
        column: The quantity.
        end_s: Length of the step: as many equal parts are made of it as each GPU has samples, up to `MOST_PARTS`.

    Returns:
        A row per part that has samples: `t_start_s`, `t_end_s`, and of the GPUs' means in it `mean`, `lowest` and
        `highest`.
    """
    known = samples[samples[column].notna() & (samples["t_s"] <= end_s)]
    if known.empty:
        return DataFrame(columns=["t_start_s", "t_end_s", "mean", "lowest", "highest"])
    num = int(np.clip(known.groupby("rank").size().median(), 1, MOST_PARTS))
    edges = np.linspace(0.0, end_s, num + 1)
    part = np.clip(np.searchsorted(edges, known["t_s"].to_numpy(float), side="right") - 1, 0, num - 1)
    of_gpus = known.groupby([part, "rank"])[column].mean().groupby(level=0)
    found = DataFrame({"mean": of_gpus.mean(), "lowest": of_gpus.min(), "highest": of_gpus.max()})
    places = found.index.to_numpy(int)
    return found.assign(t_start_s=edges[places], t_end_s=edges[places + 1]).reset_index(drop=True)
