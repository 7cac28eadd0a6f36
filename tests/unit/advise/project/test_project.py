"""Projection held to `predict`, to what a network can do, and to intervals worked out by hand."""

import json
import math
import re
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from triplepoint.advise.project.file import read_question
from triplepoint.advise.project.interval import Interval
from triplepoint.advise.project.network import Network, ratio_of_steps, scale_job
from triplepoint.advise.project.project import Projected, Projection, Question, draws, project
from triplepoint.advise.project.text import check, check_study, headline, render, rows, study_of
from triplepoint.cli import main
from triplepoint.config.catalogue import Catalogue
from triplepoint.config.study import Study, expand
from triplepoint.errors import UserError
from triplepoint.plan import points_of
from triplepoint.predictions import Request, predict, read_points
from triplepoint.simulate.predict.prediction import predict_warm, read_calibrations
from triplepoint.simulate.scaling import read_scaling
from triplepoint.tables.projection import PROJECTION

CONFIG = Path("config")
POINT: dict[str, Any] = {
    "model": "llama3-8b", "cluster": "h200x32", "num_gpus": 16, "tp": 4, "global_batch_size": 16, "recompute": "full"
}  # fmt: skip
SLOW, FAST = (Network(adapters=(8, speed)) for speed in (100.0, 800.0))


@cache
def request_of(**changes: Any) -> Request:
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "point.json"
        path.write_text(json.dumps(POINT | changes))
        (request,) = read_points(path, CONFIG)
    return request


@cache
def found() -> Projection:
    return project(Question(request_of(), (64, 256), (SLOW, FAST), num_draws=3), CONFIG)


def at(num_gpus: int, network: Network = SLOW) -> Projected:
    return next(one for one in found().rows if one.num_gpus == num_gpus and one.scaled.network == network)


def test_start_is_what_predict_says() -> None:
    start = project(Question(request_of(), (16,), num_draws=1), CONFIG).rows[0]
    (predicted,) = predict([POINT], CONFIG).to_dict("records")
    assert start.step_time_s.value == pytest.approx(predicted["step_time_s"], rel=1e-3)
    assert start.power_w.value == pytest.approx(2 * predicted["node_power_w"], rel=0.01)
    assert start.step_time_s.low == pytest.approx(predicted["step_time_lo_s"], rel=1e-3)
    assert start.efficiency == (1.0, 1.0, 1.0)


def test_draws_are_those_of_predictions() -> None:
    scaled = scale_job(request_of(), SLOW, "grown", 64, CONFIG)
    job = replace(scaled.job, draw=3)
    calibration = read_calibrations(CONFIG)[0]
    predicted, _ = predict_warm(job, calibration, CONFIG, scaled.cluster, with_few_nodes=True)
    first, third = draws(scaled, (0, 3), CONFIG)
    assert third.step_time_s == pytest.approx(predicted.step_time_s, rel=1e-12)
    assert first.step_time_s != third.step_time_s


def test_quantities_follow_from_the_step() -> None:
    one, tokens = at(256), 256 * 8192  # one sequence for each replica of 4 GPUs and micro-batch of four
    assert one.scaled.job.global_batch_size == 256
    assert one.tokens_per_s.value == pytest.approx(tokens / one.step_time_s.value)
    assert one.node_energy_per_token_j.value == pytest.approx(one.power_w.value * one.step_time_s.value / tokens)
    assert one.kept_tokens_per_s.value == pytest.approx(one.tokens_per_s.value * one.goodput.value)
    assert one.power_w.value / 32 == pytest.approx(at(16).power_w.value / 2, rel=0.1)


def test_efficiency_has_the_interval_that_leaving_scale_out_gave() -> None:
    one, start, known = at(256), at(16), read_scaling(CONFIG)
    each = [row.tokens_per_s.value / row.num_gpus for row in (one, start)]
    assert one.efficiency.value == pytest.approx(each[0] / each[1])
    width = math.log(one.efficiency.high / one.efficiency.value)
    # Four octaves, twice the width of one; parts add little.
    assert 2 * known.per_octave <= width < 2 * known.per_octave + 0.01
    assert math.log(one.efficiency.value / one.efficiency.low) == pytest.approx(width)


