"""Colours for a dark background: lightness is inverted in OKLab, so that contrasts stay about the same."""

from collections.abc import Iterable

import numpy as np

Vector = np.ndarray

_TO_LMS = np.array(
    [[0.4122214708, 0.5363325363, 0.0514459929], [0.2119034982, 0.6806995451, 0.1073969566],
     [0.0883024619, 0.2817188376, 0.6299787005]]
)  # fmt: skip
_TO_LAB = np.array(
    [[0.2104542553, 0.7936177850, -0.0040720468], [1.9779984951, -2.4285922050, 0.4505937099],
     [0.0259040371, 0.7827717662, -0.8086757660]]
)  # fmt: skip
"""Linear sRGB to cones, their cube roots to OKLab. Source: B. Ottosson, "A perceptual color space for image
processing", 2020, bottosson.github.io/posts/oklab."""

DARK_PAGE = "#16181c"
_GREYS = (0.208, 0.93)
"""OKLab lightness on a dark background that replaces white (the page) and black (text)."""
_HUES = (0.52, 0.86)
"""Like `_GREYS` for hues. The range is narrower, so that a light yellow is visible on the dark page. Our choice."""
_COLOURED = 0.06
"""OKLab chroma from which a colour counts fully as a hue instead of a grey. Our choice."""
_OWN = {
    "#e69f00": "#ce8800", "#56b4e9": "#006c9d", "#009e73": "#00734b", "#f0e442": "#afa200", "#0072b2": "#4ca6ea",
    "#d55e00": "#a24d1a", "#cc79a7": "#ab5b89", "#7f4f24": "#ffd1a4", "#c09a6b": "#856133", "#26326e": "#d8e9ff",
}  # fmt: skip
"""Counterparts of the colours of marks. Inverted, some of them would be nearly equal. Each keeps its hue and has
a lightness at which neighbours in legends are told apart, also with deficiencies of colour vision. Our choice."""
_LIFT = 0.8
"""Exponent that lightens middle tones, since equal steps of lightness are harder to see near black. Our choice."""


def variables(colours: Iterable[str]) -> dict[str, str]:
    """Return CSS variables for colours `#rrggbb`, with their values for light and dark backgrounds."""
    return {css_name(colour): f"light-dark({colour},{on_dark(colour)})" for colour in sorted(set(colours))}


def css_name(colour: str) -> str:
    """Return the name of a colour's CSS variable."""
    return f"--c{colour[1:].lower()}"


def on_dark(colour: str) -> str:
    """Return the counterpart of a colour on a dark background; hue and chroma stay the same as far as possible."""
    if own := _OWN.get(colour.lower()):
        return own
    lightness, a, b = _oklab(colour)
    hued = min(float(np.hypot(a, b)) / _COLOURED, 1.0)
    ends = [(1 - hued) * grey + hued * hue for grey, hue in zip(_GREYS, _HUES, strict=True)]
    return _hex(np.array([ends[0] + max(1 - lightness, 0.0) ** _LIFT * (ends[1] - ends[0]), a, b]))


def _oklab(colour: str) -> Vector:
    """Return lightness, a and b of a colour `#rrggbb`. Shape (3,)."""
    srgb = np.array([int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)])
    linear = np.where(srgb <= 0.04045, srgb / 12.92, ((srgb + 0.055) / 1.055) ** 2.4)
    lab: Vector = _TO_LAB @ np.cbrt(_TO_LMS @ linear)
    return lab


def _hex(lab: Vector) -> str:
    """Return the colour `#rrggbb` of OKLab coordinates, clipped to sRGB."""
    linear = np.clip(np.linalg.inv(_TO_LMS) @ (np.linalg.inv(_TO_LAB) @ lab) ** 3, 0, 1)
    srgb = np.where(linear <= 0.0031308, linear * 12.92, 1.055 * linear ** (1 / 2.4) - 0.055)
    return "#" + "".join(f"{round(value * 255):02x}" for value in srgb)
