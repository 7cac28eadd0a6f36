"""Search held to predicting every configuration of a small grid, its limits, and the study it writes."""

import json
import math
import shutil
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from triplepoint.advise.search.candidate import Candidate
from triplepoint.advise.search.limits import Limits
from triplepoint.advise.search.search import Found, _followed, gpu_hours_of, search
from triplepoint.advise.search.space import Question, groups_of
from triplepoint.advise.search.text import headline, render, rows, study_of
from triplepoint.cli import main
from triplepoint.config.catalogue import Catalogue
from triplepoint.errors import UserError
from triplepoint.plan import select
from triplepoint.predictions import predict
from triplepoint.prices import Prices

CONFIG = Path("config")
VALUES: dict[str, Any] = {
    "num_gpus": [16], "tp": [2, 4], "pp": [1, 2], "vp": [1], "micro_batch_size": [1, 2],
    "recompute": ["none", "full"], "data_parallel_sharding": ["optim"], "overlap": [[]],
}  # fmt: skip
QUESTION = Question("llama3-8b", "h200x32", 64, VALUES)
FAR = 10.0
SMALL = Question("llama3-8b", "h200x32", 32, VALUES | {"num_gpus": [8], "pp": [1]})
SETS = (
    "num_gpus=8", "tp=2,4", "pp=1", "vp=1", "micro_batch_size=1,2", "recompute=none,full",
    "data_parallel_sharding=optim", "overlap=[]",
)  # fmt: skip
WORDS = ("llama3-8b", "h200x32", "--batch", "32", *(word for one in SETS for word in ("--set", one)))


@cache
def found() -> Found:
    return search(QUESTION, CONFIG, within=FAR)


@cache
def of_small() -> Found:
    return search(SMALL, CONFIG, within=FAR)


@cache
def exhaustive() -> Any:
    return predict([row for group in groups_of(QUESTION, Catalogue(CONFIG)) for row in group], CONFIG)


def test_limits_of_power_are_refused_where_it_is_not_known(tmp_path: Path) -> None:
    shutil.copytree(CONFIG, tmp_path / "config")
    cluster = "name: mine\nlike: h200x32\ngpu: a100\nchassis: null\nconditions: {}\n"
    (tmp_path / "config/clusters/mine.yaml").write_text(cluster)
    asked = replace(SMALL, cluster="mine")
    for limits, objective, options in (
        (Limits(power_kw=10.0, temp_c=80.0), "time", "--max-power and --max-temp"),
        (Limits(), "energy", "--for energy"),
    ):
        with pytest.raises(UserError, match=f"power and heat of the GPUs of mine are not known; leave {options} out"):
            search(asked, tmp_path / "config", objective, limits)
    assert "-: power and heat of these GPUs are not known." in render(search(asked, tmp_path / "config"))


def test_a_setting_given_twice_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["search", *WORDS, "--set", "tp=8"]) == 2
    assert "search: --set tp is given twice" in capsys.readouterr().err


def test_first_choice_is_that_of_predicting_all() -> None:
    table = exhaustive()
    best_s = table[table["status"] == "ok"]["step_time_s"].min()
    assert found().chosen[0].candidate.step_time_s == pytest.approx(best_s, rel=1e-5)  # six digits are predicted


def test_one_that_surely_fits_comes_before_a_better_one_that_may_not(monkeypatch: pytest.MonkeyPatch) -> None:
    best, *_ = of_small().chosen
    assert best.candidate.fits_probability > 0.9 and "only 74 %" not in headline(of_small())

    def risky(candidates: list[Candidate], **options: Any) -> list[Candidate]:
        found = _followed(candidates, **options)
        return [replace(one, fits_probability=0.74) if one.run == best.candidate.run else one for one in found]

    monkeypatch.setattr("triplepoint.advise.search.search._followed", risky)
    found = search(SMALL, CONFIG, within=FAR)
    first, second = found.chosen[:2]
    assert second.candidate.run == best.candidate.run and second.slower[0] == 0.0 < first.slower[0]
    assert first.may_be_best and second.may_be_best and found.few.rows[0] == 0
    assert "% better, but fits with a probability of only 74 %. " in headline(found)


