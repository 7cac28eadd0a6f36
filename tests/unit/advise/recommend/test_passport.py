"""Slot passports: intervals hold the truth of made-up clusters; contacts follow from what was shown; drift."""

from pathlib import Path

import numpy as np
import pytest

from tests.unit.calibrate.test_heat import drawn
from triplepoint.advise.recommend.kept_passports import find_drift, keep, last_before, path_of
from triplepoint.advise.recommend.passport import Known, Passport, Slot, contacts_over, cooling_of
from triplepoint.calibrate.heat_search import search
from triplepoint.errors import UserError
from triplepoint.simulate.heat.parameters import LEARNED


def test_intervals_of_slots_hold_the_truth_of_made_up_clusters() -> None:
    """90 % intervals of 8 slots each of 6 clusters: resistance from die to air, air over the inlet, contact."""
    inside = {"resistance": list[bool](), "preheat": list[bool](), "contact": list[bool]()}
    for seed in range(200, 206):
        runs, truth = drawn(seed, [620.0], 1)
        (one,) = runs.observed
        at, covariance, _ = search(runs.machine, runs.observed)
        found = cooling_of(runs.machine, at, covariance, one)
        under = truth.under_load(one.power_w)
        air_k = under.network.steady(one.power_w)[:, 2 * truth.shape[1] :]
        resistance = (under.network.die_c(under.network.steady(one.power_w), 0.0) - air_k) / one.power_w
        inside["resistance"] += (np.abs(resistance - found.resistance) <= 1.645 * found.resistance_sigma)[0].tolist()
        inside["preheat"] += (np.abs(air_k - found.preheat_k) <= 1.645 * found.preheat_sigma_k)[0].tolist()
        away = np.abs(np.log(truth.devices.die / found.contact))
        inside["contact"] += (away <= 1.645 * found.contact_log_sigma)[0].tolist()
    assert all(np.mean(held) >= 0.75 for held in inside.values()), {name: np.mean(one) for name, one in inside.items()}


def test_contacts_over_the_described_nodes_are_those_that_made_the_temperatures() -> None:
    runs, _ = drawn(7, [600.0], 2)
    (one,) = runs.observed
    inlet_c, contact = contacts_over(runs.machine, one)
    assert np.median(contact) == pytest.approx(1.0, abs=0.02)
    machine = runs.machine.under_load(one.power_w)
    die_k = machine.cooled_by.die_resistance.value * (contact - 1.0) * one.power_w
    shown_c = inlet_c + machine.network.steady(one.power_w)[:, :8] + die_k
    assert shown_c == pytest.approx(one.temp_c, abs=1e-6)
    assert len(LEARNED) == 6


def known(value: float, unit: str) -> Known:
    return Known(value=value, lo=0.9 * value, hi=1.1 * value, unit=unit)


def passport(run: str, started_at: str, worse: float = 1.0, uuid: str | None = "GPU-a") -> Passport:
    """Eight slots of one node; the resistance of the last is so many times as high."""
    slots = [
        Slot(
            host="n0", node=0, device=gpu, uuid=uuid if gpu == 7 else f"GPU-{gpu}", temp_c=60.0, power_w=600.0,
            clock_mhz=1700.0, preheat_k=known(5.0, "K"), resistance=known(0.05 * (worse if gpu == 7 else 1.0), "K/W"),
            contact=known(1.0, "1"), compute_excess=None,
        )
        for gpu in range(8)
    ]  # fmt: skip
    return Passport(
        cluster="c", run=run, started_at=started_at, shared={}, contact_spread=0.045, slots=tuple(slots)
    )  # fmt: skip


def test_drift_names_the_slot_that_changed_against_its_peers() -> None:
    (found,) = find_drift(passport("a", "2026-01-01"), passport("b", "2026-02-01", 1.3, "GPU-b"))
    assert found.slot.device == 7 and found.change == pytest.approx(0.3) and found.lo < 0.3 < found.hi
    assert found.since == "a" and found.is_other_gpu
    assert find_drift(passport("a", "2026-01-01"), passport("b", "2026-02-01", 1.03)) == []


def test_passports_are_kept_by_run_and_the_last_one_before_is_found(tmp_path: Path) -> None:
    first, second = passport("a", "2026-01-01"), passport("b", "2026-02-01")
    assert last_before(first, tmp_path) is None
    for one in (first, second, second):
        keep(one, tmp_path)
    assert last_before(passport("c", "2026-03-01"), tmp_path) == second
    assert last_before(second, tmp_path) == first and last_before(first, tmp_path) is None


def test_a_damaged_file_of_passports_is_refused(tmp_path: Path) -> None:
    path = path_of(tmp_path, "c")
    path.parent.mkdir()
    path.write_text("{")
    with pytest.raises(UserError, match=r"c\.json.*remove it"):
        last_before(passport("a", "2026-01-01"), tmp_path)
