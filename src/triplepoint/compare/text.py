"""Text of a comparison: its sentence, and aligned tables, most important first."""

import math
import textwrap
from collections.abc import Iterator, Sequence

from triplepoint.compare.answer import step_effect
from triplepoint.compare.changes import Change
from triplepoint.compare.comparison import Comparison
from triplepoint.compare.kernels import ABOUT, KernelDifference
from triplepoint.compare.parts import StepDifference
from triplepoint.compare.quantities import QuantityDifference
from triplepoint.compare.sides import Side
from triplepoint.compare.traced import part_name
from triplepoint.effects import Effect
from triplepoint.errors import clipped
from triplepoint.text import percent
from triplepoint.units import counted, show_seconds, signed_seconds

_MOST_CHANGES, _MOST_PARTS, _MOST_KERNELS = 14, 12, 12
"""Rows of each table; a last line counts the others."""
_WIDEST = 44
"""Longest text of a cell, in characters."""
_WIDTH = 120
"""Width of the sentence, in characters."""

Lines = list[list[str]]
"""Rows of cells of a table."""


def render(comparison: Comparison) -> str:
    """Return a comparison as text."""
    kernels, quantities = kernel_lines(comparison.kernels), quantity_lines(comparison.quantities)
    blocks = [
        textwrap.wrap(comparison.sentence, _WIDTH),
        [f"A  {describe_side(comparison.first)}", f"B  {describe_side(comparison.other)}"],
        ["What changed", *_table(_change_lines(comparison.changes))],
        [step_title(comparison), *_table(part_lines(comparison, comparison.step))] if comparison.step else [],
        ["Kernels, by what they add to the step", *_table(kernels)] if comparison.kernels else [],
        ["Power, clocks, heat, energy", *_table(quantities)] if comparison.quantities else [],
        ["Notes", *(f"  {note}" for note in comparison.notes)] if comparison.notes else [],
    ]
    left_out = len(comparison.changes) - _MOST_CHANGES
    if left_out > 0:
        blocks[2].append(f"  and {left_out} more, see --json")
    return "\n\n".join("\n".join(block) for block in blocks if block)


def describe_side(side: Side) -> str:
    """Return a line on a side: its origin, and its runs or traces."""
    if side.runs:
        names = ", ".join(run.planned.run for run in side.runs)
        repeats = f" ({len(side.runs)} repeats)" if len(side.runs) > 1 else ""
        return f"{side.origin}: {names}{repeats}"
    gpus = sorted({job.gpu for job in side.jobs if job.gpu})
    on = f" on {', '.join(gpus)}" if gpus else ""
    return f"{side.origin}: traces of {counted(len(side.jobs), 'rank')} in {side.word}{on}"


def _change_lines(changes: Sequence[Change]) -> Lines:
    """Return changes as rows of cells; one row if there is none."""
    if not changes:
        return [["nothing that is recorded"]]
    return [
        [change.name, f"{clipped(change.first, _WIDEST)} -> {clipped(change.other, _WIDEST)}"]
        for change in changes[:_MOST_CHANGES]
    ]


def step_title(comparison: Comparison) -> str:
    """Return the heading of the parts of the step: which steps and ranks the times belong to; empty without a step."""
    step = comparison.step
    if step is None:
        return ""
    if not step.parts:
        return f"The step: {_steps(comparison, 'measured')}, median"
    steps = _steps(comparison, "profiled" if step.is_profiled else "measured")
    ranks = f"rank {comparison.changed_rank.rank}" if comparison.changed_rank else "mean over traced ranks"
    scaled = f"; B times {step.scale:.4g} for equal tokens per GPU" if step.scale != 1 else ""
    return f"Where the step's time went: {steps}, exposed time, {ranks}{scaled}"


def _steps(comparison: Comparison, kind: str) -> str:
    """Return the kind of both sides' steps in words; those of simulated sides are neither measured nor profiled."""
    kinds = ["simulated" if side.origin == "simulated" else kind for side in (comparison.first, comparison.other)]
    return f"{kinds[0]} steps" if kinds[0] == kinds[1] else f"{kinds[0]} steps of A and {kinds[1]} ones of B"


def part_lines(comparison: Comparison, step: StepDifference, max_parts: int = _MOST_PARTS) -> Lines:
    """Return the parts of the step as rows of cells: a heading, the parts, the step, and the waits in it."""
    lines = [["", "A", "B", "B - A", "of it", "90 % interval"]]
    for one in step.parts[:max_parts]:
        difference = _difference(one.effect.value, step.difference_s)
        times = [show_seconds(one.first_s), show_seconds(one.other_s)]
        lines.append([part_name(one.part), *times, *difference, _interval_text(one.effect)])
    if rest := step.parts[max_parts:]:
        first_s, other_s = sum(one.first_s for one in rest), sum(one.other_s for one in rest)
        difference = _difference(other_s - first_s, step.difference_s)
        lines.append([f"{len(rest)} smaller parts", show_seconds(first_s), show_seconds(other_s), *difference, ""])
    difference = _difference(step.difference_s, step.difference_s)
    interval = _step_interval(comparison, step)
    lines.append(["step", show_seconds(step.first_s), show_seconds(step.other_s), *difference, interval])
    waits = [side.traced.waited_s if side.traced else {} for side in (comparison.first, comparison.other)]
    if all(waits):
        for name, title in (("bubble", "in it waiting for stages"), ("straggler", "in it waiting for late ranks")):
            times_s = [waits[0][name], waits[1][name] * step.scale]
            if any(times_s):
                lines.append([title, *map(show_seconds, times_s), signed_seconds(times_s[1] - times_s[0]), "", ""])
    return lines


