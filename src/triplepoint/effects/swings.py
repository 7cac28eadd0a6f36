"""Swings of the power of jobs: spectra of table `job_power`, and what runs of one point say together, as a title."""

from pandas import DataFrame

from triplepoint import swings

SWING, LINE = "job_power_swing_fraction", "job_power_line_hz"


def spectrum(course: DataFrame) -> DataFrame:
    """Return the spectrum of a job's power.

    Args:
        course: Rows of table `job_power` of one run.

    Returns:
        Columns `frequency_hz` and `amplitude`, of a sine over mean power, from what the recording tells from a drift up.
    """
    power_w, period_s = course["job_power_w"].to_numpy(float), float(course["t_s"].diff().median())
    frequency, amplitude = swings.spectrum(power_w, period_s)
    is_told = frequency >= swings.LOWEST_PERIODS / (len(power_w) * period_s)
    return DataFrame({"frequency_hz": frequency[is_told], "amplitude": amplitude[is_told] / power_w.mean()})


def answer(repeats: DataFrame, published: DataFrame) -> str:
    """Return by how much the power of a job swings and at which frequency most, with the published numbers.

    Args:
        repeats: Rows of table `points`: repeats of one point with a swing.
        published: Rows of table `published`, of any runs.
    """
    swing, line = (_values(repeats, published, name) for name in (SWING, LINE))
    return (
        f"power swings by {_said(*swing, 100.0, '{:.1f}')} % of its mean, most at {_said(*line, 1.0, '{:.4f}')} Hz"
    )


def published_of(repeats: DataFrame, published: DataFrame, quantity: str) -> float:
    """Return the published number of a quantity for some runs; NaN where there is none."""
    found = published[published["run"].isin(repeats["run"]) & (published["quantity"] == quantity)]
    return float(found["published"].iloc[0]) if len(found) else float("nan")


def _values(repeats: DataFrame, published: DataFrame, name: str) -> tuple[DataFrame, float]:
    return repeats[name].astype(float).dropna(), published_of(repeats, published, name)


def _said(values: DataFrame, beside: float, scale: float, digits: str) -> str:
    low, middle, high = (digits.format(scale * value) for value in (values.min(), values.mean(), values.max()))
    ends = f" [{low}, {high}]" if len(values) > 1 else ""
    return f"{middle}{ends}" + (f" (published {digits.format(scale * beside)})" if beside == beside else "")
