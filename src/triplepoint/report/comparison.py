"""Self-contained page of a comparison of two runs or traces."""

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
"""Largest number of rows of the table of kernels; its last row sums up the others."""
_FIRST_KERNELS = 20
"""Number of rows that are visible when the page opens."""


class _Bar(NamedTuple):
    """Bar of a contribution to the difference; zero is in the middle. Unit: per cent of the width."""

    left: float
    width: float


def write_comparison(comparison: Comparison, out: Path) -> None:
    """Write the page of a comparison as a single file.

    Args:
        comparison: The comparison.
        out: File to write.

    Raises:
        OSError: If it cannot be written.
    """
    sides = (("A", comparison.first), ("B", comparison.other))
    step, kernels = comparison.step, kernel_lines(comparison.kernels, _MOST_KERNELS) if comparison.kernels else []
    page = environment().get_template("comparison.html").render(
        style=Markup(template("report.css")),
        sentence=comparison.sentence,
        sides=[(letter, side.origin, describe_side(side)) for letter, side in sides],
        changes=[change._asdict() for change in comparison.changes],
        step_title=step_title(comparison),
        parts=part_lines(comparison, step, len(step.parts)) if step else [],
        bars=list(_bars(step)) if step else [],
        kernels=kernels,
        num_first=_FIRST_KERNELS,
        quantities=quantity_lines(comparison.quantities) if comparison.quantities else [],
        notes=comparison.notes,
    )  # fmt: skip
    write_text(out, page)


def _bars(step: StepDifference) -> Iterator[_Bar]:
    """Yield the bars of all parts and of the step; the longest has half the width."""
    values = [*(part.effect.value for part in step.parts), step.difference_s]
    largest = max(map(abs, values)) or 1.0
    for value in values:
        width = 50 * abs(value) / largest
        yield _Bar(round(50 - width if value < 0 else 50, 2), round(width, 2))