def _difference(value_s: float, total_s: float) -> list[str]:
    """Return the cells of a difference: the time, and its share of the difference of the step."""
    return [signed_seconds(value_s), percent(value_s / total_s + 0.0, 0).replace("-0 %", "0 %") if total_s else ""]


def _interval_text(effect: Effect) -> str:
    """Return the interval of a difference of times, marked if it contains 0; empty if it is not known."""
    if math.isnan(effect.low):
        return ""
    return f"{signed_seconds(effect.low)} to {signed_seconds(effect.high)}{' (within spread)' if effect.is_tie else ''}"


def _step_interval(comparison: Comparison, step: StepDifference) -> str:
    """Return the relative change of the step with its interval; empty if it is not known."""
    effect = step_effect(step, {one.name: one for one in comparison.quantities})
    return f"{effect.size}{effect.ends}{' (within spread)' if effect.is_tie else ''}" if effect else ""


def kernel_lines(kernels: Sequence[KernelDifference], max_kernels: int = _MOST_KERNELS) -> Lines:
    """Return matched kernels as rows of cells with a heading, largest difference first."""
    lines = [["", "calls A", "calls B", "each A", "each B", "B - A", "matched by"]]
    matched = [one for one in kernels if one.match != "no kernel"]
    for one in matched[:max_kernels]:
        each = [
            show_seconds(sum_s / count) if count else "" for sum_s, count in zip(one.sums_s, one.counts, strict=True)
        ]
        calls = [f"{count:,.0f}" if count >= 1000 else f"{count:.3g}" if count else "" for count in one.counts]
        lines.append([_kernel_title(one), *calls, *each, signed_seconds(one.difference_s), ABOUT[one.match]])
    if rest := matched[max_kernels:]:
        lines.append([f"{len(rest)} others", "", "", "", "", signed_seconds(sum(one.difference_s for one in rest)), ""])
    if without := [one for one in kernels if one.match == "no kernel"]:
        lines.append([ABOUT["no kernel"], "", "", "", "", signed_seconds(sum(one.difference_s for one in without)), ""])
    return lines


def _kernel_title(kernels: KernelDifference) -> str:
    """Return a short name of matched kernels, with kind and group of a collective."""
    title = clipped(kernels.title.removeprefix("void ").replace("(anonymous namespace)::", "").split("(")[0], _WIDEST)
    if kernels.part.category == "comm" and kernels.part.kind not in title:
        title += f": {kernels.part.kind}"
    if kernels.part.group:
        title += f" of {kernels.part.group}"
    num_kernels = max(len(names) for names in kernels.names)
    return f"{title} ({num_kernels} kernels)" if num_kernels > 1 else title


def quantity_lines(quantities: Sequence[QuantityDifference]) -> Lines:
    """Return quantities as rows of cells with a heading; quantities that are 0 on both sides are left out."""
    lines = [["", "A", "B", "unit", "change", "90 % interval", ""]]
    for one in quantities:
        if not (one.first or one.other):
            continue
        values = ["" if value is None else f"{value:,.5g}" for value in one.shown]
        verdict = "" if one.verdict == "differs" else one.verdict
        lines.append([one.label, *values, one.unit, *_change_cells(one), verdict])
    return lines


def _change_cells(quantity: QuantityDifference) -> list[str]:
    """Return the change of a quantity and its interval, in per cent, K, points of per cent, or its own unit."""
    effect = quantity.effect
    if effect.is_relative:
        scale, unit = 100.0, " %"
    elif quantity.unit == "°C":
        scale, unit = 1.0, " K"
    elif quantity.unit == "%":
        scale, unit = 100.0, " points"
    else:
        scale, unit = 1.0, f" {quantity.unit}"
    ends = "" if math.isnan(effect.low) else f"{effect.low * scale:+.3g} to {effect.high * scale:+.3g}"
    return [f"{effect.value * scale:+.3g}{unit}", ends]


def _table(lines: Lines) -> Iterator[str]:
    """Yield rows of cells as aligned lines: the first and the last column to the left, numbers to the right."""
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    for line in lines:
        cells = [
            cell.ljust(width) if index in (0, len(line) - 1) else cell.rjust(width)
            for index, (cell, width) in enumerate(zip(line, widths, strict=True))
        ]
        yield f"  {'  '.join(cells)}".rstrip()
