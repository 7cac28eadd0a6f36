"""Effects computed by hand: ratios and differences with paired intervals, ties, and the title that says the answer."""

import math
from typing import Any

import pandas as pd
import pytest

from triplepoint import effects
from triplepoint.effects import Effect
from triplepoint.effects.titles import rank


def rows(name: str, times_s: list[float], **more: Any) -> pd.DataFrame:
    """Return repeats of one measured layout."""
    return pd.DataFrame(
        [
            {
                "layout": name, "repeat": number, "status": "ok", "origin": "measured", "step_time_s": time_s,
                "step_time_p10_s": math.nan, "step_time_p90_s": math.nan, "num_measured_steps": 20,
                "step_time_layout_sigma": math.nan,
            } | more
            for number, time_s in enumerate(times_s, 1)
        ]
    )  # fmt: skip


def simulated(name: str, time_s: float, sigma: float = 0.02) -> pd.DataFrame:
    return rows(name, [time_s], origin="simulated", step_time_layout_sigma=sigma)


def test_repeats_are_paired() -> None:
    """Each pair takes 5 % longer though repeats differ by half: no spread at all is left of the ratio."""
    effect = effects.compare(rows("a", [1.0, 1.5]), rows("b", [1.05, 1.575]), "step_time_s")
    assert (effect.basis, effect.num) == ("repeats", 2)
    assert [effect.value, effect.low, effect.high] == pytest.approx([0.05, 0.05, 0.05])


def test_interval_over_repeats_by_hand() -> None:
    """Log ratios 0.00, 0.02 and 0.04: mean 0.02, standard error 0.02 / sqrt(3), t(2) at 95 % is 2.920."""
    other = [math.exp(0.00), math.exp(0.02), math.exp(0.04)]
    effect = effects.compare(rows("a", [1.0, 1.0, 1.0]), rows("b", other), "step_time_s")
    half = 2.919986 * 0.02 / math.sqrt(3)
    assert [effect.value, effect.low, effect.high] == pytest.approx(
        [math.expm1(0.02), math.expm1(0.02 - half), math.expm1(0.02 + half)], rel=1e-5
    )
    assert effect.is_tie


def test_single_launches_have_the_interval_of_their_steps() -> None:
    """p10 to p90 of a log-normal of sigma 0.1 is 2.563 sigma; the median of 25 steps has 1.2533 sigma / 5."""
    ends = {"step_time_p10_s": math.exp(-0.12815), "step_time_p90_s": math.exp(0.12815), "num_measured_steps": 25}
    effect = effects.compare(rows("a", [1.0], **ends), rows("b", [1.0], **ends), "step_time_s")
    assert effect.basis == "steps"
    assert math.log1p(effect.high) == pytest.approx(1.645 * math.sqrt(2) * 1.2533 * 0.1 / 5, rel=1e-3)


def test_equal_steps_show_no_spread() -> None:
    """A sensor of whole degrees, or one value a run: an interval without width would claim a certain difference."""
    ends = {"gpu_temp_p10_c": 60.0, "gpu_temp_p90_c": 60.0, "num_measured_steps": 25}
    effect = effects.compare(
        rows("a", [1.0], gpu_temp_c=60.0, **ends), rows("b", [1.0], gpu_temp_c=61.0, **ends), "gpu_temp_c"
    )
    assert effect.value == 1 and math.isnan(effect.low) and effect.basis == "none"


def test_simulated_runs_have_the_paired_error_of_the_model() -> None:
    """As in `triplepoint.ranking`: 1.645 sqrt(2) sigma on the logarithm; what layouts share cancels."""
    effect = effects.compare(simulated("a", 1.0), simulated("b", 1.10), "step_time_s")
    half = 1.645 * math.sqrt(2) * 0.02
    assert effect.basis == "model"
    assert [effect.low, effect.high] == pytest.approx([1.1 * math.exp(-half) - 1, 1.1 * math.exp(half) - 1])
    assert not effect.is_tie


def test_difference_of_two_mfu_has_the_error_of_the_model_in_its_unit() -> None:
    """Errors of 2 % of 0.2 and of 2 % of 0.4: they are relative, the difference is not."""
    one, two = (simulated(name, 1.0).assign(mfu=mfu) for name, mfu in (("a", 0.2), ("b", 0.4)))
    effect = effects.compare(one, two, "mfu", is_relative=False)
    assert effect.high - effect.value == pytest.approx(1.645 * math.hypot(0.004, 0.008), rel=1e-3)


