"""90 % intervals of power swings: from draws of what is unknown, or from how parts of a recording differ.

Those of a recording say where the numbers of another one of the same job, as long as this, would be.
"""

import math
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from triplepoint import swings
from triplepoint.advise.swings.spec import Band
from triplepoint.metrics import Interval, t_quantile
from triplepoint.units import KILO

Numbers = dict[str, float]
Intervals = Mapping[str, Interval]

LEAST_BLOCKS = 4
"""Fewest steps or periods of a recording with intervals. Our choice."""
_NUM_BLOCKS = 10
"""Equal parts of a recording that are compared, at most. Our choice."""
_QUANTILE = 0.95
_HANN = math.sqrt(35.0 / 18.0)
"""Factor on the error of a band by a Hann window, which weighs the ends of a recording less: N sum(w^4) / sum(w^2)^2.

Source: Welch 1967, doi:10.1109/TAU.1967.1161901.
"""
_EULER = 0.5772
"""Mean of a standard Gumbel distribution."""


def line_of(name: str, band: Band | None = None) -> str:
    """Return the key of a number: its name, for a band with its frequencies."""
    return name if band is None else f"{name} {band[0]:g}-{band[1]:g} Hz"


def numbers_of(power_w: np.ndarray, period_s: float, bands: Iterable[Band], window_s: float = 0.0) -> Numbers:
    """Return the numbers that have intervals, by key; of a band, its part below the highest frequency resolved.

    Args:
        power_w: Samples; shape (num_samples,). Unit: W.
        period_s: Time between samples. Unit: s.
        bands: Frequency bands. Unit: Hz.
        window_s: Averaging window of a sample. Unit: s.

    Returns:
        `mean_w`, `low_w`, `high_w`, `range_kw`, `range_fraction`, `ramp_up_kw_per_s`, `ramp_down_kw_per_s`, and of each
        band `rms_kw`, `rms_fraction` and `share`.
    """
    swing = swings.swing(power_w, period_s)
    numbers = _of_levels(swing.mean_w, swing.low_w, swing.high_w) | {
        "ramp_up_kw_per_s": swing.ramp_up_w_per_s / KILO, "ramp_down_kw_per_s": swing.ramp_down_w_per_s / KILO,
    }  # fmt: skip
    for band in bands:
        seen_hz = min(band[1], swings.highest_hz(period_s, window_s))
        inside = swings.in_band(power_w, period_s, band[0], seen_hz, window_s)
        numbers |= _of_band(band, inside.rms_w, inside.share, swing.mean_w)
    return numbers


def of_draws(found: Numbers, drawn: Sequence[Numbers]) -> Intervals:
    """Return the intervals of numbers of a simulated point from those of its draws."""
    from triplepoint.simulate.predict.draws import interval_of  # a recording needs no simulation

    return {name: _possible(name, interval_of(value, [each[name] for each in drawn])) for name, value in found.items()}


def of_recording(
    power_w: np.ndarray, period_s: float, bands: Iterable[Band], found: Numbers, num_repeats: int
) -> Intervals:
    """Return the intervals of numbers of a recording from how its parts differ; empty with too few repeats.

    Means, percentiles and bands: a jackknife over equal parts, for the difference of two recordings. The fastest ramps
    are extremes: a Gumbel distribution through the extremes of the parts.

    Args:
        power_w: Samples; shape (num_samples,). Unit: W.
        period_s: Time between samples. Unit: s.
        bands: Frequency bands. Unit: Hz.
        found: Numbers of the whole recording.
        num_repeats: Periods or steps in the recording; parts are no shorter.

    Source:
        Jackknife with parts of dependent data: Kuensch 1989, doi:10.1214/aos/1176347265. Extremes of equal parts:
        Coles 2001, chapter 3, doi:10.1007/978-1-4471-3675-0.
    """
    number = min(_NUM_BLOCKS, num_repeats)
    if number < LEAST_BLOCKS:
        return {}
    parts = np.array_split(power_w, number)
    without = [np.concatenate([*parts[:place], *parts[place + 1 :]]) for place in range(number)]
    jackknifed = [_of_levels(float(rest.mean()), *swings.ends(rest).tolist()) for rest in without]
    for band in bands:
        for numbers, (rms_w, share, mean_w) in zip(
            jackknifed, _band_without(power_w, period_s, band, number), strict=True
        ):
            numbers |= _of_band(band, rms_w, share, mean_w)
    levels = [_of_levels(float(part.mean()), *swings.ends(part).tolist()) for part in parts]
    intervals = dict[str, Interval]()
    for name in jackknifed[0]:
        sigma = _sigma_of([each[name] for each in jackknifed])
        if name in levels[0]:
            # Percentiles are not smooth, so what is left out changes them in jumps: parts alone tell them apart too.
            sigma = max(sigma, float(np.std([each[name] for each in levels], ddof=1)) / math.sqrt(number))
        else:
            sigma *= _HANN
        intervals[name] = _possible(name, _of_another(found[name], sigma, number))
    steps = [np.diff(part) / period_s / KILO for part in parts]
    for name, sign in (("ramp_up_kw_per_s", 1.0), ("ramp_down_kw_per_s", -1.0)):
        intervals[name] = _of_extremes(found[name], [float((sign * step).max(initial=0.0)) for step in steps])
    return intervals


