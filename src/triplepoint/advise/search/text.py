"""The answer of a search: rows, one sentence, a table as text, and a study of what is worth measuring."""

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import yaml

from triplepoint.advise.search.candidate import Candidate
from triplepoint.advise.search.limits import LIMIT_WORDS
from triplepoint.advise.search.search import OBJECTIVES, Chosen, Found
from triplepoint.advise.search.space import with_power_limit
from triplepoint.config.catalogue import Catalogue
from triplepoint.config.cluster import ClusterConfig
from triplepoint.config.plan import layout_label
from triplepoint.config.point import settings_of
from triplepoint.status import PredictionStatus
from triplepoint.text import page, paragraph, percent, table
from triplepoint.units import KILO, counted

_SETTINGS = (
    "tp", "pp", "vp", "cp", "ep", "dp", "micro_batch_size", "recompute", "data_parallel_sharding",
    "overlap", "sequence_parallel",
)  # fmt: skip
_SHOWN = 12
"""Rows of the table, besides those to measure."""
_BEST = {
    "time": "is predicted fastest",
    "energy": "is predicted to take the least energy",
    "power": "is predicted to have the lowest peak power of a node",
    "temperature": "is predicted to keep GPUs coolest",
    "cost": "is predicted cheapest",
}


_AGAINST_FASTEST = {"time": "slower", "energy": "more_energy", "power": "more_node_power_peak"}
"""Names of the differences to the fastest configuration, by objective."""
_ENDS = ("", "_lo", "_hi")


def rows(found: Found) -> list[dict[str, Any]]:
    """Return every configuration that keeps to the limits as a record, best first."""
    measured = set(found.few.rows)
    return [_record(one, number, number - 1 in measured) for number, one in enumerate(found.chosen, 1)]


def _record(one: Chosen, place: int, is_measured: bool) -> dict[str, Any]:
    it, power = one.candidate, one.candidate.prediction.power
    settings = settings_of(it.point)
    values = {name: getattr(it.prediction, name) for name in ("step_time_s", "step_time_lo_s", "step_time_hi_s")}
    against = {
        f"{stem}{end}_fraction": value
        for objective, stem in _AGAINST_FASTEST.items()
        for end, value in zip(_ENDS, one.against_fastest[objective], strict=True)
    }
    hotter = one.against_fastest["temperature"]
    fastest_c = power.gpu_temp_max_c / (1.0 + hotter[0])
    against |= {f"hotter{end}_k": fastest_c * value for end, value in zip(_ENDS, hotter, strict=True)}
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
        "power_limit_w": it.power_limit_w,
        **{name: settings[name] for name in _SETTINGS},
        **values,
        **against,
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
    """Return the answer in one line: the first configuration, or why there is none."""
    if not found.chosen:
        assert found.nearest is not None, "an answer without a choice names the nearest configuration"
        return _no_answer(*found.nearest, found)
    it = found.chosen[0].candidate
    low, high = it.prediction.step_time_lo_s, it.prediction.step_time_hi_s
    limited = "Within the limits, " if found.has_limits else ""
    first = (
        f"{limited}{_described(it)} {_BEST[found.objective]}: {it.step_time_s:.3g} s a step [{low:.3g}, {high:.3g}], "
        f"{tokens_per_s(it):,.0f} tokens/s{_of_objective(it, found)}. It fits in memory with a probability of "
        f"{_sure(it)}."
    )
    num_others = sum(one.may_be_best for one in found.chosen) - 1
    rest = "No other may be better." if num_others < 1 else f"{counted(num_others, 'other')} may be as good or better."
    return " ".join([first, *_risky(found), rest])


def _described(one: Candidate) -> str:
    """Return the layout, micro-batch, recomputation and power limit of a configuration in words."""
    recompute = {"none": "no", "selective": "selective", "full": "full"}[one.point.recompute]
    parts = [f"micro-batch {one.point.micro_batch_size}", f"{recompute} recomputation"]
    if one.power_limit_w is not None:
        parts = [", ".join(parts), f"GPUs limited to {one.power_limit_w:g} W"]
    return f"{layout_label(one.point)} with {' and '.join(parts)}"


