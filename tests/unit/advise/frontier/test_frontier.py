"""Clocks of pipeline stages: what is promised against the simulation, budgets, and what the command says."""

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from triplepoint.advise.frontier.frontier import Budget, FrontierAnswer, advise, outcome_of
from triplepoint.advise.frontier.interval import ChangeInterval, Interval, drawn_changes, simulate_locked
from triplepoint.advise.frontier.passes import Site
from triplepoint.advise.frontier.plan import Frontier
from triplepoint.advise.frontier.text import content, headline, render, script
from triplepoint.cli import main
from triplepoint.config.base import parse
from triplepoint.config.catalogue import Catalogue
from triplepoint.config.cluster import ClusterConfig
from triplepoint.errors import PointError, UserError
from triplepoint.predictions import Configuration, request_of
from triplepoint.simulate.job import Job
from triplepoint.simulate.predict.draws import draw_unknowns, time_sigma_of
from triplepoint.simulate.predict.point import job_on_cluster
from triplepoint.simulate.predict.prediction import predict_job, read_calibrations

CONFIG = Path("config")
FREE = {"model": "mixtral-8x7b", "cluster": "h200x32", "num_gpus": 32, "tp": 4, "pp": 8, "global_batch_size": 32}
"""Power limits do not hold it, and ranks wait for other stages for 17 % of a step."""
HELD = FREE | {"model": "llama3-70b"}
"""The power limit holds its clocks."""

LONG = HELD | {"model": "gpt3-175b", "tp": 2, "pp": 16, "global_batch_size": 128}
"""The same, and no steady clocks are as fast as those under the governor."""


def job_of(settings: Mapping[str, object]) -> tuple[Job, ClusterConfig]:
    request = request_of(parse(Configuration, dict(settings), "test"), "test", 1, Catalogue(CONFIG))
    return job_on_cluster(request.point, CONFIG, request.stack)


@pytest.fixture(scope="module")
def free() -> FrontierAnswer:
    return advise("free", *job_of(FREE), CONFIG)


@pytest.fixture(scope="module")
def held() -> FrontierAnswer:
    return advise("held", *job_of(HELD), CONFIG)


def saved(answer: FrontierAnswer, sharing: str) -> float:
    return 1.0 - answer.chosen[sharing].gpu_energy_j / answer.present.gpu_energy_j  # type: ignore[index]


def test_bubble_saves_energy_where_the_limit_does_not_hold(free: FrontierAnswer) -> None:
    assert not free.is_held and free.steady is None
    assert free.bubble_fraction > 0.1
    assert free.verified.step_s <= 1.011 * free.present.step_s
    assert 1.0 - free.verified.gpu_energy_j / free.present.gpu_energy_j > 0.15
    assert saved(free, "pass") > saved(free, "direction") > saved(free, "stage") > saved(free, "job") > 0.0


def test_limit_that_holds_is_said_with_what_steady_clocks_gain(held: FrontierAnswer) -> None:
    assert held.is_held and held.steady is not None
    assert held.steady.throttle_fraction < 0.02 < held.present.throttle_fraction
    assert held.steady.gpu_energy_j < held.present.gpu_energy_j
    assert held.verified.throttle_fraction < 0.02
    assert "The power limit lowers clocks" in render(held)


def test_promised_time_and_energy_are_those_of_the_simulation(free: FrontierAnswer, held: FrontierAnswer) -> None:
    for answer in (free, held):
        assert answer.plan.step_s == pytest.approx(answer.verified.step_s, rel=0.005)
        assert answer.plan.gpu_energy_j == pytest.approx(answer.verified.gpu_energy_j, rel=0.03)
        assert answer.plan.node_w.max() == pytest.approx(answer.verified.node_w, rel=0.05)


def test_highest_clocks_are_the_step_as_it_is_where_nothing_holds(free: FrontierAnswer) -> None:
    fastest = Frontier(free.site).fastest
    assert fastest.step_s == pytest.approx(free.present.step_s, rel=0.002)
    assert fastest.gpu_energy_j == pytest.approx(free.present.gpu_energy_j, rel=0.01)


def test_step_as_it_is_takes_as_long_as_predicted(held: FrontierAnswer) -> None:
    predicted = predict_job(*job_of(HELD)[:1], None, CONFIG, job_of(HELD)[1])
    # A prediction has all stages at the pace of the slowest.
    assert 0.97 * predicted.step_time_s < held.present.step_s <= predicted.step_time_s


def test_steps_are_never_longer_than_asked(free: FrontierAnswer, held: FrontierAnswer) -> None:
    for answer in (free, held):
        assert answer.verified.step_s <= 1.0001 * (1.0 + answer.slowdown) * answer.present.step_s
    as_long = advise("free", *job_of(FREE), CONFIG, slowdown=0.0)
    assert as_long.verified.step_s <= 1.0001 * free.present.step_s
    with pytest.raises(UserError, match="longer at the highest steady clocks under the power limit; use --slowdown"):
        advise("long", *job_of(LONG), CONFIG, slowdown=0.0)


