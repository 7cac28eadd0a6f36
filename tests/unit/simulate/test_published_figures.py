"""Power, heat and clocks of the simulated H200 cluster against the published study: GPT-3 175B, figures 13 and 17."""

import statistics

import pytest

from tests.published_figures import SLOTS_LEARNED, Row, floor_k, kernel_rows, microbatch_rows, slot_rows, stage_rows


@pytest.fixture(scope="module")
def rows() -> list[Row]:
    return list(microbatch_rows())


@pytest.mark.parametrize(("quantity", "most"), [("mean power", 0.03), ("peak power", 0.05), ("clock", 0.02)])
def test_power_and_clocks(rows: list[Row], quantity: str, most: float) -> None:
    errors = [abs(row.predicted[quantity] / row.published[quantity] - 1.0) for row in rows]
    assert len(errors) == 19 and statistics.fmean(errors) < most


@pytest.mark.parametrize(("quantity", "most_k"), [("mean temperature", 1.5), ("highest temperature", 2.5)])
def test_temperatures(rows: list[Row], quantity: str, most_k: float) -> None:
    errors = [row.predicted[quantity] - row.published[quantity] for row in rows]
    known = [abs(error) for error in errors if error == error]
    assert len(known) >= 18 and statistics.fmean(known) < most_k


def test_slots_of_the_node_kept_aside() -> None:
    """The chassis was learned on nodes 1 and 2.

    Parts of a row differ by up to 5.8 K: with rows exactly as warm as on the other nodes 1.14 K are left, and with rows
    as warm as on node 3 itself 1.07 K. The rest is power, which is not published of runs without recomputation.
    """
    slots = list(slot_rows())
    held_out = [slot for slot in slots if slot.node not in SLOTS_LEARNED]
    assert len(held_out) == 24
    assert statistics.fmean(abs(slot.predicted_c - slot.published_c) for slot in held_out) < 1.75
    assert floor_k(slots, SLOTS_LEARNED) == pytest.approx(1.14, abs=0.01)
    assert floor_k(slots, ()) == pytest.approx(1.07, abs=0.01)
    assert 0.85 <= statistics.fmean(slot.is_inside for slot in slots) <= 1.0


def test_peaks_rise_and_means_fall_with_the_micro_batch(rows: list[Row]) -> None:
    """As published, for the three layouts of deeper pipelines: means fall by a third and more from 1 to 8."""
    found = {row.name: row.predicted for row in rows}
    for layout in ("TP4-PP8", "TP2-PP16", "TP1-PP32"):
        small, large = found[f"{layout} mb1"], found[f"{layout} mb8"]
        assert large["mean power"] < 0.85 * small["mean power"], layout
    assert found["TP8-PP4 mb8"]["peak power"] > found["TP8-PP4 mb1"]["peak power"] + 100


@pytest.mark.parametrize(("quantity", "most"), [("SendRecv, median stage", 0.3), ("AllReduce, last stage", 0.21)])
def test_seconds_of_communication_by_stage(quantity: str, most: float) -> None:
    """Stages wait for others in receives, later ones at the step's end in the all-reduce of the norm: figure 3."""
    stages = list(stage_rows())
    errors = [abs(row.predicted[quantity] / row.published[quantity] - 1.0) for row in stages]
    assert len(errors) == 4 and statistics.fmean(errors) < most
    # Of a deeper pipeline both take longer, as published.
    assert [row.predicted[quantity] for row in stages[1:]] == sorted(row.predicted[quantity] for row in stages[1:])


@pytest.mark.xfail(strict=True, reason="39 %: figures 3 and 10 differ by 25 % on SendRecv and by 77 % on AllReduce")
def test_seconds_of_sends_and_waiting() -> None:
    """What is published of four layouts twice differs by more than is asked for."""
    rows = [row for row in kernel_rows() if "sends and waiting" in row.published]
    name = "sends and waiting"
    assert statistics.fmean(abs(row.predicted[name] / row.published[name] - 1.0) for row in rows) < 0.12
