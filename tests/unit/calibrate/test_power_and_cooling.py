"""A recording made up from a known GPU, in the files of `characterise --record`, and what is found in it."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.unit.simulate.heat.machines import CONFIG, machine, uniform_profile
from triplepoint.calibrate.power_and_cooling import PowerAndCooling
from triplepoint.calibrate.recording import read_kernel_table, read_step_log
from triplepoint.config.gpu import GpuConfig
from triplepoint.config.yaml_file import read
from triplepoint.errors import UserError
from triplepoint.simulate.heat.loop import run, start
from triplepoint.simulate.power.gpu import Activity, clock_at_limit, gpu_power_w, rate_at
from triplepoint.simulate.power.parameters import PowerConfig, read_power
from triplepoint.simulate.power.work import FP8_ENERGY

S = 1_000_000_000
GPU = read(GpuConfig, CONFIG / "gpus" / "h200.yaml")
GRID = [
    ("gemm", "bf16", "m=8192 n=8192 k=8192 nt", 0.97, 0.1),
    ("gemm", "bf16", "m=4096 n=4096 k=4096 nt", 0.9, 0.2),
    ("gemm", "bf16", "m=2048 n=2048 k=2048 nt", 0.6, 0.3),
    ("gemm", "fp8", "m=8192 n=8192 k=8192 nt", 0.8, 0.2),
    ("attention", "bf16", "batch=4 heads=32 sequence=2048 head=128 causal", 0.5, 0.1),
    ("memory", "bf16", "32768x16384", 0.0, 0.93),
    ("memory", "bf16", "16384x8192", 0.0, 0.8),
]


def truth() -> PowerConfig:
    known = read_power("h200", CONFIG)
    changes = {"tensor": 960.0, "hbm": 435.0, "leakage": 120.0, "zeros_share": 0.66}
    return known.model_copy(update={
        name: getattr(known, name).model_copy(update={"value": value}) for name, value in changes.items()
    })  # fmt: skip


def record(folder: Path) -> None:
    """Rest, a grid of kernels, heating and cooling: 100 Hz, then 20 Hz."""
    samples: list[dict[str, Any]] = []
    kernels = []
    config, now = truth(), 10 * S
    windows = [{"stage": "idle", "t_start_ns": now, "t_end_ns": now + 5 * S}]
    show(samples, "quick", now, 5.0, 0.01, float(gpu_power_w(config, Activity(0.0), 345.0, 33.0)), 33.0, 345.0)
    now += 6 * S
    for number, (family, dtype, shape, tensor, hbm) in enumerate(GRID):
        for operands, random in (("random", 1.0), ("zero", 0.0)):
            bound = tensor**3 / (tensor**3 + hbm**3)
            peak = GPU.peak_fp8_flops.value if dtype == "fp8" and GPU.peak_fp8_flops else GPU.peak_bf16_flops.value
            # FP8 by its energy; half an operation a byte that streams, 22 of softmax for 1792 of attention.
            energy = tensor * (2 * FP8_ENERGY if dtype == "fp8" else 1.0)
            beside = {"memory": 0.5 * hbm * GPU.memory_bandwidth.value, "attention": 22 / 1792 * tensor * peak}
            sm = beside.get(family, 0.0) / GPU.peak_fp32_flops.value
            free = Activity(1.0, energy, sm, hbm, randomness=random, clock_bound=bound)
            temp = 45.0 + 2 * number
            clock = float(clock_at_limit(config, free, 700.0, temp))
            rate = float(rate_at(clock / 1980, bound))
            power = float(gpu_power_w(config, free.at_rate(rate), clock, temp))
            kernels.append({"kernel": f"k{number}{operands}", "family": family, "dtype": dtype, "operands": operands,
                            "shape": shape, "flops": tensor * rate * peak * 1e-3, "call_s": 1e-3,
                            "min_bytes": hbm * rate * GPU.memory_bandwidth.value * 1e-3, "error": None,
                            "t_start_ns": now, "t_end_ns": now + 3 * S // 2})  # fmt: skip
            show(samples, "quick", now, 1.5, 0.01, power, temp, clock)
            now += 2 * S
    for stage, length in (("before_heating", 5), ("heating", 60), ("cooling", 40)):
        windows.append({"stage": stage, "t_start_ns": now, "t_end_ns": now + length * S})
        now += length * S
    heating(samples, windows[1]["t_start_ns"])
    pq.write_table(pa.Table.from_pylist(samples), folder / "samples.parquet")
    pq.write_table(pa.Table.from_pylist(kernels), folder / "kernels.parquet")
    pq.write_table(pa.Table.from_pylist(windows), folder / "windows.parquet")


def show(samples: list[dict[str, Any]], recording: str, start_ns: int, length_s: float, period_s: float,
         power: float, temp: float, clock: float) -> None:  # fmt: skip
    for k in range(int(length_s / period_s)):
        samples.append({"recording": recording, "device": "gpu0", "t_ns": start_ns + int(k * period_s * S),
                        "gpu_power_w": power, "gpu_temp_c": round(temp), "sm_clock_mhz": clock})  # fmt: skip


def heating(samples: list[dict[str, Any]], start_ns: int) -> None:
    nodes = machine()
    state = start(nodes)
    rest, busy = (uniform_profile(1.0, Activity(*(np.full((1, 8), rate) for rate in rates)))
                  for rates in ((0.0,), (1.0, 0.97, 0.0, 0.1, 0.0, 1.0, 1.0)))  # fmt: skip
    run(nodes, rest, 300.0, state)
    traces = [run(nodes, rest, 5.0, state), run(nodes, busy, 60.0, state), run(nodes, rest, 40.0, state)]
    power, temp = (
        np.concatenate([getattr(trace, name)[:, 0, 1] for trace in traces]) for name in ("power_w", "temp_c")
    )
    for k in range(len(power)):
        show(samples, "default", start_ns + int(k * 0.05 * S), 0.05, 0.05, float(power[k]), float(temp[k]), 1500.0)


@pytest.fixture(scope="module")
def recording(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("h200")
    record(folder)
    return folder


def test_calibrate_finds_what_made_the_recording(recording: Path) -> None:
    procedure = PowerAndCooling(recording, "h200", CONFIG)
    found = procedure.fit(procedure.read())
    *kernels, rest = np.abs(found.power.held_out_error)
    assert max(kernels) < 0.05
    # What a GPU draws at rest, 5 W of 80 off, kernels hardly tell.
    assert rest < 0.08
    assert abs(found.energy_error) < 0.02
    assert len(found.sustained) >= 2 and all(abs(error) < 0.02 for error in found.sustained.values())
    assert found.power.config.tensor.value == pytest.approx(960, rel=0.1)
    assert found.heat.rmse_k[0] < 0.6
    assert found.heat.cooling.die_resistance.value == pytest.approx(0.035, rel=0.05)


def test_read_kernel_table_holds_operands_out_together(recording: Path) -> None:
    table = read_kernel_table(recording, GPU)
    assert table.kernel.count("gemm bf16 m=8192 n=8192 k=8192 nt") == 2
    assert table.kernel[-1] == "rest" and table.activity.awake[-1] == 0  # type: ignore[index]
    assert table.power_w[0] == pytest.approx(700, abs=10)


def test_read_step_log_without_stages(recording: Path, tmp_path: Path) -> None:
    rows = [row for row in pq.read_table(recording / "windows.parquet").to_pylist() if row["stage"] != "cooling"]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "windows.parquet")
    with pytest.raises(UserError, match="no stage cooling, which"):
        read_step_log(tmp_path, GPU)


def test_calibrate_without_files(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"samples.parquet: no such file; record it with"):
        PowerAndCooling(tmp_path, "h200", CONFIG).read()
