"""Swings of the power of jobs: spectra of table `job_power`, and what runs of one point say together, as a title."""

from pandas import DataFrame, Series

from triplepoint import swings

SWING, LINE = "job_power_swing_fraction", "job_power_line_hz"


def spectrum(course: DataFrame) -> DataFrame:
    """Return the spectrum of a job's power.

    Args:
        course: Rows of table `job_power` of one run.

    Returns:
        Columns `frequency_hz` and `amplitude`, of a sine over mean power, above drifts.
    """
    power_w, period_s = course["job_power_w"].to_numpy(float), float(course["t_s"].diff().median())
    frequency, amplitude = swings.spectrum(power_w, period_s)
    is_told = frequency >= swings.LOWEST_PERIODS / (len(power_w) * period_s)
    return DataFrame({"frequency_hz": frequency[is_told], "amplitude": amplitude[is_told] / power_w.mean()})


def answer(repeats: DataFrame, what: str) -> str:
    """Return by how much the power of a job swings.

    Args:
        repeats: Rows of table `points`: repeats of one point with a swing.
        what: What the job is.
    """
    return f"The power of {what} swings by {_said(repeats[SWING], 100.0, '{:.1f} %')} of its mean"


def notes(repeats: DataFrame, published: DataFrame) -> tuple[str, str]:
    """Return swing and strongest line with the published numbers, as they stand above their panels.

    Args:
        repeats: As `answer` takes them.
        published: Rows of table `published`, of any runs.
    """
    swing = _beside(_said(repeats[SWING], 100.0, "{:.1f} %"), 100 * published_of(repeats, published, SWING), "{:.1f} %")
    line = _beside(_said(repeats[LINE], 1.0, "{:.4f} Hz"), published_of(repeats, published, LINE), "{:.4f} Hz")
    return f"swing {swing}", f"strongest at {line}"


def published_of(repeats: DataFrame, published: DataFrame, quantity: str) -> float:
    """Return the published number of a quantity for some runs; NaN where there is none."""
    found = published[published["run"].isin(repeats["run"]) & (published["quantity"] == quantity)]
    return float(found["published"].iloc[0]) if len(found) else float("nan")


def _said(values: Series, scale: float, form: str) -> str:
    """Return the mean over repeats with the lowest and the highest."""
    known = scale * values.astype(float).dropna()
    bare = form.partition(" ")[0]
    ends = f" [{bare.format(known.min())}, {bare.format(known.max())}]" if len(known) > 1 else ""
    return form.format(known.mean()) + ends


def _beside(said: str, published: float, form: str) -> str:
    return said + (f"\npublished {form.format(published)}" if published == published else "")
