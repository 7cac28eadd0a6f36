"""A comparison of two sides as a page of aligned text, most important first."""

import math
import textwrap
from collections.abc import Iterator, Sequence

from triplepoint.compare.answer import step_effect
from triplepoint.compare.changes import Change
from triplepoint.compare.comparison import Comparison
from triplepoint.compare.kernels import ABOUT, KernelDifference
from triplepoint.compare.parts import Contribution, StepDifference
from triplepoint.compare.quantities import QuantityDifference
from triplepoint.compare.sides import Side
from triplepoint.compare.traced import part_name
from triplepoint.effects import Effect
from triplepoint.units import counted, show_seconds, signed_seconds

MOST_CHANGES, MOST_PARTS, MOST_KERNELS = 14, 12, 12
"""Lines of each table; a last line says what is left out."""
_WIDEST = 44
_WIDTH = 120

Lines = list[list[str]]


def render(found: Comparison) -> str:
    """Return a comparison as text."""
    blocks = [
        textwrap.wrap(found.sentence, _WIDTH),
        [f"A  {describe_side(found.first)}", f"B  {describe_side(found.other)}"],
        ["What changed", *_table(change_lines(found.changes)[:MOST_CHANGES])],
        [step_title(found), *_table(part_lines(found, found.step))] if found.step else [],
        ["Kernels, by what they add to the step", *_table(kernel_lines(found.kernels))] if found.kernels else [],
        ["Power, clocks, heat, energy", *_table(quantity_lines(found.quantities))] if found.quantities else [],
        ["Notes", *(f"  {note}" for note in found.notes)] if found.notes else [],
    ]
    left_out = len(found.changes) - MOST_CHANGES
    if left_out > 0:
        blocks[2].append(f"  and {left_out} more, see --json")
    return "\n\n".join("\n".join(block) for block in blocks if block)


def describe_side(side: Side) -> str:
    """Return in a line what a side is."""
    if side.runs:
        names = ", ".join(run.planned.run for run in side.runs)
        repeats = f" ({len(side.runs)} repeats)" if len(side.runs) > 1 else ""
        return f"{side.origin}: {names}{repeats}"
    gpus = sorted({job.gpu for job in side.jobs if job.gpu})
    on = f" on {', '.join(gpus)}" if gpus else ""
    return f"{side.origin}: traces of {counted(len(side.jobs), 'rank')} in {side.word}{on}"


def change_lines(changes: Sequence[Change]) -> Lines:
    """Return what changed as rows of cells; one row where nothing did."""
    if not changes:
        return [["nothing that is recorded"]]
    return [[change.name, f"{_short(change.first)} -> {_short(change.other)}"] for change in changes]


def step_title(found: Comparison) -> str:
    """Return the heading of the parts of the step, with what the times are of; '' without a step."""
    step = found.step
    if step is None:
        return ""
    if not step.parts:
        return "The step: measured steps, median"
    what = "profiled steps" if step.is_profiled else "measured steps"
    over = f"rank {found.changed_rank.rank}" if found.changed_rank else "mean over traced ranks"
    scaled = f"; B times {step.scale:.4g} for equal tokens per GPU" if step.scale != 1 else ""
    return f"Where the step's time went: {what}, exposed time, {over}{scaled}"


def part_lines(found: Comparison, step: StepDifference, most: int = MOST_PARTS) -> Lines:
    """Return the parts of the step as rows of cells with a heading; the whole stands last."""
    lines = [["", "A", "B", "B - A", "of it", "90 % interval"]]
    shown, rest = step.parts[:most], step.parts[most:]
    lines += [_part_line(one, step.difference_s) for one in shown]
    if rest:
        sums = [sum(getattr(one, name) for one in rest) for name in ("first_s", "other_s")]
        lines.append(
            [
                f"{len(rest)} smaller parts",
                *map(show_seconds, sums),
                *_difference(sums[1] - sums[0], step.difference_s),
                "",
            ]
        )
    whole = _difference(step.difference_s, step.difference_s)
    lines.append(["step", show_seconds(step.first_s), show_seconds(step.other_s), *whole, _whole_interval(found, step)])
    waits = [side.traced.waited_s if side.traced else {} for side in (found.first, found.other)]
    if all(waits):
        for name, title in (("bubble", "in it waiting for stages"), ("straggler", "in it waiting for late ranks")):
            times = [waits[0][name], waits[1][name] * step.scale]
            if any(times):
                lines.append([title, *map(show_seconds, times), signed_seconds(times[1] - times[0]), "", ""])
    return lines


