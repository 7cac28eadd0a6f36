"""What factors do to cases and to the difference of two: parts add up, and what both have in common cancels."""

import math
import re
from dataclasses import replace
from functools import cache
from typing import Any

import pytest

from tests.unit.whatif.cases import CONFIG, MIXTRAL, case_of
from triplepoint.errors import UserError
from triplepoint.prices import Prices
from triplepoint.whatif.case import quantities
from triplepoint.whatif.explain import Explained, explain
from triplepoint.whatif.factors import read_changes
from triplepoint.whatif.figure import draw
from triplepoint.whatif.paired import case_moves, difference_moves, difference_parts, interval, interval_of_share
from triplepoint.whatif.rows import case_rows, difference_rows
from triplepoint.whatif.text import headline, render

PRICES = Prices(kwh=0.2, gpu_hour=3.0)
FACTORS = ["network", "pipeline", "cooling"]


@cache
def sides() -> tuple[Explained, Explained]:
    cases = [case_of(MIXTRAL), case_of({**MIXTRAL, "cluster": "h100x64"})]
    one, other = explain(cases, read_changes(FACTORS), CONFIG, PRICES)
    return one, other


def rows_by(rows: list[dict[str, Any]], quantity: str) -> dict[str, dict[str, Any]]:
    return {row["factor"] or row["part"]: row for row in rows if row["quantity"] == quantity}


QUANTITIES = ["step_time_s", "gpu_power_w", "node_power_w", "gpu_temp_max_c", "node_energy_j", "cost"]


@pytest.mark.parametrize("quantity", QUANTITIES)
def test_factors_and_interaction_are_the_whole(quantity: str) -> None:
    rows = rows_by(list(case_rows(sides()[0])), quantity)
    whole = rows.pop("whole")
    assert math.fsum(row["effect"] for row in rows.values()) == pytest.approx(whole["effect"], abs=1e-9)
    assert whole["base"] + whole["effect"] == pytest.approx(whole["changed"])
    assert math.fsum(rows[name]["shapley"] for name in FACTORS) == pytest.approx(whole["effect"], abs=1e-9)


@pytest.mark.parametrize("quantity", QUANTITIES)
def test_parts_of_a_difference_are_the_whole(quantity: str) -> None:
    rows = rows_by(list(difference_rows(sides(), CONFIG)), quantity)
    whole = rows.pop("whole")
    assert math.fsum(row["effect"] for row in rows.values()) == pytest.approx(whole["effect"], abs=1e-9)
    assert whole["effect"] == pytest.approx(whole["changed"] - whole["base"])
    one, other = sides()
    assert (whole["base"], whole["changed"]) == (one.shares(quantity).base, other.shares(quantity).base)


def test_a_factor_costs_a_difference_what_it_costs_one_more_than_the_other() -> None:
    one, other = sides()
    cost = [side.shares("step_time_s").effect["network"] for side in (one, other)]
    found = rows_by(list(difference_rows(sides(), CONFIG)), "step_time_s")["network"]["effect"]
    assert found == pytest.approx(-cost[1] - -cost[0])


@pytest.mark.parametrize("quantity", QUANTITIES)
def test_every_part_lies_within_its_interval(quantity: str) -> None:
    for row in [*case_rows(sides()[0]), *difference_rows(sides(), CONFIG)]:
        assert row["effect_lo"] <= row["effect"] <= row["effect_hi"]
        if row["quantity"] == "gpu_temp_max_c":
            assert "share" not in row
        else:
            assert row["share_lo"] <= row["share"] <= row["share_hi"]


def test_a_case_does_not_differ_from_itself_and_that_is_certain() -> None:
    one = sides()[0]
    parts = difference_parts(one.parts("step_time_s"), one.parts("step_time_s"))
    moves = difference_moves((one, one), "step_time_s", CONFIG)
    for part in (*FACTORS, "interaction", "rest", "whole"):
        assert interval(parts, moves, part) == (0.0, 0.0)


