"""Simulated runs with their power, heat and clocks: what sensors show, and what hot GPUs do to the step."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.points import simulated_plan
from triplepoint.config.catalogue import Catalogue
from triplepoint.config.cluster import ClusterConfig, ConditionsConfig
from triplepoint.config.plan import PlannedRun
from triplepoint.errors import UserError
from triplepoint.recording import read_recording
from triplepoint.simulate.artefacts.simulate_run import job_of, simulate, simulate_run
from triplepoint.simulate.artefacts.simulated import Heated, Simulated, heated_of
from triplepoint.simulate.calibration import Calibration
from triplepoint.simulate.heat.clocks import Reason
from triplepoint.simulate.heat.warm import warm_up
from triplepoint.simulate.power.load import Training
from triplepoint.simulate.step import costs_of
from triplepoint.units import NS_PER_S

CONFIG = Path(__file__).parents[3] / "config"
CATALOGUE = Catalogue(CONFIG)
HEAT = int(Reason.SW_THERMAL | Reason.HW_THERMAL)


def planned(text: str, cluster: str = "h200x32") -> PlannedRun:
    return next(entry.planned for entry in simulated_plan(cluster).valid if text in entry.run)


def heated(run: PlannedRun, **conditions: object) -> tuple[Simulated, Heated]:
    """The job as calibrated, and warm under conditions."""
    job = job_of(run.point, CATALOGUE)
    costs = costs_of(job, Calibration.load(CONFIG).constants(job), CONFIG)
    cluster = CATALOGUE.cluster(run.point.cluster.name)
    own = ConditionsConfig.model_validate(cluster.conditions.model_dump() | conditions)
    under = cluster.model_copy(update={"conditions": own})

    def once_more(slow: dict[int, float]) -> Training[Simulated]:
        return Training(simulate(job, costs, [0.0] * job.layout.pp, slow))

    usual = once_more({})
    warm = warm_up(usual, once_more, under, CONFIG)
    return usual.ran, heated_of(warm, (warm.load.length_s, warm.load.length_s), under, CONFIG)


@pytest.fixture(scope="module")
def llama() -> PlannedRun:
    return planned("llama3-70b_h200x32_tp4-pp4-dp2-sp-zero1_mbs1_act_sim")


def slower(found: Heated) -> dict[int, float]:
    """Return the ranks that are slower than the sound ones, and how much."""
    pace = min(found.warm.factor.values())
    return {rank: found.warm.factor[rank] / pace for rank in found.warm.slower_ranks}


def test_all_ranks_go_at_the_pace_of_the_slowest_clock(llama: PlannedRun) -> None:
    before, after = heated(llama)
    (pace,) = set(after.warm.factor.values())
    assert sorted(after.warm.factor) == list(range(32))
    longer = after.warm.load.ran.timeline.step_time_s / before.timeline.step_time_s
    assert min(pace, longer) > 0.9 and max(pace, longer) < 1.1
    assert (longer - 1.0) / (pace - 1.0) == pytest.approx(1.0, abs=0.2), "most of the step is computation"
    assert len(after.trace.rate) * after.trace.period_s == pytest.approx(after.warm.load.length_s, rel=1e-9)


def test_a_repeat_has_other_parts_and_layouts_of_one_repeat_the_same(llama: PlannedRun) -> None:
    def again(run: PlannedRun) -> PlannedRun:
        return run.model_copy(update={"point": run.point.model_copy(update={"repeat": 2})})

    other = planned("llama3-70b_h200x32_tp8-pp2-dp2-sp-zero1_mbs1_act_sim")
    (first, second), (third, fourth) = (
        [heated(one)[1].machine.devices.die for one in (run, again(run))] for run in (llama, other)
    )
    assert (first == third).all() and (second == fourth).all() and (first != second).all()
    powers_w = [heated(run)[1].known.gpu_power_w for run in (llama, again(llama))]
    assert 1e-5 < abs(powers_w[0] / powers_w[1] - 1.0) < 0.02


def test_a_layout_that_stays_under_the_limit_gains_over_one_that_does_not() -> None:
    hot, cool = (heated(planned(text))[1] for text in ("gpt3-175b_h200x32_tp1-pp32", "gpt3-175b_h200x32_tp8-pp4"))
    assert cool.trace.clock_mhz.mean() > hot.trace.clock_mhz.mean() + 50
    assert min(cool.warm.factor.values()) < min(hot.warm.factor.values()) - 0.03


def test_a_gpu_held_by_heat_slows_its_rank_and_all_wait(llama: PlannedRun) -> None:
    usual, after = heated(llama)[1], heated(llama, bad_contact={"node1.gpu6": 4})[1]
    assert set(slower(after)) == {14}
    assert float(str(after.facts()["lost_to_heat_fraction"])) > 0.1 > float(str(usual.facts()["lost_to_heat_fraction"]))
    hot = after.trace.reasons & HEAT != 0
    assert hot[:, 1, 6].any() and hot.sum() == hot[:, 1, 6].sum()
    longer = after.warm.load.length_s / usual.warm.load.length_s
    assert 1.05 < longer <= slower(after)[14], "the rest of the step is not computation"
    others = np.delete(after.trace.power_w.mean(axis=0).reshape(-1), 14)
    assert others.mean() < usual.trace.power_w.mean() - 30, "those that wait take less"


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("llama3.2-3b_h200x1_tp1-pp1-dp1_mbs1_gbs8_seq2048_sim", marks=pytest.mark.long),
        "gpt3-350m_h200x1_tp1",
    ],
)
def test_worse_contact_never_makes_a_job_faster(text: str) -> None:
    run, factors = planned(text, "h200x1"), sorted([*np.arange(1.0, 8.01, 0.5), 4.65, 4.8])
    found = [heated(run, bad_contact={"node0.gpu0": float(factor)})[1] for factor in factors]
    steps_s = [one.warm.load.length_s for one in found]
    assert (np.diff(steps_s) >= 0.0).all() and steps_s[-1] > 2.0 * steps_s[0]
    held = [one.trace for one in found if (one.trace.reasons & HEAT).any()]
    assert len(held) > 8 and all(86.9 < trace.temp_c.max() < 87.1 for trace in held), "the driver's highest"


def test_hot_room_slows_the_rear_most(llama: PlannedRun) -> None:
    usual, after = (heated(llama, inlet_temp_c=room_c)[1] for room_c in (24, 50))
    assert after.warm.load.length_s > usual.warm.load.length_s
    mean_mhz = after.trace.clock_mhz.mean(axis=(0, 1))
    assert mean_mhz[[0, 3, 4, 6]].mean() < mean_mhz[[1, 2, 5, 7]].mean() - 10


def test_lower_power_limit_and_brake_slow_the_step(llama: PlannedRun) -> None:
    usual, limited = heated(llama)[1], heated(llama, power_limit_w=450)[1]
    assert limited.warm.load.length_s > 1.05 * usual.warm.load.length_s
    assert limited.trace.power_w.mean() < 450
    braked = heated(llama, braked_nodes=[2])[1]
    longer = braked.warm.load.length_s / usual.warm.load.length_s
    # Half the clock: half the speed of what the clock holds. The published four times are out of reach, see docs.
    assert 1.25 < longer < 2.0 and all(1.3 < factor < 2.0 for factor in slower(braked).values())
    lost = {name: found.facts()["lost_to_brake_fraction"] for name, found in (("limit", limited), ("brake", braked))}
    assert lost["limit"] == 0.0 and 0.2 < float(str(lost["brake"])) < 0.5
    assert float(str(limited.facts()["lost_to_power_limit_fraction"])) > 0.2
    is_braked = (braked.trace.reasons & int(Reason.POWER_BRAKE)) != 0
    assert is_braked[:, 2].all() and not is_braked[:, [0, 1, 3]].any()


def read_devices(folder: Path, run: PlannedRun) -> dict[str, np.ndarray]:
    simulate_run(run, folder, CONFIG)
    table = read_recording(folder / "telemetry" / "node0.arrow").samples
    return {name: table[name].to_numpy(zero_copy_only=False) for name in table.column_names}


def test_recording_energy_is_the_power_and_counters_name_the_cause(tmp_path: Path, llama: PlannedRun) -> None:
    columns = read_devices(tmp_path, llama)
    own = columns["device"] == "gpu0"
    t_s = (columns["t_ns"][own] - columns["t_ns"][own][0]) / NS_PER_S
    _, warm = heated(llama)
    is_read = own & np.isfinite(columns["gpu_temp_c"])
    assert 0 < own.sum() - is_read.sum() <= 33, "gauges are not read at ends of steps"
    mean_w = columns["gpu_energy_j"][own][-1] / t_s[-1]
    assert mean_w == pytest.approx(warm.trace.power_w[:, 0, 0].mean(), rel=1e-3), "energy is conserved"
    assert np.nanmean(columns["gpu_power_average_w"][own]) == pytest.approx(mean_w, rel=0.02), "200 samples of a second"
    capped_s = columns["gpu_power_cap_s"][own][-1] / t_s[-1]
    assert 0.0 < capped_s < 1.0 and columns["gpu_sw_thermal_s"][own][-1] == 0.0
    assert (columns["gpu_temp_c"][is_read] % 1 == 0).all() and np.nanmin(columns["gpu_temp_margin_c"][own]) > 10


def test_means_of_a_recording_are_those_of_the_run(tmp_path: Path, llama: PlannedRun) -> None:
    """Counters are read at ends of steps too, gauges are not: that moment is hardly any of a step's time."""
    columns, (_, found) = read_devices(tmp_path, llama), heated(llama)
    own = columns["device"] == "gpu0"
    for name, of, most in (("gpu_temp_c", found.trace.temp_c, 0.3), ("sm_clock_mhz", found.trace.clock_mhz, 4.0)):
        assert abs(np.nanmean(columns[name][own]) - of[:, 0, 0].mean()) < most, name