def _part_line(one: Contribution, whole_s: float) -> list[str]:
    cells = _difference(one.effect.value, whole_s)
    return [
        part_name(one.part),
        show_seconds(one.first_s),
        show_seconds(one.other_s),
        *cells,
        interval_text(one.effect),
    ]


def _difference(value_s: float, whole_s: float) -> list[str]:
    return [signed_seconds(value_s), f"{value_s / whole_s + 0.0:.0%}".replace("-0%", "0%") if whole_s else ""]


def interval_text(effect: Effect) -> str:
    """Return the interval of a difference of times, marked where it holds no difference; nothing where not known."""
    if math.isnan(effect.low):
        return ""
    return f"{signed_seconds(effect.low)} to {signed_seconds(effect.high)}{' (within spread)' if effect.is_tie else ''}"


def _whole_interval(found: Comparison, step: StepDifference) -> str:
    effect = step_effect(step, {one.name: one for one in found.quantities})
    return f"{effect.size}{effect.ends}{' (within spread)' if effect.is_tie else ''}" if effect else ""


def kernel_lines(kernels: Sequence[KernelDifference], most: int = MOST_KERNELS) -> Lines:
    """Return matched kernels as rows of cells with a heading, the largest difference first."""
    lines = [["", "calls A", "calls B", "each A", "each B", "B - A", "matched by"]]
    real = [one for one in kernels if one.match != "no kernel"]
    for one in real[:most]:
        each = [
            show_seconds(sum_s / count) if count else "" for sum_s, count in zip(one.sums_s, one.counts, strict=True)
        ]
        calls = [f"{count:,.0f}" if count >= 1000 else f"{count:.3g}" if count else "" for count in one.counts]
        lines.append([kernel_title(one), *calls, *each, signed_seconds(one.difference_s), ABOUT[one.match]])
    if rest := real[most:]:
        lines.append([f"{len(rest)} others", "", "", "", "", signed_seconds(sum(one.difference_s for one in rest)), ""])
    if bare := [one for one in kernels if one.match == "no kernel"]:
        lines.append([ABOUT["no kernel"], "", "", "", "", signed_seconds(sum(one.difference_s for one in bare)), ""])
    return lines


def kernel_title(one: KernelDifference) -> str:
    """Return a short name of matched kernels, with kind and group of a collective."""
    title = _short(one.title.removeprefix("void ").replace("(anonymous namespace)::", "").split("(")[0])
    if one.part.category == "comm" and one.part.kind not in title:
        title += f": {one.part.kind}"
    if one.part.group:
        title += f" of {one.part.group}"
    several = max(len(names) for names in one.names)
    return f"{title} ({several} kernels)" if several > 1 else title


def quantity_lines(quantities: Sequence[QuantityDifference]) -> Lines:
    """Return quantities as rows of cells with a heading; what neither side has does not appear."""
    lines = [["", "A", "B", "unit", "change", "90 % interval", ""]]
    for one in quantities:
        if not (one.first or one.other):
            continue
        values = ["" if value is None else f"{value:,.5g}" for value in one.shown]
        lines.append([one.label, *values, one.unit, *_change(one), "" if one.verdict == "differs" else one.verdict])
    return lines


def _change(one: QuantityDifference) -> list[str]:
    effect = one.effect
    scale, unit = (100.0, " %") if effect.is_relative else (1.0, " K") if one.unit == "°C" else (100.0, " points")
    if not effect.is_relative and one.unit not in ("°C", "%"):
        scale, unit = 1.0, f" {one.unit}"
    ends = "" if math.isnan(effect.low) else f"{effect.low * scale:+.3g} to {effect.high * scale:+.3g}"
    return [f"{effect.value * scale:+.3g}{unit}", ends]


def _short(text: str) -> str:
    line = "".join(letter if letter.isprintable() else "?" for letter in text)
    return line if len(line) <= _WIDEST else f"{line[: _WIDEST - 3]}..."


def _table(lines: Lines) -> Iterator[str]:
    """Yield rows of cells as aligned lines: the first and the last column to the left, numbers to the right."""
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    for line in lines:
        cells = [
            cell.ljust(width) if at in (0, len(line) - 1) else cell.rjust(width)
            for at, (cell, width) in enumerate(zip(line, widths, strict=True))
        ]
        yield f"  {'  '.join(cells)}".rstrip()
