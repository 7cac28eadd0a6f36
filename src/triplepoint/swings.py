"""Swings of power: range, ramps, spectrum, its strongest line, and how much of it nodes do together.

All of it from evenly spaced samples of one meter, or of one meter per node. What a meter cannot see is refused: beyond
half its sampling rate it shows other frequencies, and a mean over a window hides what is shorter than two windows.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Float = npt.NDArray[np.float64]

LOWEST_PERIODS = 8
"""Periods of a line that a recording has to hold: its spectrum then tells the line from a drift, to 1/8 of it."""

_PADDING = 16
"""Spectra are sampled so many times as densely as their resolution: the top of a line is met to 1/32 of it."""


@dataclass(frozen=True)
class Swing:
    """How far power swings.

    Attributes:
        mean_w: Mean. Unit: W.
        low_w: 1st percentile. Unit: W.
        high_w: 99th percentile. Unit: W.
        ramp_up_w_per_s: Fastest rise from one sample to the next. Unit: W/s.
        ramp_down_w_per_s: Fastest fall, as a positive number. Unit: W/s.
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
        frequency_hz: Where its top is. Unit: Hz.
        amplitude_w: Of the sine of this frequency, half its range. Unit: W.
        resolution_hz: How near two lines can be to be told apart. Unit: Hz.
    """

    frequency_hz: float
    amplitude_w: float
    resolution_hz: float


def highest_hz(period_s: float, window_s: float = 0.0) -> float:
    """Return the highest frequency that a meter shows.

    Args:
        period_s: Time between its samples. Unit: s.
        window_s: What a sample is the mean of. Unit: s.

    Raises:
        ValueError: If the period is not positive, or the window negative.

    Source:
        Shannon 1949, doi:10.1109/JRPROC.1949.232969; of a mean over a window, arXiv:2508.14318.
    """
    if not period_s > 0 or not window_s >= 0:
        raise ValueError(f"period is {period_s} s and window {window_s} s; expected a positive and a non-negative one")
    return 0.5 / max(period_s, window_s)


def at_even_times(t_s: Sequence[npt.ArrayLike], power_w: Sequence[npt.ArrayLike]) -> tuple[Float, float]:
    """Return the readings of all meters at the same even times, by straight lines between them, and the period.

    Args:
        t_s: When each meter was read, rising, two times or more; shapes (num_readings,). Unit: s.
        power_w: What each read; same shapes. Unit: W.

    Returns:
        Power while all are read, shape (num_samples, num_meters), unit W; and the time between samples, that of the
        meter read least often, unit s.
    """
    times = [np.asarray(each, dtype=float) for each in t_s]
    period_s = max(float(np.median(np.diff(each))) for each in times)
    grid_s = np.arange(max(each[0] for each in times), min(each[-1] for each in times), period_s)
    columns = [
        np.interp(grid_s, when, np.asarray(each, dtype=float)) for when, each in zip(times, power_w, strict=True)
    ]
    return np.stack(columns, axis=1), period_s


def swing(power_w: npt.ArrayLike, period_s: float) -> Swing:
    """Return range and ramps of power.

    Args:
        power_w: Samples; shape (num_samples,). Unit: W.
        period_s: Time between them. Unit: s.

    Raises:
        ValueError: If there are fewer than two samples, one is not finite, or their mean is not positive.
    """
    power = _checked(power_w, 2)
    low_w, high_w = np.percentile(power, [1, 99]).tolist()
    ramps = np.diff(power) / period_s
    return Swing(float(power.mean()), low_w, high_w, max(0.0, float(ramps.max())), max(0.0, -float(ramps.min())))


def spectrum(power_w: npt.ArrayLike, period_s: float) -> tuple[Float, Float]:
    """Return frequencies, and the amplitude of a sine that would stand alone at each; Hann window.

    Args:
        power_w: Samples; shape (num_samples,). Unit: W.
        period_s: Time between them. Unit: s.

    Returns:
        Frequencies up to half the sampling rate (Hz), amplitudes (W); both of shape (num_frequencies,).

    Source:
        Harris 1978, doi:10.1109/PROC.1978.10837.
    """
    power = _checked(power_w, 2)
    window = np.hanning(len(power))
    number = _PADDING * len(power)
    found = np.fft.rfft((power - power.mean()) * window, number)
    return np.asarray(np.fft.rfftfreq(number, period_s), dtype=float), np.asarray(2.0 * np.abs(found) / window.sum())


def strongest_line(
    power_w: npt.ArrayLike, period_s: float, low_hz: float, high_hz: float, window_s: float = 0.0
) -> Line:
    """Return the strongest line of a band.

    Args:
        power_w: Samples; shape (num_samples,). Unit: W.
        period_s: Time between them. Unit: s.
        low_hz: Lower end of the band. Unit: Hz.
        high_hz: Upper end. Unit: Hz.
        window_s: What a sample is the mean of. Unit: s.

    Raises:
        ValueError: If the meter shows nothing at the upper end, or the recording is too short for the lower one.
    """
    power = _checked(power_w, 2)
    _check_band(len(power) * period_s, low_hz, high_hz, highest_hz(period_s, window_s))
    frequency, amplitude = spectrum(power, period_s)
    inside = (frequency >= low_hz) & (frequency <= high_hz)
    top = int(np.flatnonzero(inside)[amplitude[inside].argmax()])
    # A Hann window's main lobe is four bins wide from zero to zero: two lines are apart at half of that.
    return Line(float(frequency[top]), float(amplitude[top]), 2.0 / (len(power) * period_s))


@dataclass(frozen=True)
class Band:
    """Power that swings between two frequencies.

    Attributes:
        rms_w: Root of the mean square of what swings in the band. Unit: W.
        share: Its square over that of all frequencies, 0 to 1.
    """

    rms_w: float
    share: float


def in_band(power_w: npt.ArrayLike, period_s: float, low_hz: float, high_hz: float, window_s: float = 0.0) -> Band:
    """Return how much power swings in a band: what its spectrum adds up to there; Hann window.

    The window spreads a line over 2 / duration on both sides, so that much beside the band counts: a line on its edge
    counts whole. One that near outside counts in part; it cannot be told from one on the edge.

    Args:
        power_w: Samples; shape (num_samples,). Unit: W.
        period_s: Time between them. Unit: s.
        low_hz: Lower end of the band. Unit: Hz.
        high_hz: Upper end. Unit: Hz.
        window_s: What a sample is the mean of. Unit: s.

    Raises:
        ValueError: As `strongest_line`.

    Source:
        Parseval's theorem; the band that grids ask about, 0.1 to 20 Hz: arXiv:2508.14318.
    """
    power = _checked(power_w, 2)
    _check_band(len(power) * period_s, low_hz, high_hz, highest_hz(period_s, window_s))
    window = np.hanning(len(power))
    found = np.abs(np.fft.rfft((power - power.mean()) * window)) ** 2 * 2.0 / (len(power) * np.sum(window**2))
    frequency = np.fft.rfftfreq(len(power), period_s)
    spread_hz = 2.0 / (len(power) * period_s)
    inside = float(found[(frequency >= low_hz - spread_hz) & (frequency <= high_hz + spread_hz)].sum())
    everything = float(found[1:].sum())
    return Band(float(np.sqrt(inside)), inside / everything if everything > 0 else 0.0)


def coherence(nodes_w: npt.ArrayLike, period_s: float, frequency_hz: float) -> float:
    """Return how much in step nodes are at a frequency: the job's amplitude over the sum of the nodes', 0 to 1.

    Nodes in step give 1, N alike at random 1/sqrt(N); of nodes that swing alike it is the length of the mean of their
    phases. A node that does not swing there adds nothing.

    Args:
        nodes_w: Samples of every node at the same times; shape (num_samples, num_nodes). Unit: W.
        period_s: Time between them. Unit: s.
        frequency_hz: Which frequency. Unit: Hz.

    Raises:
        ValueError: If the meter shows nothing at that frequency.

    Source:
        arXiv:2508.14318.
    """
    nodes = _checked(nodes_w, 2)
    if frequency_hz > highest_hz(period_s):
        raise ValueError(f"{frequency_hz:g} Hz is beyond the {highest_hz(period_s):g} Hz that the meter shows")
    found = _phasors(nodes, period_s, frequency_hz)
    return float(np.abs(found.sum()) / max(np.abs(found).sum(), np.finfo(float).tiny))


def amplitude_at(power_w: npt.ArrayLike, period_s: float, frequency_hz: float) -> float:
    """Return the amplitude of the sine of one frequency in power; Hann window. Unit: W.

    Args:
        power_w: Samples; shape (num_samples,). Unit: W.
        period_s: Time between them. Unit: s.
        frequency_hz: Which frequency. Unit: Hz.
    """
    return float(2.0 * np.abs(_phasors(_checked(power_w, 2), period_s, frequency_hz)))


def _phasors(power_w: Float, period_s: float, frequency_hz: float) -> npt.NDArray[np.complex128]:
    """Return half the amplitude and the phase of a frequency; power of shape (num_samples,) or with a column a node."""
    window = np.hanning(len(power_w))
    turns = np.exp(-2j * np.pi * frequency_hz * period_s * np.arange(len(power_w)))
    return np.asarray((window * turns) @ (power_w - power_w.mean(axis=0)) / window.sum())


def correlation(nodes_w: npt.ArrayLike) -> float:
    """Return the mean correlation coefficient over all pairs of nodes whose power varies; NaN without such a pair.

    Args:
        nodes_w: Samples of every node at the same times; shape (num_samples, num_nodes). Unit: W.

    Raises:
        ValueError: If there are fewer than two nodes.
    """
    nodes = _checked(nodes_w, 2)
    if nodes.ndim != 2 or nodes.shape[1] < 2:
        raise ValueError(f"samples of shape {nodes.shape}, expected those of two nodes or more")
    varying = nodes[:, np.ptp(nodes, axis=0) > 0]
    if varying.shape[1] < 2:
        return np.nan
    between = np.atleast_2d(np.corrcoef(varying.T))
    return float(between[np.triu_indices(varying.shape[1], 1)].mean())


def _check_band(lasts_s: float, low_hz: float, high_hz: float, most_hz: float) -> None:
    if high_hz > most_hz:
        raise ValueError(f"band up to {high_hz:g} Hz, the meter shows nothing beyond {most_hz:g} Hz")
    if not high_hz > low_hz >= LOWEST_PERIODS / lasts_s:
        raise ValueError(
            f"band from {low_hz:g} to {high_hz:g} Hz, a recording of {lasts_s:g} s tells lines apart from "
            f"{LOWEST_PERIODS / lasts_s:g} Hz up"
        )


def _checked(power_w: npt.ArrayLike, least: int) -> Float:
    power = np.asarray(power_w, dtype=float)
    if len(power) < least or not np.isfinite(power).all() or not power.mean() > 0:
        raise ValueError(f"{len(power)} samples of power, expected {least} or more, finite, of a positive mean")
    return power