def _possible(name: str, interval: Interval) -> Interval:
    """Return the interval of a number without what cannot be: a share above 1."""
    is_share = name.partition(" ")[0] == "share"
    return Interval(min(interval.lo, 1.0), min(interval.hi, 1.0)) if is_share else interval


def _of_levels(mean_w: float, low_w: float, high_w: float) -> Numbers:
    range_w = high_w - low_w
    return {
        "mean_w": mean_w, "low_w": low_w, "high_w": high_w, "range_kw": range_w / KILO,
        "range_fraction": range_w / mean_w,
    }  # fmt: skip


def _of_band(band: Band, rms_w: float, share: float, mean_w: float) -> Numbers:
    return {
        line_of("rms_kw", band): rms_w / KILO, line_of("rms_fraction", band): rms_w / mean_w,
        line_of("share", band): share,
    }  # fmt: skip


def _band_without(power_w: np.ndarray, period_s: float, band: Band, number: int) -> list[tuple[float, float, float]]:
    """Return root mean square and share of a band, and mean power, each without one of the parts. Units: W, 1, W."""
    swing_w = power_w - power_w.mean()
    spectrum, frequency = np.fft.rfft(swing_w), np.fft.rfftfreq(len(power_w), period_s)
    spectrum[(frequency < band[0]) | (frequency > band[1])] = 0.0
    sums = [
        np.array([part.sum() for part in np.array_split(values, number)])
        for values in (np.fft.irfft(spectrum, len(power_w)) ** 2, swing_w**2, power_w)
    ]
    counts = np.array([len(part) for part in np.array_split(power_w, number)])
    inside, total, mean = ((each.sum() - each) / (counts.sum() - counts) for each in sums)
    share = inside / np.maximum(total, np.finfo(float).tiny)
    return list(zip(np.sqrt(inside).tolist(), share.tolist(), mean.tolist(), strict=True))


def _sigma_of(values: list[float]) -> float:
    """Return the standard deviation of a number from its values without one part each."""
    number, spread = len(values), np.asarray(values)
    return math.sqrt((number - 1) / number * float(((spread - spread.mean()) ** 2).sum()))


def _of_another(value: float, sigma: float, number: int) -> Interval:
    """Return where another recording's number would be: its error and that of this one add up in squares."""
    half = t_quantile(number - 1, _QUANTILE) * math.sqrt(2.0) * sigma
    return Interval(max(value - half, 0.0), value + half)


def _of_extremes(value: float, extremes: list[float]) -> Interval:
    """Return where the largest of as many parts of another recording would be."""
    number = len(extremes)
    scale = math.sqrt(6.0) / math.pi * float(np.std(extremes, ddof=1))
    place = float(np.mean(extremes)) - _EULER * scale + scale * math.log(number)
    # Mean and scale are those of a few parts.
    unsure = t_quantile(number - 1, _QUANTILE) * scale * math.sqrt(1.0 / number + math.log(number) ** 2 / (2 * number))
    low, high = (place - scale * math.log(-math.log(share)) for share in (1.0 - _QUANTILE, _QUANTILE))
    middle = place - scale * math.log(math.log(2.0))
    low, high = middle - math.hypot(middle - low, unsure), middle + math.hypot(high - middle, unsure)
    return Interval(max(min(low, value), 0.0), max(high, value))
