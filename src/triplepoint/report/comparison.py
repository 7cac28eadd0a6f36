"""Page of a comparison of two runs or traces, in one file, with the style of the report."""

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from markupsafe import Markup

from triplepoint.compare.comparison import Comparison
from triplepoint.compare.parts import StepDifference
from triplepoint.compare.text import describe_side, kernel_lines, part_lines, quantity_lines, step_title
from triplepoint.files import write_text
from triplepoint.report.pages import environment, template

_MOST_KERNELS = 400
"""Rows of the table of kernels; the rest stands in its last line."""
_FIRST_KERNELS = 20
"""Rows that are seen at once."""


class _Bar(NamedTuple):
    """A contribution on a scale common to all, 0 in the middle. Unit: per cent of the width."""

    left: float
    width: float


def write_comparison(found: Comparison, out: Path) -> None:
    """Write the page of a comparison.

    Args:
        found: The comparison.
        out: File to write; the page needs no other.

    Raises:
        OSError: If it cannot be written.
    """
    step, kernels = found.step, kernel_lines(found.kernels, _MOST_KERNELS) if found.kernels else []
    page = environment().get_template("comparison.html").render(
        style=Markup(template("report.css")),
        sentence=found.sentence,
        sides=[(letter, side.origin, describe_side(side)) for letter, side in (("A", found.first), ("B", found.other))],
        changes=[change._asdict() for change in found.changes],
        step_title=step_title(found),
        parts=part_lines(found, step, len(step.parts)) if step else [],
        bars=list(_bars(step)) if step else [],
        kernels=kernels,
        num_first=_FIRST_KERNELS,
        quantities=quantity_lines(found.quantities) if found.quantities else [],
        notes=found.notes,
    )  # fmt: skip
    write_text(out, page)


def _bars(step: StepDifference) -> Iterator[_Bar]:
    """Yield the bar of each part, and of the step; the longest reaches the edge."""
    values = [*(one.effect.value for one in step.parts), step.difference_s]
    largest = max(map(abs, values)) or 1.0
    for value in values:
        width = 50 * abs(value) / largest
        yield _Bar(round(50 - width if value < 0 else 50, 2), round(width, 2))
