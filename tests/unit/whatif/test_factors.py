"""Factors: what a text means, and what each changes of a case."""

import math
from pathlib import Path
from typing import Any

import pytest

from tests.unit.whatif.cases import CONFIG, LLAMA, MIXTRAL, case_of
from triplepoint.errors import UserError
from triplepoint.simulate.calibration import Calibration
from triplepoint.simulate.step import simulate_step
from triplepoint.whatif.case import Case
from triplepoint.whatif.changes import fastest_with_memory, tuned
from triplepoint.whatif.explain import explain
from triplepoint.whatif.factors import FACTORS, USUAL, read_change, read_changes


def changed(case: Case, *texts: str) -> Case:
    for change in read_changes(list(texts)):
        case = change.apply(case, CONFIG)
    return case


def step_s(case: Case) -> float:
    """Time of a step at calibrated clocks: power and heat do not come into it."""
    return case.predict(CONFIG, with_power=False).step_time_s


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("netwrk", "unknown factor 'netwrk' (did you mean 'network'?)"),
        ("network=fast", "factor network: found 'fast', expected free, or times the bandwidth"),
        ("network=nan", "factor network: found 'nan', expected free, or times the bandwidth"),
        ("slow_gpu", "factor slow_gpu: found no value, expected nodeN.gpuM:SPEED, such as node0.gpu3:0.9"),
        ("slow_gpu=gpu3:0.9", "factor slow_gpu: found 'gpu3:0.9', expected nodeN.gpuM:SPEED, such as node0.gpu3:0.9"),
        ("adapters=8", "factor adapters: found '8', expected NUMBERxGb/s, such as 8x400"),
        ("pipeline=deep", "factor pipeline: found 'deep', expected none"),
    ],
)
def test_read_change_refuses_in_one_line(text: str, line: str) -> None:
    with pytest.raises(UserError) as error:
        read_change(text)
    assert str(error.value) == line


def test_read_changes_refuses_a_factor_named_twice() -> None:
    with pytest.raises(UserError, match="factor network is named 2 times; keep one"):
        read_changes(["network", "network=2"])


def test_read_changes_are_in_the_order_of_factors() -> None:
    assert [change.name for change in read_changes(["memory", "adapters=8x400", "network"])] == [
        "adapters",
        "network",
        "memory",
    ]
    assert {change.name for change in read_changes([])} == set(USUAL)


@pytest.mark.parametrize("name", FACTORS)
def test_every_factor_says_where_it_is_from(name: str) -> None:
    factor = FACTORS[name]
    assert len(factor.source) > 8
    assert factor.default is None or factor.read(factor.default) is not ...


NOTHING = [
    "network=1", "scale_up=1", "domain=8", "bad_adapter=1", "slow_gpu=node0.gpu3:1", "adapters=2x100", "gpu=h200",
    "inlet=27.5", "cooling=air", "power_limit=700", "bad_contact=node1.gpu6:1",
]  # fmt: skip


@pytest.mark.parametrize("text", NOTHING)
def test_changing_nothing_changes_nothing(text: str) -> None:
    case = case_of(MIXTRAL)
    assert changed(case, text).predict(CONFIG) == case.predict(CONFIG)


BETTER = [
    "network",
    "network=2",
    "scale_up",
    "scale_up=2",
    "domain",
    "domain=16",
    "pipeline",
    "memory",
    "adapters=8x400",
]


@pytest.mark.parametrize(
    "point", [LLAMA, MIXTRAL, {**LLAMA, "tp": 8, "pp": 2}, {**MIXTRAL, "tp": 2, "pp": 1, "sequence_parallel": True}]
)
@pytest.mark.parametrize("text", BETTER)
def test_a_better_factor_is_never_slower_at_the_same_clocks(point: dict[str, Any], text: str) -> None:
    case = case_of(point)
    assert step_s(changed(case, text)) <= step_s(case) * (1 + 1e-9)


@pytest.mark.parametrize("text", ["cooling", "cooling=liquid", "power_limit", "inlet=20"])
def test_better_cooling_or_limits_are_never_slower(text: str) -> None:
    case = case_of(LLAMA)
    # Clocks are found to 2 % of the pace of computation: see simulate/heat/warm.py.
    assert changed(case, text).predict(CONFIG).step_time_s <= case.predict(CONFIG).step_time_s * 1.001


@pytest.mark.parametrize(
    "text", ["slow_gpu=node0.gpu3:0.8", "bad_adapter", "bad_adapter=0.25", "network=0.5", "domain=4", "scale_up=0.5"]
)
def test_a_worse_factor_is_never_faster_at_the_same_clocks(text: str) -> None:
    case = case_of(LLAMA)
    assert step_s(changed(case, text)) >= step_s(case)


def test_a_slow_gpu_is_repaired_by_a_speed_of_one() -> None:
    slow = changed(case_of(MIXTRAL), "slow_gpu=node0.gpu3:0.8")
    assert slow.predict(CONFIG) != case_of(MIXTRAL).predict(CONFIG)
    assert changed(slow, "slow_gpu=node0.gpu3:1").predict(CONFIG) == case_of(MIXTRAL).predict(CONFIG)


