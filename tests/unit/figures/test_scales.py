"""Axes of values: logarithmic over more than a decade, else from zero; labels of ticks never overlap."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from matplotlib.axes import Axes

from triplepoint.figures import old_page as style
from triplepoint.figures.old_page import Canvas
from triplepoint.figures.scales import fit_ticks, scale


def drawn(values: list[float], width_in: float = 1.0) -> Axes:
    axes = Canvas.make(3.0, 2.0).axes(0.5, 0.5, width_in, 1.0)
    axes.plot(values, range(len(values)), "o")
    return axes


def overlaps(axes: Axes) -> bool:
    """Whether boxes of labels meet, as they are laid out."""
    axes.figure.canvas.draw()
    boxes = [text.get_window_extent() for text in axes.get_xticklabels() if text.get_text()]
    return any(one.x1 > other.x0 for one, other in zip(boxes, boxes[1:], strict=False))


def test_scale_is_logarithmic_over_a_decade_only() -> None:
    far, near = drawn([1.0, 11.0]), drawn([1.0, 9.0])
    scale(far, "x", [1.0, 11.0, float("nan"), 0.0], 4)
    scale(near, "x", [1.0, 9.0], 4)
    assert (far.get_xscale(), near.get_xscale()) == ("log", "linear")
    low, high = far.get_xlim()
    assert low < 1.0 and high > 11.0
    assert near.get_xlim()[0] == 0
    labels = [text.get_text() for text in far.get_xticklabels()]
    assert "1" in labels and "10" in labels


@style.styled
@settings(max_examples=60, deadline=None)
@given(st.floats(1e-3, 1e5), st.floats(1.0, 3e3), st.sampled_from([0.55, 0.7, 1.5]))
def test_scale_labels_do_not_overlap(low: float, ratio: float, width_in: float) -> None:
    axes = drawn([low, low * ratio], width_in)
    scale(axes, "x", [low, low * ratio], 4)
    ticks = axes.get_xticks()
    assert len(ticks) >= (2 if ratio > 10 else 1)
    assert all(axes.get_xlim()[0] <= tick <= axes.get_xlim()[1] for tick in ticks)
    assert len(ticks) == 2 or not overlaps(axes)


@style.styled
def test_fit_ticks_of_close_clocks() -> None:
    """MI250: all at 1.7 GHz, on an axis of 0.6 inches; three labels of four characters have no room."""
    axes = drawn([1.7, 1.7], 0.6)
    axes.set_xlim(1.615, 1.785)
    fit_ticks(axes, "x", 5)
    assert [text.get_text() for text in axes.get_xticklabels()] == ["1.65", "1.75"]
    assert not overlaps(axes)


@pytest.mark.parametrize(("low", "high", "labels"), [(0.0, 2.2, ["0", "1", "2"]), (0.0, 0.55, ["0.0", "0.2", "0.4"])])
@style.styled
def test_fit_ticks_has_as_few_decimals_as_tell_them(low: float, high: float, labels: list[str]) -> None:
    axes = drawn([low, high], 1.5)
    axes.set_xlim(low, high)
    fit_ticks(axes, "x", 3)
    assert [text.get_text() for text in axes.get_xticklabels()] == labels