def test_recording_is_the_same_every_time(tmp_path: Path, llama: PlannedRun) -> None:
    for name in ("one", "two"):
        simulate_run(llama, tmp_path / name, CONFIG)
    files = [(tmp_path / name / "telemetry" / "node3.arrow").read_bytes() for name in ("one", "two")]
    assert files[0] == files[1]


def test_recording_of_mi250_has_nothing_from_second_dies(tmp_path: Path) -> None:
    columns = read_devices(tmp_path, planned("gpt3-30b_mi250x32_tp2-pp16", "mi250x32"))
    of = {name: columns["gpu_power_w"][columns["device"] == name] for name in ("gpu0", "gpu1")}
    is_read = np.isfinite(columns["gpu_temp_c"][columns["device"] == "gpu1"])
    assert is_read.sum() == 200 and np.isnan(of["gpu1"]).all()
    assert (np.isfinite(of["gpu0"]) == is_read).all()
    assert (columns["gpu_power_limit_w"][columns["device"] == "gpu0"][is_read] == 560).all()


def test_conditions_of_what_is_not_there_are_refused() -> None:
    cluster = CATALOGUE.cluster("h200x32").model_dump(exclude_defaults=True)
    with pytest.raises(ValueError, match=r"bad_contact names node4.gpu0, the cluster has 4 nodes"):
        ClusterConfig.model_validate(cluster | {"conditions": {"bad_contact": {"node4.gpu0": 3}}})
    with pytest.raises(ValueError, match="braked_nodes"):
        ClusterConfig.model_validate(cluster | {"conditions": {"braked_nodes": [4]}})


