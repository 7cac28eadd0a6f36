"""Figure `projection`: throughput, energy and failures of a training job on more GPUs, by network."""

from collections.abc import Mapping
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter
from pandas import DataFrame, Series

from triplepoint.effects import Effect
from triplepoint.effects.titles import Statement
from triplepoint.figures import marks, style
from triplepoint.text import LEAST_SHOWN
from triplepoint.units import S_PER_HOUR

NOTE = "Bands: 90 % intervals{shared}. Dashed: tokens that failures leave. MTTF: mean time to failure of the job."
SHARED = "; networks share most errors"


@style.styled
def draw(tables: Mapping[str, DataFrame]) -> tuple[Figure, DataFrame]:
    """Return the figure of a projection and the numbers it plots, one row per network and number of GPUs.

    Args:
        tables: `projection`, of one job.
    """
    networks = list(dict.fromkeys(tables["projection"]["network"]))
    rows = tables["projection"].sort_values("num_gpus", kind="stable")
    note = NOTE.format(shared=SHARED if len(networks) > 1 else "")
    has_power = bool(rows["power_w"].notna().all())
    page = style.new_page(
        answer(rows), rows.assign(engine="simulated", torch_version=None, host=None), 1, 3, style.PAGE, 2.9, note
    )
    energy = "" if has_power else "power of this GPU type is not known"
    page.head([("Speed", _kept_text(rows)), ("Energy", energy), ("Failures", _failures_text(rows))])
    (throughput, power, failures) = page.axes[0]
    for colour, network in zip(marks.DEVICES, networks, strict=False):
        of_network = rows[rows["network"] == network]
        per_gpu = 1 / of_network["num_gpus"]
        _band(throughput, of_network, "tokens_per_s", per_gpu, colour)
        throughput.plot(
            of_network["num_gpus"], of_network["kept_tokens_per_s"] * per_gpu, "--", color=colour, linewidth=0.9
        )
        if has_power:
            _band(power, of_network, "node_energy_per_token_j", 1.0, colour)
    once = rows[rows["network"] == networks[0]]
    _band(failures, once, "mttf_s", 1 / S_PER_HOUR, marks.BLACK)
    for axes, label in (
        (throughput, "token/s per GPU"), (power, "node energy (J/token)"), (failures, "MTTF (h)"),
    ):  # fmt: skip
        axes.set(xscale="log", xlabel="GPUs", ylabel=label)
        sizes = sorted(set(rows["num_gpus"]))
        axes.set_xticks(sizes, [f"{size:,}" for size in sizes], rotation=30)
        axes.minorticks_off()
    throughput.set_ylim(0, None)
    power.set_ylim(0, None)
    if not has_power:
        power.set(xticks=[], yticks=[])
    failures.set_yscale("log")
    failures.minorticks_off()
    failures.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    page.legend([
        Line2D([], [], color=colour, marker="o", markersize=3, label=network)
        for colour, network in zip(marks.DEVICES, networks, strict=False)
    ])  # fmt: skip
    return page.finish(), rows


def answer(rows: DataFrame) -> list[Statement]:
    """Return the title, at the largest number of GPUs: step time of each other network over that of the first.

    With one network, tokens per GPU against those at the start.
    """
    sized = _largest(rows)
    first = sized.iloc[0]
    lines = []
    if len(sized) == 1:
        value, low, high = (float(first[f"efficiency{end}"]) - 1 for end in ("", "_lo", "_hi"))
        change = Effect(value, low, high, "model", 1)
        more = f"{change.text} more" if change.value > 0 else f"{change.negated.text} fewer"
        sentence = f"on {first['num_gpus']:,} GPUs each trains {more} tokens per second than on {first['start_gpus']:,}"
        lines.append(Statement(sentence + ", a tie" * change.is_tie, "network", change, "", (_failures_text(rows),)))
    for _, row in sized.iloc[1:].iterrows():
        value, low, high = (row[f"step_time_over_first{end}"] - 1 for end in ("", "_lo", "_hi"))
        change = Effect(value, low, high, "model", 1)
        difference = f"{change.text} longer" if change.value > 0 else f"{change.negated.text} shorter"
        if max(abs(low), abs(high)) < LEAST_SHOWN:
            difference = "as long"
        elif change.is_tie:
            difference += ", a tie"
        networks = f"{row['network']} instead of {first['network']}"
        sentence = f"with {networks} steps of {first['num_gpus']:,} GPUs are {difference}"
        others = (_kept_text(rows).replace("\n", " "), _failures_text(rows))
        lines.append(Statement(sentence, "network", change, "", others))
    return lines


def _largest(rows: DataFrame) -> DataFrame:
    """Return the rows with the largest number of GPUs, one per network."""
    return DataFrame(rows[rows["num_gpus"] == rows["num_gpus"].max()])


def _kept_text(rows: DataFrame) -> str:
    """Return a note: share of the speed per GPU that is kept at the largest size on the first network."""
    first = _largest(rows).iloc[0]
    return f"{first['network']} keeps {_percent(first, 'efficiency')}\nof the speed per GPU of {first['start_gpus']:,}"


def _failures_text(rows: DataFrame) -> str:
    """Return a note: share of tokens that failures leave at the largest size on the first network."""
    return f"they leave {_percent(_largest(rows).iloc[0], 'goodput')} of the tokens"


def _percent(row: "Series[Any]", name: str) -> str:
    """Return a share and its interval in per cent."""
    value, low, high = (100 * row[f"{name}{end}"] for end in ("", "_lo", "_hi"))
    return f"{value:.0f} % [{low:.0f}, {high:.0f}]"


def _band(axes: Axes, rows: DataFrame, name: str, scale: "Series[Any] | float", colour: str) -> None:
    """Draw a quantity times `scale` over the number of GPUs, with the band of its interval."""
    axes.plot(rows["num_gpus"], rows[name] * scale, "o-", color=colour, markersize=3, linewidth=1.1)
    axes.fill_between(
        rows["num_gpus"], rows[f"{name}_lo"] * scale, rows[f"{name}_hi"] * scale, color=colour, alpha=0.15, linewidth=0
    )
