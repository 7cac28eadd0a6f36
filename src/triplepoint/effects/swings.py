"""Swings of a job's power: its spectrum from table `job_power`, and texts on the repeats of one point."""

from pandas import DataFrame, Series

from triplepoint import swings

SWING, LINE = "job_power_swing_fraction", "job_power_line_hz"


def spectrum(course: DataFrame) -> DataFrame:
    """Return the spectrum of a job's power, without the frequencies of slow drifts.

    Args:
        course: Rows of table `job_power` of one run.

    Returns:
        Columns `frequency_hz` and `amplitude`: amplitude of a sine over mean power.
    """
    power_w, period_s = course["job_power_w"].to_numpy(float), float(course["t_s"].diff().median())
    frequency, amplitude = swings.spectrum(power_w, period_s)
    is_resolved = frequency >= swings.LOWEST_PERIODS / (len(power_w) * period_s)
    return DataFrame({"frequency_hz": frequency[is_resolved], "amplitude": amplitude[is_resolved] / power_w.mean()})


def answer(repeats: DataFrame, job: str) -> str:
    """Return a title: by how much the power of a job swings.

    Args:
        repeats: Rows of table `points`: repeats of one point with a known swing.
        job: Name of the job.
    """
    return f"The power of {job} swings by {_mean_text(repeats[SWING], 100.0, '{:.1f} %')} of its mean"


def notes(repeats: DataFrame, published: DataFrame) -> tuple[str, str]:
    """Return the swing and the strongest frequency with the published numbers, as notes above the panels.

    Args:
        repeats: As in `answer`.
        published: Rows of table `published`, of any runs.
    """
    texts = {}
    for quantity, scale, form in ((SWING, 100.0, "{:.1f} %"), (LINE, 1.0, "{:.4f} Hz")):
        number = scale * published_value(repeats, published, quantity)
        texts[quantity] = _mean_text(repeats[quantity], scale, form)
        texts[quantity] += f"\npublished {form.format(number)}" if number == number else ""
    return f"swing {texts[SWING]}", f"strongest at {texts[LINE]}"


def published_value(repeats: DataFrame, published: DataFrame, quantity: str) -> float:
    """Return the published number of a quantity for some runs; NaN if there is none."""
    rows = published[published["run"].isin(repeats["run"]) & (published["quantity"] == quantity)]
    return float(rows["published"].iloc[0]) if len(rows) else float("nan")


def _mean_text(values: Series, scale: float, form: str) -> str:
    """Return the mean over repeats with the lowest and the highest value in brackets."""
    known = scale * values.astype(float).dropna()
    bare = form.partition(" ")[0]
    ends = f" [{bare.format(known.min())}, {bare.format(known.max())}]" if len(known) > 1 else ""
    return form.format(known.mean()) + ends
