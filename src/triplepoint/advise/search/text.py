"""The answer of a search: rows, one sentence, a table as text, and a study of what is worth measuring."""

import math
from collections.abc import Collection, Mapping
from typing import Any

import yaml

from triplepoint.advise.search.candidate import Candidate
from triplepoint.advise.search.search import OBJECTIVES, Chosen, Found
from triplepoint.config.plan import layout_label
from triplepoint.config.point import settings_of
from triplepoint.status import PredictionStatus
from triplepoint.units import KILO

_SETTINGS = (
    "tp", "pp", "vp", "cp", "ep", "dp", "micro_batch_size", "recompute", "data_parallel_sharding",
    "overlap", "sequence_parallel",
)  # fmt: skip
_SHOWN = 12
"""Rows of the table, besides those to measure."""
_HEADINGS = (
    "fits", "layout", "mbs", "recompute", "overlap", "step s", "slower %", "token/s", "GPU J/token",
    "peak node kW", "max degC", "per Mtoken", "GPU h", "",
)  # fmt: skip
_LIMITS = {
    "step_time_s": ("step time", "s", "--max-step-time"),
    "energy_per_token_j": ("energy of GPUs", "J/token", "--max-energy"),
    "node_power_kw": ("peak of a node", "kW", "--max-node-power"),
    "rack_power_kw": ("peak of a rack", "kW", "--max-rack-power"),
    "power_kw": ("peak of all nodes", "kW", "--max-power"),
    "temp_c": ("hottest GPU", "degC", "--max-temp"),
    "memory_gib": ("memory", "GiB", "--max-memory"),
}


def rows(found: Found) -> list[dict[str, Any]]:
    """Return every configuration that keeps to the limits as a record, best first."""
    measured = set(found.few.rows)
    return [_record(one, number, number - 1 in measured) for number, one in enumerate(found.chosen, 1)]


def _record(one: Chosen, place: int, is_measured: bool) -> dict[str, Any]:
    it, power = one.candidate, one.candidate.prediction.power
    settings = settings_of(it.point)
    values = {name: getattr(it.prediction, name) for name in ("step_time_s", "step_time_lo_s", "step_time_hi_s")}
    slower = zip(("slower_fraction", "slower_lo_fraction", "slower_hi_fraction"), one.slower, strict=True)
    names = (
        "gpu_energy_per_token_j", "gpu_energy_per_token_lo_j", "gpu_energy_per_token_hi_j", "gpu_power_w",
        "gpu_power_peak_w", "gpu_power_peak_lo_w", "gpu_power_peak_hi_w", "gpu_temp_max_c", "gpu_temp_max_lo_c",
        "gpu_temp_max_hi_c",
    )  # fmt: skip
    return {
        "place": place,
        "run": it.run,
        "fits_probability": it.fits_probability,
        "memory_gib": it.memory_gib,
        "num_gpus": it.point.num_gpus,
        **{name: settings[name] for name in _SETTINGS},
        **values,
        **dict(slower),
        "tokens_per_s": tokens_per_s(it),
        **{name: getattr(power, name) for name in names},
        "node_power_w": it.node_power_w,
        "node_power_peak_w": it.node_power_peak_w,
        "rack_power_peak_w": it.rack_power_peak_w,
        "job_power_peak_w": it.job_power_peak_w,
        "cost_per_mtoken": it.cost_per_mtoken,
        "on_front": one.is_on_front,
        "tied_with_fastest": one.is_tied,
        "worth_measuring": one.may_be_best,
        "to_measure": is_measured,
        "gpu_hours_to_measure": one.gpu_hours,
        "nodes_followed": it.followed,
    }


def tokens_per_s(one: Candidate) -> float:
    """Return the throughput of all GPUs together. Unit: token/s."""
    return one.prediction.tokens_per_s_per_gpu * one.point.num_gpus


def measured_content(found: Found) -> dict[str, Any]:
    """Return what measuring the few costs and is worth."""
    return {
        "runs": [one.candidate.run for one in found.to_measure],
        "gpu_hours": sum(one.gpu_hours for one in found.to_measure),
        "probability": found.few.probability,
        "gain_fraction": found.few.gain,
    }


