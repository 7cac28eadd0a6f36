"""Causes from what sensors say, GPU by GPU."""

from dataclasses import replace

import pytest

from triplepoint.why.explain import cause_of_clock, explain, explain_clocks
from triplepoint.why.repairs import Suspect
from triplepoint.why.sensed import Sensed

SOUND = Sensed(
    0, "n0", "gpu0", 0, clock_mhz=1900.0, power_w=600.0, limit_w=700.0, temp_c=60.0, inlet_c=25.0,
    throttled={"power_cap_share": 0.0, "sw_thermal_share": 0.0}, compute_s=1.0, host_s=0.0,
)  # fmt: skip


def gpus(**odd: object) -> dict[int, Sensed]:
    """Return GPUs of four nodes of two, of which rank 3 is as said."""
    made = {rank: replace(SOUND, rank=rank, device=f"gpu{rank % 2}", node=rank // 2) for rank in range(8)}
    made = {rank: replace(one, clock_mhz=one.clock_mhz + rank % 3) for rank, one in made.items()}
    return made | {3: replace(made[3], **odd)}  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("odd", "cause"),
    [
        ({"limit_w": 500.0}, "power limit"),
        ({"throttled": {"power_brake_share": 0.5}}, "degraded"),
        ({"throttled": {"hw_slowdown_share": 0.9}}, "degraded"),
        ({"throttled": {"power_brake_share": 0.2}}, "power limit"),
        ({"throttled": {"power_cap_share": 0.9}}, "power limit"),
        ({"throttled": {"sw_thermal_share": 0.8}, "temp_c": 87.0}, "contact"),
        ({"throttled": {"hw_thermal_share": 0.8}, "temp_c": 87.0, "inlet_c": 52.0}, "heat"),
        ({}, "computation"),
    ],
)
def test_cause_of_clock(odd: dict[str, object], cause: str) -> None:
    sensed = gpus(clock_mhz=1500.0, **odd)
    assert cause_of_clock(sensed[3], sensed)[0] == cause


def test_cause_of_clock_without_counters_or_inlet_goes_by_temperature() -> None:
    sensed = gpus(clock_mhz=1500.0, throttled={}, temp_c=85.0, power_w=400.0)
    sensed = {rank: replace(one, inlet_c=float("nan")) for rank, one in sensed.items()}
    assert cause_of_clock(sensed[3], sensed)[0] == "contact"


@pytest.mark.parametrize("inlet_c", [25.0, float("nan")])
@pytest.mark.parametrize(("temp_c", "power_w", "cause"), [(87.0, 500.0, "contact or air"), (68.0, 650.0, "heat")])
def test_one_node_cannot_tell_contact_from_air(inlet_c: float, temp_c: float, power_w: float, cause: str) -> None:
    """Slots of a node differ in their air, and no other node shows the same slot."""
    odd = {"throttled": {"hw_thermal_share": 0.8}, "temp_c": temp_c, "power_w": power_w, "clock_mhz": 1500.0}
    sensed = {rank: replace(one, node=0, device=f"gpu{rank}", inlet_c=inlet_c) for rank, one in gpus(**odd).items()}
    found, evidence, _ = cause_of_clock(sensed[3], sensed)
    assert found == cause
    assert ("no other node shows" in evidence) == (cause == "contact or air")


def test_warm_node_without_inlet_is_heat() -> None:
    """Both GPUs of the node are 25 K hotter than those of other nodes: the air, not the contact of one."""
    sensed = gpus(clock_mhz=1500.0, throttled={}, temp_c=85.0, power_w=400.0)
    sensed = {rank: replace(one, inlet_c=float("nan")) for rank, one in sensed.items()}
    sensed[2] = replace(sensed[2], temp_c=85.0)
    assert cause_of_clock(sensed[3], sensed)[0] == "heat"


def test_excess_beyond_the_clock_is_computation() -> None:
    suspect = Suspect((3, 0), (3,), "computation", 0.5, 0.5, has_peers=True, lost_s=0.5)
    sensed = gpus(clock_mhz=1901.0 / 1.1, limit_w=500.0)
    found = explain([suspect], sensed, lambda place: (place[0],), 2.0)
    assert [one.cause for one in found] == ["computation", "power limit"]
    assert [one.lost_s for one in found] == pytest.approx([0.4, 0.1], rel=0.01)


def test_late_launches_are_told_from_slow_kernels() -> None:
    suspect = Suspect((3, 0), (3,), "computation", 0.2, 0.2, has_peers=True, lost_s=0.2)
    (found,) = explain([suspect], gpus(host_s=0.2), lambda place: (place[0],), 2.0)
    assert (found.rank, found.cause) == (3, "launch")


def test_stage_without_peers_is_the_division_of_layers() -> None:
    suspects = [
        Suspect((dp, 1), (2 + dp,), "computation", 0.3, 0.3, has_peers=False, lost_s=0.1, num_stages=4)
        for dp in range(2)
    ]
    (found,) = explain(suspects, {}, lambda place: (), 2.0)
    # Of its layers beyond the others' it keeps a quarter.
    assert (found.name, found.cause, found.lost_s) == ("stage 1", "layers", pytest.approx(0.2 * 3 / 4))


def stages(**odd: object) -> dict[int, Sensed]:
    """Return GPUs of four nodes of four, a pipeline stage each, of which node 1 is as said."""
    made = {
        rank: replace(SOUND, rank=rank, device=f"gpu{rank % 4}", node=rank // 4, stage=rank // 4) for rank in range(16)
    }
    return {rank: replace(one, **odd) if one.node == 1 else one for rank, one in made.items()}  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("shares", "cause", "says"),
    [
        ({"power_brake_share": 1.0, "hw_slowdown_share": 1.0}, "degraded", "power brake for 100 % of the time"),
        ({"hw_slowdown_share": 0.8}, "degraded", "hardware slowdown for 80 % of the time"),
        ({"hw_thermal_share": 0.8, "hw_slowdown_share": 0.8}, "heat", "hardware thermal slowdown for 80 % of the time"),
    ],
)
def test_a_stage_whose_node_the_hardware_holds_down_is_not_the_division_of_layers(
    shares: dict[str, float], cause: str, says: str
) -> None:
    """All GPUs of the stage are alike, so no peer of the stage shows the fault."""
    sensed = stages(clock_mhz=990.0, throttled=shares)
    suspect = Suspect((0, 1), (4, 5, 6, 7), "computation", 0.45, 4.5, has_peers=False, lost_s=0.1)
    (found,) = explain([suspect], sensed, lambda place: range(4 * place[1], 4 * place[1] + 4), 20.0)
    assert found.cause == cause
    assert f"{says}, 990 MHz against 1900 MHz of GPUs without it" in found.evidence
    if cause == "degraded":
        assert (found.name, found.is_bound, found.lost_s) == ("all 4 GPUs of n0", True, pytest.approx(4.5))


def test_clocks_that_the_hardware_holds_down_are_found_without_traces() -> None:
    (found,) = explain_clocks(stages(clock_mhz=950.0, throttled={"power_brake_share": 1.0}), 10.0)
    assert (found.name, found.cause, found.lost_s) == ("all 4 GPUs of n0", "degraded", pytest.approx(5.0))


def test_a_brake_on_all_gpus_stands_out_nowhere() -> None:
    sensed = {rank: replace(one, throttled={"power_brake_share": 1.0}) for rank, one in stages().items()}
    assert explain_clocks(sensed, 10.0) == []


def test_clocks_alone_give_a_bound() -> None:
    (found,) = explain_clocks(gpus(clock_mhz=1520.0, limit_w=500.0), 10.0)
    assert (found.rank, found.cause, found.is_bound) == (3, "power limit", True)
    assert found.lost_s == pytest.approx(10 * (1 - 1520 / 1901), rel=0.01)


def test_clocks_that_differ_as_parts_do_explain_nothing() -> None:
    assert explain_clocks(gpus(), 10.0) == []
