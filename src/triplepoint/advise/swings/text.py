"""Swings of power in words: levels, verdicts and remedies."""

import math
from itertools import groupby

from triplepoint.advise.swings.answer import LevelSwing, SwingAnswer
from triplepoint.advise.swings.remedies import Remedy
from triplepoint.advise.swings.spec import Verdict
from triplepoint.text import LEAST_SHOWN, page, paragraph, percent, percent_within, table
from triplepoint.units import KILO, counted

_LINES = {
    "range_fraction": "range over mean power",
    "range_kw": "range",
    "ramp_up_kw_per_s": "fastest rise",
    "ramp_down_kw_per_s": "fastest fall",
    "rms_fraction": "swing over mean power",
    "rms_kw": "swing",
    "share": "share of all swings",
}
"""Keys of a specification, in words."""
_WITHIN = (
    ("range_fraction", 100.0), ("ramp_up_w_per_s", 1.0 / KILO), ("ramp_down_w_per_s", 1.0 / KILO),
    ("band_rms_w", 1.0 / KILO), ("band_share", 100.0),
)  # fmt: skip
"""Attributes of levels whose intervals are printed, and their scale there."""
_MARKS = {True: "pass", False: "FAIL", None: "open"}
"""Marks of verdicts."""
_ENOUGH = {True: "enough", False: "not enough", None: ""}


def render(answer: SwingAnswer) -> str:
    """Return the answer as text: the sentences, each level, limits, and what would smooth power."""
    return page([
        [*paragraph(headline(answer)), *paragraph(_source(answer))],
        _levels(answer), _intervals(answer), _limits(answer), _remedies(answer),
        [line for note in answer.notes for line in paragraph(f"Note: {note}.")],
    ])  # fmt: skip


def headline(answer: SwingAnswer) -> str:
    """Return the swing of the job, its strongest line and the verdict, a sentence each."""
    job, failed = answer.levels[-1], [verdict for verdict in answer.verdicts if verdict.passes is False]
    num_open = sum(verdict.passes is None for verdict in answer.verdicts)
    said = [_swing(job)]
    if answer.verdicts:
        num = len(answer.verdicts)
        if failed:
            said.append(f"It exceeds {len(failed)} of {num} limits.")
        if num_open:
            said.append(f"Of {num_open} of {num} it cannot be told: the 90 % interval holds the limit.")
        elif not failed:
            said.append(f"It keeps to {_all(num)}.")
    return " ".join(said)


def _swing(job: LevelSwing) -> str:
    if job.range_fraction < LEAST_SHOWN:
        return "Power of the job does not swing: its range is below 0.05 % of its mean."
    line = ""
    if job.line_hz:
        line = f", mostly once in {1.0 / job.line_hz:.3g} s ({job.line_hz:.4f} Hz, amplitude {_kw(job.line_w)} kW)"
    return f"Power of the job swings by {_range(job)} of its mean{line}."


def _range(level: LevelSwing) -> str:
    """Return the range over the mean with its 90 % interval, such as `15.9 % [14.2, 17.0]`."""
    within = level.intervals.get("range_fraction")
    return percent_within(level.range_fraction, *within) if within else percent(level.range_fraction)


def _all(number: int) -> str:
    return "the limit" if number == 1 else f"all {number} limits"


def _source(answer: SwingAnswer) -> str:
    power = answer.power
    origin = "from a file" if power.origin == "file" else power.origin
    readings = f"{len(power.nodes_w):,} readings every {power.period_s:.4g} s"
    return (
        f"Source: {power.name}, {origin}, {counted(power.nodes_w.shape[1], 'node')}, {readings}, which show "
        f"frequencies up to {answer.seen_hz:.4g} Hz"
    )


def _levels(answer: SwingAnswer) -> list[str]:
    """Return the swing of the node and rack that swing most and of the job, and how nodes swing together."""
    band = f"{answer.band_hz[0]:.4g} to\n{answer.band_hz[1]:.4g} Hz" if answer.band_hz else "band"
    heading = (
        "\nlevel", "mean\nkW", "1st to 99th\npercentile kW", "range\n%", "fastest rise\nkW/s", "fall\nkW/s",
        "strongest\nline Hz", "ampl.\nkW", f"{band}\nrms kW", "share\n%",
    )  # fmt: skip
    lines = table([heading, *(_row(level) for level in answer.levels)])
    if (one := answer.together) is not None:
        correlation = f" Their correlation is {one.correlation:.2f}." if math.isfinite(one.correlation) else ""
        num_nodes = answer.power.nodes_w.shape[1]
        lines += paragraph(
            f"At {answer.levels[-1].line_hz:.4f} Hz each of {num_nodes} nodes swings by {_kw(one.node_line_w)} kW and "
            f"all together by {_kw(one.job_line_w)} kW: coherence {one.coherence:.2f}, where 1 is in step.{correlation}"
        )
    return lines


