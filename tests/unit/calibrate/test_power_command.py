"""`triplepoint calibrate --power`: a recording through the sensors of a GPU that is not as configured gives it back."""

import re
import shutil
from dataclasses import fields
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from tests.unit.calibrate.test_power_and_cooling import S, record
from tests.unit.simulate.heat.machines import CONFIG, machine, uniform_profile
from triplepoint.cli import main
from triplepoint.simulate.heat.loop import Trace, run, start
from triplepoint.simulate.heat.machine import Machine
from triplepoint.simulate.heat.parameters import HeatConfig, read_heat
from triplepoint.simulate.heat.sensor import Sensors, show
from triplepoint.simulate.power.gpu import Activity
from triplepoint.simulate.power.parameters import read_power

COOLING = {"die_resistance": 0.030, "sink_resistance": 0.016, "die_time": 0.26, "sink_time": 9.0}


def cooler() -> HeatConfig:
    known = read_heat("h200", CONFIG)
    air = known.cooling["air"]
    changed = air.model_copy(
        update={name: getattr(air, name).model_copy(update={"value": value}) for name, value in COOLING.items()}
    )
    return known.model_copy(update={"cooling": {**known.cooling, "air": changed}})


def step_to_load() -> Trace:
    """300 s of rest, then 5 s of rest, 180 s of load and 60 s of rest that are recorded."""
    usual = machine()
    nodes = Machine(usual.power, cooler(), usual.airflow, usual.devices, usual.inlet_c)
    state = start(nodes)
    rest, busy = (
        uniform_profile(1.0, Activity(*(np.full((1, 8), rate) for rate in rates)))
        for rates in ((0.0,), (1.0, 0.97, 0.0, 0.1, 0.0, 1.0, 1.0))
    )
    run(nodes, rest, 300.0, state)
    parts = [run(nodes, rest, 5.0, state), run(nodes, busy, 180.0, state), run(nodes, rest, 60.0, state)]
    joined = {
        field.name: np.concatenate([getattr(part, field.name) for part in parts])
        for field in fields(Trace)
        if field.name not in ("period_s", "repeats")
    }
    return Trace(nodes.period_s, **joined)


@pytest.fixture(scope="module")
def recording(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What `record` makes up of kernels; heating and cooling as sensors show them, every 50 ms."""
    folder = tmp_path_factory.mktemp("recording")
    record(folder)
    begin = 1_000 * S
    ends = np.cumsum([0, 5, 180, 60]) * S + begin
    rows = [row for row in pq.read_table(folder / "windows.parquet").to_pylist() if row["stage"] == "idle"]
    for stage, low, high in zip(("before_heating", "heating", "cooling"), ends[:-1], ends[1:], strict=True):
        rows.append({"stage": stage, "t_start_ns": int(low), "t_end_ns": int(high)})
    write(folder / "windows.parquet", rows)
    sample_s = np.arange(0, 245, 0.05)
    sensors = Sensors(cooler().sensors, machine().airflow.packages)
    shown = show(step_to_load(), 0, sensors, sample_s, seed=3)
    samples = [row for row in pq.read_table(folder / "samples.parquet").to_pylist() if row["recording"] == "quick"]
    names = ("gpu_power_w", "gpu_temp_c", "sm_clock_mhz")
    for index, second in enumerate(sample_s):
        values = {name: float(shown[name][index, 1]) for name in names}
        samples.append({"recording": "default", "device": "gpu0", "t_ns": begin + int(second * S)} | values)
    write(folder / "samples.parquet", samples)
    return folder


def write(path: Path, rows: list[dict]) -> None:
    import pyarrow as pa

    pq.write_table(pa.Table.from_pylist(rows), path)


def test_command_finds_power_and_cooling_and_writes_them(
    recording: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tmp_path / "config"
    for part in ("gpus", "power", "heat"):
        shutil.copytree(CONFIG / part, config / part)
    assert main(["calibrate", "--power", str(recording), "--gpu", "h200", "--config", str(config)]) == 0
    told = capsys.readouterr().out
    held_out = re.search(r"left out of the fit: mean error ([\d.]+) %, P90 ([\d.]+) %", told)
    assert held_out and float(held_out[1]) < 2.0 and float(held_out[2]) < 5.0
    fitted, blind = re.findall(r"RMSE ([\d.]+) K", told)
    assert float(fitted) < 0.5, "whole degrees alone are 0.29 K"
    assert float(blind) < 1.0
    read_power.cache_clear()
    read_heat.cache_clear()
    power, air = read_power("h200", config), read_heat("h200", config).cooling["air"]
    assert power.tensor.value == pytest.approx(960, rel=0.05), "configured are 1,020 W"
    assert power.zeros_share.value == pytest.approx(0.66, abs=0.03)
    whole = air.die_resistance.value + air.sink_resistance.value
    assert whole == pytest.approx(0.046, rel=0.03)
    assert air.die_resistance.value == pytest.approx(0.030, rel=0.05), "configured are 0.035 K/W"
    assert air.sink_time.value == pytest.approx(9.0, rel=0.25), "configured are 6 s"
    for name, value in COOLING.items():
        found = getattr(air, name)
        assert 0 < found.sigma < 0.3 * value and str(recording) in found.source
        assert abs(found.value - value) < 3 * found.sigma, name


def test_command_wants_both_recording_and_gpu(recording: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["calibrate", "--power", str(recording)]) == 2
    assert "--power needs --gpu" in capsys.readouterr().err
    assert main(["calibrate", "--power", str(recording), "--gpu", "a100", "--config", str(CONFIG)]) == 2
    assert "the fit starts from this file" in capsys.readouterr().err