def test_finer_clocks_never_save_less(free: FrontierAnswer, held: FrontierAnswer) -> None:
    for answer in (free, held):
        energies = [plan.gpu_energy_j for plan in answer.chosen.values()]
        assert energies == sorted(energies, reverse=True)


def test_one_clock_for_all_is_taken_where_its_simulated_step_saves_more(free: FrontierAnswer) -> None:
    assert free.plan.sharing == "job"
    assert free.verified.gpu_energy_j < 0.74 * free.present.gpu_energy_j  # a clock for each stage: 0.735


def test_longer_steps_of_the_frontier_take_less_energy(held: FrontierAnswer) -> None:
    for sharing in ("stage", "direction", "pass"):
        points = [plan for plan in held.points if plan.sharing == sharing]
        assert len(points) > 4
        assert (np.diff([plan.gpu_energy_j for plan in points]) < 0).all()
        assert (np.diff([plan.step_s for plan in points]) > 0).all()


def test_budget_of_a_node_is_kept_with_as_little_more_time_as_it_takes(held: FrontierAnswer) -> None:
    node_w = 0.95 * held.present.node_w
    answer = advise("held", *job_of(HELD), CONFIG, budget=Budget(node_w=node_w))
    assert answer.verified.node_w <= node_w < held.verified.node_w
    assert 0.97 * node_w < answer.verified.node_w
    assert " keeps the budget and saves " in headline(answer)
    with pytest.raises(UserError, match=r"more than the budget of .* with steps 0\.5 % longer; use --slowdown"):
        advise("held", *job_of(HELD), CONFIG, 0.005, Budget(node_w=node_w))


@pytest.mark.parametrize(
    ("budget", "told"),
    [
        (Budget(gpu_temp_c=25.0), "the hottest die has .* more than the budget of 25 degC"),
        (Budget(rack_w=1e4), "cluster h200x32 has no nodes_per_rack"),
    ],
)
def test_budget_that_nothing_keeps_to_is_refused(budget: Budget, told: str) -> None:
    with pytest.raises(UserError, match=told):
        advise("free", *job_of(FREE), CONFIG, budget=budget)


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"model": "llama3-8b", "pp": 1}, "pp: 1 is one stage"),
        ({"model": "gpt3-175b", "pp": 2, "tp": 1}, "does not fit"),
    ],
)
def test_job_without_a_frontier_is_refused(changed: dict[str, object], told: str) -> None:
    with pytest.raises(PointError, match=told):
        Site.of(*job_of(FREE | changed), CONFIG)


def test_power_brake_is_refused() -> None:
    job, cluster = job_of(FREE)
    conditions = cluster.conditions.model_copy(update={"braked_nodes": [0]})
    with pytest.raises(PointError, match="power brake"):
        Site.of(job, cluster.model_copy(update={"conditions": conditions}), CONFIG)


def test_budget_that_is_kept_already_leaves_the_usual_slowdown(free: FrontierAnswer) -> None:
    answer = advise("free", *job_of(FREE), CONFIG, budget=Budget(node_w=2.0 * free.present.node_w))
    assert answer.slowdown == free.slowdown == 0.01
    assert answer.verified.gpu_energy_j == free.verified.gpu_energy_j
    assert headline(answer) == "The budget is kept already. " + headline(free)


def test_nothing_to_save_has_no_script(free: FrontierAnswer) -> None:
    no_change = ChangeInterval(Interval(0.0, 0.0), Interval(0.0, 0.0))
    same = replace(free, verified=free.present, slowdown=0.0, intervals=free.intervals | {"plan": no_change})
    assert headline(same).startswith("Nothing to save: ") and headline(same).endswith(" in a step as long as now.")
    assert "#!/bin/sh" not in render(same) and content(same)["script"] is None
    assert "#!/bin/sh" in render(replace(same, budget=Budget(node_w=1.0))), "a budget needs these clocks"


@pytest.mark.parametrize("name", ["free", "held"])
def test_interval_holds_drawn_truths(name: str, request: pytest.FixtureRequest) -> None:
    answer: FrontierAnswer = request.getfixturevalue(name)
    site, within = answer.site, answer.intervals["plan"]
    like = simulate_locked(site, answer.plan)
    sigma = time_sigma_of(site.job, site.warm.load.ran.uncertainty, read_calibrations(CONFIG)[0])
    draws = draw_unknowns(site.job, site.cluster, CONFIG, sigma, number=20, seed=5)
    truths = [drawn_changes(site, draw, answer.plan, like, {})["plan"] for draw in draws]
    saved = [within.saved.lo <= truth.saved <= within.saved.hi for truth in truths]
    longer = [within.longer.lo <= truth.longer <= within.longer.hi for truth in truths]
    # At 90 %, fewer than 15 of 20 have a probability of 1 %.
    assert sum(saved) >= 15 and sum(longer) >= 15
    # An interval that holds everything says nothing: that of the middle half holds less.
    middle = (within.saved.hi - within.saved.lo) / 4
    assert sum(within.saved.lo + middle <= truth.saved <= within.saved.hi - middle for truth in truths) <= 17


