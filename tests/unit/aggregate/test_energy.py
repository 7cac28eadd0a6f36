"""Energy of steps and phases, and throttling, against the truth of fake GPUs in virtual time."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.examples import examples
from tests.fakes.presets import hgx_h200
from tests.fakes.scenario import Rule, Scenario
from tests.fakes.wave import Wave, square
from tests.sampling import S, Sampled, record
from triplepoint.aggregate.energy import COUNTER, NotMeasuredError, measure_energy
from triplepoint.aggregate.phases import CELLS, Pattern, phase_energy, read_pattern, read_spans
from triplepoint.aggregate.power import CAUSES, throttle_shares
from triplepoint.power_sensor import EnergyCounter, integral_j

IDLE_W, BUSY_W = 75.0, 700.0
MICROBATCHES = 12
PIECES = [
    *[(0.05, 0.7, ("forward", "compute")), (0.1, 0.95, ("backward", "compute")), (0.01, 0.15, ("backward", "idle"))]
    * MICROBATCHES,
    (0.25, 0.35, ("other", "comm")),
    (0.15, 0.5, ("optimizer", "compute")),
]
"""Length in s, load and cell of what a step consists of: mostly shorter than the 0.1 s between moves of the counter."""
BORDERS_S = np.concatenate([[0.0], np.cumsum([length for length, _, _ in PIECES])])
STEP_S = float(BORDERS_S[-1])
STEP = Wave(tuple(BORDERS_S[:-1].tolist()), tuple(load for _, load, _ in PIECES), STEP_S)


def pattern_of(borders: np.ndarray, cells: list[int]) -> Pattern:
    """Return a pattern of pieces that are of one cell each."""
    shares = np.zeros((len(cells), len(CELLS)))
    shares[np.arange(len(cells)), cells] = np.diff(borders)
    return Pattern(borders, shares)


PATTERN = pattern_of(BORDERS_S / STEP_S, [CELLS.index(cell) for _, _, cell in PIECES])


def columns(found: Sampled, gpu: int = 0) -> dict[str, np.ndarray]:
    table = found.recording.samples
    mine = table.filter(np.array(table["device"].to_pylist()) == f"gpu{gpu}")
    return {name: mine[name].to_numpy(zero_copy_only=False) for name in mine.column_names}


def step_windows(found: Sampled, num_steps: int, length_s: float = STEP_S) -> np.ndarray:
    """Return windows of the second step and those after it. Unit: ns."""
    starts = found.node.start_ns + (np.arange(1, num_steps + 1) * length_s * S).astype(np.int64)
    return np.stack([starts, starts + round(length_s * S)], axis=1)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Sampled:
    """Half a minute of steps on two GPUs, whose counters move at different moments."""
    return record(hgx_h200(2).set_all(load=STEP), tmp_path_factory.mktemp("trained"), seconds=30)


@pytest.mark.parametrize("gpu", [0, 1])
def test_measure_energy_of_steps_is_the_truth(trained: Sampled, gpu: int) -> None:
    windows = step_windows(trained, 10)
    found = measure_energy(columns(trained, gpu), windows, None)
    assert found is not None and found.source == COUNTER
    for (start, end), power_w in zip(windows.tolist(), found.power_w, strict=True):
        # At each end the counter is interpolated over 0.1 s in which the load changes.
        assert power_w * STEP_S == pytest.approx(trained.node.truth.energy_j(gpu, start, end), rel=0.01)
    true_j = trained.node.truth.energy_j(gpu, int(windows[0, 0]), int(windows[-1, 1]))
    assert found.mean_w * 10 * STEP_S == pytest.approx(true_j, rel=0.002)


@pytest.mark.parametrize("gpu", [0, 1])
def test_phase_energy_adds_up_and_finds_the_power_of_each_phase(trained: Sampled, gpu: int) -> None:
    windows = step_windows(trained, 10)
    energy = measure_energy(columns(trained, gpu), windows, None)
    assert energy is not None and energy.counter is not None
    found = phase_energy(energy.counter, windows / S, PATTERN)
    assert set(found) == {cell for _, _, cell in PIECES}
    total_j = sum(cell.energy_j for cell in found.values())
    assert total_j == pytest.approx(energy.power_w.mean() * STEP_S, rel=1e-9)
    assert total_j * 10 == pytest.approx(
        trained.node.truth.energy_j(gpu, int(windows[0, 0]), int(windows[-1, 1])), rel=0.005
    )
    for length_s, load, cell in PIECES[-2:] + PIECES[:3]:
        power_w = IDLE_W + load * (BUSY_W - IDLE_W)
        assert found[cell].power_w == pytest.approx(power_w, rel=0.02), cell
        assert abs(found[cell].power_w - power_w) < 4 * found[cell].error_w + 0.01 * power_w
        times = MICROBATCHES if cell in {cell for _, _, cell in PIECES[:3]} else 1
        assert found[cell].energy_j == pytest.approx(power_w * length_s * times, rel=0.02)


def test_phase_energy_says_how_little_steps_of_a_counters_period_tell(tmp_path: Path) -> None:
    # 0.1 s of which half forward: between any two moves of the counter lies one of each.
    found = record(hgx_h200(1).set_all(load=square(0.1, 0.5)), tmp_path, seconds=10)
    windows = step_windows(found, 60, 0.1)
    energy = measure_energy(columns(found), windows, None)
    assert energy is not None and energy.counter is not None
    halves = pattern_of(np.array([0, 0.5, 1]), [0, 4])
    forward, backward = phase_energy(energy.counter, windows / S, halves).values()
    assert forward.energy_j + backward.energy_j == pytest.approx(energy.power_w.mean() * 0.1)
    # 700 and 75 W, each known to no better than this:
    assert min(forward.error_w, backward.error_w) > 100


@settings(max_examples=examples(50), deadline=None)
@given(
    lengths=st.lists(st.floats(0.01, 2.0), min_size=1, max_size=20),
    cells=st.lists(st.integers(0, len(CELLS) - 1), min_size=20, max_size=20),
    gaps=st.lists(st.floats(0.0, 0.3), min_size=6, max_size=6),
    powers=st.lists(st.floats(50, 1000), min_size=200, max_size=200),
)
def test_phase_energies_always_add_up_to_the_counter(
    lengths: list[float], cells: list[int], gaps: list[float], powers: list[float]
) -> None:
    step_s = sum(lengths)
    starts = np.cumsum([1.0 + gap + step_s for gap in gaps]) - step_s
    windows = np.stack([starts, starts + step_s], axis=1)
    reads = np.arange(0.0, windows[-1, 1] + 2, 0.05)
    counter_j = np.cumsum(np.resize(powers, len(reads)) * 0.05)
    counter = EnergyCounter(reads, counter_j)
    pattern = pattern_of(np.concatenate([[0], np.cumsum(lengths)]) / step_s, cells[: len(lengths)])
    found = phase_energy(counter, windows, pattern)
    total_j = float(np.diff(counter.at(windows), axis=1).sum())
    assert sum(cell.energy_j for cell in found.values()) * len(windows) == pytest.approx(total_j)
    assert all(cell.energy_j > 0 and cell.power_w > 0 for cell in found.values())


def test_read_pattern_keeps_what_is_known_of_every_cell() -> None:
    columns = {
        "lane": ["phase", "phase", "compute", "compute", "comm", "phase"],
        "label": ["forward", "backward_weight", "gemm", "gemm", "all_reduce", "grad_sync"],
        "t_start_ns": [0, 40, 0, 40, 30, 80],
        "duration_ns": [40, 40, 30, 40, 70, 20],
    }
    # Communication runs from 30 to 100, of which 40 to 80 is hidden; the timeline alone does not say so.
    exposed_s = {("forward", "compute"): 3.0, ("forward", "comm"): 1.0, ("backward", "compute"): 4.0}
    exposed_s |= {("other", "comm"): 1.5, ("other", "idle"): 0.5}
    found = read_pattern(read_spans(pa.table(columns)), 100, exposed_s)
    assert found.shares.sum(axis=1) == pytest.approx(np.diff(found.borders))
    for cell, seconds in exposed_s.items():
        assert found.shares[:, CELLS.index(cell)].sum() == pytest.approx(seconds / 10, rel=0.01)
    middle = (found.borders[:-1] + found.borders[1:]) / 2
    for cell, low, high in (
        (("forward", "compute"), 0.0, 0.3),
        (("forward", "comm"), 0.3, 0.4),
        (("backward", "compute"), 0.4, 0.8),
        (("other", "comm"), 0.8, 1.0),
    ):
        share = found.shares[:, CELLS.index(cell)]
        assert share[(middle > low) & (middle < high)].sum() == pytest.approx(share.sum(), rel=0.05)


@pytest.mark.parametrize(("window_s", "most"), [(60, 0.01), (10, 0.02)])
def test_integral_of_power_against_the_counter(tmp_path: Path, window_s: int, most: float) -> None:
    load = Wave((0.0, 1.3, 3.1, 3.8), (0.2, 0.9, 0.5, 1.0), 5.03)
    found = record(hgx_h200(1).set_all(load=load), tmp_path, seconds=62)
    t_ns, power_w = found.rows("gpu_power_w")
    counter = EnergyCounter(*(values / s for values, s in zip(found.rows("gpu_energy_j"), (S, 1), strict=True)))
    for start_s in np.arange(t_ns[0] / S + 0.5, t_ns[-1] / S - window_s - 0.3, window_s):
        first, last = counter.at(np.array([start_s, start_s + window_s]))
        integral = integral_j(t_ns / S, power_w, start_s, start_s + window_s)
        assert integral == pytest.approx(last - first, rel=most)


@pytest.fixture(scope="module", params=[1.0, 20.0])
def throttled(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sampled]:
    scenario = hgx_h200(1).set_all(
        sw_thermal=square(0.83, 0.31),
        hw_thermal=square(7.0, 0.05),
        power_brake=square(0.11, 0.5),
        sync_boost=square(3.3, 0.02),
        load=square(1.7, 0.4, high=1.3),
    )
    yield record(scenario, tmp_path_factory.mktemp("throttled"), 32, fast_hz=request.param, slow_hz=1.0)


@pytest.mark.parametrize("cause", CAUSES)
def test_throttle_shares_exact_at_1_and_at_20_hz(throttled: Sampled, cause: str) -> None:
    start = throttled.node.start_ns
    samples = columns(throttled)
    window = start + round(1.05 * S), start + round(30.62 * S)
    found = throttle_shares(samples, *window)
    known = samples["t_ns"][np.isfinite(samples[f"gpu_{cause}_s"])]
    first, last = int(known[known <= window[0]][-1]), int(known[known >= window[1]][0])
    true = throttled.node.truth.throttled_share(0, cause, first, last)
    assert found[f"{cause}_share"] == pytest.approx(true, abs=0.001)
    assert true > 0.01


def frozen(load: Wave, **sensors: object) -> Scenario:
    scenario = hgx_h200(1).set_all(load=load, **sensors)
    scenario.freezes.append(Rule("energy", gpu=0, from_s=0.5))
    return scenario


def card(period_s: float, window_s: float, lag_s: float = 0.0) -> dict:
    return {"sensors": {"gpu_power_w": {"period_s": period_s, "window_s": window_s, "lag_s": lag_s}}}


def test_measure_energy_without_counter_takes_samples_and_says_so(tmp_path: Path) -> None:
    found = record(frozen(STEP), tmp_path, seconds=15)
    windows = step_windows(found, 4)
    energy = measure_energy(columns(found), windows, None)
    assert energy is not None and energy.counter is None
    assert energy.source == "mean of power samples; the sensor is not characterised"
    true_j = found.node.truth.energy_j(0, int(windows[0, 0]), int(windows[-1, 1]))
    assert energy.mean_w * 4 * STEP_S == pytest.approx(true_j, rel=0.05)
    known = measure_energy(columns(found), windows, card(0.1, 0.025))
    assert known is not None and known.source == "mean of power samples, the sensor sees 25 ms of every 100 ms"


def test_measure_energy_refuses_a_step_locked_to_the_sensor(tmp_path: Path) -> None:
    found = record(frozen(square(0.2, 0.25)), tmp_path, seconds=10)
    samples, windows = columns(found), step_windows(found, 20, 0.2)
    with pytest.raises(NotMeasuredError, match="25 ms of every 100 ms, which is never 7[0-9] % of the step"):
        measure_energy(samples, windows, card(0.1, 0.025))
    # Steps that begin at any moment of the sensor's period are seen whole.
    spread = step_windows(found, 30, 0.23)
    assert measure_energy(samples, spread, card(0.1, 0.025)) is not None


def test_measure_energy_undoes_a_running_mean(tmp_path: Path) -> None:
    load = Wave((0.0, 4.0), (0.1, 0.9), 8.0)
    scenario = frozen(load)
    sensor = replace(scenario.gpus[0].instant, period_s=0.1, window_s=1.0, lag_s=0.0)
    found = record(frozen(load, instant=sensor), tmp_path, seconds=26)
    # Steps of 2 s: some at the low level, some at the high one.
    windows = step_windows(found, 8, 2.0) + S
    naive, undone = (measure_energy(columns(found), windows, one) for one in (None, card(0.1, 1.0)))
    true_w = np.array([found.node.truth.energy_j(0, *window) / 2.0 for window in windows.tolist()])
    assert naive is not None and undone is not None
    assert undone.source == "power samples, running mean of 1000 ms undone"
    assert np.abs(naive.power_w - true_w).max() > 50
    assert np.abs(undone.power_w - true_w).max() < 30


def averaged(period_s: float, num: int) -> dict[str, np.ndarray]:
    """Return readings of a running mean of 1 s over power that goes from 100 W to 500 W after 10 s."""
    times_s = np.arange(num) * period_s
    power_w = np.interp(times_s, [10, 11], [100.0, 500.0])
    nothing = np.full(num, np.nan)
    return {
        "t_ns": (times_s * 1e9).astype(np.int64),
        "gpu_power_w": nothing,
        "gpu_energy_j": nothing,
        "gpu_power_average_w": power_w,
    }


def test_measure_energy_of_averaged_power_alone() -> None:
    """A reading is of the middle of its second: the first 10 s are at 100 W, those after at 500 W."""
    windows = np.array([[2.0, 9.4], [10.6, 18.0]]) * 1e9
    energy = measure_energy(averaged(0.1, 200), windows, None)
    assert energy is not None and energy.source == "mean of power that the driver averages over about 1 s"
    assert energy.power_w == pytest.approx([100.0, 500.0], abs=1.0)


def test_measure_energy_undoes_the_average_where_it_was_read_often_enough() -> None:
    card = {"sensors": {"gpu_power_average_w": {"window_s": 1.0, "period_s": 0.1, "lag_s": 0.0}}}
    windows = np.array([[9.0, 9.9], [10.2, 10.9]]) * 1e9
    energy = measure_energy(averaged(0.1, 200), windows, card)
    assert energy is not None and "undone" in energy.source
    assert energy.power_w == pytest.approx([100.0, 500.0], abs=20.0)
    seldom = measure_energy(averaged(1.0, 20), np.array([[2.0, 9.4]]) * 1e9, card)
    assert seldom is not None and "undone" not in seldom.source