def test_every_configuration_that_fits_is_in_the_answer_with_its_time_and_power() -> None:
    table = exhaustive()
    runs = table[table["status"].isin(["ok", "undecided"])].set_index("run")
    own = {row["run"]: row for row in rows(found())}
    assert own.keys() == {run for run in runs.index if run in own}
    assert len(own) >= len(runs[runs["status"] == "ok"])
    for run, row in own.items():
        assert row["step_time_s"] == pytest.approx(runs["step_time_s"][run], rel=0.002), run
        assert row["gpu_power_w"] == pytest.approx(runs["gpu_power_w"][run], rel=0.005), run
        assert row["gpu_temp_max_c"] == pytest.approx(runs["gpu_temp_max_c"][run], rel=0.01), run


def test_front_is_that_of_brute_force() -> None:
    names = ("step_time_s", "gpu_energy_per_token_j", "node_power_peak_w", "gpu_temp_max_c")
    table = rows(found())
    values = np.array([[row[name] for name in names] for row in table])
    for row, own in zip(table, values, strict=True):
        beaten = any((other <= own).all() and (other < own).any() for other in values)
        assert row["on_front"] is not beaten


def test_differences_to_the_fastest_have_their_intervals() -> None:
    table = rows(found())
    fastest = min(table, key=lambda row: row["step_time_s"])
    pairs = {
        "slower": "step_time_s", "more_energy": "gpu_energy_per_token_j", "more_node_power_peak": "node_power_peak_w"
    }  # fmt: skip
    for row in table:
        for stem, name in pairs.items():
            value, low, high = (row[f"{stem}{end}_fraction"] for end in ("", "_lo", "_hi"))
            assert value == pytest.approx(row[name] / fastest[name] - 1, abs=1e-9)
            assert low <= value <= high
        value, low, high = (row[f"hotter{end}_k"] for end in ("", "_lo", "_hi"))
        assert value == pytest.approx(row["gpu_temp_max_c"] - fastest["gpu_temp_max_c"], abs=1e-6)
        assert low <= value <= high
        # Both temperatures are uncertain, so their difference is more so than each.
        assert row is fastest or high - low > row["gpu_temp_max_hi_c"] - row["gpu_temp_max_lo_c"] - 1e-6
    assert all(fastest[f"hotter{end}_k"] == 0.0 for end in ("", "_lo", "_hi"))


def test_those_to_measure_are_worth_it_and_cost_what_their_steps_take() -> None:
    answer = found()
    assert 1 <= len(answer.to_measure) <= 6
    for one in answer.to_measure:
        assert one.may_be_best
        wall_s = 120.0 + 23 * one.candidate.step_time_s  # 2 of warm-up, 20 measured, 1 profiled
        assert one.gpu_hours == gpu_hours_of(one.candidate) == pytest.approx(wall_s * 16 / 3600)


def test_one_that_only_recomputes_more_is_never_worth_measuring() -> None:
    best = found().chosen[0].candidate.point
    more = [
        one for one in found().chosen
        if one.candidate.point.model_copy(update={"recompute": best.recompute}) == best and one is not found().chosen[0]
    ]  # fmt: skip
    assert more and not any(one.may_be_best for one in more)


def test_limits_leave_what_keeps_to_them() -> None:
    powers = sorted(row["job_power_peak_w"] for row in rows(of_small()))
    limit_kw = (powers[0] + powers[-1]) / 2000
    some = search(SMALL, CONFIG, limits=Limits(power_kw=limit_kw), within=FAR)
    kept = [row for row in rows(of_small()) if row["job_power_peak_w"] <= 1000 * limit_kw]
    assert 0 < len(kept) < len(powers)
    assert {row["run"] for row in rows(some) if row["power_limit_w"] is None} == {row["run"] for row in kept}