def test_errors_of_both_steps_cancel(free: FrontierAnswer) -> None:
    within = free.intervals["plan"]
    # The step time alone has an interval of more than 20 % to either side.
    assert within.longer.lo < free.change.longer < within.longer.hi < 0.05
    assert within.saved.lo < free.change.saved < within.saved.hi


def test_saving_whose_interval_holds_zero_is_not_advised(free: FrontierAnswer) -> None:
    doubtful = ChangeInterval(Interval(-0.01, 0.4), free.intervals["plan"].longer)
    answer = replace(free, intervals=free.intervals | {"plan": doubtful})
    assert free.is_useful and not answer.is_useful
    assert headline(answer) == (
        "Nothing to save with certainty: one clock for all stages would save 28.5 % [-1.0, 40.0] of the GPUs' energy, "
        "and the lower end of this 90 % interval is not positive."
    )
    assert content(answer)["script"] is None and not content(answer)["is_advised"]
    assert "since no saving is certain" in render(answer)
    assert replace(answer, budget=Budget(node_w=1.0)).is_useful, "a budget needs these clocks"


def test_finer_clocks_save_at_least_what_the_headline_says(free: FrontierAnswer) -> None:
    saved = {plan["sharing"]: plan["saved_fraction"] for plan in content(free)["plans"]}
    told = 1.0 - free.verified.gpu_energy_j / free.present.gpu_energy_j
    assert saved[free.plan.sharing] == pytest.approx(told, rel=1e-9)
    assert saved["pass"] >= told
    text = " ".join(render(free).split())
    assert f"One lower clock for all stages saves {100 * saved['job']:.1f} %" in text
    assert f"between passes {100 * (saved['pass'] - saved['stage']):.1f} % more" in text


def test_locked_clocks_are_kept_and_are_no_throttling(free: FrontierAnswer) -> None:
    site = free.site
    warm = site.simulate({stage: 1000.0 + 15.0 * stage for stage in range(8)})
    highest = warm.trace.clock_mhz.max(axis=0).reshape(-1)
    ranks_stage = [site.job.mesh.place(rank).pp for rank in range(32)]
    # Clocks are those the table has: the next below.
    assert (highest <= 1000.0 + 15.0 * np.array(ranks_stage)).all() and highest.min() > 980.0
    found = outcome_of(replace(site, warm=warm))
    assert found.throttle_fraction == 0.0
    assert found.step_s > free.present.step_s and found.gpu_energy_j < free.present.gpu_energy_j


def test_script_locks_every_gpu_once(free: FrontierAnswer) -> None:
    lines = [line for line in script(free).splitlines() if "-lgc" in line and not line.startswith("#")]
    nodes = [node for line in lines for node in line.partition(")")[0].split("|")]
    assert sorted(nodes) == ["0", "1", "2", "3"]
    first = next(line for line in lines if line.startswith("0"))
    gpus = [gpu for part in first.split("&&") for gpu in part.partition("-i ")[2].split(" ")[0].split(",")]
    assert gpus == [str(number) for number in range(8)]
    assert f"-lgc {free.stage_clocks_mhz[0]} " in first


def test_command_says_what_its_help_names(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "point.json").write_text(json.dumps(FREE))
    out = [str(tmp_path / name) for name in ("frontier.png", "clocks.sh")]
    words = ["frontier", str(tmp_path / "point.json"), "--slowdown", "2", "--json"]
    assert main([*words, "--figure", out[0], "--script", out[1]]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["slowdown"] == 0.02 and len(found["stages"]) == 8
    assert found["script"] == Path(out[1]).read_text()
    assert Path(out[0]).read_bytes().startswith(b"\x89PNG")
    assert {plan["sharing"] for plan in found["plans"]} == {"job", "stage", "direction", "pass"}
    change = found["change"]
    for value in ("saved", "longer"):
        assert change[f"{value}_lo_fraction"] < change[f"{value}_fraction"] < change[f"{value}_hi_fraction"]
    assert all(
        plan["saved_lo_fraction"] < plan["saved_fraction"] < plan["saved_hi_fraction"] for plan in found["plans"]
    )


@pytest.mark.parametrize(
    ("changed", "words", "told"),
    [
        ({"pp": 1, "model": "llama3-8b"}, [], "point.json: pp: 1 is one stage"),
        ({"task": "inference", "prompt_tokens": 64, "output_tokens": 8}, [], "inference"),
        ({}, ["--slowdown", "-1"], "expected percent from 0 to 100"),
        ({}, ["--max-node-power", "nan"], "expected kW above 0"),
        ({}, ["--max-power", "1"], " more than the budget of 1 kW, even with steps 50 % longer"),
    ],
)
def test_command_refuses_in_one_line(
    changed: dict[str, object], words: list[str], told: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "point.json").write_text(json.dumps(FREE | changed))
    assert main(["frontier", str(tmp_path / "point.json"), *words]) == 2
    (line,) = capfd.readouterr().err.splitlines()
    assert told in line