def _sure(one: Candidate) -> str:
    """Return the probability of fitting in memory; never all of it, which nobody knows."""
    return "over 99 %" if one.fits_probability > 0.99 else percent(one.fits_probability, 0)


def _risky(found: Found) -> list[str]:
    """Return the best configuration as a sentence where it may not fit in memory, and so does not come first."""
    value = OBJECTIVES[found.objective]
    first, best = found.chosen[0].candidate, min((one.candidate for one in found.chosen), key=value)
    if best is first:
        return []
    better = percent(1 - value(best) / value(first))
    return [f"{_described(best)} would be {better} better, but fits with a probability of only {_sure(best)}."]


def _of_objective(one: Candidate, found: Found) -> str:
    """Return what was made small, and the cost where there are prices, as the end of a list; time is in it already."""
    power = one.prediction.power
    words = {
        "energy": f", {power.gpu_energy_per_token_j:.3g} J/token of GPUs",
        "power": f", a node peaks at {one.node_power_peak_w / KILO:.4g} kW",
        "temperature": f", the hottest GPU has {power.gpu_temp_max_c:.0f} degC",
    }
    unit = f"{found.prices.currency} per million tokens"
    cost = "" if math.isnan(one.cost_per_mtoken) else f", {one.cost_per_mtoken:.4g} {unit} at {found.prices.words}"
    return words.get(found.objective, "") + cost


def _no_answer(one: Candidate, excess: Mapping[str, float], found: Found) -> str:
    """Return the nearest configuration, and what would have to give, in one line."""
    if "fits_probability" in excess:
        need = percent(found.limits.fits_probability, 0)
        return (
            f"No configuration fits in memory. The nearest, {_described(one)}, needs {one.memory_gib:.0f} GiB a GPU "
            f"and fits with a probability of {percent(one.fits_probability, 0)}; {need} is asked for. Take more GPUs, "
            "or --set offload=[optim]."
        )
    broken, whose = [], [LIMIT_WORDS[name][2] for name in found.broken_by_all]
    for name, factor in excess.items():
        words, unit, option = LIMIT_WORDS[name]
        limit = getattr(found.limits, name)
        value = "not known" if math.isnan(factor) else f"{limit * factor:.4g} {unit}"
        broken.append(f"{words} {value} ({option} {limit:g})")
    which = f"keeps to {' or to '.join(whose)}" if whose else "keeps to all limits together"
    number = found.counts.get("not followed")
    tried = f" {number:,} of the slower ones were not tried." if number else ""
    return (
        f"No configuration {which}.{tried} The nearest is {_described(one)}: {', '.join(broken)}. Raise the limit, or "
        "allow other values with --set."
    )


def render(found: Found) -> str:
    """Return the answer as text: the sentence, a table, what is worth measuring, and what was looked at."""
    blocks = [paragraph(headline(found))]
    if found.chosen:
        blocks += [_table(found), _worth(found)]
    return page([*blocks, paragraph(_counted(found))])


def _counted(found: Found) -> str:
    """Return how many configurations were looked at, and what became of them."""
    counts = found.counts
    words = {
        PredictionStatus.OK: "fit",
        PredictionStatus.UNDECIDED: "may fit",
        PredictionStatus.OOM: "do not fit in memory",
        PredictionStatus.INVALID: "the rules refuse",
        PredictionStatus.UNSUPPORTED: "cannot be simulated",
    }
    looked = {name: counts[name] for name in words if counts.get(name)}
    text = f"{sum(looked.values()):,} configurations: " + ", ".join(
        f"{number:,} {words[name]}" for name, number in looked.items()
    )
    became = {"within the limits": "are listed", "beyond a limit": "exceed a limit",
              "too slow to matter": "are too slow to matter", "not followed": "were not tried"}  # fmt: skip
    rest = ", ".join(f"{counts[name]:,} {what}" for name, what in became.items() if counts.get(name))
    return f"{text}. Of those that fit or may, {rest}." if rest else f"{text}."