@pytest.mark.parametrize("text", ["gpt3-175b_h200x32_tp2-pp16-dp1-sp_mbs1_act_sim", "llama3-70b_h200x32_tp4-pp4-dp2"])
def test_the_step_that_repeats_is_like_the_one_before(text: str) -> None:
    found = heated(planned(text))[1]
    assert found.warm.is_steady and found.facts()["is_steady"] is True


def on_half_a_node(run: PlannedRun) -> PlannedRun:
    layout = run.point.layout.model_copy(update={"pp": 1, "dp": 1})
    point = run.point.model_copy(update={"num_gpus": 4, "layout": layout, "global_batch_size": 8})
    return run.model_copy(update={"point": point})


def test_facts_are_of_gpus_that_have_a_rank(llama: PlannedRun) -> None:
    whole, half = heated(llama)[1], heated(on_half_a_node(llama))[1]
    assert whole.facts()["gpu_power_w"] == pytest.approx(whole.trace.power_w.mean())
    assert half.facts()["gpu_power_w"] == pytest.approx(half.trace.power_w[:, 0, :4].mean())
    assert half.facts()["gpu_power_w"] > 2 * half.trace.power_w[:, 0, 4:].mean()


def test_facts_of_the_rack_that_takes_most(llama: PlannedRun) -> None:
    two, all_four = (replace(heated(llama)[1], nodes_per_rack=size).facts() for size in (2, 4))
    assert all_four["rack_power_w"] == pytest.approx(4 * all_four["node_power_w"])
    assert 2 * two["node_power_w"] <= two["rack_power_w"] < 1.02 * 2 * two["node_power_w"], "nodes differ little"
    assert two["rack_power_w"] < two["rack_power_peak_w"] < all_four["rack_power_peak_w"]
    assert "rack_power_w" not in heated(llama)[1].facts()


