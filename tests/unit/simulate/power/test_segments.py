"""What runs when: overlaid segments, and means over bins that keep the energy."""

from dataclasses import fields

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.simulate.power.made_up import power
from triplepoint.simulate.power.gpu import Activity, gpu_power_w
from triplepoint.simulate.power.segments import (
    Peaks,
    bin_activity,
    bin_means,
    kernel_activity,
    overlay,
)

PEAKS = Peaks(tensor_flops=1e15, sm_flops=5e13, hbm=4e12, link=9e11)


def energy_j(edges_ns: np.ndarray, power_w: np.ndarray) -> float:
    """Return the energy of power that is constant between edges; shape (..., num_pieces). Unit: J."""
    return float(np.sum(power_w * 1e-9 * np.diff(edges_ns)))


def pick(activity: Activity, index: int) -> tuple[float, ...]:
    return tuple(round(float(getattr(activity, part.name)[index]), 6) for part in fields(activity))


def test_kernel_activity_by_hand() -> None:
    # A product at 0.8 of peak with a tenth of the bandwidth; a copy at 0.9 of the bandwidth.
    found = kernel_activity([1, 0], np.array([8e11, 0]), np.array([4e8, 3.6e9]), 1e-3, PEAKS)
    assert pick(found, 0) == (1, 0.8, 0, 0.1, 0, 1, round(0.8**3 / (0.8**3 + 0.1**3), 6))
    assert pick(found, 1) == (1, 0, 0, 0.9, 0, 1, 0)


def test_overlay_two_streams() -> None:
    start, end = np.array([10, 20]), np.array([30, 50])
    activity = Activity(np.ones(2), np.array([0.8, 0]), 0.0, np.array([0.1, 0.2]), np.array([0, 0.6]),
                        np.array([0.0, 1.0]), np.array([1.0, 0.0]))  # fmt: skip
    edges, found = overlay(start, end, activity, 60)
    assert edges.tolist() == [0, 10, 20, 30, 50, 60]
    assert pick(found, 0) == (0, 0, 0, 0, 0, 1, 0)
    assert pick(found, 1) == (1, 0.8, 0, 0.1, 0, 0, 1)
    # Together: rates add, randomness by rates 0.9 and 0.8, the time goes with the clock as the product's does.
    assert pick(found, 2) == (1, 0.8, 0, 0.3, 0.6, round(0.8 / 1.7, 6), 1)
    assert pick(found, 3) == (1, 0, 0, 0.2, 0.6, 1, 0)


def test_overlay_cuts_off_what_lies_outside() -> None:
    edges, found = overlay(np.array([-5, 8, 20]), np.array([2, 15, 30]), Activity(np.ones(3), np.full(3, 0.5)), 10)
    assert edges.tolist() == [0, 2, 8, 10]
    assert found.tensor.tolist() == [0.5, 0, 0.5]  # type: ignore[union-attr]


def test_bin_means_across_borders() -> None:
    found = bin_means(np.array([0, 10, 30]), np.array([100.0, 400.0]), np.array([0, 20, 30]))
    assert found.tolist() == [250, 400]


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(1, 1000), st.integers(1, 300), st.floats(0, 1), st.floats(0, 1)), min_size=1),
       st.integers(2, 9))  # fmt: skip
def test_bin_activity_keeps_energy(rows: list[tuple[int, int, float, float]], num_bins: int) -> None:
    """Power is linear in rates, so that of mean rates is the mean of power, at any one clock and temperature."""
    start = np.array([row[0] for row in rows])
    end = start + np.array([row[1] for row in rows])
    activity = Activity(np.ones(len(rows)), np.array([row[2] for row in rows]), 0.0, np.array([row[3] for row in rows]))
    edges, pieces = overlay(start, end, activity, 1400)
    bins = np.linspace(0, 1400, num_bins + 1)
    fine = energy_j(edges, gpu_power_w(power(), pieces, 1500, 70))
    coarse = energy_j(bins, gpu_power_w(power(), bin_activity(edges, pieces, bins), 1500, 70))
    assert coarse == pytest.approx(fine, rel=1e-3)
