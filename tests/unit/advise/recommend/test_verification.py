"""Follow-up studies: number of pairs, order, that a study states the same point; the ledger."""

from pathlib import Path

import numpy as np
import pytest
import yaml

from tests.unit.advise.recommend.test_placement import CONFIG, site_of
from triplepoint.advise.recommend import ledger
from triplepoint.advise.recommend.advice import Advice
from triplepoint.advise.recommend.ledger import Promise
from triplepoint.advise.recommend.placement import Outcome, Placement
from triplepoint.advise.recommend.placement_gain import Gain, Proposal
from triplepoint.advise.recommend.power_limits import Caps, Drawn, Limits
from triplepoint.advise.recommend.verification import (
    accepted,
    follow_up,
    in_order,
    num_pairs,
    runs_of,
    spread_of,
)
from triplepoint.config.plan import run_id
from triplepoint.config.study import Study, expand, settings_of_study
from triplepoint.errors import UserError
from triplepoint.plan import select


def test_pairs_are_those_of_the_paired_t_test() -> None:
    """An effect of one deviation of the difference takes 8: (1.895 + 0.896)^2 = 7.8 at 7 degrees of freedom."""
    assert num_pairs(0.01, 0.01 / 2**0.5) == 8
    assert num_pairs(0.1, 0.001) == 3


def test_too_many_pairs_are_refused() -> None:
    with pytest.raises(UserError, match="over 50 pairs"):
        num_pairs(0.001, 0.02)


def test_spread_of_steps_is_their_relative_deviation() -> None:
    assert spread_of([9.0, 10.0, 11.0]) == pytest.approx(0.1)  # type: ignore[arg-type]
    assert spread_of([10.0]) == 0.01  # type: ignore[arg-type]


def test_order_keeps_pairs_together_and_turns_some() -> None:
    first, other = tuple(f"a{number}" for number in range(6)), tuple(f"b{number}" for number in range(6))
    order = in_order(first, other)
    pairs = [(order[place], order[place + 1]) for place in range(0, 12, 2)]
    assert [{*pair} for pair in pairs] == [{f"a{number}", f"b{number}"} for number in range(6)]
    assert 0 < sum(pair[0].startswith("b") for pair in pairs) < 6


def test_order_of_three_arms_goes_on_without_those_that_are_through() -> None:
    arms = ("a0", "a1"), ("b0", "b1", "b2"), ("c0", "c1", "c2")
    order = in_order(*arms)
    assert sorted(order[:3]) == ["a0", "b0", "c0"] and sorted(order[6:]) == ["b2", "c2"]
    assert order[0][0] != order[3][0], "each comes first as often"


def advised(saved: float) -> Advice:
    """Return advice of other layers, which save a tenth of a step, and of a limit that saves so much of its energy."""
    site = site_of(model="llama3-70b", tp=4, pp=4, num_gpus=32)
    gain, energy = Gain(0.1, 0.05, 0.15), Gain(saved, saved / 2, 2 * saved)
    drawn = Drawn(10.0, 1e4, 60.0, 1.0)
    limits = Limits(Caps("save", {(2, 3): 600}, {(2, 3): 700.0}, drawn, drawn), energy)
    step = Outcome(10.0, np.ones(4), {})
    proposed = Placement(site.present.nodes, (21, 20, 20, 19))
    return Advice("run", site, None, [], {}, np.empty(0), step, [Proposal(proposed, step, gain)], [], [limits])


def test_a_study_of_placement_and_limits_has_three_arms_and_verifies_both() -> None:
    """At a spread of 1 %, a gain of 10 % takes 3 pairs, one of 1 % more."""
    advice, number = advised(0.01), num_pairs(0.01, 0.01)
    study = follow_up(advice, "both", CONFIG)
    assert list(study.pairs) == list(accepted(advice)) == ["placement", "save"] and not study.left_out
    placed, saved = study.pairs["placement"], study.pairs["save"]
    assert len(placed.first) == 3 and len(saved.first) == number > 3
    assert placed.other == saved.first[:3] and not {*saved.other} & {*placed.first, *placed.other}
    assert len(study.order) == len({*study.order}) == 3 + 2 * number
    as_it_is, as_placed, limited = expand(Study.model_validate(yaml.safe_load(study.text)), Path("both.yaml"))
    assert not as_it_is.pipeline_layers and as_placed.pipeline_layers == limited.pipeline_layers
    assert as_it_is.gpu_power_limits_w == as_placed.gpu_power_limits_w == ("node2.gpu3:700",)
    assert limited.gpu_power_limits_w == ("node2.gpu3:600",)


