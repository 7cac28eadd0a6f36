"""Differences of means of samples by hand: paired and unpaired t intervals."""

import math

import pytest

from triplepoint.effects.samples import paired, unpaired


def test_paired_by_hand() -> None:
    """Differences 1, 2, 3: mean 2, standard error 1 / sqrt(3), t(2) at 95 % is 2.920."""
    effect = paired([0.0, 10.0, 20.0], [1.0, 12.0, 23.0], "repeats")
    half = 2.919986 / math.sqrt(3)
    assert [effect.value, effect.low, effect.high] == pytest.approx([2, 2 - half, 2 + half], rel=1e-5)
    assert (effect.basis, effect.num, effect.is_relative) == ("repeats", 3, False)


def test_unpaired_by_hand() -> None:
    """Variances 1 and 1 of 3 each: standard error sqrt(2/3), 4 degrees of freedom, t(4) at 95 % is 2.132."""
    effect = unpaired([0.0, 1.0, 2.0], [5.0, 6.0, 7.0], "steps")
    half = 2.131847 * math.sqrt(2 / 3)
    assert [effect.value, effect.low, effect.high] == pytest.approx([5, 5 - half, 5 + half], rel=1e-5)
    assert not effect.is_tie


def test_single_values_have_no_interval() -> None:
    for effect in (paired([1.0], [3.0], "repeats"), unpaired([1.0], [3.0, 3.0], "steps")):
        assert effect.value == 2 and math.isnan(effect.low) and effect.basis == "none"


def test_values_without_spread_have_an_interval_of_no_width() -> None:
    effect = unpaired([1.0, 1.0], [3.0, 3.0, 3.0], "steps")
    assert (effect.value, effect.low, effect.high) == (2, 2, 2)


def test_nothing_to_compare_is_refused() -> None:
    with pytest.raises(ValueError, match="no pairs"):
        paired([], [], "steps")
    with pytest.raises(ValueError, match="0 and 1 values"):
        unpaired([], [1.0], "steps")