def headline(found: Found) -> str:
    """Return the answer in a sentence."""
    if found.nearest:
        return _no_answer(*found.nearest, found)
    best, num_others = found.chosen[0], sum(one.may_be_best for one in found.chosen) - 1
    it = best.candidate
    low, high = it.prediction.step_time_lo_s, it.prediction.step_time_hi_s
    first = (
        f"{_layout(it)}, micro-batch {it.point.micro_batch_size}, recompute {it.point.recompute}: fits with "
        f"probability {it.fits_probability:.2f}, {it.step_time_s:.3g} s a step ({low:.3g} to {high:.3g}), "
        f"{tokens_per_s(it):,.0f} token/s{_of_objective(it, found)}"
    )
    rest = "no other may be better" if num_others < 1 else f"{num_others} others may be as good or better"
    return "; ".join([first, *_risky(found), rest])


def _risky(found: Found) -> list[str]:
    """Return the best configuration as a clause where it may not fit in memory, and so does not come first."""
    value = OBJECTIVES[found.objective]
    first, best = found.chosen[0].candidate, min((one.candidate for one in found.chosen), key=value)
    if best is first:
        return []
    better = 100 * (1 - value(best) / value(first))
    what = f"{_layout(best)}, micro-batch {best.point.micro_batch_size}, recompute {best.point.recompute}"
    return [f"{what} is {better:.1f} % better but fits with probability {best.fits_probability:.2f} only"]


def _of_objective(one: Candidate, found: Found) -> str:
    """Return what was made small, and the cost where there are prices, as the end of a list; time is in it already."""
    power = one.prediction.power
    words = {
        "energy": f", {power.gpu_energy_per_token_j:.3g} J/token of GPUs",
        "power": f", {one.node_power_peak_w / KILO:.4g} kW a node at most",
        "temperature": f", {power.gpu_temp_max_c:.0f} degC at most",
    }
    unit = f"{found.prices.currency} per M tokens"
    cost = "" if math.isnan(one.cost_per_mtoken) else f", {one.cost_per_mtoken:.4g} {unit} at {found.prices.words}"
    return words.get(found.objective, "") + cost


def _no_answer(one: Candidate, excess: Mapping[str, float], found: Found) -> str:
    """Return the nearest configuration, and what would have to give, in one line."""
    how = f"nearest: {_layout(one)}, micro-batch {one.point.micro_batch_size}, recompute {one.point.recompute}"
    if "fits_probability" in excess:
        need = found.limits.fits_probability
        what = f"needs {one.memory_gib:.0f} GiB a GPU, fits with probability {one.fits_probability:.2f} of {need:g}"
        return f"nothing fits in memory; {how}: {what}; take more GPUs, or offload: [optim]"
    broken, whose = [], [_LIMITS[name][2] for name in found.broken_by_all]
    for name, factor in excess.items():
        words, unit, option = _LIMITS[name]
        limit = getattr(found.limits, name)
        value = "not known" if math.isnan(factor) else f"{limit * factor:.4g} {unit}"
        broken.append(f"{words} {value}, {option} {limit:g}")
    none = f"none keeps to {' nor to '.join(whose)}" if whose else "none keeps to all limits together"
    tried = f", {number} of the slower ones not tried" if (number := found.counts.get("not followed")) else ""
    return f"{none}{tried}; {how}: {'; '.join(broken)}; raise these, or --set other values"


def _layout(one: Candidate) -> str:
    return layout_label(one.point)


def render(found: Found) -> str:
    """Return the answer as text: the sentence, a table, what is worth measuring, and what was left out."""
    lines = [headline(found), ""]
    if found.chosen:
        lines += [*_table(found), "", *_worth(found)]
    return "\n".join([*lines, _counted(found.counts)])


def _counted(counts: Mapping[str, int]) -> str:
    """Return how many configurations were looked at, and what became of those that may fit in memory."""
    looked = {word: counts[word] for word in map(str, PredictionStatus) if counts.get(word)}
    text = f"{sum(looked.values())} configurations: " + ", ".join(f"{number} {word}" for word, number in looked.items())
    rest = ", ".join(f"{number} {word}" for word, number in counts.items() if number and word not in looked)
    return f"{text}. Of those that may fit, {rest}." if rest else f"{text}."