def _table(found: Found) -> list[str]:
    """Return the first configurations and those to measure, one a line, with what the columns are."""
    shown = sorted({*range(min(_SHOWN, len(found.chosen))), *found.few.rows})
    has_names = "overlap" in found.question.values
    has_prices, some = found.prices.are_given, [found.chosen[row] for row in shown]
    has_power_limits = any(one.candidate.power_limit_w is not None for one in some)
    extra = [
        *([("limit\nW", lambda it: "-" if it.power_limit_w is None else f"{it.power_limit_w:g}")] * has_power_limits),
        *([("job\nkW", lambda it: _number(it.job_power_peak_w / KILO, 4))] * (found.limits.power_kw < math.inf)),
        *([("rack\nkW", lambda it: _number(it.rack_power_peak_w / KILO, 3))] * (found.limits.rack_power_kw < math.inf)),
        *([(f"{found.prices.currency} per\nM tokens", lambda it: _number(it.cost_per_mtoken, 4))] * has_prices),
    ]
    heading = (
        "", "fits\n%", "\nlayout", "\nmbs", "recom-\npute", "over-\nlap", "step\ns",
        "slower by\n% [90 %]", "GPUs\nJ/token", "node\nkW", "GPU\ndegC",
        *(words for words, _ in extra),
    )  # fmt: skip
    cells = [
        (*_cells(one, row in found.few.rows, has_names), *(cell(one.candidate) for _, cell in extra))
        for row, one in zip(shown, some, strict=True)
    ]
    lines = table([heading, *cells], words={0, 2, 4, 5})
    energy, heat = (
        max(half / value for value, half in _known(some, "gpu_energy_per_token", "j")),
        max(half for _, half in _known(some, "gpu_temp_max", "c")),
    )
    if math.isnan(some[0].candidate.prediction.power.gpu_temp_max_c):
        known = " -: power and heat of these GPUs are not known."
    else:
        known = f" 90 % intervals: energy ±{percent(energy, 0)}, temperature ±{heat:.0f} K." if energy and heat else ""
    more = len(found.chosen) - len(shown)
    marks = (
        "* to measure; > no other is as good in time, energy, power and temperature. mbs: micro-batch; kW: peak of the "
        "highest node; degC: hottest GPU."
    ) + _column_words(found, has_power_limits)
    rest = f" --json has {more:,} more." if more > 0 else ""
    return [*lines, *paragraph(f"{marks}{known}{rest}")]


def _column_words(found: Found, has_power_limits: bool) -> str:
    """Return what the columns are that only some answers have."""
    own = (
        f" limit: power limit of every GPU{'' if found.question.power_limits_w else ', -: that of the cluster'}."
        if has_power_limits
        else ""
    )
    kw = [name for name, limit_kw in (("job", found.limits.power_kw), ("rack", found.limits.rack_power_kw))
          if limit_kw < math.inf]  # fmt: skip
    return own + "".join(
        f" {name} kW: peak of {'all nodes together' if name == 'job' else 'the highest rack'}." for name in kw
    )


def _cells(one: Chosen, is_measured: bool, has_names: bool) -> tuple[str, ...]:
    it, power = one.candidate, one.candidate.prediction.power
    slower, low, high = (100 * value for value in one.slower)
    overlap = ("+".join(it.point.overlap) if has_names else "on") if it.point.overlap else "off"
    return (
        ("*" if is_measured else " ") + (">" if one.is_on_front else ""),
        f"{100 * min(it.fits_probability, 0.99):.0f}" if it.fits_probability <= 0.99 else ">99",
        layout_label(it.point),
        str(it.point.micro_batch_size),
        it.point.recompute.replace("selective", "select"),
        overlap,
        _number(it.step_time_s, 4),
        f"{slower:+.1f}" if low == high else f"{slower:+.1f} [{low:+.0f}, {high:+.0f}]",
        _number(power.gpu_energy_per_token_j, 3),
        _number(it.node_power_peak_w / KILO, 3),
        "-" if math.isnan(power.gpu_temp_max_c) else f"{power.gpu_temp_max_c:.0f}",
    )


