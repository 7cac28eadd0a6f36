"""Figure of an advice: thermal resistance of every slot with its interval, and the gain of what was considered."""

import textwrap
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from pandas import DataFrame

from triplepoint.advise.recommend.advice import Advice
from triplepoint.advise.recommend.passport import Passport
from triplepoint.advise.recommend.placement import Seat
from triplepoint.advise.recommend.placement_gain import Gain
from triplepoint.advise.recommend.text import figure_title, goal_of, words
from triplepoint.figures import marks, style

_NOTE = "Bars: 90 % intervals. A change is recommended only if its whole interval is above 0."
_LABEL = 24
"""Characters per line of the name of a change."""
_SPREAD = 0.36
"""Distance of the outermost GPUs of a node from its middle, in distances between nodes."""
_MOST_NAMED = 6
"""Single GPUs that stand out and are named above their mark."""
_HEADROOM = 1.25
"""Upper end of the axis over the highest interval: a name fits between."""
_MOST_NODES = 16
"""Nodes whose names fit below the panel."""


class _Change(NamedTuple):
    """A change that was considered.

    Attributes:
        name: The change in words.
        gain: Share that it saves of a step's time, or of its energy.
        is_accepted: Whether it is recommended.
    """

    name: str
    gain: Gain
    is_accepted: bool


@style.styled
def draw(advice: Advice) -> Figure:
    """Return the figure."""
    passport, changes = advice.passport, _changes(advice)
    num_lines = sum(textwrap.fill(change.name, _LABEL).count("\n") + 2 for change in changes)
    page = style.new_page(
        figure_title(advice), _origin(advice), 1, 1 if passport is None else 2, style.PAGE,
        max(3.0, 1.6 + 0.13 * num_lines), _NOTE, **({} if passport is None else {"width_ratios": [1.6, 1.0]}),
    )  # fmt: skip
    handles = list[Artist]()
    if passport is not None:
        handles += _draw_slots(page.axes[0][0], advice, passport)
    handles += _draw_changes(page.axes[0][-1], advice, changes)
    if handles:
        page.legend(handles)
    return page.finish()


def _changes(advice: Advice) -> list[_Change]:
    """Return the placements and power limits that were considered."""
    placements = [
        _Change(words(advice, proposal.placement), proposal.gain, advice.is_recommended(proposal))
        for proposal in advice.considered
    ]
    limits = [_Change(goal_of(each.caps), each.gain, each.gain.is_accepted) for each in advice.limits]
    return [*placements, *limits]


def _origin(advice: Advice) -> DataFrame:
    """Return what the stamp and the provenance need: slots are of the run, gains are simulated."""
    made_by = {"engine": "simulated", "torch_version": None, "stack": advice.site.job().stack, "git_commit": None}
    origins = ["simulated"]
    if advice.passport is not None and not advice.is_simulated:
        origins.append("measured")
    return DataFrame([made_by | {"origin": origin, "host": None} for origin in origins]).astype(object)


def _draw_slots(axes: Axes, advice: Advice, passport: Passport) -> list[Artist]:
    """Draw the resistance of every slot, by node and position; return the legend."""
    costly = frozenset[Seat]().union(*(outlier.seats for outlier in advice.costly))
    minor = frozenset[Seat]().union(*(outlier.seats for outlier in advice.minor)) - costly
    nodes = sorted({slot.node for slot in passport.slots})
    num_devices = max(slot.device for slot in passport.slots) + 1
    size, width = (3.5, 0.8) if len(nodes) <= _MOST_NODES else (2.0, 0.4)
    looks: dict[str, dict[str, Any]] = {
        "usual": {"color": marks.BLUE, "marker": "o"},
        "stands out, costs less than 0.1 %": {"color": marks.VERMILION, "marker": "o", "markerfacecolor": "white"},
        "costs time": {"color": marks.VERMILION, "marker": "D"},
    }
    names, drawn = list(looks), set[str]()
    single = {outlier.seats for outlier in advice.outliers if len(outlier.seats) == 1}
    named = list[tuple[float, float, str]]()
    for slot in passport.slots:
        seat = slot.node, slot.device
        name = names[2] if seat in costly else names[1] if seat in minor else names[0]
        x = nodes.index(slot.node) + _SPREAD * (2 * slot.device / max(num_devices - 1, 1) - 1)
        ends = [slot.resistance.lo, slot.resistance.hi]
        axes.plot([x, x], ends, "-", color=looks[name]["color"], linewidth=width)
        axes.plot([x], [slot.resistance.value], linestyle="", markersize=size, **looks[name])
        drawn.add(name)
        if frozenset([seat]) in single:
            named.append((x, slot.resistance.hi, f"gpu{slot.device}"))
    for x, value, name in named if len(named) <= _MOST_NAMED else ():
        # Upright and above its interval, a name does not reach the marks beside it.
        axes.annotate(name, (x, value), (0, 3), textcoords="offset points", ha="center", va="bottom", rotation=90)
    labels = [f"node{node}" for node in nodes]
    step = -(-len(nodes) // _MOST_NODES)
    axes.set_xticks(range(0, len(nodes), step), labels[::step])
    axes.set_xlim(-0.6, len(nodes) - 0.4)
    axes.set_ylim(0.0, _HEADROOM * max(slot.resistance.hi for slot in passport.slots))
    axes.set(xlabel=f"node, gpu0 to gpu{num_devices - 1} from left to right", ylabel="resistance, die to air (K/W)")
    return [
        Line2D([], [], linestyle="", markersize=3.5, label=name, **look)
        for name, look in looks.items()
        if name in drawn
    ]


def _draw_changes(axes: Axes, advice: Advice, changes: Sequence[_Change]) -> list[Artist]:
    """Draw the gain of every change with its interval, the first at the top; return the legend."""
    axes.set_xlabel("time or energy of a step saved (%)")
    if not changes:
        axes.set_axis_off()
        why = "No change was found that saves more than 0.1 %."
        if advice.withheld:
            why = f"Placement and power limits are {advice.withheld}"
        axes.text(0.5, 0.5, textwrap.fill(why, _LABEL + 6), ha="center", va="center", transform=axes.transAxes)
        return []
    looks: dict[bool, dict[str, Any]] = {
        True: {"color": marks.GREEN, "marker": "s", "label": "recommended"},
        False: {"color": marks.GREY, "marker": "s", "markerfacecolor": "white", "label": "not recommended"},
    }
    for row, change in enumerate(changes):
        look = looks[change.is_accepted]
        ends = 100.0 * np.array([change.gain.lo, change.gain.hi])
        axes.plot(ends, [row, row], color=look["color"], marker="|", markersize=3, linewidth=0.8)
        axes.plot([100.0 * change.gain.share], [row], linestyle="", markersize=4, **look)
    axes.set_yticks(range(len(changes)), [textwrap.fill(change.name, _LABEL) for change in changes])
    axes.set_ylim(len(changes) - 0.4, -0.6)
    axes.axvline(0.0, color=marks.BLACK, linewidth=0.5)
    axes.tick_params(axis="y", length=0)
    axes.grid(visible=False, axis="y")
    axes.grid(visible=True, axis="x")
    accepted = {change.is_accepted for change in changes}
    return [Line2D([], [], linestyle="", markersize=4, **looks[each]) for each in (True, False) if each in accepted]
