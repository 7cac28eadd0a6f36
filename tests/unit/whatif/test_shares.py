"""Shares of a change: by hand, and as properties of any game."""

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from triplepoint.whatif.shares import Factors, all_combinations, one_at_a_time, shares

NAMES = ["a", "b", "c"]


def values_of(worth: Callable[[Factors], float], names: list[str]) -> dict[Factors, float]:
    return {some: worth(some) for some in all_combinations(names)}


def test_two_factors_by_hand() -> None:
    # A step of 10 s: without the network 7 s, without bubbles 8 s, without both 6 s.
    values = {Factors(): 10.0, Factors("n"): 7.0, Factors("p"): 8.0, Factors("np"): 6.0}
    found = shares(values, ["n", "p"])
    assert found.effect == {"n": -3.0, "p": -2.0}
    assert (found.whole, found.interaction) == (-4.0, 1.0)
    # Of two orders: n first -3, n last 6 - 8 = -2; p first -2, p last 6 - 7 = -1.
    assert found.shapley == {"n": -2.5, "p": -1.5}


def test_three_factors_by_hand() -> None:
    # Only a and b together do something, so each has half of it and c nothing.
    found = shares(values_of(lambda some: 6.0 * ({"a", "b"} <= some), NAMES), NAMES)
    assert found.shapley == {"a": pytest.approx(3.0), "b": pytest.approx(3.0), "c": 0.0}
    assert found.interaction == 6.0


def test_one_at_a_time_has_no_shapley_values() -> None:
    values = dict.fromkeys(one_at_a_time(NAMES), 1.0)
    assert len(values) == 5
    assert shares(values, NAMES).shapley == {}


@given(st.lists(st.floats(-1e3, 1e3), min_size=16, max_size=16))
def test_factors_and_interaction_add_up_to_the_whole(worth: list[float]) -> None:
    names = ["a", "b", "c", "d"]
    found = shares(dict(zip(all_combinations(names), worth, strict=True)), names)
    assert sum(found.effect.values()) + found.interaction == pytest.approx(found.whole, abs=1e-8)
    assert sum(found.shapley.values()) == pytest.approx(found.whole, abs=1e-8)


@given(st.lists(st.floats(-1e3, 1e3), min_size=3, max_size=3))
def test_factors_that_do_not_interact_have_their_effect(worth: list[float]) -> None:
    found = shares(values_of(lambda some: sum(worth[NAMES.index(name)] for name in some), NAMES), NAMES)
    assert found.interaction == pytest.approx(0.0, abs=1e-9)
    assert found.shapley == {name: pytest.approx(found.effect[name], abs=1e-9) for name in NAMES}