def _number(value: float, digits: int) -> str:
    return "-" if math.isnan(value) else f"{value:#.{digits}g}".removesuffix(".")


def _known(some: Sequence[Chosen], stem: str, unit: str) -> Iterator[tuple[float, float]]:
    """Yield a quantity of power or heat and half its 90 % interval; 1 and 0 where it is not known."""
    for one in some:
        power = one.candidate.prediction.power
        value, low, high = (getattr(power, f"{stem}{end}_{unit}") for end in ("", "_lo", "_hi"))
        yield (1.0, 0.0) if math.isnan(value) else (value, (high - low) / 2)


def _worth(found: Found) -> list[str]:
    """Return what measuring costs and is worth."""
    few, hours = found.few, sum(one.gpu_hours for one in found.to_measure)
    number = sum(one.may_be_best for one in found.chosen)
    if number < 2:
        return ["Nothing is worth measuring: no other configuration may be better."]
    gain = f"; the best of the marked is expected to be {percent(few.gain, 0)} better than the first row"
    return paragraph(
        f"Prediction cannot tell {counted(number - 1, 'other')} apart from the first row. Measuring the "
        f"{len(few.rows)} marked takes {hours:.1f} GPU hours. The best of all is among them with a "
        f"probability of {percent(few.probability, 0)}{gain if few.gain > 0.005 else ''}."
    )


def study_of(found: Found, name: str) -> str:
    """Return the study of the few to measure, as YAML that `triplepoint plan` reads.

    Args:
        found: The answer.
        name: Of the study.
    """
    question = found.question
    fixed = {"engine": "simulated"} | {key: value for key, value in question.fixed.items() if key != "stack"}
    is_limited = any(one.candidate.power_limit_w is not None for one in found.to_measure)
    varied = [
        ({"cluster": one.candidate.point.cluster.name} if is_limited else {})
        | _varied(one.candidate, {*fixed, "stack"})
        for one in found.to_measure
    ]
    if is_limited:
        del fixed["cluster"]
    about = f"Configurations of {question.model} on {question.cluster} that may be best in {found.objective}."
    content = {"description": about, "defaults": fixed, "sweeps": [{"axes": {"layout": varied}}]}
    head = f"# Written by `triplepoint search`. To train: `engine: megatron`, `snakemake --config studies={name}`.\n"
    return head + yaml.safe_dump(content, sort_keys=False, width=1000, default_flow_style=None)


def clusters_of(found: Found) -> dict[str, str]:
    """Return the cluster files that the study of the few to measure needs, one for each power limit: YAML by name."""
    if not found.to_measure:
        return {}
    catalogue = Catalogue(found.to_measure[0].candidate.config)
    base = catalogue.cluster(found.question.cluster)
    limits_w = {one.candidate.power_limit_w for one in found.to_measure} - {None}
    return {made.name: _cluster_text(made, catalogue) for made in (with_power_limit(base, one) for one in limits_w)}


def _cluster_text(cluster: ClusterConfig, catalogue: Catalogue) -> str:
    """Return a cluster as YAML: the keys in which it differs from the one it is like."""
    assert cluster.like is not None, "a cluster with a power limit is like another"
    own = cluster.model_dump(mode="json", exclude_defaults=True)
    base = catalogue.cluster(cluster.like).model_dump(mode="json", exclude_defaults=True)
    content = {name: value for name, value in own.items() if base.get(name) != value}
    head = f"# Written by `triplepoint search`: {cluster.like} with another power limit, which a launch does not set.\n"
    return head + yaml.safe_dump(content, sort_keys=False, width=1000, default_flow_style=None)


def _varied(one: Candidate, fixed: Collection[str]) -> dict[str, Any]:
    """Return the settings of a configuration that are its own, without what has no effect in it."""
    folded = settings_of(one.point)
    own = {name: folded[name] for name in ("overlap", "sequence_parallel", "data_parallel_sharding")}
    values = {name: own.get(name, value) for name, value in one.row.items() if name not in fixed}
    return {name: list(value) if isinstance(value, tuple) else value for name, value in values.items()}
