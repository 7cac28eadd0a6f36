"""All claims together: deviations with both intervals, counts, and the sentences about them, by hand."""

import pandas as pd
import pytest

from triplepoint.verdicts.sum_up import answer_directions, answer_values, counts, deviations, range_of_ratios

COLUMNS = [
    "claim", "kind", "unit", "published", "published_lo", "published_hi", "ours", "ours_lo", "ours_hi", "verdict",
    "fitted",
]  # fmt: skip


def claims(*rows: tuple[object, ...]) -> pd.DataFrame:
    return pd.DataFrame(rows, columns=COLUMNS).assign(figure="figure 1", says="Something is so.")


VALUES = claims(
    ("power", "value", "W", 100.0, 80.0, 125.0, 200.0, 100.0, 250.0, "agrees", "a constant"),
    ("power", "value", "W", 100.0, 90.0, 110.0, 50.0, 45.0, 55.0, "differs", None),
    ("heat", "value", "degC", 50.0, 49.0, 51.0, 53.0, 52.0, 54.0, "differs", None),
    ("heat", "value", "degC", 50.0, 49.0, 51.0, None, None, None, "cannot tell", None),
    ("nothing", "value", "s", 0.0, 0.0, 0.5, 1.0, 0.9, 1.1, "differs", None),
    ("rise", "trend", "W", 5.0, 4.0, 6.0, 5.0, 4.0, 6.0, "agrees", None),
)


def test_deviations_are_ratios_and_of_temperatures_kelvin() -> None:
    found = deviations(VALUES)
    assert found["deviation"].tolist() == [2.0, 0.5, 3.0]
    # Ours at its lowest over published at its highest, and the other way round.
    assert found["low"].tolist() == pytest.approx([100 / 125, 45 / 110, 1.0])
    assert found["high"].tolist() == pytest.approx([250 / 80, 55 / 90, 5.0])
    assert found["is_kelvin"].tolist() == [False, False, True]
    assert found["was_fitted"].tolist() == [True, False, False]


def test_a_number_agrees_where_its_line_meets_one_or_zero() -> None:
    found = deviations(VALUES)
    meets = (found["low"] <= 1 - found["is_kelvin"]) & (found["high"] >= 1 - found["is_kelvin"])
    assert meets.tolist() == [verdict == "agrees" for verdict in found["verdict"]]


def test_answer_values_counts_what_nothing_was_fitted_to() -> None:
    said = answer_values(deviations(VALUES))
    assert said == "1 of 3 published numbers agree with ours, 0 of 2 where nothing was fitted"
    assert range_of_ratios(deviations(VALUES)) == "median 1.25, 9 of 10 from 0.57 to 1.92"
    assert answer_values(deviations(VALUES[:0])) == "No published number has one of ours beside it"


def test_counts_and_answer_of_directions() -> None:
    found = counts(VALUES, ["value", "trend"])
    heat = found[found["claim"] == "heat"].iloc[0]
    assert (heat["agrees"], heat["cannot tell"], heat["differs"], heat["finding"]) == (0, 1, 1, 0)
    assert bool(found[found["claim"] == "power"]["was_fitted"].iloc[0])
    assert answer_directions(found) == "2 of 5 published directions, orders and fits agree; 1 more cannot be told"


def test_answer_of_directions_that_cannot_be_told() -> None:
    found = counts(VALUES[3:4], ["value"])
    assert answer_directions(found) == "None of 1 published directions can be told from these results"
