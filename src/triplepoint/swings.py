"""Power swings: range, ramps, spectrum, strongest line, and coherence between nodes.

All functions take evenly spaced samples of one meter, or of one meter per node. They raise an error for frequencies
that the meter cannot resolve: above half the sampling rate there is aliasing, and averaging over a window hides periods
shorter than two windows.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Float = npt.NDArray[np.float64]

LOWEST_PERIODS = 8
"""Fewest periods of a line in a recording: the spectrum then separates the line from a drift, with a resolution of 1/8
of its frequency."""

_NUM_LINES, _NUM_BINS = 100, 400
"""Lines and log-spaced bins of a spectrum in short. Our choice."""
_PADDING = 16
"""Factor of zero padding of spectra: the peak of a line is located to 1/32 of the resolution."""


@dataclass(frozen=True)
class Swing:
    """Range and ramps of power.

    Attributes:
        mean_w: Mean power. Unit: W.
        low_w: 1st percentile. Unit: W.
        high_w: 99th percentile. Unit: W.
        ramp_up_w_per_s: Fastest rise between consecutive samples. Unit: W/s.
        ramp_down_w_per_s: Fastest fall between consecutive samples, as a positive number. Unit: W/s.
    """

    mean_w: float
    low_w: float
    high_w: float
    ramp_up_w_per_s: float
    ramp_down_w_per_s: float

    @property
    def fraction(self) -> float:
        """Range from the 1st to the 99th percentile over the mean."""
        return (self.high_w - self.low_w) / self.mean_w


@dataclass(frozen=True)
class Line:
    """The strongest line of a spectrum.

    Attributes:
        frequency_hz: Frequency of the peak. Unit: Hz.
        amplitude_w: Amplitude of the sine at this frequency, half its range. Unit: W.
        resolution_hz: Smallest distance of two distinguishable lines. Unit: Hz.
    """

    frequency_hz: float
    amplitude_w: float
    resolution_hz: float


def highest_hz(period_s: float, window_s: float = 0.0) -> float:
    """Return the highest frequency that a meter resolves. Unit: Hz.

    Args:
        period_s: Time between samples. Unit: s.
        window_s: Averaging window of a sample. Unit: s.

    Raises:
        ValueError: If the period is not positive, or the window negative.

    Source:
        Shannon 1949, doi:10.1109/JRPROC.1949.232969; of a mean over a window, arXiv:2508.14318.
    """
    if not period_s > 0 or not window_s >= 0:
        raise ValueError(f"period is {period_s} s and window {window_s} s; expected a positive and a non-negative one")
    return 0.5 / max(period_s, window_s)


def at_even_times(t_s: Sequence[npt.ArrayLike], power_w: Sequence[npt.ArrayLike]) -> tuple[Float, float]:
    """Interpolate the readings of all meters linearly to common, evenly spaced times.

    Args:
        t_s: Times of the readings of each meter, increasing, at least two; shapes (num_readings,). Unit: s.
        power_w: Readings of each meter; same shapes. Unit: W.

    Returns:
        Power over the time that all meters cover, shape (num_samples, num_meters), unit W; and the time between
        samples, that of the slowest meter, unit s.
    """
    times = [np.asarray(each, dtype=float) for each in t_s]
    period_s = max(float(np.median(np.diff(each))) for each in times)
    grid_s = np.arange(max(each[0] for each in times), min(each[-1] for each in times), period_s)
    columns = [
        np.interp(grid_s, meter_s, np.asarray(each, dtype=float)) for meter_s, each in zip(times, power_w, strict=True)
    ]
    return np.stack(columns, axis=1), period_s


def ends(power_w: Float) -> Float:
    """Return the 1st and the 99th percentile of power over time, the ends of its range; shape (2, ...). Unit: W.

    Args:
        power_w: Samples; shape (num_samples, ...). Unit: W.
    """
    return np.asarray(np.percentile(power_w, [1.0, 99.0], axis=0))


def swing(power_w: npt.ArrayLike, period_s: float) -> Swing:
    """Return range and ramps of power.

    Args:
        power_w: Samples; shape (num_samples,). Unit: W.
        period_s: Time between samples. Unit: s.

    Raises:
        ValueError: If there are fewer than two samples, one is not finite, or their mean is not positive.
    """
    power = _checked(power_w)
    low_w, high_w = ends(power).tolist()
    ramps = np.diff(power) / period_s
    return Swing(float(power.mean()), low_w, high_w, max(0.0, float(ramps.max())), max(0.0, -float(ramps.min())))


def spectrum(power_w: npt.ArrayLike, period_s: float) -> tuple[Float, Float]:
    """Return the amplitude spectrum of power with a Hann window, scaled so that a sine has its own amplitude.

    Args:
        power_w: Samples; shape (num_samples,). Unit: W.
        period_s: Time between samples. Unit: s.

    Returns:
        Frequencies up to half the sampling rate (Hz), and amplitudes (W); both of shape (num_frequencies,).

    Source:
        Harris 1978, doi:10.1109/PROC.1978.10837.
    """
    power = _checked(power_w)
    window = np.hanning(len(power))
    length = _PADDING * len(power)
    phasors = np.fft.rfft((power - power.mean()) * window, length)
    return np.asarray(np.fft.rfftfreq(length, period_s), dtype=float), np.asarray(2.0 * np.abs(phasors) / window.sum())


def spectrum_in_short(power_w: npt.ArrayLike, period_s: float, low_hz: float, high_hz: float) -> Float:
    """Return at most 500 points of the amplitude spectrum: strongest lines, and the highest point of log-spaced bins.

    Args:
        power_w: Samples; shape (num_samples,). Unit: W.
        period_s: Time between samples. Unit: s.
        low_hz: Lowest frequency. Unit: Hz.
        high_hz: Highest frequency. Unit: Hz.

    Returns:
        Frequencies in ascending order (Hz) and their amplitudes (W); shape (2, num_points).
    """
    frequency, amplitude = spectrum(power_w, period_s)
    places = np.flatnonzero((frequency >= low_hz) & (frequency <= high_hz))
    inside = amplitude[places]
    is_peak = (inside >= np.append(inside[1:], -np.inf)) & (inside >= np.append(-np.inf, inside[:-1]))
    peaks = places[is_peak]
    lines = peaks[np.argsort(amplitude[peaks])[::-1][:_NUM_LINES]]
    edges_hz = np.geomspace(low_hz, high_hz, _NUM_BINS + 1)
    bins = np.split(places, np.searchsorted(frequency[places], edges_hz[1:-1]))
    highest = [each[amplitude[each].argmax()] for each in bins if len(each)]
    kept = np.unique(np.concatenate([lines, np.array(highest, dtype=np.int64)]))
    return np.stack([frequency[kept], amplitude[kept]])


def strongest_line(
    power_w: npt.ArrayLike, period_s: float, low_hz: float, high_hz: float, window_s: float = 0.0
) -> Line:
    """Return the strongest line of a frequency band.

    Args:
        power_w: Samples; shape (num_samples,). Unit: W.
        period_s: Time between samples. Unit: s.
        low_hz: Lower end of the band. Unit: Hz.
        high_hz: Upper end of the band. Unit: Hz.
        window_s: Averaging window of a sample. Unit: s.

    Raises:
        ValueError: If the meter does not resolve the upper end, or the recording is too short for the lower end.
    """
    power = _checked(power_w)
    _check_band(len(power) * period_s, low_hz, high_hz, highest_hz(period_s, window_s))
    frequency, amplitude = spectrum(power, period_s)
    inside = (frequency >= low_hz) & (frequency <= high_hz)
    peak = int(np.flatnonzero(inside)[amplitude[inside].argmax()])
    # The main lobe of a Hann window is four bins wide; two lines are distinguishable at half of that.
    return Line(float(frequency[peak]), float(amplitude[peak]), 2.0 / (len(power) * period_s))


@dataclass(frozen=True)
class Band:
    """Power swings in a frequency band.

    Attributes:
        rms_w: Root mean square of the swings in the band. Unit: W.
        share: Its square over that of all frequencies, 0 to 1.
    """

    rms_w: float
    share: float


def in_band(power_w: npt.ArrayLike, period_s: float, low_hz: float, high_hz: float, window_s: float = 0.0) -> Band:
    """Return the power swings in a frequency band, by integrating the power spectrum with a Hann window.

    The window spreads a line by 2 / duration to both sides, so the integral extends the band by that much: a line on
    the edge counts fully. A line just outside counts in part, because it is not distinguishable from one on the edge.

    Args:
        power_w: Samples; shape (num_samples,). Unit: W.
        period_s: Time between samples. Unit: s.
        low_hz: Lower end of the band. Unit: Hz.
        high_hz: Upper end of the band. Unit: Hz.
        window_s: Averaging window of a sample. Unit: s.

    Raises:
        ValueError: As `strongest_line`.

    Source:
        Parseval's theorem; the band that grid operators limit, 0.1 to 20 Hz: arXiv:2508.14318.
    """
    power = _checked(power_w)
    _check_band(len(power) * period_s, low_hz, high_hz, highest_hz(period_s, window_s))
    window = np.hanning(len(power))
    squares_w2 = np.abs(np.fft.rfft((power - power.mean()) * window)) ** 2 * 2.0 / (len(power) * np.sum(window**2))
    frequency = np.fft.rfftfreq(len(power), period_s)
    spread_hz = 2.0 / (len(power) * period_s)
    in_band_w2 = float(squares_w2[(frequency >= low_hz - spread_hz) & (frequency <= high_hz + spread_hz)].sum())
    total_w2 = float(squares_w2[1:].sum())
    return Band(float(np.sqrt(in_band_w2)), in_band_w2 / total_w2 if total_w2 > 0 else 0.0)


def coherence(nodes_w: npt.ArrayLike, period_s: float, frequency_hz: float) -> float:
    """Return the coherence of nodes at a frequency: the job's amplitude over the sum of the nodes' amplitudes, 0 to 1.

    Nodes in phase give 1; N nodes with equal amplitudes and random phases give 1/sqrt(N). For equal amplitudes it is
    the length of the mean phase vector. A node without swings at the frequency has no influence.

    Args:
        nodes_w: Samples of every node at the same times; shape (num_samples, num_nodes). Unit: W.
        period_s: Time between samples. Unit: s.
        frequency_hz: The frequency. Unit: Hz.

    Raises:
        ValueError: If the meter does not resolve that frequency.

    Source:
        arXiv:2508.14318.
    """
    nodes = _checked(nodes_w)
    if frequency_hz > highest_hz(period_s):
        raise ValueError(f"{frequency_hz:g} Hz is beyond the {highest_hz(period_s):g} Hz that the meter shows")
    phasors = _phasors(nodes, period_s, frequency_hz)
    return float(np.abs(phasors.sum()) / max(np.abs(phasors).sum(), np.finfo(float).tiny))


def amplitude_at(power_w: npt.ArrayLike, period_s: float, frequency_hz: float) -> float:
    """Return the amplitude of power swings at one frequency, with a Hann window. Unit: W.

    Args:
        power_w: Samples; shape (num_samples,). Unit: W.
        period_s: Time between samples. Unit: s.
        frequency_hz: The frequency. Unit: Hz.
    """
    return float(2.0 * np.abs(_phasors(_checked(power_w), period_s, frequency_hz)))


def _phasors(power_w: Float, period_s: float, frequency_hz: float) -> npt.NDArray[np.complex128]:
    """Return the phasor at a frequency, with half the amplitude as its length.

    Args:
        power_w: Samples; shape (num_samples,) or (num_samples, num_nodes). Unit: W.
        period_s: Time between samples. Unit: s.
        frequency_hz: The frequency. Unit: Hz.

    Returns:
        One phasor, or one per node. Unit: W.
    """
    window = np.hanning(len(power_w))
    rotation = np.exp(-2j * np.pi * frequency_hz * period_s * np.arange(len(power_w)))
    return np.asarray((window * rotation) @ (power_w - power_w.mean(axis=0)) / window.sum())


def correlation(nodes_w: npt.ArrayLike) -> float:
    """Return the mean correlation coefficient of all pairs of nodes with varying power; NaN without such a pair.

    Args:
        nodes_w: Samples of every node at the same times; shape (num_samples, num_nodes). Unit: W.

    Raises:
        ValueError: If there are fewer than two nodes.
    """
    nodes = _checked(nodes_w)
    if nodes.ndim != 2 or nodes.shape[1] < 2:
        raise ValueError(f"samples of shape {nodes.shape}, expected those of two nodes or more")
    varying = nodes[:, np.ptp(nodes, axis=0) > 0]
    if varying.shape[1] < 2:
        return np.nan
    coefficients = np.atleast_2d(np.corrcoef(varying.T))
    return float(coefficients[np.triu_indices(varying.shape[1], 1)].mean())


def _check_band(duration_s: float, low_hz: float, high_hz: float, most_hz: float) -> None:
    """Raise `ValueError` if a recording does not resolve a frequency band."""
    if high_hz > most_hz:
        raise ValueError(f"band up to {high_hz:g} Hz, the meter shows nothing beyond {most_hz:g} Hz")
    if not high_hz > low_hz >= LOWEST_PERIODS / duration_s:
        raise ValueError(
            f"band from {low_hz:g} to {high_hz:g} Hz, a recording of {duration_s:g} s tells lines apart from "
            f"{LOWEST_PERIODS / duration_s:g} Hz up"
        )


def _checked(power_w: npt.ArrayLike) -> Float:
    """Return samples as an array. Raises `ValueError` unless there are two or more, finite, with a positive mean."""
    power = np.asarray(power_w, dtype=float)
    if len(power) < 2 or not np.isfinite(power).all() or not power.mean() > 0:
        raise ValueError(f"{len(power)} samples of power, expected 2 or more, finite, of a positive mean")
    return power