def test_a_fixed_batch_keeps_the_batch_and_loses_efficiency() -> None:
    fixed = project(Question(request_of(), (64,), batch="fixed", num_draws=1), CONFIG).rows[-1]
    grown = project(Question(request_of(), (64,), num_draws=1), CONFIG).rows[-1]
    assert (fixed.scaled.job.global_batch_size, grown.scaled.job.global_batch_size) == (16, 64)
    assert fixed.step_time_s.value < grown.step_time_s.value
    assert fixed.efficiency.value < grown.efficiency.value


def test_a_faster_network_is_not_slower_and_its_gain_is_certain() -> None:
    for size in (16, 64, 256):
        gain = at(size, FAST).against_first
        assert gain.low < gain.value < gain.high < 1.0
    assert at(256).against_first == (1.0, 1.0, 1.0)
    assert at(256, FAST).against_first.value == pytest.approx(
        at(256, FAST).step_time_s.value / at(256).step_time_s.value
    )


def test_what_networks_have_in_common_cancels() -> None:
    job = scale_job(request_of(), SLOW, "grown", 64, CONFIG).job
    assert ratio_of_steps(1.0, job, job, CONFIG) == pytest.approx((1.0, 1.0, 1.0))


def test_switches_that_carry_less_make_steps_longer() -> None:
    def step_s(**network: Any) -> float:
        question = Question(request_of(num_gpus=8, global_batch_size=8), (2048,), (Network(**network),), num_draws=1)
        return project(question, CONFIG).rows[-1].step_time_s.value

    whole = step_s(topology="rail_optimised")
    # A ring leaves a leaf of 32 nodes once: half the links out of it are enough, a 64th is not.
    assert step_s(topology="rail_optimised", oversubscription=2.0) == pytest.approx(whole, rel=1e-3)
    narrow = step_s(topology="rail_optimised", oversubscription=64.0)
    assert narrow > 1.05 * whole
    # The same links out of groups of the same size: a dragonfly's are crossed twice.
    assert step_s(topology="dragonfly", gpus_per_leaf=256, oversubscription=32.0) == pytest.approx(narrow, rel=1e-3)
    assert step_s(topology="dragonfly", gpus_per_leaf=2048, oversubscription=32.0) == pytest.approx(whole, rel=1e-3)


def test_failures_do_not_depend_on_the_network() -> None:
    assert at(256, FAST).mttf_s == at(256).mttf_s
    assert at(64).mttf_s.value == pytest.approx(at(256).mttf_s.value * 4, rel=0.1)
    assert at(256).goodput.low < at(256).goodput.value < at(256).goodput.high < 1.0


def test_more_parts_have_a_slower_slowest_one() -> None:
    few, many = (
        project(Question(request_of(num_gpus=8, global_batch_size=8), (size,), (FAST,), num_draws=8), CONFIG).rows[-1]
        for size in (16, 4096)
    )
    assert many.slowest_gpu.value > few.slowest_gpu.value > 0.0


def test_a_gpu_type_without_known_power_has_times_and_failures() -> None:
    request = request_of(cluster="mi250x32", num_gpus=8, tp=8, global_batch_size=8, model="llama3-8b")
    one = project(Question(request, (64,), num_draws=2), CONFIG).rows[-1]
    assert one.step_time_s.value > 0 and one.goodput.value > 0


@pytest.mark.parametrize(
    ("question", "message"),
    [
        (Question(request_of(), (100,)), r"--gpus 100: expected a multiple of 8, .* set 96"),
        (Question(request_of(), (1_000_000,)), "of at most 131,072, up to where failures are published; set 131072"),
        (Question(request_of(), (1024,), batch="fixed"), "1024 GPUs, --batch fixed: .*global_batch_size"),
        (Question(request_of(tp=3), (24,)), "point.json: "),
        (Question(request_of(model="llama3-405b", num_gpus=8, tp=8, global_batch_size=8)), "8 GPUs: does not fit"),
    ],
)
def test_what_cannot_run_is_refused(question: Question, message: str) -> None:
    with pytest.raises(UserError, match=message):
        project(question, CONFIG)