def _table(found: Found) -> list[str]:
    """Return the first configurations and those to measure, one a line."""
    shown = sorted({*range(min(_SHOWN, len(found.chosen))), *found.few.rows})
    cells: list[tuple[str, ...]] = [_HEADINGS, *(_cells(found.chosen[row], row in found.few.rows) for row in shown)]
    if not found.prices.are_given:
        place = _HEADINGS.index("per Mtoken")
        cells = [row[:place] + row[place + 1 :] for row in cells]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in cells]


def _cells(one: Chosen, is_measured: bool) -> tuple[str, ...]:
    it, power = one.candidate, one.candidate.prediction.power
    slower, low, high = (100 * value for value in one.slower)
    marks = {"front": one.is_on_front, "tied": one.is_tied, "measure": is_measured}
    return (
        f"{it.fits_probability:.2f}",
        _layout(it),
        str(it.point.micro_batch_size),
        it.point.recompute,
        ",".join(it.point.overlap) or "none",
        f"{it.step_time_s:.4g}",
        f"{slower:.1f} ({low:.1f} to {high:.1f})",
        f"{tokens_per_s(it):,.0f}",
        _with_half(power.gpu_energy_per_token_j, power.gpu_energy_per_token_lo_j, power.gpu_energy_per_token_hi_j, 3),
        _number(it.node_power_peak_w / KILO, 4),
        _with_half(power.gpu_temp_max_c, power.gpu_temp_max_lo_c, power.gpu_temp_max_hi_c, 0),
        _number(it.cost_per_mtoken, 4),
        f"{one.gpu_hours:.1f}",
        " ".join(word for word, holds in marks.items() if holds),
    )


def _number(value: float, digits: int) -> str:
    return "-" if math.isnan(value) else f"{value:.{digits}g}"


def _with_half(value: float, low: float, high: float, decimals: int) -> str:
    """Return a value with half its 90 % interval; `-` where it is not known."""
    return "-" if math.isnan(value) else f"{value:.{decimals}f} ±{(high - low) / 2:.{decimals}f}"


def _worth(found: Found) -> list[str]:
    """Return what measuring costs and is worth."""
    few, hours = found.few, sum(one.gpu_hours for one in found.to_measure)
    number = sum(one.may_be_best for one in found.chosen)
    if number < 2:
        return ["Nothing to measure: no other interval reaches the first."]
    return [
        f"Worth measuring: {number}, whose intervals reach the best. The {len(few.rows)} marked take {hours:.1f} GPU h;"
        f" the best of all is among them with probability {few.probability:.2f}.",
        f"The best of the marked is expected to be {100 * few.gain:.1f} % better than the first.",
    ]


def study_of(found: Found, name: str) -> str:
    """Return the study of the few to measure, as YAML that `triplepoint plan` reads.

    Args:
        found: The answer.
        name: Of the study.
    """
    question = found.question
    fixed = {"engine": "simulated"} | {key: value for key, value in question.fixed.items() if key != "stack"}
    varied = [_varied(one.candidate, {*fixed, "stack"}) for one in found.to_measure]
    about = f"Configurations of {question.model} on {question.cluster} that may be best in {found.objective}."
    content = {"description": about, "defaults": fixed, "sweeps": [{"axes": {"layout": varied}}]}
    head = f"# Written by `triplepoint search`. To train: `engine: megatron`, `snakemake --config studies={name}`.\n"
    return head + yaml.safe_dump(content, sort_keys=False, width=1000, default_flow_style=None)


def _varied(one: Candidate, fixed: Collection[str]) -> dict[str, Any]:
    """Return the settings of a configuration that are its own, without what has no effect in it."""
    folded = settings_of(one.point)
    own = {name: folded[name] for name in ("overlap", "sequence_parallel", "data_parallel_sharding")}
    values = {name: own.get(name, value) for name, value in one.row.items() if name not in fixed}
    return {name: list(value) if isinstance(value, tuple) else value for name, value in values.items()}