def test_what_slows_all_alike_moves_no_share() -> None:
    # Base and part 10 % slower by one unknown, the part alone 0.5 s by another.
    parts = {"network": -2.0, "base": 10.0}
    moves = {"computing": {"network": -0.2, "base": 1.0}, "network": {"network": -0.5, "base": 0.0}}
    low, high = interval_of_share(parts, moves, "network")
    assert (low, high) == (pytest.approx(-0.25), pytest.approx(-0.15))
    low, high = interval(parts, moves, "network")
    assert high - low == pytest.approx(2 * math.hypot(0.2, 0.5))


def test_shares_are_known_better_than_by_intervals_that_are_not_paired() -> None:
    one = sides()[0]
    parts, moves = one.parts("step_time_s"), case_moves(one, "step_time_s")
    for part in FACTORS:
        low, high = interval_of_share(parts, moves, part)
        alone = [interval(parts, moves, name) for name in (part, "base")]
        relative = [
            (ends[1] - ends[0]) / 2 / abs(parts[name]) for ends, name in zip(alone, (part, "base"), strict=True)
        ]
        assert (high - low) / 2 < math.hypot(*relative) * abs(parts[part] / parts["base"])


def test_cost_by_hand() -> None:
    case = case_of(MIXTRAL)
    found = case.predict(CONFIG)
    kwh = found.power.node_power_w * 4 * found.step_time_s / 3.6e6
    gpu_hours = 32 * found.step_time_s / 3600
    assert quantities(case, found, PRICES)["cost"] == pytest.approx(0.2 * kwh + 3.0 * gpu_hours)
    assert math.isnan(quantities(case, found, Prices())["cost"])


def test_energy_of_the_hall_is_paid_where_its_effectiveness_is_given() -> None:
    prices = Prices(kwh=0.3, gpu_hour=2.0, pue=1.5)
    assert prices.cost(gpu_s=7200.0, energy_j=3.6e6) == pytest.approx(0.3 * 1.5 + 2.0 * 2)
    assert math.isnan(prices.cost(gpu_s=7200.0, energy_j=math.nan))
    assert Prices(gpu_hour=2.0).cost(gpu_s=3600.0, energy_j=math.nan) == 2.0
    assert Prices().words == ""


def test_money_of_a_million_tokens_and_of_a_day_by_hand() -> None:
    rows = [row for row in case_rows(sides()[0]) if row["quantity"] == "cost"]
    case, step_s = sides()[0].case, sides()[0].values["step_time_s"][frozenset()]
    assert {row["steps_per_day"] for row in rows} == {86_400 / step_s}
    trained = case.job.global_batch_size * case.job.sequence_length
    assert {row["steps_per_mtoken"] for row in rows} == {1e6 / trained}
    # A day of 32 GPUs at 3 an hour, and of the energy of their nodes at 0.2.
    kwh = sides()[0].values["node_energy_j"][frozenset()] / 3.6e6
    a_day = rows[0]["base"] * rows[0]["steps_per_day"]
    assert a_day == pytest.approx(case.job.num_gpus * 24 * 3.0 + 0.2 * kwh * 86_400 / step_s)


def test_money_of_points_with_other_batches_is_of_a_step_alone() -> None:
    one, other = sides()
    twice = replace(other, case=other.case.with_job(global_batch_size=2 * other.case.job.global_batch_size))
    rows = list(difference_rows((one, twice), CONFIG))
    assert {row["steps_per_day"] for row in rows} == {None}
    assert "per day" not in render(rows) and "cost" in render(rows)


def test_figure_has_a_bar_for_every_part_in_time_energy_and_money() -> None:
    rows = list(difference_rows(sides(), CONFIG))
    page = draw(rows)
    parts = [row for row in rows if row["quantity"] == "step_time_s"]
    by_quantity = ("step_time_s", "node_energy_j", "cost")
    scales = (1.0, 1e-3, rows[0]["steps_per_day"])
    for axes, name, scale in zip(page.axes, by_quantity, scales, strict=True):
        lengths = [bar.get_width() for bar in axes.patches]
        assert lengths == pytest.approx([scale * row["effect"] for row in rows if row["quantity"] == name])
    named = [label.get_text() for label in page.axes[0].get_yticklabels()]
    assert len(named) == len(parts) and named[-1] == "all together"
    with pytest.raises(UserError, match="do not fit on one page"):
        draw([row | {"case": f"{number}", "side": None} for number in range(20) for row in rows])