def test_power_of_the_model_has_both_intervals() -> None:
    """Half widths of 3 % and 4 % in log make 5 %."""
    one = simulated("a", 1.0).assign(
        gpu_power_w=500.0, gpu_power_lo_w=500 * math.exp(-0.03), gpu_power_hi_w=500 * math.exp(0.03)
    )
    two = simulated("b", 1.0).assign(
        gpu_power_w=550.0, gpu_power_lo_w=550 * math.exp(-0.04), gpu_power_hi_w=550 * math.exp(0.04)
    )
    effect = effects.compare(one, two, "gpu_power_w")
    assert effect.value == pytest.approx(0.1)
    assert math.log1p(effect.high) - math.log1p(effect.value) == pytest.approx(0.05)


def test_temperatures_differ_in_kelvin() -> None:
    one = simulated("a", 1.0).assign(gpu_temp_c=60.0, gpu_temp_lo_c=57.0, gpu_temp_hi_c=63.0)
    two = simulated("b", 1.0).assign(gpu_temp_c=66.0, gpu_temp_lo_c=62.0, gpu_temp_hi_c=70.0)
    effect = effects.compare(one, two, "gpu_temp_c")
    assert (effect.value, effect.low, effect.high) == pytest.approx((6.0, 1.0, 11.0))
    assert effect.text == "6.0 K [1.0, 11.0]"


def test_no_interval_is_no_tie() -> None:
    effect = effects.compare(rows("a", [1.0]), rows("b", [1.1]), "step_time_s")
    assert math.isnan(effect.low) and effect.basis == "none"
    assert not effect.is_tie
    assert effect.text == "10.0 %"


def test_mean_over_settings_by_hand() -> None:
    """Effects of 0, 2 and 4 in log per cent: the same interval as over three repeats."""
    single = [Effect(math.expm1(change), math.nan, math.nan, "model", 1) for change in (0.0, 0.02, 0.04)]
    effect = effects.over_settings(single)
    assert (effect.basis, effect.num) == ("settings", 3)
    assert math.log1p(effect.high) == pytest.approx(0.02 + 2.919986 * 0.02 / math.sqrt(3), rel=1e-5)
    with pytest.raises(ValueError, match="0 effects"):
        effects.over_settings([])


def ranks(**watts_by_run: list[float]) -> pd.DataFrame:
    """Return the power of the ranks of some runs."""
    return pd.DataFrame(
        [
            {"run": run, "rank": rank, "gpu_power_w": watts}
            for run, of_run in watts_by_run.items()
            for rank, watts in enumerate(of_run)
        ]
    )


def test_simulated_pairs_have_the_spread_of_their_ranks() -> None:
    """Means of 500 and 550 W; ranks are off the ratio 1.1 by -10, 0 and 10 W: 2 % of the mean, over sqrt(3)."""
    one, two = (simulated("a", 1.0).assign(run=run, gpu_power_w=watts) for run, watts in (("x", 500.0), ("y", 550.0)))
    by_rank = ranks(x=[400, 500, 600], y=[430, 550, 670])
    effect = effects.compare(one, two, "gpu_power_w", ranks=by_rank)
    half = 2.919986 * 0.02 / math.sqrt(3)
    assert (effect.basis, effect.num) == ("ranks", 3)
    assert [effect.value, effect.low, effect.high] == pytest.approx([0.1, 0.1 - half, 0.1 + half], rel=1e-5)


def test_what_ranks_do_not_show_has_no_interval() -> None:
    """All ranks of a job have one step time, and the error of the model is no spread of pairs."""
    one, two = (simulated("a", time_s).assign(run=run) for run, time_s in (("x", 1.0), ("y", 1.3)))
    effect = effects.compare(one, two, "step_time_s", ranks=ranks(x=[1, 2], y=[1, 2]))
    assert (effect.basis, effect.text) == ("none", "30 %")


def test_mean_of_pairs_has_their_intervals_and_not_their_spread() -> None:
    """Half widths of 3 and 4 K make 2.5 K of a mean of two."""
    effect = effects.over_pairs([Effect(0.0, -3.0, 3.0, "ranks", 8, False), Effect(9.0, 5.0, 13.0, "ranks", 8, False)])
    assert (effect.value, effect.low, effect.high, effect.basis) == (4.5, 2.0, 7.0, "ranks")


