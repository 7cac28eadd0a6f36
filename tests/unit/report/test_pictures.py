"""Figures in the page: nothing that acts, identifiers of their own, colours for either ground."""

from pathlib import Path

import pytest

import triplepoint.report
from triplepoint.errors import UserError
from triplepoint.report.colours import DARK_PAGE, on_dark
from triplepoint.report.pictures import read_picture

SVG = """<?xml version="1.0"?>
<svg xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink" width="144pt" height="72pt"
 viewBox="0 0 144 72" onload="alert(1)">
<metadata><rdf:RDF xmlns:rdf="http://www.w3.org/1999/02/22-rdf-syntax-ns#" xmlns:dc="http://purl.org/dc/elements/1.1/"
 xmlns:cc="http://creativecommons.org/ns#"><cc:Work><dc:title>A is 3 % faster</dc:title></cc:Work></rdf:RDF></metadata>
<style>*{fill: red}</style><script>alert(1)</script><!-- a comment -->
<defs><path id="m1" d="M 0.123456 1.5"/></defs>
<g id="axes_1" clip-path="url(#p1)"><use xlink:href="#m1" style="fill: #FF0000; stroke: #000000"/>
<a xlink:href="https://example.org"><text>out</text></a>
<text transform="scale(0.123456)">1 &lt; 2 </text></g>
</svg>"""


def shown(folder: Path, text: str = SVG) -> tuple[str, str, dict[str, str]]:
    (folder / "f.svg").write_text(text)
    picture = read_picture(folder / "f.svg", "f", 'What "is" it?')
    return picture.svg, picture.title, picture.colours


def test_read_picture_drops_what_acts_or_holds_elsewhere(tmp_path: Path) -> None:
    svg, title, _ = shown(tmp_path)
    assert title == "A is 3 % faster"
    for gone in ("script", "alert", "<style", "metadata", "comment", "example.org", "onload", "xmlns:xlink"):
        assert gone not in svg
    assert "1 &lt; 2 " in svg


ONE_LINE = '<text x="2.8" y="20" transform="rotate(-0 2.8 20)">A is 3 % faster</text>'
TWO_LINES = "".join(f'<text transform="translate(2.8 {y})">A is 3 % faster</text>' for y in (9.5, 20))


@pytest.mark.parametrize("lines", [ONE_LINE, TWO_LINES])
def test_read_picture_cuts_off_the_answer_that_stands_above_it(tmp_path: Path, lines: str) -> None:
    svg, title, _ = shown(tmp_path, SVG.replace("</svg>", f'<g id="answer">{lines}</g></svg>'))
    assert title == "A is 3 % faster" and "faster" not in svg
    # Two points below the last line.
    assert 'viewBox="0 22 144 50"' in svg and "aspect-ratio:144/50" in svg


def test_read_picture_names_identifiers_and_colours_anew(tmp_path: Path) -> None:
    svg, _, colours = shown(tmp_path)
    assert 'id="f-m1"' in svg and 'href="#f-m1"' in svg and 'clip-path="url(#f-p1)"' in svg
    assert "fill: var(--cff0000)" in svg
    assert colours == {
        "--c000000": f"light-dark(#000000,{on_dark('#000000')})",
        "--cff0000": f"light-dark(#ff0000,{on_dark('#ff0000')})",
    }
    assert 'd="M 0.12 1.5"' in svg, "lengths are rounded"
    assert "scale(0.123456)" in svg, "scales are not"
    assert 'aria-label="What &quot;is&quot; it?"' in svg


@pytest.mark.parametrize("text", ["no picture", "<html/>"])
def test_read_picture_refuses_what_is_no_picture(tmp_path: Path, text: str) -> None:
    with pytest.raises(UserError, match=r"f\.svg: not an SVG file"):
        shown(tmp_path, text)


def luminance(colour: str) -> float:
    linear = [
        c / 12.92 if c <= 0.03928 else ((c + 0.055) / 1.055) ** 2.4
        for c in (int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5))
    ]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: str, other: str) -> float:
    """Return the contrast of two colours by WCAG 2.1."""
    lighter, darker = sorted((luminance(one), luminance(other)), reverse=True)
    return (lighter + 0.05) / (darker + 0.05)


def test_on_dark_turns_black_into_text_and_white_into_the_page() -> None:
    style = (Path(triplepoint.report.__file__).parent / "templates" / "report.css").read_text()
    assert f"--page: light-dark(#ffffff, {DARK_PAGE})" in style
    assert contrast(on_dark("#000000"), DARK_PAGE) > 12
    assert contrast(on_dark("#ffffff"), DARK_PAGE) < 1.1


@pytest.mark.parametrize(
    "colour", ["#E69F00", "#56B4E9", "#009E73", "#F0E442", "#0072B2", "#D55E00", "#CC79A7", "#26326e"]
)
def test_on_dark_colours_are_seen_and_keep_text_readable_on_them(colour: str) -> None:
    assert contrast(on_dark(colour), DARK_PAGE) > 3
    if contrast(colour, "#000000") > contrast(colour, "#ffffff"):
        assert contrast(on_dark(colour), on_dark("#000000")) > 2, "black text on it is light text there"


def test_read_picture_whose_description_is_not_of_this_version_is_refused(tmp_path: Path) -> None:
    described = SVG.replace("</dc:title>", "</dc:title><dc:description>a plot</dc:description>")
    with pytest.raises(UserError, match="f.svg: its description is of another version.*draw the figure again"):
        shown(tmp_path, described)