def test_without_shapley_combinations_are_not_simulated() -> None:
    (found,) = explain([case_of(MIXTRAL)], read_changes(FACTORS), CONFIG, with_shapley=False)
    assert len(found.values["step_time_s"]) == 5
    assert not found.shares("step_time_s").shapley
    assert "cost" not in found.values


def test_a_gpu_type_without_power_has_times_alone() -> None:
    case = case_of({**MIXTRAL, "ep": 4, "pp": 2})
    bare = case.with_job(gpu=case.job.gpu.model_copy(update={"chassis": None}))
    (found,) = explain([bare], read_changes(["network"]), CONFIG)
    assert list(found.values) == ["step_time_s"]


def test_what_cannot_run_says_with_which_factor() -> None:
    case = case_of({**MIXTRAL, "model": "llama3-70b", "ep": 1, "pp": 2, "recompute": "none"})
    with pytest.raises(UserError, match="llama3-70b.*out of memory|llama3-70b.*does not fit"):
        explain([case], read_changes(["network"]), CONFIG)


def test_text_names_every_part_once() -> None:
    rows = [*case_rows(sides()[0], side="from"), *case_rows(sides()[1], side="to"), *difference_rows(sides(), CONFIG)]
    *blocks, legend = re.split(r"\n\n(?=Step time|The second|The first)", render(rows))
    assert len(blocks) == 3
    assert "Computing is what is left" in legend
    for block in blocks:
        changes, _, money = block.partition("\nEnergy and money at 0.2 currency/kWh, PUE 1, 3 currency per GPU hour.")
        for word in (*FACTORS, "interaction", "all together"):
            for table in (changes, money):
                assert sum(line.strip().startswith(word) for line in table.splitlines()) == 1
    assert blocks[0].startswith("The second") and "computing" in blocks[0]


def row_of(part: str, label: str, share: float, value: str | None = None, side: str = "one") -> dict[str, Any]:
    ends = {"share_lo": share - 0.01, "share_hi": share + 0.02}
    return {"side": side, "part": part, "label": label, "value": value, "effect": 10 * share, "share": share} | ends


def test_answer_names_the_factor_that_changes_the_step_most_and_the_whole() -> None:
    factors = [row_of("factor", "inlet", 0.1, "35"), row_of("factor", "network between nodes", -0.44, "free")]
    rows = [*factors, row_of("interaction", "interaction", 0.6), row_of("whole", "all together", -0.36)]
    assert headline(rows) == (
        "Step time changes most with network between nodes (free): -44.0 % [-45.0, -42.0]; "
        "all changes together: -36.0 % [-37.0, -34.0]."
    )


def test_factors_that_change_nothing_are_said_to() -> None:
    limit = row_of("factor", "power limit", 0.0004, "490")
    together = row_of("whole", "all together", 0.0004)
    assert headline([limit, together]) == "Power limit (490) changes the step time by less than 0.1 %."
    rows = [limit, row_of("factor", "network", -0.0009), together]
    assert headline(rows) == "None of the 2 factors, nor all together, changes the step time by more than 0.1 %."


def test_a_single_factor_has_no_interaction_in_text() -> None:
    (one,) = explain([case_of(MIXTRAL)], read_changes(["network=2"]), CONFIG)
    text = render(list(case_rows(one)))
    assert "network" in text and not any(word in text for word in ("interaction", "Shapley", "all together"))


def test_answer_of_a_difference_may_be_computing() -> None:
    parts = [row_of("factor", "memory", 0.1, side="difference"), row_of("rest", "computing", 0.3, side="difference")]
    rows = [*parts, row_of("whole", "all", 0.4, side="difference")]
    assert headline(rows) == (
        "The second step is 40.0 % longer [39.0, 42.0]. Most of the difference comes from computing: "
        "+30.0 % [+29.0, +32.0] of the first step."
    )
