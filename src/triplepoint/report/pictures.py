"""Figures as inline SVG: cleaned, with unique identifiers, and with colours for light and dark backgrounds."""

import re
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from triplepoint.effects.titles import Statement, read_statements
from triplepoint.errors import UserError
from triplepoint.figures import ANSWER
from triplepoint.report.colours import css_name, variables

_SVG = "{http://www.w3.org/2000/svg}"
_TITLE = "{http://purl.org/dc/elements/1.1/}title"
_DESCRIPTION = "{http://purl.org/dc/elements/1.1/}description"
_HREFS = ("{http://www.w3.org/1999/xlink}href", "href")
_DROPPED = {"metadata", "style", "script", "foreignObject", "a"}
"""Elements that are removed. Style sheets of matplotlib would apply to the whole page."""
_GEOMETRY = {"d", "points", "x", "y", "width", "height", "x1", "x2", "y1", "y2", "cx", "cy", "r"}
_DECIMALS = re.compile(r"(\.\d\d)\d+")
_COLOUR = re.compile(r"#[0-9a-fA-F]{6}\b")
_REFERENCE = re.compile(r"url\(#([^)]*)\)")
_BLACK = "#000000"
"""Fill colour of elements for which matplotlib writes none."""
_BASELINE = re.compile(r"translate\([-\d.]+ ([-\d.]+)\)")
_DESCENT_PT = 2.0
"""Height of the title below the baseline of its last line. Unit: point."""
_CSS_PX_PER_PT = 96 / 72
_ENLARGED = 1.35
"""Size on screen over printed size. Text of 7 pt is then as large as small text of the page."""


class Picture(NamedTuple):
    """A figure for the page.

    Attributes:
        svg: Element `<svg>` as text.
        title: Title of the figure; '' if its file has none.
        colours: CSS variables that `svg` uses, with their values.
        statements: Statements for findings.
    """

    svg: str
    title: str
    colours: dict[str, str]
    statements: list[Statement]


def read_picture(path: Path, name: str, label: str) -> Picture:
    """Return the SVG of a figure for the page.

    Args:
        path: SVG file of the figure stage.
        name: Prefix that makes identifiers unique within the page.
        label: Text for screen readers.

    Raises:
        UserError: If the file is missing or not an SVG file.
    """
    try:
        root = ET.parse(path).getroot()
    except FileNotFoundError:
        raise UserError(
            f"{path}: no such figure; draw it with 'triplepoint figure {name.replace('--', '/')}'"
        ) from None
    except ET.ParseError as error:
        raise UserError(f"{path}: not an SVG file ({error}); delete it and draw the figure again") from None
    if root.tag != f"{_SVG}svg":
        raise UserError(f"{path}: not an SVG file; delete it and draw the figure again")
    title, description = ((root.findtext(f".//{tag}") or "").strip() for tag in (_TITLE, _DESCRIPTION))
    try:
        statements = read_statements(description)
    except (ValueError, TypeError):
        raise UserError(f"{path}: its description is of another version; delete it and draw the figure again") from None
    if title:
        _cut_title(root)
    colours = {_BLACK}
    _clean(root, f"{name}-", colours)
    root.attrib |= _frame(root) | {"role": "img", "aria-label": label}
    return Picture(ET.tostring(root, encoding="unicode"), title, variables(colours), statements)


def _cut_title(root: ET.Element) -> None:
    """Remove the title from a figure and reduce its height, since the page shows the title above the figure."""
    for parent in root.iter():
        for title in [child for child in parent if child.get("id") == ANSWER]:
            # The position of a single line is in attribute y, that of several lines in their transforms.
            lines = [(text.get("transform", ""), text.get("y")) for text in title.iter(f"{_SVG}text")]
            baselines = [
                float(y) for moved, line_y in lines for y in ([line_y] if line_y else _BASELINE.findall(moved))
            ]
            left, top, width, height = map(float, root.get("viewBox", "").split())
            cut = max(baselines) + _DESCENT_PT - top
            root.set("viewBox", f"{left:g} {top + cut:g} {width:g} {height - cut:g}")
            parent.remove(title)


def _frame(root: ET.Element) -> dict[str, str]:
    """Return the attributes of the outermost element, among them the defaults from matplotlib's style sheet."""
    _, _, width, height = map(float, root.get("viewBox", "0 0 480 320").split())
    shown = width * _CSS_PX_PER_PT * _ENLARGED
    for name in ("width", "height", "version", "id"):
        root.attrib.pop(name, None)
    return {
        "style": f"width:{shown:.0f}px;aspect-ratio:{width:g}/{height:g}",
        "fill": f"var({css_name(_BLACK)})",
        "stroke-linejoin": "round",
        "stroke-linecap": "butt",
    }


def _clean(element: ET.Element, prefix: str, colours: set[str]) -> None:
    """Remove elements and attributes that the page must not contain, rename identifiers and colours, round lengths."""
    element.tag = element.tag.removeprefix(_SVG)
    element.attrib = dict(_attributes(element, prefix, colours))
    for child in list(element):
        # Comments have a function as their tag.
        if not isinstance(child.tag, str) or child.tag.removeprefix(_SVG) in _DROPPED:
            element.remove(child)
        else:
            _clean(child, prefix, colours)
    if element.tag != "text" and not (element.text or "").strip():
        element.text = None
    element.tail = None


def _attributes(element: ET.Element, prefix: str, colours: set[str]) -> Iterator[tuple[str, str]]:
    """Yield the attributes that an element keeps, and add its colours to `colours`."""
    for name, value in element.attrib.items():
        if name in _HREFS:
            if value.startswith("#"):
                yield "href", f"#{prefix}{value[1:]}"
            elif value.startswith("data:image/png;base64,"):
                yield "href", value
        elif name == "id":
            yield name, prefix + value
        elif name in _GEOMETRY:
            yield name, _DECIMALS.sub(r"\1", value)
        elif not name.startswith(("on", "{")):
            colours.update(colour.lower() for colour in _COLOUR.findall(value))
            replaced = _COLOUR.sub(lambda match: f"var({css_name(match[0].lower())})", value)
            yield name, _REFERENCE.sub(rf"url(#{prefix}\1)", replaced)
