"""Power of a job over time and its spectrum, with the limits it has to keep to."""

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullFormatter
from pandas import DataFrame

from triplepoint import swings
from triplepoint.advise.swings.answer import SwingAnswer
from triplepoint.advise.swings.text import headline
from triplepoint.figures import marks, style
from triplepoint.units import KILO

_NUM_PERIODS = 6
"""Of the strongest line, whose power is drawn."""
_NAME = 40
"""Characters of the name of a job that a line of the page holds."""
_NOTE = (
    "{name}: power of all nodes every {period:.3g} s{part}; dashed: 1st and 99th percentile of all {lasts:,.0f} s; "
    "shaded: {shaded}the band asked about."
)


@style.styled
def draw(answer: SwingAnswer) -> Figure:
    """Return the figure: power over some periods of its strongest line, and its spectrum."""
    made_by = {"origin": answer.power.origin, "engine": None, "torch_version": None, "stack": None}
    points = DataFrame([made_by | {"git_commit": None, "host": None}]).astype(object)
    power, drawn_s = answer.power, _drawn_s(answer)
    part = "" if drawn_s >= power.lasts_s else f", the first {drawn_s:.3g} s"
    name = power.name if len(power.name) <= _NAME else f"{power.name[:_NAME]}..."
    shaded = "their 90 % intervals, and " if answer.levels[-1].intervals else ""
    note = _NOTE.format(name=name, period=power.period_s, part=part, lasts=power.lasts_s, shaded=shaded)
    page = style.new_page(headline(answer).removesuffix("."), points, 2, 1, style.COLUMN, 4.6, note)
    _draw_course(page.axes[0][0], answer)
    _draw_spectrum(page.axes[1][0], answer)
    return page.finish()


def _drawn_s(answer: SwingAnswer) -> float:
    """Return how much of the power over time is drawn: some periods of the strongest line, or all that is little more.

    Unit: s.
    """
    line_hz, lasts_s = answer.levels[-1].line_hz, answer.power.lasts_s
    some_s = _NUM_PERIODS / line_hz if line_hz else lasts_s
    return lasts_s if lasts_s <= 2.0 * some_s else some_s


def _draw_course(axes: Axes, answer: SwingAnswer) -> None:
    job, power = answer.levels[-1], answer.power
    t_s = np.arange(len(power.nodes_w)) * power.period_s
    drawn = t_s <= _drawn_s(answer)
    axes.plot(t_s[drawn], power.job_w[drawn] / KILO, color=marks.QUANTITIES["power"], linewidth=0.9)
    for name, end_w in (("low_w", job.low_w), ("high_w", job.high_w)):
        axes.axhline(end_w / KILO, color=marks.GREY, linewidth=0.7, linestyle=(0, (4, 2)))
        if name in job.intervals:
            low_w, high_w = job.intervals[name]
            axes.axhspan(low_w / KILO, high_w / KILO, color=marks.GREY, alpha=0.15, linewidth=0)
    axes.set_xlabel("time (s)")
    axes.set_ylabel("power of the job (kW)")


def _draw_spectrum(axes: Axes, answer: SwingAnswer) -> None:
    power = answer.power
    frequency_hz, amplitude_w = swings.spectrum(power.job_w, power.period_s)
    is_told = (frequency_hz >= swings.LOWEST_PERIODS / power.lasts_s) & (frequency_hz <= answer.seen_hz)
    axes.plot(frequency_hz[is_told], amplitude_w[is_told] / KILO, color=marks.QUANTITIES["power"], linewidth=0.9)
    if answer.band_hz:
        axes.axvspan(*answer.band_hz, color=marks.GREY, alpha=0.15, linewidth=0)
    axes.set_xscale("log")
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.set_ylim(0, None)
    axes.set_xlabel("frequency (Hz)")
    axes.set_ylabel("amplitude (kW)")
