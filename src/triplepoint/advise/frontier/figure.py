"""Figure of step time against energy: the frontier for each sharing of clocks, the present step, and the plan."""

from collections.abc import Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from pandas import DataFrame

from triplepoint.advise.frontier.frontier import FrontierAnswer, Outcome
from triplepoint.advise.frontier.plan import SHARINGS, Plan
from triplepoint.advise.frontier.text import NAMES, headline
from triplepoint.figures import marks, style

_LINES = {"stage": (marks.BLUE, "-"), "direction": (marks.ORANGE, "--"), "pass": (marks.GREEN, ":")}
"""Colour and dashes of the frontier by sharing of clocks."""
_NOTE = "{stages} stages, {number} micro-batches. Lines: sum over passes. Marks: whole steps, simulated; bars: 90 %."


@style.styled
def draw(answer: FrontierAnswer) -> Figure:
    """Return the figure."""
    made_by = {"origin": "simulated", "engine": None, "torch_version": None, "stack": answer.site.job.stack}
    points = DataFrame([made_by | {"git_commit": None, "host": None}]).astype(object)
    job = answer.site.job
    note = _NOTE.format(stages=job.layout.pp, number=job.num_microbatches)
    page = style.new_page(headline(answer).removesuffix("."), points, 1, 1, style.COLUMN, 3.2, note)
    page.legend(_draw_lines(page.axes[0][0], answer))
    return page.finish()


def _draw_lines(axes: Axes, answer: FrontierAnswer) -> list[Line2D]:
    """Draw lines and marks; return them for the legend."""
    present, lines = answer.present, list[Line2D]()

    def add(outcomes: Sequence[Plan | Outcome], name: str, color: str, **look: Any) -> None:
        slowdown = [100.0 * (outcome.step_s / present.step_s - 1.0) for outcome in outcomes]
        energy = [100.0 * outcome.gpu_energy_j / present.gpu_energy_j for outcome in outcomes]
        lines.extend(axes.plot(slowdown, energy, color=color, label=name, **look))

    for sharing in SHARINGS:
        color, dashes = _LINES[sharing]
        plans = [plan for plan in answer.points if plan.sharing == sharing]
        add(plans, NAMES[sharing], color, linestyle=dashes, linewidth=1.0)
    add([present], "as it is", marks.BLACK, marker="s", linestyle="", markersize=4)
    within, plan = answer.intervals["plan"], answer.change
    bars = [
        [[100.0 * (value - ends.lo)], [100.0 * (ends.hi - value)]]
        for value, ends in ((plan.longer, within.longer), (plan.saved, within.saved))
    ]
    # More saved is less energy, so the ends change places.
    axes.errorbar(
        100.0 * plan.longer, 100.0 * (1.0 - plan.saved), xerr=bars[0], yerr=bars[1][::-1], color=marks.VERMILION,
        linewidth=0.8, capsize=2.0,
    )  # fmt: skip
    add([answer.verified], "the plan", marks.VERMILION, marker="o", linestyle="", markersize=5)
    axes.set(xlabel="step longer than now by (%)", ylabel="energy of GPUs (% of now)")
    return lines
