"""Figures as inline SVG: cleaned, small, with identifiers of their own, and with colours for light and dark ground."""

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
"""Elements that a figure does not need. Style sheets of matplotlib would hold for the whole page."""
_GEOMETRY = {"d", "points", "x", "y", "width", "height", "x1", "x2", "y1", "y2", "cx", "cy", "r"}
_DECIMALS = re.compile(r"(\.\d\d)\d+")
_COLOUR = re.compile(r"#[0-9a-fA-F]{6}\b")
_REFERENCE = re.compile(r"url\(#([^)]*)\)")
_BLACK = "#000000"
"""What matplotlib fills with where it writes no colour."""
_BASELINE = re.compile(r"translate\([-\d.]+ ([-\d.]+)\)")
_DESCENT_PT = 2.0
"""Of the title, from the baseline of its last line."""
_CSS_PX_PER_PT = 96 / 72
_ENLARGED = 1.35
"""Size on the screen over printed size: 7 pt text is then as large as small text of a page."""


class Picture(NamedTuple):
    """A figure for the page.

    Attributes:
        svg: Element `<svg>` as text.
        title: The figure's answer; empty where its file has none.
        colours: CSS variables that `svg` uses, with their values.
        statements: What it hands over for findings.
    """

    svg: str
    title: str
    colours: dict[str, str]
    statements: list[Statement]


def read_picture(path: Path, name: str, label: str) -> Picture:
    """Return a figure's SVG as the page shows it.

    Args:
        path: File written by the figure stage.
        name: Prefix of its identifiers, so that those of several figures in one page differ.
        label: What a screen reader says.

    Raises:
        UserError: If the file is missing or no SVG.
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
    title, told = ((root.findtext(f".//{tag}") or "").strip() for tag in (_TITLE, _DESCRIPTION))
    try:
        statements = read_statements(told)
    except (ValueError, TypeError):
        raise UserError(f"{path}: its description is of another version; delete it and draw the figure again") from None
    if title:
        _cut_answer(root)
    colours = {_BLACK}
    _clean(root, f"{name}-", colours)
    root.attrib |= _frame(root) | {"role": "img", "aria-label": label}
    return Picture(ET.tostring(root, encoding="unicode"), title, variables(colours), statements)


def _cut_answer(root: ET.Element) -> None:
    """Take the title and its height off a figure: the page has it above."""
    for parent in root.iter():
        for found in [child for child in parent if child.get("id") == ANSWER]:
            # A single line has its place in y, several theirs in transform.
            lines = [(text.get("transform", ""), text.get("y")) for text in found.iter(f"{_SVG}text")]
            baselines = [float(y) for moved, own in lines for y in ([own] if own else _BASELINE.findall(moved))]
            left, top, width, height = map(float, root.get("viewBox", "").split())
            cut = max(baselines) + _DESCENT_PT - top
            root.set("viewBox", f"{left:g} {top + cut:g} {width:g} {height - cut:g}")
            parent.remove(found)


def _frame(root: ET.Element) -> dict[str, str]:
    """Return the attributes of the outermost element; what matplotlib says in a style sheet is inherited from it."""
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
    """Drop what a page must not take over, name identifiers and colours anew, and round lengths."""
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
            named = _COLOUR.sub(lambda found: f"var({css_name(found[0].lower())})", value)
            yield name, _REFERENCE.sub(rf"url(#{prefix}\1)", named)