def _intervals(answer: SwingAnswer) -> list[str]:
    """Return the 90 % intervals of each level."""
    rows = [
        (
            _name(level),
            *(
                " to ".join(f"{scale * end:.3g}" for end in level.intervals[name])
                for name, scale in _WITHIN
                if name in level.intervals
            ),
        )
        for level in answer.levels
        if level.intervals
    ]
    heading = ("90 %\ninterval", "range\n%", "fastest rise\nkW/s", "fall\nkW/s", "band rms\nkW", "share\n%")
    return table([heading[: len(rows[0])], *rows]) if rows else []


def _name(level: LevelSwing) -> str:
    return level.level if level.level == level.which else f"{level.level} {level.which}"


def _row(level: LevelSwing) -> tuple[str, ...]:
    is_seen = level.band_rms_w is not None
    return (
        _name(level),
        f"{level.mean_w / KILO:.4g}", f"{level.low_w / KILO:.4g} to {level.high_w / KILO:.4g}",
        f"{100.0 * level.range_fraction:.1f}", _kw(level.ramp_up_w_per_s), _kw(level.ramp_down_w_per_s),
        f"{level.line_hz:.4f}" if level.line_hz else "-", _kw(level.line_w) if level.line_hz else "-",
        _kw(level.band_rms_w) if is_seen else "-", f"{100.0 * (level.band_share or 0.0):.0f}" if is_seen else "-",
    )  # fmt: skip


def _kw(watts: float | None) -> str:
    return f"{(watts or 0.0) / KILO:.3g}"


def _limits(answer: SwingAnswer) -> list[str]:
    if not answer.spec:
        return []
    whose = f" ({answer.spec.description})" if answer.spec.description else ""
    rows = [
        ("", "", "found", "90 % interval", "limit", "margin %"),
        *(_verdict(verdict) for verdict in answer.verdicts),
    ]
    lines = [f"Limits of the {answer.spec.level}{whose}", *table(rows, words={0, 1}, indent=2)]
    if any(verdict.passes is None for verdict in answer.verdicts):
        lines += paragraph("open: cannot be told, the interval holds the limit", indent=2)
    return lines


def _verdict(verdict: Verdict) -> tuple[str, ...]:
    key, _, band = verdict.line.partition(" ")
    unit = "" if verdict.unit == "1" else f" {verdict.unit}"
    found, limit = (
        percent(value) if verdict.unit == "1" else f"{value:.4g}{unit}" for value in (verdict.found, verdict.limit)
    )
    words = _LINES[key] + (f", {band.replace('-', ' to ')}" if band else "")
    scale = 100.0 if verdict.unit == "1" else 1.0
    within = " to ".join(f"{scale * end:.3g}" for end in verdict.within) if verdict.within else "-"
    return _MARKS[verdict.passes], words, found, within, limit, f"{100.0 * verdict.margin:+.0f}"


def _remedies(answer: SwingAnswer) -> list[str]:
    if not answer.remedies:
        return []
    lines = ["What would keep to them, and what it costs" if answer.spec else "What would smooth it"]
    for _, alike in groupby(answer.remedies, key=_same_effect):
        one, *others = alike
        verdict = f" ({_ENOUGH[one.passes]})" if _ENOUGH[one.passes] else ""
        limits = ", ".join(f"{other.numbers['power_limit_w']:.0f}" for other in others)
        also = f" (the same at {limits} W)" if others else ""
        lines += paragraph(f"{one.name}{verdict}: {one.text}{also}", indent=2)
    return lines


def _same_effect(one: Remedy) -> tuple[object, ...]:
    """Return what remedies that share a line have in common: caps those numbers that are printed."""
    numbers = one.numbers
    if one.name != "cap":
        return (one.name,)
    return (one.name, one.passes, *(f"{numbers[f'{name}_fraction']:.3f}" for name in ("time", "energy", "range")))