def test_limits_that_take_too_many_pairs_leave_the_placement_to_verify() -> None:
    study = follow_up(advised(0.001), "one", CONFIG)
    assert list(study.pairs) == ["placement"] and "over 50 pairs" in study.left_out
    assert "gpu_power_limits_w" not in study.text


def test_settings_of_study_state_the_same_point() -> None:
    """All training points of two studies on one cluster: their settings lead to the same run."""
    plan = select(CONFIG, ["parallelism", "lora"], ["h200x32"], [])
    points = [entry.planned.point for entry in plan.valid]
    assert len(points) > 20
    for point in points[::4]:
        content = {"description": "the same point", "defaults": settings_of_study(point), "sweeps": [{}]}
        assert runs_of(content, "h200x32", CONFIG, "again") == (run_id(point),)


def test_layers_and_repeats_are_runs_of_their_own() -> None:
    fixed = settings_of_study(site_of(model="llama3-70b", tp=4, pp=4, num_gpus=32).point)
    split = {"pipeline_layers": [21, 20, 20, 19], "repeats": 2}
    content = {"description": "two splits", "defaults": fixed, "sweeps": [{"set": {"repeats": 2}}, {"set": split}]}
    runs = runs_of(content, "h200x32", CONFIG, "split")
    assert len(set(runs)) == 4 and all("l21.20x2.19" in run for run in runs[2:])


def promised(gain: float, first: tuple[str, ...] = (), other: tuple[str, ...] = ()) -> Promise:
    return Promise(
        name="run", kind="placement", gain=gain, gain_lo=gain / 2, gain_hi=2 * gain, first=first, other=other
    )


def test_a_promise_given_again_keeps_its_runs_unless_it_changed(tmp_path: Path) -> None:
    ledger.promise(tmp_path, promised(0.05, ("a",), ("b",)))
    ledger.promise(tmp_path, promised(0.05))
    (one,) = ledger.promises_in(tmp_path)
    assert one.first == ("a",) and one.other == ("b",)
    ledger.promise(tmp_path, promised(0.06))
    (one,) = ledger.promises_in(tmp_path)
    assert one.gain == 0.06 and one.first == ()


def test_a_pair_verifies_one_promise(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ledger, "_value", lambda results, kind, run: 1.0)
    ledger.promise(tmp_path, promised(0.05, ("a",), ("b",)))
    other = promised(0.02).model_copy(update={"name": "another"})
    ledger.promise(tmp_path, other)
    with pytest.raises(UserError, match=r"these runs verify what was promised for run \(placement\)"):
        ledger.add_pair(tmp_path, "another", "a", "b")
    with pytest.raises(UserError, match="these runs verify"):
        ledger.promise(tmp_path, other.model_copy(update={"first": ("a",), "other": ("b",)}))
    with pytest.raises(UserError, match="one run twice"):
        ledger.add_pair(tmp_path, "another", "a", "a")
    assert ledger.add_pair(tmp_path, "another", "a", "c").other == ("c",)


def test_found_gain_is_the_mean_of_pairs_with_its_t_interval(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Shares 4 and 6 %: 5 % with 1 % x 6.314 on both sides, one degree of freedom."""
    steps_s = {"a1": 10.0, "b1": 9.6, "a2": 10.0, "b2": 9.4}
    monkeypatch.setattr(ledger, "_is_finished", lambda results, run: run in steps_s)
    monkeypatch.setattr(ledger, "_value", lambda results, kind, run: steps_s[run])
    found = ledger.measured_gain(tmp_path, promised(0.05, ("a1", "a2", "a3"), ("b1", "b2", "b3")))
    assert found.num_pairs == 2 and found.gain == pytest.approx(0.05)
    assert found.lo == pytest.approx(0.05 - 0.01 * 6.314, abs=1e-4)
    assert found.hi == pytest.approx(0.05 + 0.01 * 6.314, abs=1e-4)


def test_ledger_marks_what_was_promised_for_simulated_jobs(tmp_path: Path) -> None:
    ledger.promise(tmp_path, promised(0.05))
    ledger.promise(tmp_path, promised(0.05).model_copy(update={"name": "other", "is_simulated": True}))
    lines = ledger.render(ledger.content(tmp_path)).splitlines()
    assert lines[0].startswith("2 gains promised, 1 for simulated jobs; 0 measured")
    assert lines[1].startswith("  run, placement: promised 5.0 % [") and "less time; no finished pair" in lines[1]
    assert lines[2].startswith("  other, simulated, placement: ")


def test_a_damaged_ledger_is_named_with_its_line(tmp_path: Path) -> None:
    (tmp_path / "recommendations.jsonl").write_text("{}\n")
    with pytest.raises(UserError, match="line 1 is no promise"):
        ledger.promises_in(tmp_path)
