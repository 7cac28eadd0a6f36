"""What factors do, as aligned text: one block for each point, one for the difference."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any

from triplepoint.prices import J_PER_KWH
from triplepoint.text import page, paragraph, percent, signed_percent, table

Row = Mapping[str, Any]

_LEGEND = (
    "The first and the last row are absolute values, those between are changes; brackets are 90 % intervals. "
    "Interaction is what changes do together beyond their sum."
)

_HEADINGS = {
    "step_time_s": "step\ns",
    "gpu_power_w": "GPU\nW",
    "node_power_w": "node\nW",
    "gpu_temp_max_c": "hottest\ndegC",
    "node_energy_j": "node\nkJ/step",
    "cost": "cost",
}
SMALL = 0.001
"""Relative change of a step time that counts as none. Our choice."""
_SCALE = {"node_energy_j": 1e-3}
"""Energies of a step are millions of joules."""


def render(rows: Sequence[Row]) -> str:
    """Return rows of table `whatif` as text: differences first, then each point, then what the rows are."""
    blocks = [list(block) for _, block in groupby(rows, key=lambda row: (row["case"], row["side"]))]
    blocks.sort(key=lambda block: block[0]["side"] != "difference")
    is_single = len({row["factor"] for row in rows if row["factor"]}) == 1
    is_difference = blocks[0][0]["side"] == "difference"
    legend = "Brackets are 90 % intervals." if is_single and not is_difference else _LEGEND
    if is_difference:
        legend += " Computing is what is left of a difference with all factors changed."
    if any(row["shapley"] is not None for row in rows) and not (is_single and not is_difference):
        legend += " Shapley is what a factor adds on average over all orders of changes."
    return "\n\n".join([*(page(_block(block)) for block in blocks), "\n".join(paragraph(legend))])


def headline(rows: Sequence[Row]) -> str:
    """Return what changes a step most, or makes most of a difference, in one sentence.

    Args:
        rows: Of the step time of one point or difference.
    """
    is_difference = rows[0]["side"] == "difference"
    parts = [row for row in rows if row["part"] == "factor" or (is_difference and row["part"] == "rest")]
    largest = max(parts, key=lambda row: abs(row["effect"]))
    whole = next(row for row in rows if row["part"] == "whole")
    to = f" ({largest['value']})" if largest["part"] == "factor" and largest["value"] else ""
    if not is_difference and max(abs(row["share"]) for row in (*parts, whole)) < SMALL:
        none = f"{largest['label'][0].upper()}{largest['label'][1:]}{to} changes the step time by less"
        if len(parts) > 1:
            none = f"None of the {len(parts)} factors, nor all together, changes the step time by more"
        return f"{none} than {percent(SMALL)}."
    if is_difference:
        low, high, how = 100 * whole["share_lo"], 100 * whole["share_hi"], "longer"
        if whole["share"] < 0:
            low, high, how = -high, -low, "shorter"
        return (
            f"The second step is {percent(abs(whole['share']))} {how} [{low:.1f}, {high:.1f}]. Most of the difference "
            f"comes from {largest['label']}: {_percent(largest)} of the first step."
        )
    together = f"; all changes together: {_percent(whole)}" if len(parts) > 1 else ""
    return f"Step time changes most with {largest['label']}{to}: {_percent(largest)}{together}."


def _percent(row: Row) -> str:
    return f"{100 * row['share']:+.1f} % [{100 * row['share_lo']:+.1f}, {100 * row['share_hi']:+.1f}]"


def headlines(rows: Sequence[Row]) -> list[str]:
    """Return the answer to each point and difference, in one line each."""
    times = [row for row in rows if row["quantity"] == "step_time_s"]
    blocks = groupby(times, key=lambda row: (row["case"], row["side"]))
    return [f"{case}: {headline(list(block))}" for (case, _), block in blocks]


def render_measured(rows: Sequence[Row], measured: Mapping[str, float]) -> Iterator[str]:
    """Yield how far the simulated step of each measured run is from its median measured one.

    Args:
        rows: Of table `whatif`.
        measured: Seconds of a step by run.
    """
    for run, measured_s in measured.items():
        own = (row for row in rows if row["case"] == run and row["quantity"] == "step_time_s")
        simulated_s = next((row["base"] for row in own), None)
        if simulated_s is not None:
            over = f"{simulated_s:.4g} s, {signed_percent(simulated_s / measured_s - 1)}"
            yield f"Measured: {measured_s:.4g} s a step in the median of run {run}; simulated {over}"


def _block(rows: Sequence[Row]) -> Iterator[Sequence[str]]:
    """Yield the blocks of one point or difference: the sentence, the changes, and energy and money."""
    names = list(dict.fromkeys(row["quantity"] for row in rows))
    parts = _by_part(rows)
    first = {row["quantity"]: row for row in rows if row["part"] == "whole"}
    is_difference = rows[0]["side"] == "difference"
    yield [
        *paragraph(headline([row for row in rows if row["quantity"] == names[0]])),
        *paragraph(f"{'From and to' if is_difference else 'Job'}: {rows[0]['case']}, simulated"),
    ]
    money = list(_money(rows))
    names = [name for name in names if not (money and name == "cost")]
    has_shapley = any(row["shapley"] is not None for row in rows)
    # With a single factor, interaction is nothing and all together is the factor.
    is_single = not is_difference and len([part for part, _ in parts if part == "factor"]) == 1
    has_shapley = has_shapley and not is_single
    heading = ["", "", _HEADINGS[names[0]], "%", "90 %\ninterval", *(["Shapley\ns"] if has_shapley else [])]
    heading += [_HEADINGS[name] for name in names[1:]]
    ends = [
        _line_of_ends(words, column, first, names, has_shapley)
        for words, column in zip(_ENDS[is_difference], ("base", "changed"), strict=True)
    ]
    changes = [
        _line(some, names, has_shapley) for (part, _), some in parts.items() if part == "factor" or not is_single
    ]
    notes = [row for row in rows if row.get("note") and row["quantity"] == names[0]]
    yield [
        *table([heading, ends[0], *changes, ends[1]], words={0, 1}),
        *(line for row in notes for line in paragraph(f"{row['label']} here: {row['note']}")),
    ]
    yield money


_ENDS = {False: ("as it is", "all changed"), True: ("from", "to")}
"""What the first and the last row of a table are, of a point and of a difference."""


def _line_of_ends(
    words: str, column: str, first: Mapping[str, Row], names: Sequence[str], has_shapley: bool
) -> list[str]:
    values = [_SCALE.get(name, 1.0) * first[name][column] for name in names]
    return [words, "", f"{values[0]:.4g}", *[""] * (2 + has_shapley), *(f"{value:.4g}" for value in values[1:])]


def _by_part(rows: Sequence[Row]) -> dict[tuple[str, str | None], list[Row]]:
    found: dict[tuple[str, str | None], list[Row]] = {}
    for row in rows:
        found.setdefault((row["part"], row["factor"]), []).append(row)
    return found


def _line(rows: Sequence[Row], names: Sequence[str], has_shapley: bool) -> list[str]:
    by_name = {row["quantity"]: row for row in rows}
    time = by_name[names[0]]
    name = time["factor"] or time["label"]
    percent = [f"{100 * time[column]:+.1f}" for column in ("share", "share_lo", "share_hi")]
    cells = [name, time["value"] or "", f"{time['effect']:+.3f}", percent[0], f"[{percent[1]}, {percent[2]}]"]
    if has_shapley:
        cells.append("" if time["shapley"] is None else f"{time['shapley']:+.3f}")
    return cells + [_change(_SCALE.get(name, 1.0) * by_name[name]["effect"]) for name in names[1:]]


def _money(rows: Sequence[Row]) -> Iterator[str]:
    """Yield energy and money by part, of a step, a million tokens and the steps of a day; nothing without prices."""
    energy, cost = ([row for row in rows if row["quantity"] == name] for name in ("node_energy_j", "cost"))
    if not cost or cost[0]["steps_per_mtoken"] is None:
        return
    first, unit = cost[0], cost[0]["unit"]
    scales = (1.0, first["steps_per_mtoken"], first["steps_per_day"])
    yield from paragraph(
        f"Energy and money at {first['prices']}. A day is {first['steps_per_day']:,.0f} steps: as many as the job "
        "takes in a day as it is."
    )
    units = ["kWh", unit] if energy else [unit]
    heading = [
        "",
        *(f"{what} per\n{of}" for what in units for of in ("step", "M tokens", "day")),
        "90 % interval\nper day",
    ]
    base = [*(row["base"] / J_PER_KWH for row in energy[:1]), first["base"]]
    lines = [heading, ["as it is", *(f"{value * scale:,.4g}" for value in base for scale in scales), ""]]
    for place, paid in enumerate(cost):
        name = paid["factor"] or paid["label"]
        values = [*(row["effect"] / J_PER_KWH for row in energy[place : place + 1]), paid["effect"]]
        ends = ", ".join(_change(paid[end] * scales[2]) for end in ("effect_lo", "effect_hi"))
        lines.append([name, *(_change(value * scale) for value in values for scale in scales), f"[{ends}]"])
    yield from table(lines)


def _change(value: float) -> str:
    """Return a change with its sign, of money and energy: three digits, all before the point."""
    return f"{value:+,.0f}" if abs(value) >= 100 else f"{value:+.3g}"