def test_mean_of_pairs_of_several_bases_claims_the_weaker() -> None:
    bases = ("repeats", "steps"), ("steps", "ranks")
    means = [effects.over_pairs([Effect(0.1, 0.0, 0.2, basis, 2) for basis in pair]) for pair in bases]
    assert [mean.basis for mean in means] == ["steps", "mixed"]


def test_pairs_differ_in_the_setting_alone() -> None:
    """Layout c ran with one value only, and layout b failed with the other."""
    parts = [
        simulated("a", 1.0).assign(recompute="none"),
        simulated("a", 1.3).assign(recompute="full"),
        simulated("b", 1.0).assign(recompute="none"),
        simulated("b", 1.2).assign(recompute="full", status="oom"),
        simulated("c", 1.0).assign(recompute="none"),
    ]
    by_rank = ranks(x=[1, 2], y=[1, 2]).assign(step_time_s=[1.0, 1.0, 1.3, 1.3])
    runs = pd.concat(parts).assign(run=["x", "y", "u", "v", "w"])
    paired = effects.pair_points(runs, "step_time_s", ["layout"], "recompute", "none", "full", by_rank)
    assert paired["a",].basis == "ranks"
    found = effects.pair_points(pd.concat(parts), "step_time_s", ["layout"], "recompute", "none", "full")
    assert list(found) == [("a",)]
    assert found["a",].value == pytest.approx(0.3)


def test_answer_names_the_best_and_what_it_beats() -> None:
    ranking = rank(pd.concat([simulated("TP4·PP4", 1.10), simulated("TP2·PP8", 1.0)]))
    # 1.10 * exp(-+0.0465): 5.0 and 15.2 %.
    assert ranking.sentence == "TP2·PP8 is 10.0 % [5.0, 15.2] faster than TP4·PP4"
    assert ranking.note == "TP2·PP8 first\n+10.0 % [5.0, 15.2]" and ranking.is_clear


def test_answer_names_ties() -> None:
    points = pd.concat([simulated("a", 1.0), simulated("b", 1.01), simulated("c", 1.02), simulated("d", 1.2)])
    assert rank(points).sentence == "a is 20 % [15, 26] faster than d, but tied with b and c"
    assert rank(points).note == "a first, tied with 2 others\n+20 % [15, 26]"


def test_answer_where_all_are_tied() -> None:
    points = pd.concat([simulated("a", 1.0), simulated("b", 1.01)])
    assert rank(points).sentence == "both layouts are tied: a is 1.0 % [-3.6, 5.8] faster than b"
    assert rank(points).note == "a first, tied\n+1.0 % [-3.6, 5.8]"
    assert not rank(points).is_clear and rank(points).next == "b"


def test_from_twice_as_fast_on_the_factor_is_said() -> None:
    points = pd.concat([simulated("a", 1.0), simulated("b", 4.0)])
    # 4 * exp(-+0.04653): 3.82 and 4.19.
    assert rank(points).sentence == "a is 4.0 times [3.8, 4.2] as fast as b"


def test_answer_counts_what_did_not_finish() -> None:
    points = pd.concat([simulated("a", 1.0), simulated("b", 1.0).assign(status="oom")])
    assert rank(points).sentence == "of 2 layouts, only a finished"
    assert rank(points.assign(status="oom")).sentence == "of 2 layouts, none finished"


def test_answer_of_one_layout_says_that_there_is_no_other() -> None:
    points = simulated("TP2", 1.0)
    assert rank(points).sentence == "only one layout was run, TP2" and rank(points).note == ""
    assert rank(points.assign(status="oom")).sentence == "the only layout did not finish"


def test_layouts_on_another_number_of_gpus_are_not_compared() -> None:
    points = pd.concat([simulated(name, 1.0) for name in "ab"]).assign(num_gpus=64)
    ranking = rank(pd.concat([points, simulated("c", 0.5).assign(num_gpus=32)]))
    assert ranking.best == "a" and list(ranking.leads) == ["b"]


def test_answer_counts_ties_of_many() -> None:
    points = pd.concat([simulated(name, 1.0) for name in "abcd"])
    assert rank(points).sentence.startswith("all 4 layouts are tied: a is 0.0 % [")
    assert rank(points).note.startswith("a first, all 4 tied\n")
    assert rank(pd.concat([points, simulated("e", 2.0)])).sentence.endswith("as fast as e, but tied with 3 others")


def test_a_missing_value_is_refused() -> None:
    with pytest.raises(ValueError, match="numbers above zero are expected"):
        effects.compare(rows("a", [1.0]), rows("b", [math.nan]), "step_time_s")
