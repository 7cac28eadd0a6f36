"""Colours of what stands side by side are told apart, also with the common deficiencies of colour vision."""

import itertools
import math

import numpy as np
import pytest

from triplepoint.figures import marks
from triplepoint.report.colours import on_dark

NORMAL = np.eye(3)
PROTAN = np.array([[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]])
DEUTAN = np.array([[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]])
TRITAN = np.array([[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]])
"""What is seen of linear sRGB at full severity. Source: Machado, Oliveira, Fernandes 2009, table 1."""
LEAST = 15.0
"""CIEDE2000 between neighbours. 2.3 is one just noticeable difference of large areas; small areas need more."""


def lab(colour: str, seen: np.ndarray = NORMAL) -> tuple[float, float, float]:
    """Return CIELAB of an sRGB colour under D65."""
    rgb = np.array([int(colour[at : at + 2], 16) for at in (1, 3, 5)]) / 255
    linear = np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)
    linear = np.clip(seen @ linear, 0, 1)
    to_xyz = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])
    x, y, z = (
        value ** (1 / 3) if value > 0.008856 else 7.787 * value + 16 / 116
        for value in to_xyz @ linear / (0.9505, 1.0, 1.089)
    )
    return 116 * y - 16, 500 * (x - y), 200 * (y - z)


def ciede2000(one: tuple[float, float, float], other: tuple[float, float, float]) -> float:
    """Return the difference of two CIELAB colours. Source: Sharma, Wu, Dalal 2005, equations 2 to 22."""
    (light1, a1, b1), (light2, a2, b2) = one, other
    mean_chroma = (math.hypot(a1, b1) + math.hypot(a2, b2)) / 2
    stretch = 1 + 0.5 * (1 - math.sqrt(mean_chroma**7 / (mean_chroma**7 + 25**7)))
    a1, a2 = a1 * stretch, a2 * stretch
    chroma1, chroma2 = math.hypot(a1, b1), math.hypot(a2, b2)
    hue1, hue2 = (math.degrees(math.atan2(b, a)) % 360 for a, b in ((a1, b1), (a2, b2)))
    turn = (hue2 - hue1 + 180) % 360 - 180 if chroma1 * chroma2 else 0.0
    mean_hue = (hue1 + turn / 2) % 360 if chroma1 * chroma2 else hue1 + hue2
    chroma, light = (chroma1 + chroma2) / 2, (light1 + light2) / 2
    hue_weight = (
        1
        - 0.17 * math.cos(math.radians(mean_hue - 30))
        + 0.24 * math.cos(math.radians(2 * mean_hue))
        + 0.32 * math.cos(math.radians(3 * mean_hue + 6))
        - 0.20 * math.cos(math.radians(4 * mean_hue - 63))
    )
    of_light = (light2 - light1) / (1 + 0.015 * (light - 50) ** 2 / math.sqrt(20 + (light - 50) ** 2))
    of_chroma = (chroma2 - chroma1) / (1 + 0.045 * chroma)
    of_hue = 2 * math.sqrt(chroma1 * chroma2) * math.sin(math.radians(turn / 2)) / (1 + 0.015 * chroma * hue_weight)
    rotation = -2 * math.sqrt(chroma**7 / (chroma**7 + 25**7))
    rotation *= math.sin(math.radians(60 * math.exp(-(((mean_hue - 275) / 25) ** 2))))
    return math.sqrt(of_light**2 + of_chroma**2 + of_hue**2 + rotation * of_chroma * of_hue)


@pytest.mark.parametrize(
    ("one", "other", "difference"),
    [
        ((50.0, 2.6772, -79.7751), (50.0, 0.0, -82.7485), 2.0425),
        ((50.0, 2.5, 0.0), (73.0, 25.0, -18.0), 27.1492),
        ((2.0776, 0.0795, -1.1350), (0.9033, -0.0636, -0.5514), 0.9082),
    ],
)
def test_ciede2000_gives_published_differences(one: tuple, other: tuple, difference: float) -> None:
    """Three of the test pairs of Sharma, Wu, Dalal 2005, table 1."""
    assert ciede2000(one, other) == pytest.approx(difference, abs=1e-3)


@pytest.mark.parametrize("seen", [NORMAL, PROTAN, DEUTAN, TRITAN], ids=["normal", "protan", "deutan", "tritan"])
@pytest.mark.parametrize("family", marks.FAMILIES)
def test_neighbours_are_told_apart(family: str, seen: np.ndarray) -> None:
    found = marks.FAMILIES[family]
    for one, other in itertools.pairwise(found):
        for one_colour, other_colour in ((one.colour, other.colour), (on_dark(one.colour), on_dark(other.colour))):
            difference = ciede2000(lab(one_colour, seen), lab(other_colour, seen))
            assert difference >= LEAST, f"{one.name} and {other.name}: {one_colour} {other_colour} {difference:.1f}"


@pytest.mark.parametrize("family", marks.FAMILIES)
def test_marks_of_a_family_differ(family: str) -> None:
    found = [(mark.colour, mark.hatch) for mark in marks.FAMILIES[family]]
    assert len(set(found)) == len(found)


def test_fully_sharded_layouts_are_hatched_in_the_colour_of_their_degree() -> None:
    plain, sharded = marks.of_layout(8, False), marks.of_layout(8, True)
    assert plain.colour == sharded.colour
    assert plain.hatch != sharded.hatch
    assert plain.marker != sharded.marker
