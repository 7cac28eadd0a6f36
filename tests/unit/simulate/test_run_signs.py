"""The published study's signs (arXiv:2509.10371) through whole simulated runs. Nothing is tuned to them.

Those that power and heat alone decide are in `heat/test_paper_signs.py`; what does not come out, and why, stands in
docs/power-and-heat.md.
"""

import csv
import math
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

import numpy as np
import pytest

from tests.unit.simulate.test_heated import CATALOGUE, CONFIG, planned
from triplepoint.published.rows import read_row
from triplepoint.simulate.artefacts.simulate_run import job_of, simulate
from triplepoint.simulate.artefacts.simulated import Heated, Simulated, heated_of
from triplepoint.simulate.calibration import Calibration
from triplepoint.simulate.heat.clocks import Reason
from triplepoint.simulate.heat.warm import warm_up
from triplepoint.simulate.job import Job
from triplepoint.simulate.power.load import Training
from triplepoint.simulate.predict.prediction import predict
from triplepoint.simulate.step import costs_of

CALIBRATION = Calibration.load(CONFIG)
NODES = Path(__file__).parents[2] / "data" / "power" / "training_nodes.csv"
FRONT, REAR = [1, 2, 5, 7], [0, 3, 4, 6]
GPT_TP8, GPT_TP2 = "gpt3-175b_h200x32_tp8-pp4-dp1-sp_mbs1_act_sim", "gpt3-175b_h200x32_tp2-pp16-dp1-sp_mbs1_act_sim"
LLAMA_TP8 = "llama3-70b_h200x32_tp8-pp2-dp2-sp-zero1_mbs1_act_sim"
LLAMA_TP4 = "llama3-70b_h200x32_tp4-pp4-dp2-sp-zero1_mbs1_act_sim"


def job(text: str, cluster: str = "h200x32", **changes: object) -> Job:
    return replace(job_of(planned(text, cluster).point, CATALOGUE), **changes)  # type: ignore[arg-type]


@lru_cache(maxsize=32)
def warm(of: Job, cluster: str = "h200x32") -> Heated:
    costs = costs_of(of, CALIBRATION.constants(of), CONFIG)

    def run(slow: dict[int, float]) -> Training[Simulated]:
        return Training(simulate(of, costs, [0.0] * of.layout.pp, slow))

    where = CATALOGUE.cluster(cluster)
    return heated_of(warm_up(run({}), run, where, CONFIG), (math.nan, math.nan), where, CONFIG)


def throttled(found: Heated) -> float:
    return float(found.facts()["throttle_fraction"] or 0.0)


def hottest(found: Heated) -> float:
    return float(found.trace.temp_c.max())


def test_rear_gpus_are_hotter_in_a_run() -> None:
    """Published: up to 27 %. In the mean over nodes it is less; the extremes of a node reach 28 %."""
    temp = warm(job(LLAMA_TP4)).trace.temp_c.mean(axis=0)
    mean = temp[:, REAR].mean() / temp[:, FRONT].mean() - 1
    extremes = temp[:, REAR].max(axis=1) / temp[:, FRONT].min(axis=1) - 1
    assert 0.08 < mean < 0.27 and mean < extremes.max() < 0.30


def test_deep_pipelines_throttle_more_than_tensor_parallel_layouts() -> None:
    assert throttled(warm(job(GPT_TP2))) > throttled(warm(job(GPT_TP8))) + 0.2
    assert throttled(warm(job(LLAMA_TP4))) > throttled(warm(job(LLAMA_TP8))) + 0.2


@pytest.mark.parametrize("text", [GPT_TP8, LLAMA_TP8])
def test_larger_micro_batch_raises_peak_power_where_throughput_falls(text: str) -> None:
    """Longer passes of busier units, and a larger bubble: from micro-batch 4 to 8 the step only gets longer."""
    four, eight = (warm(job(text, micro_batch_size=size)) for size in (4, 8))
    one = warm(job(text))
    assert eight.warm.load.ran.timeline.step_time_s > four.warm.load.ran.timeline.step_time_s
    assert eight.trace.power_w.max() > one.trace.power_w.max() + 20
    told = [predict(job(text, micro_batch_size=size), CALIBRATION, CONFIG).power.gpu_power_peak_w for size in (1, 4, 8)]
    assert told[0] < told[1] < told[2]


@pytest.mark.parametrize(("text", "micro_batch_size"), [(LLAMA_TP8, 2), (LLAMA_TP4, 1)])
def test_overlap_raises_peak_power_and_throttling(text: str, micro_batch_size: int) -> None:
    """At tp 8 and micro-batch 1 the host cannot launch as fast as the GPUs run, overlapped or not."""
    flags = ((), ("tp",))
    apart, beside = (warm(job(text, micro_batch_size=micro_batch_size, overlap=frozenset(one))) for one in flags)
    assert beside.warm.load.length_s < apart.warm.load.length_s
    assert beside.known.gpu_power_peak_w > apart.known.gpu_power_peak_w + 10
    assert throttled(beside) > throttled(apart) + 0.01


