"""What factors do, as aligned text: one block for each point, one for the difference."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any

from triplepoint.prices import J_PER_KWH

Row = Mapping[str, Any]

_HEADINGS = {
    "step_time_s": "time s",
    "gpu_power_w": "GPU W",
    "node_power_w": "mean node W",
    "gpu_temp_max_c": "hottest K",
    "node_energy_j": "node kJ",
    "cost": "cost",
}
_SCALE = {"node_energy_j": 1e-3}
"""Energies of a step are millions of joules."""


def render(rows: Sequence[Row]) -> str:
    """Return rows of table `whatif` as text."""
    blocks = [list(block) for _, block in groupby(rows, key=lambda row: (row["case"], row["side"]))]
    return "\n\n".join("\n".join(_block(block)) for block in blocks)


def headline(rows: Sequence[Row]) -> str:
    """Return what matters most to a point, or makes most of a difference, in one line.

    Args:
        rows: Of the step time of one point or difference.
    """
    is_difference = rows[0]["side"] == "difference"
    parts = [row for row in rows if row["part"] == "factor" or (is_difference and row["part"] == "rest")]
    largest = max(parts, key=lambda row: abs(row["effect"]))
    whole = next(row for row in rows if row["part"] == "whole")
    to = f" ({largest['value']})" if largest["part"] == "factor" and largest["value"] else ""
    if is_difference:
        return f"The largest part of the difference is {largest['label']}: {_percent(largest)} of {_percent(whole)}"
    return f"Step time changes most by {largest['label']}{to}: {_percent(largest)}; all together {_percent(whole)}"


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
            over = f"{simulated_s:.4g} s, {simulated_s / measured_s - 1:+.1%}"
            yield f"{run}: measured {measured_s:.4g} s a step in the median, simulated {over}"


def _block(rows: Sequence[Row]) -> Iterator[str]:
    names = list(dict.fromkeys(row["quantity"] for row in rows))
    parts = _by_part(rows)
    first = {row["quantity"]: row for row in rows if row["part"] == "whole"}
    is_difference = rows[0]["side"] == "difference"
    yield f"{rows[0]['case']}: {headline([row for row in rows if row['quantity'] == names[0]])}"
    ends = ", ".join(f"{_HEADINGS[name].replace(' K', ' degC')} {_ends(first[name])}" for name in names)
    yield f"  {'from one to the other' if is_difference else 'as it is, and all together'}: {ends}"
    money = list(_money(rows))
    names = [name for name in names if not (money and name == "cost")]
    has_shapley = any(row["shapley"] is not None for row in rows)
    lines = [["part", "to", "time s", "%", "90 % interval of %", *(["Shapley s"] if has_shapley else [])]]
    lines[0] += [_HEADINGS[name] for name in names[1:]]
    lines += [_line(some, names, has_shapley) for some in parts.values()]
    yield from _aligned(lines, 2)
    yield from money
    yield from (f"  {row['label']}: {row['note']}" for row in rows if row.get("note") and row["quantity"] == names[0])


def _aligned(lines: Sequence[Sequence[str]], num_words: int) -> Iterator[str]:
    """Yield lines of cells in columns: so many of words, the others of numbers."""
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    for line in lines:
        words = map(str.ljust, line[:num_words], widths[:num_words])
        numbers = map(str.rjust, line[num_words:], widths[num_words:])
        yield ("  " + "  ".join([*words, *numbers])).rstrip()


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
    cells = [name, time["value"] or "", f"{time['effect']:+.3f}", percent[0], f"{percent[1]} to {percent[2]}"]
    if has_shapley:
        cells.append("" if time["shapley"] is None else f"{time['shapley']:+.3f}")
    return cells + [f"{_SCALE.get(name, 1.0) * by_name[name]['effect']:+.3g}" for name in names[1:]]


_MONEY = ("per step", "per M tokens", "per day")
"""What energy and money are of."""


def _money(rows: Sequence[Row]) -> Iterator[str]:
    """Yield energy and money by part, of a step, a million tokens and the steps of a day; nothing without prices."""
    energy, cost = ([row for row in rows if row["quantity"] == name] for name in ("node_energy_j", "cost"))
    if not cost or cost[0]["steps_per_mtoken"] is None:
        return
    first, unit = cost[0], cost[0]["unit"]
    scales = (1.0, first["steps_per_mtoken"], first["steps_per_day"])
    yield f"  at {first['prices']}; a day is {first['steps_per_day']:,.0f} steps, as many as it takes as it is"
    units = ["kWh", unit] if energy else [unit]
    lines = [["part", *(f"{what} {of}" for what in units for of in _MONEY), "90 % interval of it"]]
    base = [*(row["base"] / J_PER_KWH for row in energy[:1]), first["base"]]
    lines.append(["as it is", *(f"{value * scale:.4g}" for value in base for scale in scales), ""])
    for place, paid in enumerate(cost):
        name = paid["factor"] or paid["label"]
        values = [*(row["effect"] / J_PER_KWH for row in energy[place : place + 1]), paid["effect"]]
        ends = " to ".join(_change(paid[end] * scales[2]) for end in ("effect_lo", "effect_hi"))
        lines.append([name, *(_change(value * scale) for value in values for scale in scales), ends])
    yield from _aligned(lines, 1)


def _change(value: float) -> str:
    """Return a change with its sign, of money and energy: three digits, all before the point."""
    return f"{value:+,.0f}" if abs(value) >= 100 else f"{value:+.3g}"


def _ends(row: Row) -> str:
    scale = _SCALE.get(row["quantity"], 1.0)
    return f"{scale * row['base']:.4g} -> {scale * row['changed']:.4g}"
