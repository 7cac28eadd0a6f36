"""The sensor card from recorded samples, and the cost of sampling from recorded steps."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.fakes.presets import hgx_h200
from tests.fakes.scenario import Sensor
from tests.sampling import record
from tests.unit.telemetry.test_power_sensor import S, random_load
from triplepoint.errors import UserError
from triplepoint.telemetry import overhead
from triplepoint.telemetry.characterise import from_folder


def test_from_folder_writes_a_card_of_each_sensor(tmp_path: Path) -> None:
    load, starts_s, ends_s = random_load(25.0)
    average = Sensor(period_s=0.1, window_s=1.0)
    scenario = hgx_h200(1).set_all(load=load, instant=Sensor(period_s=0.1, window_s=0.025), average=average)
    sampled = record(scenario, tmp_path, 25.0, fast_hz=97.3, slow_hz=1.0)
    pq.write_table(sampled.recording.samples, tmp_path / "samples.parquet")
    times = {"t_start_ns": starts_s, "t_end_ns": ends_s}
    windows = {name: np.rint(t * S).astype(int) + sampled.node.start_ns for name, t in times.items()}
    pq.write_table(pa.table({**windows, "stage": ["random"] * len(starts_s)}), tmp_path / "windows.parquet")
    card = from_folder(tmp_path, "gpu0")
    instant, averaged = card["sensors"]["gpu_power_w"], card["sensors"]["gpu_power_average_w"]
    assert instant["duty"] == pytest.approx(0.25, rel=0.1)
    assert averaged["window_s"] == pytest.approx(1.0, rel=0.1)
    assert averaged["duty"] == 1.0
    assert card["energy_counter"]["period_s"] == pytest.approx(0.1, rel=0.05)
    assert card["read_latency_us"]["p50"] >= 0


def test_from_folder_without_files_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no samples.parquet"):
        from_folder(tmp_path, "gpu0")


def test_compare_finds_a_known_change_and_its_interval() -> None:
    chooser = np.random.default_rng(1)
    pair = np.repeat(np.arange(30), 40)
    is_sampled = np.tile(np.repeat([True, False], 20), 30)
    drift = 1 + 0.1 * pair / 30  # a GPU that warms up changes both kinds of block alike
    step_s = 0.01 * drift * np.where(is_sampled, 1.004, 1.0) * chooser.normal(1, 0.002, pair.size)
    found = overhead.compare(pair, is_sampled, step_s)
    assert found.num_pairs == 30
    assert found.change == pytest.approx(0.004, abs=0.0005)
    assert found.low < 0.004 < found.high
    assert found.high - found.low < 0.002


def test_compare_without_pairs_is_refused() -> None:
    with pytest.raises(ValueError, match="no pair"):
        overhead.compare(np.array([0, 0]), np.array([True, True]), np.array([1.0, 1.0]))