@pytest.mark.xfail(strict=True, reason="+0.1 K, -0.3 K and 0.0 K: GPUs at their power limit get no hotter")
@pytest.mark.parametrize("text", [GPT_TP8, LLAMA_TP8, LLAMA_TP4])
def test_overlap_raises_peak_temperature(text: str) -> None:
    apart, beside = warm(job(text)), warm(job(text, overlap=frozenset({"tp"})))
    assert hottest(beside) > hottest(apart) + 0.5


@pytest.mark.parametrize("text", [
    pytest.param(LLAMA_TP4, marks=pytest.mark.xfail(strict=True, reason="645 W against 633 W: it waits less")),
    LLAMA_TP8,
])  # fmt: skip
def test_lora_runs_cooler_and_on_less_power(text: str) -> None:
    full, lora = (warm(job(text, recompute="none", trainable=what)) for what in ("all", "lora"))
    assert lora.trace.power_w.max() < full.trace.power_w.max() - 80
    assert lora.trace.power_w.mean() < full.trace.power_w.mean() - 5
    assert hottest(lora) < hottest(full) - 3


@pytest.mark.xfail(strict=True, reason="backward passes of layers recomputed draw as much, and gaps between are fewer")
@pytest.mark.parametrize(("text", "cluster"), [
    ("gpt3-175b_h100x64_tp4-pp16-dp1-sp_mbs1_act_sim", "h100x64"),
    (GPT_TP2, "h200x32"),
])  # fmt: skip
def test_recomputation_lowers_throttling_of_deep_gpt3(text: str, cluster: str) -> None:
    """It makes more of a step forward passes: which way throttling goes depends on theirs, see docs."""
    without, full = (throttled(warm(job(text, cluster, recompute=what), cluster)) for what in ("none", "full"))
    assert full < without


@pytest.mark.parametrize(
    ("text", "micro_batch_size"), [("llama3-70b_h200x32_tp2-pp8-dp2-sp-zero1_mbs1_act_sim", 1), (LLAMA_TP4, 2)]
)
def test_recomputation_raises_throttling_of_data_parallel_llama3(text: str, micro_batch_size: int) -> None:
    """At tp 4 and micro-batch 1 the host holds short passes up a little, and the clocks with them."""
    jobs = (job(text, recompute=what, micro_batch_size=micro_batch_size) for what in ("none", "full"))
    without, full = (throttled(warm(one)) for one in jobs)
    assert full > without


def test_mi250_second_die_of_a_package_is_hotter_in_a_run() -> None:
    """By air. What sensors show is further apart, as published: `heat/test_paper_signs.py`."""
    temp = warm(job("gpt3-30b_mi250x32_tp2-pp16-dp1-sp_mbs1_act_sim", "mi250x32"), "mi250x32").trace.temp_c.mean(axis=0)
    skew = (temp[:, 1::2] - temp[:, ::2]).mean()
    assert 0.2 < skew < 5


def test_clocks_are_held_by_power_not_by_heat_in_a_usual_room() -> None:
    found = warm(job(LLAMA_TP4)).trace
    heat = int(Reason.SW_THERMAL | Reason.HW_THERMAL)
    assert (found.reasons & int(Reason.POWER_CAP)).any() and not (found.reasons & heat).any()


@pytest.mark.parametrize(("model", "seq", "mbs", "recompute"), [
    ("Llama3-8B", 8192, 1, "selective"),
    ("Llama2-7B", 4096, 2, "none"),
    ("Mistral-7B", 4096, 1, "full"),
])  # fmt: skip
def test_gpus_of_a_public_training_node(model: str, seq: int, mbs: int, recompute: str) -> None:
    """Four H100 that train: within 8 %. What they train is not said; dense models of their size all come that close."""
    lines = (line for line in NODES.read_text().splitlines() if not line.startswith("#"))
    measured = [float(row["power_w"]) for row in csv.DictReader(lines)]
    cells = {"model": model, "seq": str(seq), "mbs": str(mbs), "recompute": recompute, "gpu": "H100-SXM-80GB"}
    cells |= {"n_gpus": "4", "tp": "1", "pp": "1", "gbs": "64", "fsdp": "full shard"}
    found = read_row(cells, 1, CONFIG).predict(CONFIG)
    assert found.status in ("ok", "undecided")
    assert 4 * found.power.gpu_power_w == pytest.approx(sum(measured), rel=0.08)
    assert found.power.gpu_power_lo_w < np.mean(measured) < found.power.gpu_power_hi_w
