"""Swings of power in words: levels, verdicts and remedies."""

import math
from collections.abc import Iterator

from triplepoint.advise.swings.answer import LevelSwing, SwingAnswer
from triplepoint.advise.swings.spec import Verdict
from triplepoint.units import KILO

_HEADINGS = ("level", "swings most", "mean", "1 to 99 %", "range", "ramps up, down", "strongest line", "in band, rms")


def render(answer: SwingAnswer) -> str:
    """Return the answer as lines for a person."""
    return "\n".join(_lines(answer))


def headline(answer: SwingAnswer) -> str:
    """Return the swing of the job, its strongest line and the verdict, a sentence each, in one line."""
    job, failed = answer.levels[-1], [verdict for verdict in answer.verdicts if not verdict.passes]
    said = [f"power of the job swings by {job.range_fraction:.1%} of its mean"]
    if job.line_hz:
        said.append(f"Its strongest line is at {job.line_hz:.4f} Hz, with {(job.line_w or 0.0) / KILO:.3g} kW")
    if answer.verdicts:
        said.append(f"Beyond {len(failed)} of {len(answer.verdicts)} limits" if failed else "Within all limits")
    return ". ".join(said)


def _lines(answer: SwingAnswer) -> Iterator[str]:
    power = answer.power
    yield f"{power.name}: {headline(answer)}"
    num_nodes = power.nodes_w.shape[1]
    yield (
        f"{power.origin}, {num_nodes} nodes, {len(power.nodes_w)} readings every {power.period_s:.4g} s, "
        f"which show up to {answer.seen_hz:.4g} Hz"
    )
    yield from (f"  {note}" for note in answer.notes)
    yield ""
    rows = [_HEADINGS, *(_row(level) for level in answer.levels)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    yield from ("  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows)
    if answer.band_hz:
        yield f"band: {answer.band_hz[0]:.4g} to {answer.band_hz[1]:.4g} Hz"
    if (one := answer.together) is not None:
        yield (
            f"at {answer.levels[-1].line_hz:.4f} Hz: {num_nodes} nodes x {one.node_line_w / KILO:.3g} kW x "
            f"coherence {one.coherence:.2f} = {one.job_line_w / KILO:.3g} kW"
            + (f"; correlation {one.correlation:.2f}" if math.isfinite(one.correlation) else "")
        )
    if answer.spec:
        yield ""
        yield f"limits at the {answer.spec.level}{f': {answer.spec.description}' if answer.spec.description else ''}"
        yield from (_verdict(verdict) for verdict in answer.verdicts)
    if answer.remedies:
        yield ""
        yield "what would keep to them, and what it costs" if answer.spec else "what would smooth it"
        words = {True: "enough", False: "not enough", None: ""}
        yield from (f"  {one.name:<8} {words[one.passes]:<11} {one.text}" for one in answer.remedies)


def _row(level: LevelSwing) -> tuple[str, ...]:
    mean_kw, low_kw, high_kw, up_kw, down_kw = (
        watts / KILO
        for watts in (level.mean_w, level.low_w, level.high_w, level.ramp_up_w_per_s, level.ramp_down_w_per_s)
    )
    line = f"{level.line_hz:.4f} Hz {(level.line_w or 0.0) / KILO:.3g} kW" if level.line_hz else "-"
    band = "-"
    if level.band_rms_w is not None:
        band = f"{level.band_rms_w / KILO:.3g} kW, {level.band_share or 0.0:.0%} of all"
    return (
        level.level, level.which, f"{mean_kw:.4g} kW", f"{low_kw:.4g} to {high_kw:.4g} kW",
        f"{level.range_fraction:.1%}", f"{up_kw:.3g}, {down_kw:.3g} kW/s", line, band,
    )  # fmt: skip


def _verdict(verdict: Verdict) -> str:
    unit = "" if verdict.unit == "1" else f" {verdict.unit}"
    word = "pass" if verdict.passes else "FAIL"
    return (
        f"  {word}  {verdict.line:<32} {verdict.found:.4g}{unit}, limit {verdict.limit:.4g}{unit}, "
        f"margin {verdict.margin:+.0%}"
    )
