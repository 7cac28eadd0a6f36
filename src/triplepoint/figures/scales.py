"""Axes of values: from zero, or logarithmic where values lie more than a decade apart; ticks that do not overlap."""

import math
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from typing import Literal

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import FixedLocator, MaxNLocator, NullFormatter

from triplepoint.figures import old_page as style
from triplepoint.figures.old_page import POINTS_PER_INCH, text_width_in

Which = Literal["x", "y"]

DECADE = 10.0
"""From this ratio on, the smallest values of an axis from zero would all look like nothing."""
_BETWEEN_IN = 0.06
"""Least distance between labels of ticks. Unit: inch."""
_ROOM = 1.15
STATISTICS = ("", "p10", "p90", "lo", "hi", "max", "peak")
"""Of a plotted quantity's columns: its value, its spread, the model's interval, the highest."""


def scale(axes: Axes, which: Which, values: Iterable[float], nbins: int) -> None:
    """Let an axis hold values: from zero, or logarithmic where they span more than a decade.

    Args:
        axes: Where they are drawn already, with their spread.
        which: Which axis of it.
        values: All there are; those that are not known or not above zero are passed over.
        nbins: Most intervals between ticks, from zero.
    """
    known = [value for value in values if math.isfinite(value) and value > 0]
    if known and max(known) > DECADE * min(known):
        _scale_log(axes, which, min(known) / _ROOM, max(known) * _ROOM)
        return
    _, high = axes.get_xlim() if which == "x" else axes.get_ylim()
    (axes.set_xlim if which == "x" else axes.set_ylim)(0, high)
    fit_ticks(axes, which, nbins)


def _scale_log(axes: Axes, which: Which, low: float, high: float) -> None:
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    if math.ceil(math.log10(low)) >= math.floor(math.log10(high)):
        # A single power of ten would be the only tick: widen to the nearer one.
        above, below = math.log10(high), math.log10(low)
        if last - above <= below - first:
            high = 10.0**last * 1.01
        else:
            low = 10.0**first / 1.01
    axis = axes.xaxis if which == "x" else axes.yaxis
    (axes.set_xscale if which == "x" else axes.set_yscale)("log")
    (axes.set_xlim if which == "x" else axes.set_ylim)(low, high)
    ticks = _log_ticks(low, high, lambda tick: math.log(tick / low) / math.log(high / low) * _length_in(axes, which))
    _set_ticks(axes, which, ticks, [f"{tick:,.12g}" for tick in ticks])
    between = [base * 10.0**power for power in range(first, last) for base in range(2, 10)]
    axis.set_minor_locator(FixedLocator([tick for tick in between if low <= tick <= high]))
    axis.set_minor_formatter(NullFormatter())
    axes.tick_params(axis=which, which="minor", length=1.2, width=0.4)


def _log_ticks(low: float, high: float, place_in: Callable[[float], float]) -> list[float]:
    """Return as many round numbers as have room for their labels; powers of ten where nothing else has."""
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    tens = [10.0**power for power in powers if low <= 10.0**power <= high]
    finer = [[base * 10.0**power for power in powers for base in bases] for bases in ((1, 2, 5), (1, 3))]
    for ticks in ([tick for tick in found if low <= tick <= high] for found in (*finer, tens, tens[::2], tens[::3])):
        apart_in = np.diff([place_in(tick) for tick in ticks])
        # Labels are wider than they are high: along y there is more room than this asks for.
        widths = [text_width_in(f"{tick:,.12g}", style.SMALL_PT) for tick in ticks]
        needed_in = [max(pair) + _BETWEEN_IN for pair in pairwise(widths)]
        if len(ticks) > 1 and all(apart >= needed for apart, needed in zip(apart_in, needed_in, strict=True)):
            return ticks
    return [tens[0], tens[-1]]


def _length_in(axes: Axes, which: Which) -> float:
    width_px, height_px = axes.get_window_extent().size
    return float(width_px if which == "x" else height_px) / axes.figure.dpi


def fit_ticks(axes: Axes, which: Which, nbins: int) -> None:
    """Put as many ticks between the limits of an axis as have room for their labels, `nbins` intervals at most."""
    low, high = axes.get_xlim() if which == "x" else axes.get_ylim()
    length_in = _length_in(axes, which)
    choices = [_ticks(low, high, number) for number in range(nbins, 0, -1)]
    choices += [found[::2] for found in choices]
    for ticks in (found for found in choices if len(found) > 1):
        labels = _labels(ticks)
        apart_in = (ticks[1] - ticks[0]) / (high - low) * length_in
        high_in = style.SMALL_PT / POINTS_PER_INCH
        needed_in = max(text_width_in(text, style.SMALL_PT) for text in labels) if which == "x" else high_in
        if apart_in >= needed_in + _BETWEEN_IN:
            _set_ticks(axes, which, ticks, labels)
            return
    middle = (low + high) / 2
    _set_ticks(axes, which, [middle], [f"{middle:.4g}"])


def _ticks(low: float, high: float, nbins: int) -> list[float]:
    found = MaxNLocator(nbins, steps=[1, 2, 2.5, 5, 10]).tick_values(low, high)
    slack = 1e-9 * (high - low)
    return [float(tick) for tick in found if low - slack <= tick <= high + slack]


def _labels(ticks: Sequence[float]) -> list[str]:
    """Return the shortest decimals that tell evenly spaced ticks exactly."""
    for decimals in range(6):
        if np.allclose(np.round(ticks, decimals), ticks, rtol=0, atol=1e-6 * abs(ticks[1] - ticks[0])):
            return [f"{tick:.{decimals}f}" for tick in ticks]
    return [f"{tick:.4g}" for tick in ticks]


def _set_ticks(axes: Axes, which: Which, ticks: Sequence[float], labels: Sequence[str]) -> None:
    (axes.set_xticks if which == "x" else axes.set_yticks)(ticks, labels=labels)