def test_without_bubble_a_step_takes_what_its_slowest_stage_takes() -> None:
    case = case_of(LLAMA)
    job = changed(case, "pipeline").job
    step = simulate_step(job, Calibration.load(CONFIG).constants(job), CONFIG)
    times = step.timeline.durations
    # By hand: every micro-batch's passes, and the sends that a stage waits for, one after the other.
    passes = (times.forward.total + times.backward_input.total + times.backward_weight.total).sum(axis=(1, 2))
    boundary, sent = step.timeline.order.boundary, step.timeline.order.is_sent
    sends = (times.send[boundary] * sent).sum(axis=1)
    stage_s = job.num_microbatches * passes + sends * times.is_send_blocking
    assert step.timeline.end[:, -1, 0] + sends * 0 == pytest.approx(stage_s - _last_send(step), rel=1e-9)
    assert step.timeline.bubble_fraction < case_bubble(case)


def _last_send(step: Any) -> Any:
    """A stage's last task may send after its end, which belongs to nobody's start."""
    order, times = step.timeline.order, step.timeline.durations
    return times.send[order.boundary[:, -1]] * order.is_sent[:, -1] * times.is_send_blocking


def case_bubble(case: Case) -> float:
    return case.predict(CONFIG, with_power=False).bubble_fraction


def test_free_network_leaves_collectives_inside_nodes_alone() -> None:
    free, usual = changed(case_of(LLAMA), "network").job.fabric, case_of(LLAMA).job.fabric
    assert [level.is_free for level in free.levels] == [level.is_network for level in usual.levels]


def test_memory_is_used_for_less_recomputation() -> None:
    small = fastest_with_memory(case_of(LLAMA), 60e9, CONFIG)
    assert small.job.recompute == "full", "no less fits in 60 GB"
    assert changed(small, "memory").job.recompute == "none"


@pytest.mark.parametrize("value", ["memory", "memory=141"])
def test_memory_is_not_credited_for_what_fits_in_the_present_one(value: str) -> None:
    case = case_of(LLAMA)
    assert case.job.recompute == "full" and tuned(case, CONFIG).job.recompute == "none"
    assert step_s(changed(case, value)) == step_s(case)
    (explained,) = explain([case], [read_change(value)], CONFIG, with_shapley=False)
    assert "recomputation none, micro-batch 1 already fit in the present memory" in explained.notes["memory"]


def test_memory_that_holds_nothing_is_refused() -> None:
    with pytest.raises(UserError, match="hold no micro-batch"):
        changed(case_of(LLAMA), "memory=4")


def test_memory_of_another_gpu_keeps_to_what_fits() -> None:
    case = case_of({**LLAMA, "recompute": "none", "micro_batch_size": 4})
    small = changed(case, "memory=80")
    assert small.predict(CONFIG, with_power=False).memory_gib * 2**30 <= 80e9


def test_adapters_are_counted_and_shared_as_the_cluster_has_them() -> None:
    case = changed(case_of(LLAMA), "adapters=8x400")
    (network,) = [level for level in case.job.fabric.levels if level.is_network]
    assert (network.bandwidth, network.kind) == (50e9, "infiniband")


def test_another_gpu_by_the_name_people_write() -> None:
    assert changed(case_of(LLAMA), "gpu=H100-SXM-80GB").job.gpu.name == "h100"


@pytest.mark.parametrize("factor", ["pipeline", "memory"])
def test_factors_of_training_are_refused_for_inference(factor: str) -> None:
    point = {"model": "llama3-70b", "cluster": "h200x32", "global_batch_size": 32, "tp": 8, "task": "inference"}
    case = case_of({**point, "prompt_tokens": 512, "output_tokens": 32})
    with pytest.raises(UserError, match=f"{factor}: of training only"):
        changed(case, factor)


def test_power_factors_are_refused_where_power_is_not_known(tmp_path: Path) -> None:
    case = case_of(LLAMA)
    unknown = case.with_job(gpu=case.job.gpu.model_copy(update={"name": "other"}))
    with pytest.raises(UserError, match="cooling: power and heat of other are not known"):
        changed(unknown, "cooling")


def test_ideal_cooling_keeps_dies_at_the_inlet() -> None:
    power = changed(case_of(LLAMA), "cooling").predict(CONFIG).power
    assert power.gpu_temp_max_c == pytest.approx(case_of(LLAMA).cluster.conditions.inlet_temp_c, abs=0.2)


def test_without_a_power_limit_no_clock_is_lost_to_it() -> None:
    case = case_of(LLAMA)
    assert case.predict(CONFIG).power.lost_to_power_limit_fraction > 0.01
    power = changed(case, "power_limit", "cooling").predict(CONFIG).power
    assert power.lost_to_power_limit_fraction == pytest.approx(0.0, abs=1e-9)
    assert power.gpu_power_w > case.predict(CONFIG).power.gpu_power_w
    assert math.isfinite(power.gpu_power_hi_w)


@pytest.mark.parametrize(
    "settings",
    [
        {"model": "gpt3-175b", "cluster": "h200x32", "tp": 4, "pp": 8},
        {"model": "llama3-70b", "cluster": "h100x64", "tp": 8, "pp": 4},
    ],
)
def test_what_a_power_limit_costs_is_what_its_absence_gains(settings: dict[str, Any]) -> None:
    """Where heat takes nothing of it: all stages then run at the highest clock."""
    case = case_of(settings | {"global_batch_size": 64, "recompute": "full"})
    limited, free = case.predict(CONFIG), changed(case, "power_limit").predict(CONFIG)
    assert free.power.lost_to_heat_fraction == 0.0
    gained = 1.0 - free.step_time_s / limited.step_time_s
    assert limited.power.lost_to_power_limit_fraction == pytest.approx(gained, abs=1e-4)
    assert gained > 0.01