@pytest.mark.parametrize(
    "words",
    [
        "missing.yaml", "run", "point.json --adapters 8", "point.json --failures 4:2:1", "point.json --gpus 1e3",
        "point.json --oversubscription 0.5", "point.json --draws 0", "point.json:2",
    ],
)  # fmt: skip
def test_bad_input_is_one_line(words: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "point.json").write_text(json.dumps(POINT))
    name, *rest = words.split()
    assert main(["project", str(tmp_path / name), *rest]) == 2
    (line,) = capfd.readouterr().err.splitlines()
    assert line.startswith("triplepoint: ") and any(word in line for word in ("xpected", "no ", "not a run id"))


def test_interval_arithmetic() -> None:
    one, other = Interval(2.0, 1.0, 4.0), Interval(3.0, 1.5, 6.0)
    assert one.inverse == (0.5, 0.25, 1.0)
    value, low, high = one.product(other)
    # Half widths of ln 2 each add to ln 2 * sqrt 2.
    assert (value, low, high) == pytest.approx((6.0, 6.0 / 2 ** math.sqrt(2), 6.0 * 2 ** math.sqrt(2)))
    assert one.within(0.0) == pytest.approx(one)
    assert one.product(Interval(0.5, 0.0, 1.0)).low == 0.0
    assert one.product(Interval(0.0, 0.0, 0.5)).value == 0.0


def test_answer_names_the_largest_size_and_the_check() -> None:
    said = " ".join(render(found()).split())
    assert said.startswith("On 256 GPUs the job trains ") and headline(found()) in said
    assert re.search(r"On 8x800 Gb/s a step is \d+\.\d % shorter \[", said)
    (first, *_) = read_scaling(CONFIG).left_out
    assert f"step time, all {100 * first.median_error:.1f} {100 * first.coverage:.0f} " in said
    assert "421" in "\n".join(check(found()))


def test_rows_are_those_of_the_table() -> None:
    table = PROJECTION.from_rows(rows(found()))
    assert table.column("num_gpus").to_pylist() == [16, 64, 256] * 2
    assert table.column("network").to_pylist() == ["8x100 Gb/s"] * 3 + ["8x800 Gb/s"] * 3