def test_facts_under_a_power_limit_and_a_brake_are_their_own(llama: PlannedRun) -> None:
    limited, braked = (heated(llama, **where)[1] for where in ({"power_limit_w": 450}, {"braked_nodes": [0, 1, 2, 3]}))
    usual = heated(llama)[1].facts()
    facts = limited.facts()
    assert limited.trace.power_w.max() <= facts["gpu_power_peak_w"] < usual["gpu_power_peak_w"]
    assert 0.85 * 450 < facts["gpu_power_w"] < facts["gpu_power_hi_w"] <= 450
    wide, narrow = (found["gpu_power_w"] / found["gpu_power_lo_w"] for found in (usual, facts))
    assert narrow < wide, "where the limit holds, power is known"
    assert braked.facts()["gpu_power_peak_w"] == braked.trace.power_w.max() < 0.6 * usual["gpu_power_peak_w"]


@pytest.mark.parametrize(("where", "said"), [
    ({"power_limit_w": 10}, "clusters/.*.yaml: conditions.power_limit_w is 10 W; the driver takes limits of 200"),
    ({"power_limit_w": 701}, "the driver takes limits of 200 to 700 W for a device of h200"),
    ({"airflow": "mi250-4x2"}, "other packages than those of h200"),
    ({"bad_contact": {"node1.gpu6": 20}, "inlet_temp_c": 60}, "node1.gpu6 comes to .* and shuts down at 95 degC"),
])  # fmt: skip
def test_conditions_no_gpu_works_under(llama: PlannedRun, where: dict, said: str) -> None:
    with pytest.raises(UserError, match=said):
        heated(llama, **where)


@pytest.mark.parametrize("where", [
    {"bad_contact": {"node0.gpu0": 1e9}}, {"blocked_airflow": {"node0.gpu0": 1e-9}},
    {"blocked_airflow": {"node0.gpu0": 0.5}, "coolant": "liquid"},
])  # fmt: skip
def test_conditions_that_cannot_be(where: dict) -> None:
    with pytest.raises(ValueError, match="less than or equal|greater than or equal|needs coolant: air"):
        ConditionsConfig(**where)
