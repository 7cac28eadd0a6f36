"""The figure of a search: step time against energy, the front, and what is worth measuring."""

from pathlib import Path

from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from pandas import DataFrame

from triplepoint.advise.search.search import Found
from triplepoint.advise.search.text import rows
from triplepoint.config.plan import layout_label
from triplepoint.figures import marks, style
from triplepoint.provenance import git_state


@style.styled
def draw(found: Found) -> Figure:
    """Return step time against energy per token; where that is not known, against memory."""
    table, best = DataFrame(rows(found)), found.chosen[0].candidate
    has_energy = bool(table["gpu_energy_per_token_j"].notna().all())
    column, words = (
        ("gpu_energy_per_token_j", "energy of GPUs (J/token)") if has_energy else ("memory_gib", "memory (GiB)")
    )
    number = int(table["worth_measuring"].sum())
    answer = f"{layout_label(best.point)} {'is fastest' if found.chosen[0].slower[0] == 0.0 else 'first'}"
    kept = "keeps to the limits" if found.has_limits else "fits, or may fit"
    page = style.new_page(
        f"{answer}: {best.step_time_s:.3g} s a step; {number - 1} others may be as good",
        _made_by(best.prediction.laid.job.stack if best.prediction.laid else ""),
        width=style.PAGE,
        height=3.2,
        note=f"A dot is a configuration that {kept}; bars are 90 % intervals of the difference to the fastest. The "
        "front is of step time, energy, peak power of a node and hottest GPU, of which two are drawn.",
    )
    axes = page.axes[0][0]
    fastest_s = table["step_time_s"].min()
    axes.plot(table["step_time_s"], table[column], "o", color=marks.GREY, markersize=2, alpha=0.5)
    front = table[table["on_front"]]
    axes.plot(front["step_time_s"], front[column], "o", color=marks.BLUE, markersize=3.5)
    for _, row in table[table["to_measure"]].iterrows():
        ends = [fastest_s * (1 + row[f"slower_{end}_fraction"]) for end in ("lo", "hi")]
        axes.plot(ends, [row[column]] * 2, "-", color=marks.VERMILION, linewidth=0.6)
        axes.plot([row["step_time_s"]], [row[column]], "o", color=marks.VERMILION, markersize=4.5)
    axes.set(xlabel="step time (s)", ylabel=words)
    named = {kept: marks.GREY, "on the front": marks.BLUE, "to measure": marks.VERMILION}
    page.legend([Line2D([], [], marker="o", linestyle="", color=colour, label=name) for name, colour in named.items()])
    return page.finish()


def _made_by(stack: str) -> DataFrame:
    """Return what the page says of where its numbers are from."""
    values = {"origin": "simulated", "engine": "simulated", "torch_version": None, "stack": stack, "host": None}
    return DataFrame([values | {"git_commit": git_state(Path(__file__).parent)[0] or ""}])