def test_question_of_a_file() -> None:
    question = read_question(CONFIG / "projection" / "network_8k.yaml", CONFIG)
    assert question.request.point.num_gpus == 512 and question.sizes[-1] == 8192
    assert [network.adapters for network in question.networks] == [(8, 100.0), (8, 800.0)]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("adapters: [8]\n", "adapters"),
        ("adapters: [8x0]\n", "expected NUMBERxGb/s"),
        ("gpu: [64]\n", "unknown key 'gpu'"),
        ("", "--gpus"),
    ],
)
def test_file_that_is_wrong(text: str, message: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "asked.yaml"
    path.write_text(f"question: how much faster?\npoint: {json.dumps(POINT)}\n{text}")
    assert main(["project", str(path), *([] if text else ["--gpus", "64"])]) == 2
    assert message in capfd.readouterr().err


def test_command_writes_json_table_and_figure(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    path, out, figure = tmp_path / "point.json", tmp_path / "rows.parquet", tmp_path / "scale.svg"
    path.write_text(json.dumps(POINT))
    words = ["--gpus", "64", "--draws", "1", "--failures", "1:2:4", "--restart", "120", "--json"]
    assert main(["project", str(path), *words, "--out", str(out), "--figure", str(figure)]) == 0
    said = json.loads(capfd.readouterr().out)
    assert said["failures"]["rate_hi"] == 4.0 and said["failures"]["restart_s"] == 120.0
    assert [row["num_gpus"] for row in said["rows"]] == [16, 64]
    # 64 GPUs are 8 nodes: 16 failures in 1,000 days.
    assert said["rows"][1]["mttf_s"] == pytest.approx(86400 * 1000 / 16)
    assert PROJECTION.read(out).num_rows == 2
    assert "of the speed per GPU of 16" in figure.read_text()


def test_sizes_below_the_start_and_what_a_run_was_traced_on_do_not_stand_in_the_way() -> None:
    """A smaller job has fewer ranks than those that the run traced, and one replica has nothing to shard."""
    request = request_of(data_parallel_sharding="optim", overlap=("grad",))
    traced = request.point.model_copy(update={"trace_ranks": (0, 12), "hosts": ("node1", "node0")})
    less = project(Question(replace(request, point=traced), (8,), num_draws=1), CONFIG)
    assert [one.num_gpus for one in less.rows] == [16, 8]
    assert headline(less).startswith("On 8 GPUs the job trains ")


def test_a_fixed_batch_that_does_not_split_names_sizes_that_do() -> None:
    """16 sequences over four GPUs a replica: up to 16 replicas."""
    with pytest.raises(UserError, match=r"--batch fixed: .*; with this batch: 8,32,64$"):
        project(Question(request_of(), (1024,), batch="fixed"), CONFIG)


def test_a_measured_step_carries_over_with_the_interval_of_the_ratio() -> None:
    question = Question(request_of(), (64,), num_draws=2)
    usual, measured = (project(replace(question, measured_s=step_s), CONFIG).rows for step_s in (None, 5.0))
    assert measured[0].step_time_s == pytest.approx((5.0, 5.0, 5.0))
    ratio = usual[1].step_time_s.value / usual[0].step_time_s.value
    assert measured[1].step_time_s.value == pytest.approx(5.0 * ratio)
    assert measured[1].efficiency == pytest.approx(usual[1].efficiency)
    width = math.log(measured[1].step_time_s.high / measured[1].step_time_s.value)
    assert width == pytest.approx(math.log(measured[1].efficiency.high / measured[1].efficiency.value))


def test_the_study_has_the_sizes_of_the_cluster() -> None:
    found = project(Question(request_of(), (8, 32, 64), num_draws=1), CONFIG)
    content = yaml.safe_load(study_of(found, CONFIG))
    points = [one for settings in expand(Study.model_validate(content), Path("s.yaml"))
              for one in points_of(settings, Catalogue(CONFIG), "s.yaml")]  # fmt: skip
    assert [(one.num_gpus, one.global_batch_size) for one in points] == [(8, 8), (16, 16), (32, 32)]
    with pytest.raises(UserError, match="cluster h200x32 has 32 GPUs, none of the sizes"):
        check_study(Question(request_of(), (64,), num_draws=1), CONFIG)


def test_a_study_says_how_to_plan_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "point.json").write_text(json.dumps(POINT))
    study = tmp_path / "a study.yaml"
    words = ["project", str(tmp_path / "point.json"), "--gpus", "64,8", "--draws", "1", "--study", str(study)]
    assert main(words) == 0
    last = capsys.readouterr().out.splitlines()[-1]
    assert last == f"Next: move {study} to config/studies, then triplepoint plan 'a study' --cluster h200x32"
    assert main([*words, *(word for speed in range(1, 8) for word in ("--adapters", f"8x{speed}00"))]) == 2
    assert "7 networks, at most 6 are compared at once" in capsys.readouterr().err


def test_topologies_are_compared_and_said_to_make_no_difference_where_they_do_not(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "point.json").write_text(json.dumps(POINT))
    words = ["project", str(tmp_path / "point.json"), "--gpus", "64", "--draws", "1"]
    assert main([*words, "--topology", "fat_tree", "--topology", "rail_optimised"]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "rail_optimised a step is as long." in text
    assert "the topology makes no difference on " in text and "steps of 64 GPUs are within 0.5 % of those" in text
    narrow = project(Question(request_of(), (4096,), (Network("rail_optimised", 64.0),), num_draws=1), CONFIG)
    assert not narrow.idle_topologies and "the topology makes no difference" not in render(narrow)
    assert main([*words[:2], "--gpus", "1000000000"]) == 2
    assert "of at most 131,072" in capsys.readouterr().err
