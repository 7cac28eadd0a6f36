"""Text for a person: sentences, tables in columns and paragraphs, at most `WIDTH` characters wide."""

import textwrap
from collections.abc import Collection, Iterable, Sequence
from itertools import zip_longest

LEAST_SHOWN = 0.0005
"""Shares below it are printed as 0.0 %."""

WIDTH = 100


def paragraph(text: str, indent: int = 0) -> list[str]:
    """Return the lines of a text, those after the first indented by two more."""
    # A number stays with its percent sign: textwrap does not break at a space of that kind.
    lines = textwrap.wrap(
        text.replace(" %", "\xa0%"), WIDTH, initial_indent=" " * indent, subsequent_indent=" " * (indent + 2),
        break_long_words=False, break_on_hyphens=False,
    )  # fmt: skip
    return [line.replace("\xa0", " ") for line in lines]


def table(rows: Sequence[Sequence[str]], words: Collection[int] = (0,), indent: int = 0) -> list[str]:
    """Return the lines of a table, the first row its heading.

    Args:
        rows: Cells of each row. A line break in a heading makes it two lines high.
        words: Columns of words, which begin at the left; numbers end at the right.
        indent: Spaces before each line.
    """
    heading = zip_longest(*(cell.split("\n")[::-1] for cell in rows[0]), fillvalue="")
    lines = [*reversed(list(heading)), *rows[1:]]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    aligned = [
        [
            cell.ljust(width) if place in words else cell.rjust(width)
            for place, (cell, width) in enumerate(zip(line, widths, strict=True))
        ]
        for line in lines
    ]
    return [" " * indent + "  ".join(line).rstrip() for line in aligned]


def page(blocks: Iterable[Sequence[str]]) -> str:
    """Return blocks of lines with a blank line between them; empty blocks are left out."""
    return "\n\n".join("\n".join(block) for block in blocks if block)


def percent(share: float, digits: int = 1) -> str:
    """Return a share as percent with its unit, such as `14.6 %`."""
    return f"{_rounded(share, digits):.{digits}f} %"


def signed_percent(share: float, digits: int = 1) -> str:
    """Return a change as percent with its sign and unit, such as `+14.6 %`."""
    return f"{_rounded(share, digits):+.{digits}f} %"


def percent_within(share: float, low: float, high: float) -> str:
    """Return a share as percent with its 90 % interval, such as `14.6 % [6.6, 21.9]`."""
    return f"{percent(share)} [{_rounded(low, 1):.1f}, {_rounded(high, 1):.1f}]"


def _rounded(share: float, digits: int) -> float:
    """Return a share in percent as it is shown, without the sign of a zero."""
    return round(100.0 * share, digits) + 0.0


def percent_lost(share: float, *, is_bound: bool = False) -> str:
    """Return a loss, or the most it can be, as percent; what would be printed as zero is `less than 0.1 %`."""
    return f"{'up to ' * is_bound}{percent(share)}" if share >= LEAST_SHOWN else "less than 0.1 %"