def test_a_power_budget_lowers_power_limits_as_little_as_it_needs() -> None:
    budget_kw = 0.7 * min(row["job_power_peak_w"] for row in rows(of_small())) / 1000
    some = search(SMALL, CONFIG, limits=Limits(power_kw=budget_kw), within=FAR)
    assert some.chosen, "no layout keeps to the budget at the usual power limit, but some do at lower ones"
    first = rows(some)[0]
    assert first["power_limit_w"] in range(200, 700, 50) and first["job_power_peak_w"] <= 1000 * budget_kw
    assert f"GPUs limited to {first['power_limit_w']:g} W is predicted fastest" in headline(some)
    lines = render(some).splitlines()
    heading, cells = next(lines[row : row + 2] for row, line in enumerate(lines) if "layout" in line)
    assert heading.split()[-2:] == ["W", "kW"] and f"{first['job_power_peak_w'] / 1000:#.4g}" in cells
    asked = replace(SMALL, values=SMALL.values | {"power_limit_w": [first["power_limit_w"] + 50]})
    higher = rows(search(asked, CONFIG, within=FAR))
    same = [row for row in higher if all(row[key] == first[key] for key in ("tp", "micro_batch_size", "recompute"))]
    assert same[0]["job_power_peak_w"] > 1000 * budget_kw and same[0]["step_time_s"] < first["step_time_s"]


def test_study_with_power_limits_has_a_cluster_for_each(tmp_path: Path) -> None:
    shutil.copytree(CONFIG, tmp_path / "config", ignore=shutil.ignore_patterns("studies"))
    study = tmp_path / "config" / "studies" / "mine.yaml"
    study.parent.mkdir()
    words = ["search", *WORDS, "--within", "1", "--config", str(tmp_path / "config"), "--set", "power_limit_w=350,400"]
    assert main([*words, "--study", str(study)]) == 0
    answer = search(replace(SMALL, values=SMALL.values | {"power_limit_w": [350, 400]}), CONFIG, within=1.0)
    names = {one.candidate.point.cluster.name for one in answer.to_measure}
    assert names <= {"h200x32-350w", "h200x32-400w"}
    for name in names:
        cluster = Catalogue(tmp_path / "config").cluster(name)
        assert f"{cluster.conditions.power_limit_w:g}w" == name.split("-")[1] and cluster.like == "h200x32"
    plan = select(tmp_path / "config", ["mine"], simulated=sorted(names))
    assert {entry.run for entry in plan.entries} == {one.candidate.run for one in answer.to_measure}


@pytest.mark.parametrize("value", [100, 900, "x"])
def test_power_limits_that_the_driver_does_not_take_are_refused(value: Any) -> None:
    with pytest.raises(UserError, match=f"power_limit_w: found {value!r}, expected watts from 200 to 700"):
        search(replace(SMALL, values=SMALL.values | {"power_limit_w": [value]}), CONFIG)


def test_what_is_too_slow_is_looked_at_where_a_limit_asks_for_it() -> None:
    slowest = max(rows(of_small()), key=lambda row: row["step_time_s"])
    least_kw = min(row["job_power_peak_w"] for row in rows(of_small())) / 1000
    some = search(SMALL, CONFIG, limits=Limits(power_kw=1.0001 * least_kw), within=0.0)
    assert rows(some)[0]["job_power_peak_w"] <= 1000.1 * least_kw
    assert slowest["step_time_s"] >= rows(some)[0]["step_time_s"]


def test_infeasible_limits_name_the_nearest_configuration_and_what_must_give() -> None:
    none = search(SMALL, CONFIG, limits=Limits(step_time_s=0.01), within=FAR)
    assert not none.chosen and none.nearest
    assert none.nearest[0].step_time_s == pytest.approx(of_small().chosen[0].candidate.step_time_s, rel=0.002)
    assert "--max-step-time 0.01" in headline(none)
    assert headline(none) in " ".join(render(none).split())


def test_limits_that_no_heat_can_change_are_judged_before_heat_is_followed(monkeypatch: pytest.MonkeyPatch) -> None:
    followed: list[Candidate] = []
    monkeypatch.setattr(
        "triplepoint.advise.search.search._followed", lambda those, *_, **__: followed.extend(those) or those
    )
    none = search(SMALL, CONFIG, limits=Limits(memory_gib=1.0))
    assert none.nearest and followed == [none.nearest[0]]
    smallest = min(one.candidate.memory_gib for one in of_small().chosen)
    assert none.nearest[0].memory_gib == smallest
    assert f"memory {smallest:.4g} GiB (--max-memory 1). " in headline(none)


def test_counts_add_up() -> None:
    answer = search(SMALL, CONFIG, limits=Limits(memory_gib=1.01 * of_small().chosen[0].candidate.memory_gib))
    counts = dict(answer.counts)
    outcomes = [counts.pop(word, 0) for word in ("within the limits", "beyond a limit", "too slow to matter")]
    assert sum(outcomes) == counts.get("ok", 0) + counts.get("undecided", 0)
    assert outcomes[0] == len(answer.chosen)
    assert f"{sum(counts.values())} configurations: " in render(answer)


def test_a_model_that_is_too_large_says_what_memory_it_needs() -> None:
    none = search(Question("llama3-405b", "h200x1", 8, {"recompute": ["full"], "num_gpus": [1]}), CONFIG)
    assert none.nearest and none.nearest[0].memory_gib > 1000
    assert headline(none).startswith("No configuration fits in memory. ")


def test_memory_of_experts_decides_what_fits() -> None:
    values = VALUES | {"tp": [1], "pp": [1, 2], "ep": [1, 8], "micro_batch_size": [1]}
    answer = search(Question("mixtral-8x7b", "h200x32", 64, values), CONFIG, within=FAR)
    assert sum(answer.counts[word] for word in ("oom", "ok")) >= 4
    assert all(one.candidate.fits_probability >= 0.5 for one in answer.chosen)


def test_energy_has_a_first_of_its_own() -> None:
    answer = search(SMALL, CONFIG, objective="energy", within=FAR)
    energies = [row["gpu_energy_per_token_j"] for row in rows(answer)]
    assert energies == sorted(energies)


def test_all_that_is_wrong_with_a_question_is_said_at_once() -> None:
    with pytest.raises(UserError) as error:
        search(Question("llama3-70x", "h100x511", 0, {"tp": [0]}, None), CONFIG, "cost")
    told = str(error.value)
    assert told.startswith("search: cost has no prices") and told.count("search: ") == 1
    assert all(
        word in told for word in ("--set tp: found 0", "unknown cluster 'h100x511'", "unknown model 'llama3-70x'")
    )


def test_a_setting_that_is_not_known_is_refused() -> None:
    with pytest.raises(UserError, match="micro_batch"):
        groups_of(Question("llama3-8b", "h200x32", 64, {"micro_batch": [1]}), Catalogue(CONFIG))
    with pytest.raises(UserError, match="tp: found 'x', expected whole numbers"):
        groups_of(Question("llama3-8b", "h200x32", 64, {"tp": ["x"]}), Catalogue(CONFIG))


def test_degrees_that_leave_nothing_are_counted_by_reason() -> None:
    values = {"tp": [3, 4], "pp": [1], "vp": [1], "micro_batch_size": [1], "num_gpus": [8]}
    told = r"of 2 combinations 1: tp\*pp\*cp does not divide num_gpus, 8; 1: micro_batch_size\*dp does not .* --batch 7"
    with pytest.raises(UserError, match=told):
        search(Question("llama3-8b", "h200x32", 7, values), CONFIG)


def test_power_that_nothing_keeps_to_is_tried_at_few_places_and_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("triplepoint.advise.search.search._PROBED", 2)
    none = search(SMALL, CONFIG, limits=Limits(power_kw=2.0, temp_c=200.0), within=0.0)
    assert none.broken_by_all == ["power_kw"] and not none.chosen
    number = none.counts["not followed"]
    assert 0 < number < none.counts["ok"] - 2
    assert headline(none).startswith(
        f"No configuration keeps to --max-power. {number} of the slower ones were not tried. The nearest is "
    )


def test_gpu_that_shuts_down_is_the_reason_why_nothing_can_run(tmp_path: Path) -> None:
    shutil.copytree(CONFIG, tmp_path / "config")
    cluster = "name: hot\nlike: h200x32\nconditions: {inlet_temp_c: 60, bad_contact: {node0.gpu3: 9}}\n"
    (tmp_path / "config" / "clusters" / "hot.yaml").write_text(cluster)
    with pytest.raises(
        UserError, match=r"none of \d+ configurations can run; \d+ of them: node0.gpu3 comes to .* degC"
    ):
        search(replace(SMALL, cluster="hot"), tmp_path / "config")


def test_cost_is_that_of_energy_and_gpu_hours() -> None:
    answer = search(SMALL, CONFIG, objective="cost", within=FAR, prices=Prices(0.2, 3.0, "EUR", 1.5))
    costs = [row["cost_per_mtoken"] for row in rows(answer)]
    assert costs == sorted(costs)
    first = rows(answer)[0]
    energy_kwh = first["node_power_w"] * 1e6 / first["tokens_per_s"] / 3.6e6
    gpu_h = 8 * 1e6 / first["tokens_per_s"] / 3600
    assert costs[0] == pytest.approx(0.2 * 1.5 * energy_kwh + 3.0 * gpu_h)
    assert "EUR per million tokens at 0.2 EUR/kWh, PUE 1.5" in headline(answer)
    with pytest.raises(UserError, match="cost has no prices"):
        search(SMALL, CONFIG, objective="cost")


def test_racks_have_a_budget_where_the_cluster_names_them(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="h200x32 has no nodes_per_rack"):
        search(SMALL, CONFIG, limits=Limits(rack_power_kw=10.0))
    shutil.copytree(CONFIG, tmp_path / "config")
    cluster = tmp_path / "config" / "clusters" / "h200x32.yaml"
    cluster.write_text(cluster.read_text() + "nodes_per_rack: 2\n")
    one_rack = replace(SMALL, values=SMALL.values | {"num_gpus": [16], "tp": [4], "recompute": ["none"]})
    answer = search(one_rack, tmp_path / "config", limits=Limits(rack_power_kw=100.0))
    for row in rows(answer):
        assert row["nodes_followed"] == "all"
        assert row["rack_power_peak_w"] == pytest.approx(row["job_power_peak_w"])


def test_first_line_has_the_probability_of_fitting_and_what_was_made_small() -> None:
    first = of_small().chosen[0].candidate
    assert first.fits_probability > 0.99 and "It fits in memory with a probability of over 99 %." in headline(
        of_small()
    )
    energy = headline(search(SMALL, CONFIG, objective="energy", within=FAR))
    assert " J/token of GPUs. " in energy and " is predicted to take the least energy: " in energy


def test_text_is_narrow_and_marks_what_is_measured() -> None:
    text = render(found())
    assert "not known" not in text
    assert max(map(len, text.splitlines())) <= 104
    marked = [line for line in text.splitlines() if line.startswith(("* ", "*>"))]
    assert len(marked) - 1 == len(found().to_measure), "one line says what the mark is"


def test_json_has_every_row_and_the_study_plans(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.copytree(CONFIG, tmp_path / "config", ignore=shutil.ignore_patterns("studies"))
    (tmp_path / "config" / "studies").mkdir()
    study, figure = tmp_path / "config" / "studies" / "mine.yaml", tmp_path / "found.png"
    assert main(["search", *WORDS, "--json", "--within", "1", "--study", str(study), "--figure", str(figure)]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["rows"][0]["run"] == of_small().chosen[0].candidate.run
    assert answer["measure"]["gpu_hours"] > 0
    assert len(figure.read_bytes()) > 1000
    plan = select(tmp_path / "config", ["mine"], simulated=["h200x32"])
    assert all(entry.invalid_because is None for entry in plan.entries)
    assert {entry.run for entry in plan.entries} == set(answer["measure"]["runs"])


def test_study_holds_what_is_measured() -> None:
    content = yaml.safe_load(study_of(found(), "mine"))
    layouts = content["sweeps"][0]["axes"]["layout"]
    assert [layout["tp"] for layout in layouts] == [one.candidate.point.layout.tp for one in found().to_measure]
    assert not math.isnan(found().few.probability)
